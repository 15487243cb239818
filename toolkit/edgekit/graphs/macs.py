"""How many multiply-accumulates (and other operations) one node does, from the shapes of its inputs and outputs.

A convolution counts every tap, those that fall on padding too; that is the convention of published figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from edgekit.errors import InputError
from edgekit.graphs.edit import attribute_of

if TYPE_CHECKING:
    import onnx

Dims = tuple[int, ...]
Shapes = Mapping[str, Dims]
"""Tensor name -> static shape, for every input and output of the node."""

_CONV_WEIGHT = {"QLinearConv": 3, "DeformConv": 1}


def _conv(node: onnx.NodeProto, shapes: Shapes) -> int:
    weight = shapes[node.input[_CONV_WEIGHT.get(node.op_type, 1)]]
    return math.prod(shapes[node.output[0]]) * math.prod(weight[1:])


def _conv_transpose(node: onnx.NodeProto, shapes: Shapes) -> int:
    return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])


def _matmul(node: onnx.NodeProto, shapes: Shapes) -> int:
    left = shapes[node.input[0]]
    depth = left[-2] if attribute_of(node, "transA", 0) and len(left) > 1 else left[-1]
    return math.prod(shapes[node.output[0]]) * depth


def _matmul_nbits(node: onnx.NodeProto, shapes: Shapes) -> int:
    return math.prod(shapes[node.output[0]]) * int(attribute_of(node, "K"))


def _einsum(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Count the naive contraction: one product per combination of labels and operand beyond the first."""
    equation = attribute_of(node, "equation").decode().replace(" ", "")
    sizes: dict[str, int] = {}
    for term, name in zip(equation.partition("->")[0].split(","), node.input, strict=True):
        shape = shapes[name]
        if "..." in term:
            head, tail = term.split("...")
            extra = len(shape) - len(head) - len(tail)
            labels = [*head, *(f".{extra - axis}" for axis in range(extra)), *tail]
        else:
            labels = list(term)
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    return math.prod(sizes.values()) * max(len(node.input) - 1, 0)


def _recurrent(gates: int) -> Callable[[onnx.NodeProto, Shapes], int]:
    def count(node: onnx.NodeProto, shapes: Shapes) -> int:
        x, weight, recurrence = (shapes[name] for name in node.input[:3])
        directions, hidden = recurrence[0], recurrence[-1]
        if node.op_type == "DynamicQuantizeLSTM":
            hidden = recurrence[-2]
        steps, inputs = x[0] * x[1], x[-1]
        if math.prod(weight) != directions * gates * hidden * inputs:
            raise InputError("its weights do not have the shapes of the operator", where=f"node '{node.name}'")
        return steps * directions * gates * hidden * (inputs + hidden)

    return count


def _attention(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Count `Attention` of ONNX (opset 23): scores and weighted sum; inputs (B, heads, S, D) or (B, S, heads x D)."""
    q, k, v = (shapes[name] for name in node.input[:3])
    past = shapes[node.input[4]][2] if len(node.input) > 4 and node.input[4] else 0  # noqa: PLR2004 - past_key
    if len(q) == 4:  # noqa: PLR2004 - heads apart
        return math.prod(q) * (k[2] + past) + q[0] * q[1] * q[2] * (k[2] + past) * v[3]
    heads = int(attribute_of(node, "q_num_heads"))
    kv_heads = int(attribute_of(node, "kv_num_heads"))
    keys = k[1] + past
    return math.prod(q) * keys + q[0] * q[1] * heads * keys * (v[2] // kv_heads)


def _packed_attention(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Count com.microsoft `Attention`: the projection to Q, K, V and the attention itself, without past."""
    x, weight = shapes[node.input[0]], shapes[node.input[1]]
    batch, length, width = x[0], x[1], shapes[node.output[0]][-1]
    keys = length
    if len(node.input) > 4 and node.input[4]:  # noqa: PLR2004 - past: (2, B, heads, S, D)
        keys += shapes[node.input[4]][3]
    return batch * length * math.prod(weight) + 2 * batch * length * keys * width


def _multi_head(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Count com.microsoft `MultiHeadAttention` with separate Q, K, V."""
    q = shapes[node.input[0]]
    key = shapes[node.input[1]] if len(node.input) > 1 and node.input[1] else None
    if len(q) != 3 or key is None:  # noqa: PLR2004 - (B, S, heads x D)
        raise InputError("packed attention is not counted", where=f"node '{node.name}'")
    keys = key[1] if len(key) == 3 else key[2]  # noqa: PLR2004
    if len(node.input) > 6 and node.input[6]:  # noqa: PLR2004 - past_key: (B, heads, S, D)
        keys += shapes[node.input[6]][2]
    return q[0] * q[1] * keys * (q[2] + shapes[node.output[0]][-1])


def _group_query(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Count com.microsoft `GroupQueryAttention`: every query sees the whole past and all new keys."""
    out = shapes[node.output[0]]
    keys = shapes[node.input[0]][1]
    if len(node.input) > 3 and node.input[3]:  # noqa: PLR2004 - past_key: (B, kv_heads, S, D)
        keys += shapes[node.input[3]][2]
    return 2 * math.prod(out) * keys


MACS: dict[str, Callable[[onnx.NodeProto, Shapes], int]] = {
    "Conv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": _conv,
    "FusedConv": _conv,
    "NhwcFusedConv": _conv,
    "DeformConv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _matmul,
    "QGemm": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "FusedMatMul": _matmul,
    "FusedGemm": _matmul,
    "MatMulIntegerToFloat": _matmul,
    "DynamicQuantizeMatMul": _matmul,
    "MatMulNBits": _matmul_nbits,
    "Einsum": _einsum,
    "RNN": _recurrent(1),
    "GRU": _recurrent(3),
    "LSTM": _recurrent(4),
    "DynamicQuantizeLSTM": _recurrent(4),
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _group_query,
}
"""Operators that do multiply-accumulates; `Attention` is told apart by its domain in `macs_of`."""

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "Size", "Constant"})
"""Operators that move no data in any runtime worth the name."""

