"""ONNX operators in torch, differentiable: what `graph_module` runs a graph with.

Each function takes a node's inputs (None where one is left out) and its attributes, and returns a tensor or a tuple.
The semantics are those of the ONNX specification; opset 13 to 21 of the default domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Attributes = dict[str, Any]
Operator = Callable[[list[Any], Attributes], Any]

_SELU = (1.6732632423543772, 1.0507009873554805)

OPERATORS: dict[str, Operator] = {}
"""Operator type -> what computes it."""


def operator(*names: str) -> Callable[[Operator], Operator]:
    """Enter a function under the names of operators."""

    def enter(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return enter


def enter_elementwise() -> None:
    """Enter the operators that torch has under the same meaning; torch is imported here, not with this module."""
    import torch
    from torch.nn import functional as f

    one: dict[str, Callable[..., Any]] = {
        "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Erf": torch.erf, "Exp": torch.exp,
        "Log": torch.log, "Sqrt": torch.sqrt, "Neg": torch.neg, "Abs": torch.abs, "Floor": torch.floor,
        "Ceil": torch.ceil, "Round": torch.round, "Reciprocal": torch.reciprocal, "Sin": torch.sin, "Cos": torch.cos,
        "Sign": torch.sign, "Tan": torch.tan, "Atan": torch.atan, "Asin": torch.asin, "Acos": torch.acos,
        "Sinh": torch.sinh, "Cosh": torch.cosh, "IsInf": torch.isinf,
        "Softplus": f.softplus, "Softsign": f.softsign, "Not": torch.logical_not,
        "HardSwish": f.hardswish, "Mish": f.mish, "IsNaN": torch.isnan, "Identity": lambda x: x, "Dropout": lambda x: x,
    }  # fmt: skip
    two: dict[str, Callable[..., Any]] = {
        "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Equal": torch.eq, "Greater": torch.gt,
        "Less": torch.lt, "GreaterOrEqual": torch.ge, "LessOrEqual": torch.le, "And": torch.logical_and,
        "Or": torch.logical_or, "Xor": torch.logical_xor, "MatMul": torch.matmul, "PRelu": _prelu,
        "Pow": lambda x, y: torch.pow(x, y.to(x.dtype)),
        "Div": lambda x, y: x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc"),
    }  # fmt: skip
    OPERATORS.update({name: _on_first(function) for name, function in one.items()})
    OPERATORS.update({name: _on_two(function) for name, function in two.items()})
    more: dict[str, Operator] = {
        "Where": lambda x, _a: torch.where(x[0].bool(), x[1], x[2]),
        "Max": lambda x, _a: _fold(torch.maximum, x),
        "Min": lambda x, _a: _fold(torch.minimum, x),
        "Sum": lambda x, _a: _fold(torch.add, x),
        "LeakyRelu": lambda x, a: f.leaky_relu(x[0], a.get("alpha", 0.01)),
        "Elu": lambda x, a: f.elu(x[0], a.get("alpha", 1.0)),
        "HardSigmoid": lambda x, a: (a.get("alpha", 0.2) * x[0] + a.get("beta", 0.5)).clamp(0, 1),
        "Gelu": lambda x, a: f.gelu(x[0], approximate=_text(a.get("approximate", "none"))),
        "Clip": lambda x, _a: _clip(x[0], *[*x[1:], None, None][:2]),
        "Softmax": lambda x, a: f.softmax(x[0], a.get("axis", -1)),
        "LogSoftmax": lambda x, a: f.log_softmax(x[0], a.get("axis", -1)),
        "Mod": lambda x, a: torch.fmod(x[0], x[1]) if a.get("fmod", 0) else torch.remainder(x[0], x[1]),
        "CumSum": lambda x, a: _running_sum(x[0], int(x[1]), a),
        "Selu": lambda x, a: a.get("gamma", _SELU[1]) * f.elu(x[0], a.get("alpha", _SELU[0])),
        "Celu": lambda x, a: f.celu(x[0], a.get("alpha", 1.0)),
        "ThresholdedRelu": lambda x, a: torch.where(x[0] > a.get("alpha", 1.0), x[0], torch.zeros_like(x[0])),
        "Swish": lambda x, a: x[0] * torch.sigmoid(a.get("alpha", 1.0) * x[0]),
        "Mean": lambda x, _a: _fold(torch.add, x) / len(x),
        "Einsum": lambda x, a: torch.einsum(_text(a["equation"]), *x),
    }
    OPERATORS.update(more)


def _on_first(function: Callable[..., Any]) -> Operator:
    return lambda x, _a: function(x[0])


def _on_two(function: Callable[..., Any]) -> Operator:
    return lambda x, _a: function(x[0], x[1])


def _fold(function: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    found = values[0]
    for value in values[1:]:
        found = function(found, value)
    return found


def _running_sum(x: torch.Tensor, axis: int, a: Attributes) -> Any:
    found = x.flip(axis) if a.get("reverse", 0) else x
    sums = found.cumsum(axis)
    sums = sums - found if a.get("exclusive", 0) else sums
    return sums.flip(axis) if a.get("reverse", 0) else sums


def _prelu(x: torch.Tensor, slope: torch.Tensor) -> Any:
    import torch

    return torch.where(x < 0, slope * x, x)


def _clip(x: torch.Tensor, low: torch.Tensor | None, high: torch.Tensor | None) -> Any:
    return x if low is None and high is None else x.clamp(low, high)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# --- products ---------------------------------------------------------------------------------------------------------


@operator("Gemm")
def _gemm(x: list[Any], a: Attributes) -> Any:
    left = x[0].transpose(0, 1) if a.get("transA", 0) else x[0]
    right = x[1].transpose(0, 1) if a.get("transB", 0) else x[1]
    found = a.get("alpha", 1.0) * (left @ right)
    return found if len(x) < 3 or x[2] is None else found + a.get("beta", 1.0) * x[2]  # noqa: PLR2004


@operator("Conv")
def _conv(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    axes = x[1].dim() - 2
    strides, dilations = _sizes(a, "strides", axes), _sizes(a, "dilations", axes)
    data = _padded(x[0], _pads(a, x[0].shape[2:], x[1].shape[2:], strides, dilations))
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[axes - 1]
    bias = x[2] if len(x) > 2 else None  # noqa: PLR2004 - data, weight, bias
    return convolve(data, x[1], bias, stride=strides, dilation=dilations, groups=a.get("group", 1))


@operator("ConvTranspose")
def _conv_transpose(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    axes = x[1].dim() - 2
    pads = a.get("pads", [0] * (2 * axes))
    if _text(a.get("auto_pad", "NOTSET")) != "NOTSET" or "output_shape" in a:
        raise NotImplementedError("ConvTranspose with auto_pad or output_shape")
    more = [max(end - begin, 0) for begin, end in zip(pads[:axes], pads[axes:], strict=True)]
    less = [max(begin - end, 0) for begin, end in zip(pads[:axes], pads[axes:], strict=True)]
    convolve = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[axes - 1]
    found = convolve(
        x[0],
        x[1],
        x[2] if len(x) > 2 else None,  # noqa: PLR2004 - data, weight, bias
        stride=_sizes(a, "strides", axes),
        padding=[min(pair) for pair in zip(pads[:axes], pads[axes:], strict=True)],
        output_padding=a.get("output_padding", [0] * axes),
        groups=a.get("group", 1),
        dilation=_sizes(a, "dilations", axes),
    )
    for axis in range(axes):  # what is padded more at one end is cut off there
        if more[axis] or less[axis]:
            found = found.narrow(axis + 2, less[axis], found.shape[axis + 2] - less[axis] - more[axis])
    return found


def _sizes(a: Attributes, name: str, axes: int) -> list[int]:
    return list(a.get(name, [1] * axes))


def _pads(
    a: Attributes, shape: Sequence[int], kernel: Sequence[int], strides: list[int], dilations: list[int]
) -> list[int]:
    """Return ONNX pads: all begins, then all ends."""
    auto = _text(a.get("auto_pad", "NOTSET"))
    if auto == "NOTSET":
        return list(a.get("pads", [0] * (2 * len(kernel))))
    if auto == "VALID":
        return [0] * (2 * len(kernel))
    begins, ends = [], []
    for size, width, stride, dilation in zip(shape, kernel, strides, dilations, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        less, more = total // 2, total - total // 2
        begins.append(less if auto == "SAME_UPPER" else more)
        ends.append(more if auto == "SAME_UPPER" else less)
    return begins + ends


def _padded(x: Any, pads: list[int], value: float = 0.0) -> Any:
    from torch.nn import functional

    half = len(pads) // 2
    turned = [pads[side * half + axis] for axis in reversed(range(half)) for side in (0, 1)]
    return functional.pad(x, turned, value=value) if any(pads) else x


# --- pooling and norms ------------------------------------------------------------------------------------------------


@operator("MaxPool")
def _max_pool(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    kernel = list(a["kernel_shape"])
    strides, dilations = _sizes(a, "strides", len(kernel)), _sizes(a, "dilations", len(kernel))
    data = _padded(x[0], _pads(a, x[0].shape[2:], kernel, strides, dilations), value=-math.inf)
    pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[len(kernel) - 1]
    return pool(data, kernel, strides, 0, dilations, ceil_mode=bool(a.get("ceil_mode", 0)))


@operator("AveragePool")
def _average_pool(x: list[Any], a: Attributes) -> Any:
    import torch
    from torch.nn import functional

    kernel = list(a["kernel_shape"])
    strides = _sizes(a, "strides", len(kernel))
    pads = _pads(a, x[0].shape[2:], kernel, strides, [1] * len(kernel))
    pool = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[len(kernel) - 1]
    half = len(kernel)
    if _sizes(a, "dilations", half) != [1] * half:
        raise NotImplementedError("AveragePool with dilations")
    if a.get("ceil_mode", 0):
        if pads[:half] != pads[half:]:
            raise NotImplementedError("AveragePool with ceil_mode and uneven pads")
        counted = bool(a.get("count_include_pad", 0))
        return pool(x[0], kernel, strides, pads[:half], ceil_mode=True, count_include_pad=counted)
    found = pool(_padded(x[0], pads), kernel, strides)
    if any(pads) and not a.get("count_include_pad", 0):
        found = found / pool(_padded(torch.ones_like(x[0]), pads), kernel, strides)
    return found


@operator("LpPool")
def _lp_pool(x: list[Any], a: Attributes) -> Any:
    kernel, power = list(a["kernel_shape"]), a.get("p", 2)
    plain = {key: value for key, value in a.items() if key != "p"} | {"count_include_pad": 1}
    return (_average_pool([x[0].abs().pow(power)], plain) * math.prod(kernel)).pow(1 / power)


@operator("GlobalAveragePool")
def _global_average(x: list[Any], _a: Attributes) -> Any:
    return x[0].mean(tuple(range(2, x[0].dim())), keepdim=True)


@operator("GlobalMaxPool")
def _global_max(x: list[Any], _a: Attributes) -> Any:
    return x[0].amax(tuple(range(2, x[0].dim())), keepdim=True)


@operator("BatchNormalization")
def _batch_norm(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    return functional.batch_norm(x[0], x[3], x[4], x[1], x[2], training=False, eps=a.get("epsilon", 1e-5))


@operator("LayerNormalization")
def _layer_norm(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    shape = x[0].shape[a.get("axis", -1) :]
    bias = x[2] if len(x) > 2 else None  # noqa: PLR2004 - data, scale, bias
    return functional.layer_norm(x[0], shape, x[1], bias, a.get("epsilon", 1e-5))


@operator("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(x: list[Any], a: Attributes) -> Any:
    axes = tuple(range(a.get("axis", -1) % x[0].dim(), x[0].dim()))
    return x[0] * (x[0].pow(2).mean(axes, keepdim=True) + a.get("epsilon", 1e-5)).rsqrt() * x[1]


@operator("InstanceNormalization")
def _instance_norm(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    return functional.instance_norm(x[0], weight=x[1], bias=x[2], eps=a.get("epsilon", 1e-5))


@operator("GroupNormalization")
def _group_norm(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    scale, bias = (
        value if len(value) == x[0].shape[1] else value.repeat_interleave(x[0].shape[1] // len(value))
        for value in x[1:]
    )
    return functional.group_norm(x[0], a["num_groups"], scale, bias, a.get("epsilon", 1e-5))
