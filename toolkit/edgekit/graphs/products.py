"""The integer products of a quantized graph beside the float nodes that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgekit.graphs.edit import GraphIndex, attribute_of, is_standard
from edgekit.graphs.storage import value_of

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

_BIAS = 2
_MATRIX = 2

Columns = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product on int8 weights.

    Attributes:
        node: the float node.
        read: tensor of the quantized graph that the product reads: of floats on the activation's grid, or, for a
            product that is quantized at run time, before it is put on one.
        dynamic: whether it is quantized at run time.
        weight: initializer of its integers.
        scale: initializer of its weight scales.
        bias: initializer of its int32 bias, which may be changed; empty when there is none.
        bias_scale: initializer of that bias' steps.
        own_scale: whether nothing else reads either of the two, so that they may be changed.
    """

    node: onnx.NodeProto
    read: str
    dynamic: bool
    weight: str
    scale: str
    bias: str = ""
    bias_scale: str = ""
    own_scale: bool = False


def find_products(source: onnx.ModelProto, quantized: onnx.ModelProto) -> list[Product]:
    """Return the products on int8 weights, in the order of the quantized graph.

    Left out are those whose weights others read too, are an output or are read through a Transpose, and forms with
    factors: only what nobody else sees may follow a product's inputs.
    """
    floats = GraphIndex(source.graph)
    index, places = GraphIndex(quantized.graph), {node.name: i for i, node in enumerate(quantized.graph.node)}
    constants = {tensor.name: len(tensor.dims) for tensor in source.graph.initializer}
    found: list[tuple[int, Product]] = []
    for node in source.graph.node:
        if not _plain(node, constants) or not all(_own(name, floats) for name in node.input[1:] if name):
            continue
        twin = places.get(node.name)
        made = _dynamic(node, index) if twin is None else _static(node, index.graph.node[twin], index)
        names = [] if made is None else [made.weight, *([made.bias] if made.bias else [])]
        if made is not None and all(len(index.consumers.get(name, [])) == 1 for name in names):
            reader = index.consumers[made.weight][0]
            found.append((places[reader.name] if twin is None else twin, made))
    return [made for _, made in sorted(found, key=lambda item: item[0])]


def _own(constant: str, index: GraphIndex) -> bool:
    """Say whether one node alone sees a constant."""
    return len(index.consumers.get(constant, [])) == 1 and constant not in index.outputs