_PER_OUTPUT = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Relu", "Clip", "Neg", "Abs", "Max", "Min", "Where", "Equal", "Less", "Greater"),
        1,
    ),
    **dict.fromkeys(("And", "Or", "Not", "Xor", "LessOrEqual", "GreaterOrEqual", "Sign", "Floor", "Ceil", "Round"), 1),
    **dict.fromkeys(("LeakyRelu", "PRelu", "HardSigmoid", "ThresholdedRelu", "QuantizeLinear", "DequantizeLinear"), 2),
    **dict.fromkeys(
        ("BatchNormalization", "HardSwish", "Mod", "Sum", "Mean", "Pow", "Sqrt", "Reciprocal", "QLinearAdd"), 2
    ),
    **dict.fromkeys(
        ("Exp", "Log", "Sigmoid", "Tanh", "Erf", "Softplus", "Sin", "Cos", "Elu", "Selu", "Celu", "QLinearMul"), 4
    ),
    **dict.fromkeys(("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Mish", "Softmax", "LogSoftmax", "Swish"), 6),
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"), 8),
    **dict.fromkeys(("SkipLayerNormalization", "SimplifiedLayerNormalization", "LRN", "LpNormalization"), 8),
    "Resize": 4,
    "RotaryEmbedding": 4,
    "GridSample": 8,
}
_PER_INPUT = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ArgMax", "ArgMin", "CumSum", "QLinearGlobalAveragePool"})
_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool", "QLinearAveragePool"})


def macs_of(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Return the exact multiply-accumulates of a node that `does_macs`.

    Raises:
        InputError: its shapes do not fit the operator; names the node.
    """
    count = MACS.get(node.op_type)
    if count is None:
        count = _packed_attention if node.domain == "com.microsoft" else _attention
    try:
        return int(count(node, shapes))
    except (IndexError, TypeError, ValueError, ZeroDivisionError, KeyError) as error:
        raise InputError(
            f"its multiply-accumulates cannot be counted: {error}",
            where=f"node '{node.name}' ({node.op_type})",
            remedy="Check the model with onnx.checker.check_model.",
        ) from None


def does_macs(node: onnx.NodeProto) -> bool:
    """Tell whether a node is one whose multiply-accumulates are counted."""
    known = node.domain in {"", "ai.onnx"} or node.domain.startswith("com.microsoft")
    return known and (node.op_type in MACS or node.op_type == "Attention")


def other_operations(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Return roughly how many additions, comparisons and function evaluations a node does; 0 for data movement."""
    outputs = sum(math.prod(shapes[name]) for name in node.output[:1] if name)
    if node.op_type in _PER_OUTPUT:
        return outputs * _PER_OUTPUT[node.op_type]
    if node.op_type in _POOLS:
        return outputs * int(math.prod(attribute_of(node, "kernel_shape", [1])))
    if node.op_type in _PER_INPUT or node.op_type.startswith("Reduce"):
        return math.prod(shapes[node.input[0]])
    return 0


def is_counted(node: onnx.NodeProto) -> bool:
    """Tell whether a node's work is known: standard operators are, of others only those in the tables."""
    standard = node.domain in {"", "ai.onnx"}
    return standard or does_macs(node) or node.op_type in _PER_OUTPUT or node.op_type in _PER_INPUT | _POOLS
