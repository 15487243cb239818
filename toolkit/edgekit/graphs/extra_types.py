"""Output types that onnx's shape inference does not know: onnxruntime's operators, some functions of old opsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from edgekit.graphs.edit import attribute_of

if TYPE_CHECKING:
    import onnx

_LIKE_FIRST = frozenset(
    {
        "BiasGelu",
        "BiasSplitGelu",
        "FastGelu",
        "Gelu",
        "QuickGelu",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "SimplifiedLayerNormalization",
        "RotaryEmbedding",
        "QLinearLeakyRelu",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "NhwcMaxPool",
        "BiasSoftmax",
        "GatedRelativePositionBias",
    }
)
_MATMUL = frozenset({"FusedMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FusedMatMulActivation"})


_BROADCAST_FUNCTIONS = frozenset({"GreaterOrEqual", "LessOrEqual"})
_UNARY_FUNCTIONS = frozenset({"MeanVarianceNormalization", "GroupNormalization", "Celu", "Mish"})


def function_outputs(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> dict[str, onnx.TypeProto]:
    """Return the output types of standard operators that are defined as functions and not inferred in every opset."""
    import onnx

    if node.op_type in _BROADCAST_FUNCTIONS:
        found = _broadcast(types[node.input[0]], types[node.input[1]])
        return {node.output[0]: _like(found, onnx.TensorProto.BOOL)}
    if node.op_type in _UNARY_FUNCTIONS:
        first = types[node.input[0]]
        return {node.output[0]: _like(first, first.tensor_type.elem_type)}
    return {}


def contrib_outputs(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> dict[str, onnx.TypeProto]:
    """Return the types of the outputs that can be told; the rest is left out.

    Args:
        node: a node of another domain than ONNX's own.
        types: the types of its inputs.
    """
    import onnx

    kinds = [types.get(name) if name else None for name in node.input]
    first = kinds[0] if kinds else None
    if node.domain != "com.microsoft" or first is None or not first.tensor_type.HasField("shape"):
        return {}
    float_type = first.tensor_type.elem_type
    if node.op_type in _LIKE_FIRST:
        return {node.output[0]: _like(first, float_type)}
    found: dict[str, onnx.TypeProto] = {}
    if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
        like = 2 if node.op_type == "QuantizeLinear" else 1  # the zero point, the scale
        given = kinds[like] if len(kinds) > like else None
        found = {node.output[0]: _like(first, onnx.TensorProto.UINT8 if given is None else given.tensor_type.elem_type)}
    elif node.op_type == "MatMulNBits":
        found = {node.output[0]: _like(first, float_type)}
        _set(found[node.output[0]].tensor_type.shape.dim[-1], int(attribute_of(node, "N")))
    elif node.op_type in _MATMUL and (second := kinds[1]) is not None:
        found = _matmul(node, first, second)
    elif node.op_type in {"QLinearAdd", "QLinearMul"} and (second := kinds[3]) is not None:
        found = {node.output[0]: _broadcast(first, second)}
    return found


def _like(kind: onnx.TypeProto, element_type: int) -> onnx.TypeProto:
    copy: onnx.TypeProto = type(kind).FromString(kind.SerializeToString())
    copy.tensor_type.elem_type = element_type
    return copy


def _set(dim: onnx.TensorShapeProto.Dimension, value: int) -> None:
    dim.Clear()
    dim.dim_value = value


def _dims(kind: onnx.TypeProto) -> list[int] | None:
    dims = [dim.dim_value for dim in kind.tensor_type.shape.dim if dim.HasField("dim_value")]
    return dims if len(dims) == len(kind.tensor_type.shape.dim) else None


def _broadcast(a: onnx.TypeProto, b: onnx.TypeProto) -> onnx.TypeProto:
    import onnx

    one, two = _dims(a), _dims(b)
    if one is None or two is None:
        return _like(a, a.tensor_type.elem_type) if len(one or []) >= len(two or []) else b
    return onnx.helper.make_tensor_type_proto(a.tensor_type.elem_type, np.broadcast_shapes(tuple(one), tuple(two)))


def _matmul(node: onnx.NodeProto, a: onnx.TypeProto, b: onnx.TypeProto) -> dict[str, onnx.TypeProto]:
    import onnx

    left, right = _dims(a), _dims(b)
    if left is None or right is None or len(left) < 2 or len(right) < 2:  # noqa: PLR2004 - matrices
        return {}
    if attribute_of(node, "transA", 0):
        left[-1], left[-2] = left[-2], left[-1]
    if attribute_of(node, "transB", 0):
        right[-1], right[-2] = right[-2], right[-1]
    batch = np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2]))
    integer = node.op_type in {"MatMulIntegerToFloat", "DynamicQuantizeMatMul"}
    element_type = onnx.TensorProto.FLOAT if integer else a.tensor_type.elem_type
    return {node.output[0]: onnx.helper.make_tensor_type_proto(element_type, (*batch, left[-2], right[-1]))}
