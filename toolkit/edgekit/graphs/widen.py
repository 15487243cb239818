"""Graphs in float16, bfloat16 or float64 as float32 graphs, for work that needs float32 arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgekit.events import Finding
from edgekit.graphs.edit import GraphIndex, graphs_in
from edgekit.graphs.storage import element_count, tensors_in, value_of

if TYPE_CHECKING:
    import onnx

WIDENED = "widened-to-float32"
"""Rule of the finding that tells of float16 or bfloat16 that became float32."""

NARROWED = "narrowed-to-float32"
"""Rule of the finding that tells of float64 that became float32."""

_MATRIX = 2


def widen(model: onnx.ModelProto, folder: Path) -> list[Finding]:
    """Let a graph that computes in float16, bfloat16 or float64 compute in float32, in place.

    float16 and float64 inputs and outputs keep their type (a Cast stands behind or before them); bfloat16 ones become
    float32, because numpy and the runtimes' Python interfaces cannot feed them. float64 is left where it is when most
    weights are not: a sum in it here and there is meant.

    Returns:
        Notes of what became float32.
    """
    from onnx import TensorProto

    half, brain, double = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
    found: set[int] = {kind for kind in (half, brain) if _uses(model, kind)}
    if _weighs(model, double) > _weighs(model, TensorProto.FLOAT):
        found.add(double)
    if not found:
        return []
    for tensor in list(tensors_in(model)):
        if tensor.data_type in found:
            _retype_tensor(tensor, folder)
    _retype(model, found)
    for kind in found - {brain}:
        _cast_edges(model.graph, kind)
    text = "the model computes in {}, which this step cannot run: it was converted to float32 first{}"
    names = " and ".join(name for kind, name in ((half, "float16"), (brain, "bfloat16")) if kind in found)
    edges = "; its bfloat16 inputs and outputs are float32 now" if brain in found else ""
    told = [(WIDENED, text.format(names, edges))] if names else []
    told += [(NARROWED, text.format("float64", ""))] if double in found else []
    return [Finding(severity="note", node="", rule=rule, text=words) for rule, words in told]


def _weighs(model: onnx.ModelProto, kind: int) -> int:
    """Count the elements of a model's matrices of one type."""
    tensors = (tensor for tensor in tensors_in(model) if tensor.data_type == kind and len(tensor.dims) >= _MATRIX)
    return sum(element_count(tensor.dims) for tensor in tensors)


def _retype(model: onnx.ModelProto, kinds: set[int]) -> None:
    """Let nodes make float32 where they made one of `kinds`; inputs and outputs too, but those of the model stay.

    bfloat16 ones do not stay.
    """
    from onnx import TensorProto

    for graph in graphs_in(model.graph):
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in {"to", "dtype", "stash_type", "output_dtype"} and attribute.i in kinds:
                    attribute.i = TensorProto.FLOAT
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            kind = value.type.tensor_type.elem_type
            if kind == TensorProto.BFLOAT16 or (kind in kinds and graph is not model.graph):
                value.type.tensor_type.elem_type = TensorProto.FLOAT


def _uses(model: onnx.ModelProto, kind: int) -> bool:
    values = (value for graph in graphs_in(model.graph) for value in (*graph.input, *graph.output))
    if any(value.type.tensor_type.elem_type == kind for value in values):
        return True
    if any(tensor.data_type == kind for tensor in tensors_in(model)):
        return True
    nodes = (node for graph in graphs_in(model.graph) for node in graph.node)
    return any(attribute.name == "to" and attribute.i == kind for node in nodes for attribute in node.attribute)


def _retype_tensor(tensor: onnx.TensorProto, folder: Path) -> None:
    import onnx

    values = np.asarray(value_of(tensor, folder))
    if values.dtype == np.float64:
        most = np.finfo(np.float32).max
        values = np.where(np.isfinite(values), np.clip(values, -most, most), values)
    values = values.astype(np.float32)
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


def _cast_edges(graph: onnx.GraphProto, kind: int) -> None:
    """Let inputs and outputs keep a type that nothing inside has any longer."""
    import onnx

    single = onnx.TensorProto.FLOAT
    index = GraphIndex(graph)
    taken = {value.name for value in graph.input}
    before, after = [], []
    for value in graph.input:
        if value.type.tensor_type.elem_type == kind:
            inner = index.fresh_name(value.name + "_float32")
            _reread(graph, value.name, inner)
            before.append(onnx.helper.make_node("Cast", [value.name], [inner], name=inner + "_in", to=single))
    for value in graph.output:
        if value.type.tensor_type.elem_type == kind and value.name not in taken:
            inner = index.fresh_name(value.name + "_float32")
            _reread(graph, value.name, inner)
            _remake(graph, value.name, inner)
            after.append(onnx.helper.make_node("Cast", [inner], [value.name], name=inner + "_out", to=kind))
    nodes = [*before, *(type(node).FromString(node.SerializeToString()) for node in graph.node), *after]
    del graph.node[:]
    graph.node.extend(nodes)


def _remake(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Give a tensor another name where it is made or stored."""
    for node in graph.node:
        for position, name in enumerate(node.output):
            if name == old:
                node.output[position] = new
    for tensor in graph.initializer:
        if tensor.name == old:
            tensor.name = new


def _reread(graph: onnx.GraphProto, old: str, new: str) -> None:
    for inner in graphs_in(graph):
        for node in inner.node:
            for position, name in enumerate(node.input):
                if name == old:
                    node.input[position] = new
        for value in inner.output:
            if inner is not graph and value.name == old:
                value.name = new
