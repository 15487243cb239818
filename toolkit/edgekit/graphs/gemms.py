"""Matrix products with a bias in the one form that integer kernels have: a Gemm without factors and a vector bias."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.graphs.edit import GraphIndex, attribute_of, graphs_in, is_standard
from edgekit.graphs.storage import is_external

if TYPE_CHECKING:
    import onnx

_MATRIX = 2


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Set an attribute, whether the node has it or not."""
    import onnx

    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])


def joinable(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Return the first operands of products that `join_products` joins when these are matrices."""
    index = GraphIndex(model.graph, folder)
    return [node.input[0] for node in model.graph.node if _product_and_bias(index, node) is not None]


def join_products(model: onnx.ModelProto, folder: Path, ranks: Mapping[str, int]) -> None:
    """Join a MatMul of matrices and the Add of a constant vector behind it into a Gemm, in the main graph.

    onnxruntime joins them itself before it looks for integer kernels, and then finds none for the float bias.

    Args:
        model: the model to change.
        folder: where its external data lies.
        ranks: tensor name -> rank, see `joinable`.
    """
    index = GraphIndex(model.graph, folder)
    gone = []
    for node in model.graph.node:
        found = _product_and_bias(index, node)
        if found is not None and ranks.get(node.input[0]) == _MATRIX:
            addition, bias = found
            node.op_type = "Gemm"
            node.input.append(bias)
            node.output[0] = addition.output[0]
            gone.append(addition)
    for addition in gone:
        model.graph.node.remove(addition)


def _product_and_bias(index: GraphIndex, node: onnx.NodeProto) -> tuple[onnx.NodeProto, str] | None:
    weight = index.initializers.get(node.input[1]) if is_standard(node, "MatMul") else None
    after = index.only_consumer(node.output[0])
    if weight is None or len(weight.dims) != _MATRIX or after is None or not is_standard(after, "Add"):
        return None
    other = after.input[0] if after.input[1] == node.output[0] else after.input[1]
    bias = index.initializers.get(other)
    if bias is None or list(bias.dims) != [weight.dims[1]] or bias.data_type != weight.data_type:
        return None
    return after, other


def plain_gemms(root: onnx.GraphProto, graph: onnx.GraphProto, folder: Path) -> None:
    """Fold alpha and beta of a Gemm into constants; a bias that is no vector over the outputs becomes an Add."""
    index = GraphIndex(graph, folder)
    shared = {name for inner in graphs_in(root) if inner is not graph for node in inner.node for name in node.input}
    extra: list[tuple[int, onnx.NodeProto]] = []
    for position, node in enumerate(graph.node):
        if is_standard(node, "Gemm"):
            for operand, factor in ((1, "alpha"), (2, "beta")):
                _fold_factor(index, node, operand, factor, shared)
            if (addition := _split_bias(index, node)) is not None:
                extra.append((position + 1, addition))
    for offset, (position, addition) in enumerate(extra):
        graph.node.insert(position + offset, addition)


def _fold_factor(index: GraphIndex, node: onnx.NodeProto, operand: int, factor: str, shared: set[str]) -> None:
    import onnx

    value = float(attribute_of(node, factor, 1.0))
    if value == 1.0:
        return
    name = node.input[operand] if len(node.input) > operand else ""
    tensor = index.initializers.get(name)
    if name and (tensor is None or len(index.consumers[name]) > 1 or name in shared or name in index.outputs):
        return
    if tensor is not None:
        values = index.value(name)
        assert values is not None
        tensor.CopyFrom(onnx.numpy_helper.from_array((values * np.float32(value)).astype(values.dtype), name))
    elif factor == "alpha":
        return
    set_attribute(node, factor, 1.0)


def _split_bias(index: GraphIndex, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """Take a bias that is no constant vector over the outputs out of a Gemm; return the Add that takes its place."""
    import onnx

    if len(node.input) < 3 or not node.input[2] or attribute_of(node, "beta", 1.0) != 1.0:  # noqa: PLR2004 - A, B, C
        return None
    bias = index.initializers.get(node.input[2])
    weight = index.initializers.get(node.input[1])
    if weight is None:
        return None
    width = weight.dims[0 if attribute_of(node, "transB", 0) else 1]
    if bias is not None and list(bias.dims) in ([width], [1, width]):
        if len(bias.dims) > 1 and not is_external(bias) and len(index.consumers[bias.name]) == 1:
            bias.dims[:] = [width]
        return None
    product = index.fresh_name(node.output[0] + "_product")
    addition = onnx.helper.make_node("Add", [product, node.input[2]], [node.output[0]], name=node.name + "_bias")
    node.output[0] = product
    del node.input[2]
    return addition