def _plain(node: onnx.NodeProto, constants: dict[str, int]) -> bool:
    """Say whether a node is a product of one activation and one constant, with no more than a constant bias.

    `constants` gives the rank of each; a MatMul by a stack of matrices is none.
    """
    if not is_standard(node, "Conv", "MatMul", "Gemm") or node.input[1] not in constants:
        return False
    if node.op_type == "MatMul" and constants[node.input[1]] != _MATRIX:
        return False
    bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
    return (
        (not bias or bias in constants)
        and attribute_of(node, "auto_pad", b"NOTSET") in {b"NOTSET", b"VALID"}
        and not attribute_of(node, "transA", 0)
        and all(attribute_of(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
    )


def _static(node: onnx.NodeProto, twin: onnx.NodeProto, index: GraphIndex) -> Product | None:
    weight, bias = (index.producers.get(twin.input[i]) if len(twin.input) > i else None for i in (1, _BIAS))
    if twin.op_type != node.op_type or not _stored(weight, index):
        return None
    assert weight is not None
    counted = bias is not None and _stored(bias, index)
    steps = [weight.input[1], *([bias.input[1]] if bias is not None and counted else [])]
    return Product(
        node=node,
        read=twin.input[0],
        dynamic=False,
        weight=weight.input[0],
        scale=weight.input[1],
        bias=bias.input[0] if bias is not None and counted else "",
        bias_scale=bias.input[1] if bias is not None and counted else "",
        own_scale=all(_own(name, index) for name in steps),
    )


def _stored(node: onnx.NodeProto | None, index: GraphIndex) -> bool:
    return (
        node is not None
        and node.op_type == "DequantizeLinear"
        and all(name in index.initializers for name in node.input[:2])
    )


def _dynamic(node: onnx.NodeProto, index: GraphIndex) -> Product | None:
    """Walk back from the product's result: Add, Mul, Cast, MatMulInteger."""
    at = index.producers.get(node.output[0])
    for op in ("Add", "Mul", "Cast"):
        if at is not None and at.op_type == op:
            at = index.producers.get(at.input[0])
    if at is None or at.op_type != "MatMulInteger":
        return None
    if at.input[1] not in index.initializers:
        return None
    maker = index.producers.get(at.input[0])
    scale = at.input[1] + "_scale"
    if maker is None or maker.op_type != "DynamicQuantizeLinear" or scale not in index.initializers:
        return None
    return Product(node=node, read=maker.input[0], dynamic=True, weight=at.input[1], scale=scale)


def groups_of(node: onnx.NodeProto) -> int:
    """Return the groups of a product: 1 but for a Conv."""
    return int(attribute_of(node, "group", 1)) if node.op_type == "Conv" else 1


def as_rows(values: npt.NDArray[np.generic], node: onnx.NodeProto) -> npt.NDArray[np.generic]:
    """Return a weight as `[groups, outputs, inputs]`."""
    if node.op_type == "Conv":
        groups = groups_of(node)
        return values.reshape(groups, values.shape[0] // groups, -1)
    transposed = node.op_type == "Gemm" and attribute_of(node, "transB", 0)
    return (values if transposed else values.T)[None]


def from_rows(rows: npt.NDArray[np.generic], node: onnx.NodeProto, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Return what `as_rows` made of a weight of `shape` to its own form."""
    if node.op_type == "Conv":
        return rows.reshape(shape)
    transposed = node.op_type == "Gemm" and attribute_of(node, "transB", 0)
    return np.ascontiguousarray(rows[0] if transposed else rows[0].T)


def input_columns(x: npt.NDArray[np.float32], node: onnx.NodeProto, kernel: tuple[int, ...]) -> Columns:
    """Return what each output of a product is computed from.

    Args:
        x: its input: `[n, channels, ...]` for a Conv, `[..., K]` else.
        node: the product.
        kernel: a Conv's kernel; empty else.

    Returns:
        `[groups, K, columns]`.
    """
    if node.op_type != "Conv":
        return np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T)[None]
    rank, groups = len(kernel), groups_of(node)
    pads = attribute_of(node, "pads", [0] * (2 * rank))
    strides, dilations = (attribute_of(node, name, [1] * rank) for name in ("strides", "dilations"))
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    extent = tuple((size - 1) * gap + 1 for size, gap in zip(kernel, dilations, strict=True))
    axes = tuple(range(2, 2 + rank))
    windows = np.lib.stride_tricks.sliding_window_view(padded, extent, axis=axes)
    places = tuple(slice(None, None, step) for step in strides)
    inside = tuple(slice(None, None, gap) for gap in dilations)
    windows = windows[(slice(None), slice(None), *places, *inside)]
    order = (1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
    columns = windows.transpose(order)
    inputs = x.shape[1] // groups * int(np.prod(kernel))
    return np.ascontiguousarray(columns).reshape(groups, inputs, -1)


def output_columns(y: npt.NDArray[np.float32], node: onnx.NodeProto) -> Columns:
    """Return a product's output as `[groups, outputs, columns]`, in the order of `input_columns`."""
    if node.op_type != "Conv":
        return np.ascontiguousarray(y.reshape(-1, y.shape[-1]).T)[None]
    groups = groups_of(node)
    return np.ascontiguousarray(np.moveaxis(y, 1, 0)).reshape(groups, y.shape[1] // groups, -1)


def constant(model: onnx.ModelProto, name: str, folder: Path | None = None) -> npt.NDArray[np.generic]:
    """Return an initializer's values."""
    found = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    return value_of(found, folder)


def replace_constant(model: onnx.ModelProto, name: str, values: npt.NDArray[np.generic]) -> None:
    """Give an initializer other values."""
    import onnx

    found = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    found.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
