"""Small graphs whose run times tell the constants of a machine: each spends its time in one or a few kinds of kernels.

Weights are seeded noise. Some are single layers, which tell one constant each; some are small networks of usual sizes,
because weights and activations that come from far cost what no single layer shows. None takes more than a few
milliseconds on a CPU core, so that most runs are not interrupted on a machine that has other work too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnx

_OPSET, _IR = 17, 8
_STEP = 0.02
"""Scale of the quantized workouts: values are noise of unit variance."""


@dataclass(frozen=True, kw_only=True)
class Workout:
    """A graph to measure.

    Attributes:
        name: says what it spends its time in; in int8 it ends in `-int8`.
        network: it is made of as many kinds of layers as networks are: errors on it tell what to expect of others.
        model: the graph; its only input is `x`.
        shape: of `x`, float32.
    """

    name: str
    network: bool
    model: onnx.ModelProto
    shape: tuple[int, ...]


class _Sheet:
    """Draws one workout; with an activation type every product is quantized (QDQ)."""

    def __init__(self, shape: Sequence[int], activation: str = "", *, symmetric: bool = False) -> None:
        self.symmetric = symmetric
        self.rng = np.random.default_rng(0)
        self.shape = tuple(shape)
        self.activation = activation
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, values: npt.NDArray[Any]) -> str:
        import onnx

        name = f"c{len(self.tensors)}"
        self.tensors.append(onnx.numpy_helper.from_array(values, name))
        return name

    def noise(self, *shape: int) -> npt.NDArray[np.float32]:
        fan = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]  # noqa: PLR2004 - convolutions
        made: npt.NDArray[np.float32] = self.rng.standard_normal(shape, np.float32) * np.float32((2 / fan) ** 0.5)
        return made

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        import onnx

        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def quantized(self, x: str, *, positive: bool = False) -> str:
        """Put Q and DQ behind a tensor, when this sheet quantizes; `positive` when it has no values below zero."""
        if not self.activation:
            return x
        lowest = 0 if self.activation == "uint8" else -128
        middle = 0 if self.symmetric else lowest + (0 if positive else 128)
        scale = self.constant(np.array(_STEP, np.float32))
        zero = self.constant(np.array(middle, self.activation))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, scale, zero), scale, zero)

    def weight(self, *shape: int) -> str:
        values = self.noise(*shape)
        if not self.activation:
            return self.constant(values)
        scale = np.float32(np.abs(values).max() / 127)
        whole = self.constant(np.clip(np.round(values / scale), -127, 127).astype(np.int8))
        return self.node("DequantizeLinear", whole, self.constant(np.array(scale)), self.constant(np.array(0, np.int8)))

    def conv(self, x: str, taken: int, made: int, kernel: int = 3, *, stride: int = 1, group: int = 1) -> str:
        weight = self.weight(made, taken // group, kernel, kernel)
        attributes = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": group}
        x = self.quantized(x) if x == "x" else x
        return self.quantized(self.node("Relu", self.node("Conv", x, weight, **attributes)), positive=True)

    def linear(self, x: str, taken: int, made: int) -> str:
        y = self.node("MatMul", x, self.weight(taken, made))
        return self.node("Add", y, self.constant(self.noise(made)))

    def done(self, name: str, y: str) -> Workout:
        import onnx

        value = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            self.nodes,
            name,
            [value("x", onnx.TensorProto.FLOAT, self.shape)],
            [value(y, onnx.TensorProto.FLOAT, None)],
            self.tensors,
        )
        opset = onnx.helper.make_opsetid("", _OPSET)
        model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=_IR)
        network = name.removesuffix("-int8") in _NETWORKS
        return Workout(name=name, network=network, model=onnx.shape_inference.infer_shapes(model), shape=self.shape)


def workouts(activation: str = "", *, symmetric: bool = False) -> list[Workout]:
    """Draw the graphs that run in float32 and, when a type is named, those in int8.

    Args:
        activation: the type of quantized tensors, `uint8` or `int8`; empty for none.
        symmetric: their zero point is 0.
    """
    made = [draw(_Sheet(shape), name) for name, shape, draw in _FLOAT]
    if activation:
        chosen = [(f"{name}-int8", shape, draw) for name, shape, draw in _FLOAT if name in _QUANTIZED]
        made += [draw(_Sheet(shape, activation, symmetric=symmetric), name) for name, shape, draw in chosen]
    return made


def _stem(sheet: _Sheet, name: str) -> Workout:
    return sheet.done(name, sheet.conv("x", 3, 32, stride=2))


def _bottleneck(sheet: _Sheet, name: str) -> Workout:
    y = "x"
    for _ in range(2):
        inner = sheet.conv(sheet.conv(y, 256, 64, 1), 64, 64)
        y = sheet.node("Add", sheet.conv(inner, 64, 256, 1), sheet.quantized(y) if y == "x" else y)
        y = sheet.quantized(sheet.node("Relu", y), positive=True)
    return sheet.done(name, y)


def _wide(sheet: _Sheet, name: str) -> Workout:
    """Expand and shrink tensors that second-level caches do not hold."""
    inner = sheet.conv(sheet.conv("x", 32, 96, 1), 96, 96, group=96)
    return sheet.done(name, sheet.conv(inner, 96, 16, 1))


def _mobile(sheet: _Sheet, name: str) -> Workout:
    """Draw inverted residuals: MobileNetV2 (Sandler et al. 2018), half as deep."""
    y = sheet.conv("x", 3, 32, stride=2)
    width = 32
    plan = ((16, 3, 1, 1), (24, 3, 2, 6), (32, 5, 2, 6), (64, 3, 2, 6), (96, 3, 1, 6), (160, 5, 2, 6), (320, 3, 1, 6))
    for wider, kernel, stride, times in plan:
        inner = sheet.conv(y, width, times * width, 1)
        inner = sheet.conv(inner, times * width, times * width, kernel, stride=stride, group=times * width)
        y, width = sheet.conv(inner, times * width, wider, 1), wider
    return sheet.done(name, sheet.conv(y, width, 1280, 1))


def _residual(sheet: _Sheet, name: str) -> Workout:
    """Draw residual blocks at four sizes: ResNet (He et al. 2015)."""
    y = sheet.conv("x", 3, 64, 7, stride=4)
    width = 64
    for wider in (64, 128, 256, 512):
        stride = 1 if wider == width else 2
        inner = sheet.conv(sheet.conv(y, width, wider, stride=stride), wider, wider)
        short = y if stride == 1 else sheet.conv(y, width, wider, 1, stride=2)
        y = sheet.quantized(sheet.node("Relu", sheet.node("Add", inner, short)), positive=True)
        width = wider
    return sheet.done(name, y)


def _split(sheet: _Sheet, name: str) -> Workout:
    """Draw branches that are joined, with SiLU: what detectors are made of."""
    y = sheet.conv("x", 3, 16, stride=2)
    for width in (32, 64, 128, 256):
        y = _silu(sheet, y, width // 2, width, 3, 2)
        parts = [_silu(sheet, y, width, width // 2, 1), _silu(sheet, y, width, width // 2, 1)]
        parts.append(_silu(sheet, _silu(sheet, parts[-1], width // 2, width // 2, 3), width // 2, width // 2, 3))
        y = _silu(sheet, sheet.quantized(sheet.node("Concat", *parts, axis=1)), 3 * width // 2, width, 1)
    return sheet.done(name, y)


def _silu(sheet: _Sheet, x: str, taken: int, made: int, kernel: int, stride: int = 1) -> str:
    attributes = {"strides": [stride] * 2, "pads": [kernel // 2] * 4}
    y = sheet.quantized(sheet.node("Conv", x, sheet.weight(made, taken, kernel, kernel), **attributes))
    return sheet.quantized(sheet.node("Mul", y, sheet.quantized(sheet.node("Sigmoid", y), positive=True)))


def _grouped(sheet: _Sheet, name: str) -> Workout:
    y = sheet.conv("x", 128, 128, group=8)
    return sheet.done(name, sheet.conv(y, 128, 128, 1, group=4))


def _products(sheet: _Sheet, name: str) -> Workout:
    width = sheet.shape[-1]
    y = sheet.linear("x", width, 4 * width)
    return sheet.done(name, sheet.linear(sheet.node("Relu", y), 4 * width, width))


def _encoder(sheet: _Sheet, name: str) -> Workout:
    y, width, heads = "x", sheet.shape[-1], sheet.shape[-1] // 32
    shape = sheet.constant(np.array([1, sheet.shape[1], heads, width // heads]))
    flat = sheet.constant(np.array([1, sheet.shape[1], width]))
    one = sheet.constant(np.ones(width, np.float32))
    for _ in range(2):
        q, k, v = (
            sheet.node("Transpose", sheet.node("Reshape", sheet.linear(y, width, width), shape), perm=order)
            for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        )
        weights = sheet.node("Softmax", sheet.node("MatMul", q, k), axis=-1)
        seen = sheet.node("Transpose", sheet.node("MatMul", weights, v), perm=[0, 2, 1, 3])
        y = sheet.node("Add", y, sheet.linear(sheet.node("Reshape", seen, flat), width, width))
        y = sheet.node("LayerNormalization", y, one, one, axis=-1)
        inner = sheet.linear(y, width, 4 * width)
        bent = sheet.node("Mul", inner, sheet.node("Sigmoid", inner))
        y = sheet.node("Add", y, sheet.linear(bent, 4 * width, width))
        y = sheet.node("LayerNormalization", y, one, one, axis=-1)
    return sheet.done(name, y)


def _recurrent(sheet: _Sheet, name: str) -> Workout:
    steps, _, width = sheet.shape
    weights = [sheet.constant(sheet.noise(1, 4 * width, width)) for _ in range(2)]
    sheet.node("LSTM", "x", *weights, hidden_size=width)
    flat = sheet.constant(np.array([steps, width]))
    return sheet.done(name, sheet.node("Reshape", sheet.nodes[-1].output[0], flat))


def _functions(sheet: _Sheet, name: str) -> Workout:
    y = sheet.node("Softmax", "x", axis=-1)
    one = sheet.constant(np.ones(sheet.shape[-1], np.float32))
    y = sheet.node("LayerNormalization", sheet.node("Transpose", y, perm=[0, 2, 1]), one, one, axis=-1)
    return sheet.done(name, sheet.node("Softmax", sheet.node("Tanh", y), axis=-1))


def _moves(sheet: _Sheet, name: str) -> Workout:
    y = sheet.node("Concat", "x", sheet.node("Transpose", "x", perm=[0, 2, 1]), axis=1)
    return sheet.done(name, sheet.node("Concat", y, y, axis=1))


def _stored(sheet: _Sheet, name: str) -> Workout:
    """Read more weights than caches hold, once each."""
    return sheet.done(name, sheet.linear("x", sheet.shape[-1], 3 * sheet.shape[-1] // 4))


def _many(sheet: _Sheet, name: str) -> Workout:
    y = "x"
    for _ in range(24):
        y = sheet.node("Softmax", sheet.linear(y, sheet.shape[-1], sheet.shape[-1]), axis=-1)
    return sheet.done(name, y)


_Draw = Callable[[_Sheet, str], Workout]
_FLOAT: tuple[tuple[str, tuple[int, ...], _Draw], ...] = (
    ("encoder-32", (1, 32, 256), _encoder),
    ("stem", (1, 3, 192, 192), _stem),
    ("bottleneck", (1, 256, 28, 28), _bottleneck),
    ("inverted-112", (1, 32, 112, 112), _wide),
    ("mobile", (1, 3, 192, 192), _mobile),
    ("residual", (1, 3, 112, 112), _residual),
    ("branches", (1, 3, 224, 224), _split),
    ("grouped", (1, 128, 28, 28), _grouped),
    ("products-16", (1, 16, 384), _products),
    ("encoder", (1, 48, 384), _encoder),
    ("recurrent", (48, 1, 160), _recurrent),
    ("functions", (1, 192, 192), _functions),
    ("moves", (1, 384, 384), _moves),
    ("stored", (1, 4096), _stored),
    ("many", (1, 32), _many),
)
_NETWORKS = frozenset({"mobile", "residual", "branches", "encoder", "encoder-32", "bottleneck"})
_QUANTIZED = frozenset({"mobile", "residual", "branches"})
