"""Half precision and bfloat16 graphs as float32 graphs, for work that needs float32 arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgekit.events import Finding
from edgekit.graphs.edit import graphs_in
from edgekit.graphs.storage import tensors_in, value_of

if TYPE_CHECKING:
    import onnx

WIDENED = "widened-to-float32"
"""Rule of the finding that tells of it."""


def widen(model: onnx.ModelProto, folder: Path) -> list[Finding]:
    """Let a graph that computes in float16 or bfloat16 compute in float32, in place.

    float16 inputs and outputs keep their type (a Cast stands behind or before them); bfloat16 ones become float32,
    because numpy and the runtimes' Python interfaces cannot feed them.

    Returns:
        A note when something was widened.
    """
    from onnx import TensorProto

    half, brain = TensorProto.FLOAT16, TensorProto.BFLOAT16
    found: set[int] = {kind for kind in (half, brain) if _uses(model, kind)}
    if not found:
        return []
    for tensor in list(tensors_in(model)):
        if tensor.data_type in found:
            _widen_tensor(tensor, folder)
    _retype(model, found)
    if half in found:
        _cast_edges(model.graph)
    names = " and ".join(("float16" if kind == half else "bfloat16") for kind in sorted(found))
    edges = "; its bfloat16 inputs and outputs are float32 now" if brain in found else ""
    text = f"the model computes in {names}, which this step cannot run: it was converted to float32 first{edges}"
    return [Finding(severity="note", node="", rule=WIDENED, text=text)]


def _retype(model: onnx.ModelProto, kinds: set[int]) -> None:
    """Let nodes make float32 where they made one of `kinds`; inputs and outputs too, but float16 ones of the model."""
    from onnx import TensorProto

    for graph in graphs_in(model.graph):
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in {"to", "dtype", "stash_type", "output_dtype"} and attribute.i in kinds:
                    attribute.i = TensorProto.FLOAT
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            kind = value.type.tensor_type.elem_type
            if kind == TensorProto.BFLOAT16 or (kind == TensorProto.FLOAT16 and graph is not model.graph):
                value.type.tensor_type.elem_type = TensorProto.FLOAT


def _uses(model: onnx.ModelProto, kind: int) -> bool:
    values = (value for graph in graphs_in(model.graph) for value in (*graph.input, *graph.output))
    if any(value.type.tensor_type.elem_type == kind for value in values):
        return True
    if any(tensor.data_type == kind for tensor in tensors_in(model)):
        return True
    nodes = (node for graph in graphs_in(model.graph) for node in graph.node)
    return any(attribute.name == "to" and attribute.i == kind for node in nodes for attribute in node.attribute)


def _widen_tensor(tensor: onnx.TensorProto, folder: Path) -> None:
    import onnx

    values = np.asarray(value_of(tensor, folder)).astype(np.float32)
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


def _cast_edges(graph: onnx.GraphProto) -> None:
    import onnx

    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    before, after = [], []
    for value in graph.input:
        if value.type.tensor_type.elem_type == half:
            inner = value.name + "_float32"
            _reread(graph, value.name, inner)
            before.append(onnx.helper.make_node("Cast", [value.name], [inner], name=f"{value.name}_widen", to=single))
    for value in graph.output:
        if value.type.tensor_type.elem_type == half:
            inner = value.name + "_float32"
            _reread(graph, value.name, inner)
            for node in graph.node:
                for position, name in enumerate(node.output):
                    if name == value.name:
                        node.output[position] = inner
            after.append(onnx.helper.make_node("Cast", [inner], [value.name], name=f"{value.name}_narrow", to=half))
    nodes = [*before, *(type(node).FromString(node.SerializeToString()) for node in graph.node), *after]
    del graph.node[:]
    graph.node.extend(nodes)


def _reread(graph: onnx.GraphProto, old: str, new: str) -> None:
    for inner in graphs_in(graph):
        for node in inner.node:
            for position, name in enumerate(node.input):
                if name == old:
                    node.input[position] = new
        for value in inner.output:
            if inner is not graph and value.name == old:
                value.name = new
