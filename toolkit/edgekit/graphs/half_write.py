"""Writes a float16 plan into a graph, and the float32 graph that rounds as a float16 device does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from edgekit.graphs.canonical import Canonical
from edgekit.graphs.edit import GraphIndex, drop_dead, graphs_in, reads, sort_nodes
from edgekit.graphs.half_plan import HalfPlan, constant_problem
from edgekit.graphs.half_types import HalfTypes
from edgekit.graphs.storage import element_count, value_of

if TYPE_CHECKING:
    import onnx

LEAST_STORED = 1024
"""Elements from which a constant of a float32 node is stored in float16 too, behind a Cast."""


class HalfDraft:
    """One float16 model being written."""

    def __init__(self, source: Canonical, types: HalfTypes, plan: HalfPlan, *, io: Literal["fp32", "fp16"]) -> None:
        """Copy the source."""
        import onnx

        self.model = onnx.ModelProto()
        self.model.CopyFrom(source.model)
        self.folder = source.folder
        self.types, self.plan, self.io = types, plan, io
        self.index = GraphIndex(self.model.graph, source.folder)
        self._casts: dict[tuple[str, int], str] = {}
        self._extra: list[onnx.NodeProto] = []
        self._home: dict[str, int] = {}

    def finished(self) -> onnx.ModelProto:
        """Return the model: chosen nodes in float16, Casts where types meet, constants as their readers want them."""
        from onnx import TensorProto

        graph = self.model.graph
        self._settle_inputs()
        for node in graph.node:
            if node.name in self.plan.half:
                self._home |= dict.fromkeys(self.types.outputs(node), TensorProto.FLOAT16)
                self._retype_attributes(node)
        for node in list(graph.node):
            wanted = set(self.types.inputs(node)) if node.name in self.plan.half else set()
            for position, name in enumerate(node.input):
                if name in self.types.floats:
                    kind = TensorProto.FLOAT16 if position in wanted else TensorProto.FLOAT
                    node.input[position] = self._read(name, kind)
            self._settle_captured(node)
        self._settle_outputs()
        graph.node.extend(self._extra)
        del graph.value_info[:]
        self._store_inner()
        sort_nodes(graph)
        drop_dead(graph)
        return self.model

    def _settle_inputs(self) -> None:
        from onnx import TensorProto

        for value in self.model.graph.input:
            if value.name in self.types.floats:
                self._home[value.name] = TensorProto.FLOAT16 if self.io == "fp16" else TensorProto.FLOAT
                value.type.tensor_type.elem_type = self._home[value.name]

    def _settle_outputs(self) -> None:
        """Give outputs their type: the tensor inside keeps its readers under another name."""
        from onnx import TensorProto

        for value in self.model.graph.output:
            if value.type.tensor_type.elem_type != TensorProto.FLOAT:
                continue
            wanted = TensorProto.FLOAT16 if self.io == "fp16" else TensorProto.FLOAT
            home = self._home.get(value.name, TensorProto.FLOAT)
            value.type.tensor_type.elem_type = wanted
            if home == wanted:
                continue
            inner = self.index.fresh_name(value.name + "_inner")
            self._rename_all(value.name, inner)
            self._cast_node(inner, value.name, wanted)

    def _rename_all(self, old: str, new: str) -> None:
        """Let the node that makes a tensor and all that read it, inner graphs too, know it by another name."""
        for node in (*self.model.graph.node, *self._extra):
            for items in (node.input, node.output):
                for position, name in enumerate(items):
                    if name == old:
                        items[position] = new
        for graph in list(graphs_in(self.model.graph))[1:]:
            _rename(graph, old, new)

    def _retype_attributes(self, node: onnx.NodeProto) -> None:
        import onnx

        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.FLOAT16
            if node.op_type == "ConstantOfShape" and attribute.name == "value":
                filled = onnx.numpy_helper.to_array(attribute.t).astype(np.float16)
                attribute.t.CopyFrom(onnx.numpy_helper.from_array(filled, attribute.t.name))

    def _read(self, name: str, kind: int) -> str:
        """Return the name under which a float tensor can be read in a type, making it when there is none."""
        from onnx import TensorProto

        if name in self.index.initializers:
            return self._constant(name, kind)
        home = self._home.get(name, TensorProto.FLOAT)
        if home == kind:
            return name
        if (name, kind) not in self._casts:
            suffix = "_float16" if kind == TensorProto.FLOAT16 else "_float32"
            self._casts[name, kind] = self.index.fresh_name(name + suffix)
            self._cast_node(name, self._casts[name, kind], kind)
        return self._casts[name, kind]

    def _constant(self, name: str, kind: int) -> str:
        import onnx

        single = kind == onnx.TensorProto.FLOAT
        storable = name not in self.plan.wide
        large = element_count(self.index.initializers[name].dims) >= LEAST_STORED
        if not storable or (single and not large) or name in self.index.outputs:
            return name
        stored = (name, onnx.TensorProto.FLOAT16)
        if stored not in self._casts:
            half = self.index.fresh_name(name + "_float16")
            values = np.asarray(value_of(self.index.initializers[name], self.folder)).astype(np.float16)
            self.model.graph.initializer.append(onnx.numpy_helper.from_array(values, half))
            self._casts[stored] = half
        if not single:
            return self._casts[stored]
        if (name, kind) not in self._casts:
            self._casts[name, kind] = self.index.fresh_name(name + "_float32")
            self._cast_node(self._casts[stored], self._casts[name, kind], kind)
        return self._casts[name, kind]

    def _settle_captured(self, node: onnx.NodeProto) -> None:
        """Let inner graphs read what they take from outside in float32."""
        from onnx import TensorProto

        outside = [name for name in reads(node) if name in self.types.floats and name not in node.input]
        for name in dict.fromkeys(outside):
            wide = self._read(name, TensorProto.FLOAT)
            if wide != name:
                holder = type(self.model.graph)()
                holder.node.append(node)
                for inner in list(graphs_in(holder))[1:]:
                    _rename(inner, name, wide)
                node.CopyFrom(holder.node[0])

    def _cast_node(self, source: str, result: str, kind: int) -> None:
        import onnx

        self._extra.append(onnx.helper.make_node("Cast", [source], [result], name=result + "_Cast", to=kind))

    def _store_inner(self) -> None:
        """Store large constants of inner graphs in float16, behind a Cast."""
        import onnx

        for graph in list(graphs_in(self.model.graph))[1:]:
            outputs = {value.name for value in graph.output}
            for tensor in list(graph.initializer):
                large = tensor.data_type == onnx.TensorProto.FLOAT and element_count(tensor.dims) >= LEAST_STORED
                if not large or tensor.name in outputs:
                    continue
                values = np.asarray(value_of(tensor, self.folder))
                if constant_problem(values):
                    continue
                half = self.index.fresh_name(tensor.name + "_float16")
                cast = onnx.helper.make_node(
                    "Cast", [half], [tensor.name], name=half + "_Cast", to=onnx.TensorProto.FLOAT
                )
                graph.node.insert(0, cast)
                graph.initializer.remove(tensor)
                graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float16), half))


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for inner in graphs_in(graph):
        for node in inner.node:
            for position, name in enumerate(node.input):
                if name == old:
                    node.input[position] = new
        for value in inner.output:
            if value.name == old:
                value.name = new


def emulated(source: Canonical, types: HalfTypes, plan: HalfPlan) -> onnx.ModelProto:
    """Return a float32 graph that rounds everything a float16 node reads and makes to float16.

    onnxruntime runs float16 nodes on the CPU in float32 and drops the Casts between them; the Casts here stay, because
    they lose precision. Values that overflow become infinite, as on a device.
    """
    import onnx
    from onnx import TensorProto, helper

    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    index = GraphIndex(model.graph, source.folder)
    rounded: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []

    def round_to_half(name: str, result: str) -> None:
        half = index.fresh_name(name + "/half")
        nodes.append(helper.make_node("Cast", [name], [half], name=half, to=TensorProto.FLOAT16))
        nodes.append(helper.make_node("Cast", [half], [result], name=result + "/single", to=TensorProto.FLOAT))

    for node in model.graph.node:
        if node.name not in plan.half:
            continue
        for position in types.inputs(node):
            name = node.input[position]
            if name not in rounded:
                rounded[name] = index.fresh_name(name + "/rounded")
                round_to_half(name, rounded[name])
            node.input[position] = rounded[name]
    for node in model.graph.node:
        if node.name in plan.half:
            for position, name in enumerate(node.output):
                if name in types.floats:
                    exact = index.fresh_name(name + "/exact")
                    node.output[position] = exact
                    round_to_half(exact, name)
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]
    sort_nodes(model.graph)
    return model
