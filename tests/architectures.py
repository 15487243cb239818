"""Seeded networks of the common architectures, in the form that exporters write them, at the ranges of trained ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from kinds import INT64, Kind, build, node, value


class Net:
    """A graph in the making: every method adds a layer and returns the name of its output.

    Weights are He-normal and channels differ in size by up to two octaves, as those of trained networks do.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(node(op, list(inputs), [name + "_out"], name=name, **attributes))
        return name + "_out"

    def constant(self, array: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def floats(self, *shape: int, fan: int = 1) -> str:
        values = self.rng.standard_normal(shape) * np.sqrt(2 / fan)
        if len(shape) > 1:
            values *= 2.0 ** self.rng.uniform(-1, 1, (shape[0], *[1] * (len(shape) - 1)))
        return self.constant(values.astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def conv(
        self, x: str, into: int, out: int, kernel: int = 3, *, stride: int = 1, group: int = 1, rank: int = 2
    ) -> str:
        weight = self.floats(out, into // group, *[kernel] * rank, fan=into // group * kernel**rank)
        bias = self.constant((self.rng.standard_normal(out) / 10).astype(np.float32))
        shape = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "pads": [kernel // 2] * 2 * rank}
        return self.add("Conv", x, weight, bias, group=group, **shape)

    def relu(self, x: str) -> str:
        return self.add("Relu", x)

    def silu(self, x: str) -> str:
        return self.add("Mul", x, self.add("Sigmoid", x))

    def linear(self, x: str, into: int, out: int) -> str:
        product = self.add("MatMul", x, self.floats(into, out, fan=2 * into))
        return self.add("Add", product, self.floats(out))

    def norm(self, x: str, width: int) -> str:
        ones = self.constant(np.ones(width, np.float32))
        return self.add("LayerNormalization", x, ones, self.floats(width), axis=-1)

    def gelu(self, x: str) -> str:
        erf = self.add("Erf", self.add("Div", x, self.constant(np.float32(2**0.5))))
        return self.add(
            "Mul",
            self.add("Mul", x, self.add("Add", erf, self.constant(np.float32(1)))),
            self.constant(np.float32(0.5)),
        )

    def head(self, x: str, into: int, out: int) -> str:
        flat = self.add("Flatten", self.add("GlobalAveragePool", x))
        return self.add("Gemm", flat, self.floats(out, into, fan=into), self.floats(out), transB=1)

    def attention(self, x: str, width: int, length: int, heads: int, mask: str = "") -> str:
        def split(name: str, *perm: int) -> str:
            parts = self.add("Reshape", name, self.ints(0, length, heads, width // heads))
            return self.add("Transpose", parts, perm=list(perm))

        query, key, values = (self.linear(x, width, width) for _ in range(3))
        scores = self.add("MatMul", split(query, 0, 2, 1, 3), split(key, 0, 2, 3, 1))
        scores = self.add("Mul", scores, self.constant(np.float32((width // heads) ** -0.5)))
        if mask:
            scores = self.add("Add", scores, mask)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), split(values, 0, 2, 1, 3))
        joined = self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]), self.ints(0, length, width))
        return self.linear(joined, width, width)

    def encoder(self, x: str, width: int, length: int, heads: int, mask: str = "") -> str:
        x = self.add("Add", x, self.attention(self.norm(x, width), width, length, heads, mask))
        wide = self.gelu(self.linear(self.norm(x, width), width, 4 * width))
        return self.add("Add", x, self.linear(wide, 4 * width, width))

    def finish(self, inputs: list[Any], outputs: dict[str, list[Any]]) -> onnx.ModelProto:
        return build(self.nodes, inputs, [value(name, shape) for name, shape in outputs.items()], self.constants)


def pictures(count: int, *shape: int) -> list[dict[str, Any]]:
    """Smooth noise with a mean per channel: neighboring pixels are alike, as in photographs."""
    feeds = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        picture = rng.standard_normal(shape)
        for axis in range(2, len(shape)):
            picture = (picture + np.roll(picture, 1, axis) + np.roll(picture, 2, axis)) / 3**0.5
        feeds.append({"x": (picture + rng.uniform(-1, 1, shape[:2] + (1,) * (len(shape) - 2))).astype(np.float32)})
    return feeds


def plain_cnn() -> Kind:
    net, last = Net(1), "x"
    for into, out in ((3, 16), (16, 32), (32, 64)):
        last = net.add("MaxPool", net.relu(net.conv(last, into, out)), kernel_shape=[2, 2], strides=[2, 2])
    return net.finish([value("x", [1, 3, 32, 32])], {net.head(last, 64, 10): [1, 10]}), pictures(16, 1, 3, 32, 32)


def resnet() -> Kind:
    net = Net(2)
    last = net.relu(net.conv("x", 3, 16, 7, stride=2))
    for into, out in ((16, 16), (16, 32)):
        stride = out // into
        inner = net.conv(net.relu(net.conv(last, into, out, stride=stride)), out, out)
        last = net.relu(net.add("Add", inner, net.conv(last, into, out, 1, stride=stride) if stride > 1 else last))
    return net.finish([value("x", [1, 3, 32, 32])], {net.head(last, 32, 10): [1, 10]}), pictures(16, 1, 3, 32, 32)


def squeeze_excite() -> Kind:
    """Inverted residuals with squeeze and excitation, SiLU and hard sigmoids, as in EfficientNet and MobileNetV3."""
    net = Net(3)
    last = net.silu(net.conv("x", 3, 16, stride=2))
    for _ in range(2):
        wide = net.silu(net.conv(net.silu(net.conv(last, 16, 64, 1)), 64, 64, group=64))
        squeezed = net.silu(net.conv(net.add("GlobalAveragePool", wide), 64, 16, 1))
        gate = net.add("HardSigmoid", net.conv(squeezed, 16, 64, 1), alpha=1 / 6)
        last = net.add("Add", last, net.conv(net.add("Mul", wide, gate), 64, 16, 1))
    return net.finish([value("x", [1, 3, 32, 32])], {net.head(last, 16, 10): [1, 10]}), pictures(16, 1, 3, 32, 32)


def yolo() -> Kind:
    """Split, concat, pooling pyramid, upsampling, and a head of boxes and scores on two scales."""
    net = Net(4)
    stem = net.silu(net.conv("x", 3, 16, stride=2))
    halves = [net.add("Slice", stem, net.ints(start), net.ints(start + 8), net.ints(1)) for start in (0, 8)]
    inner = net.silu(net.conv(net.silu(net.conv(halves[1], 8, 8)), 8, 8))
    wide = net.silu(net.conv(net.add("Concat", *halves, net.add("Add", halves[1], inner), axis=1), 24, 32, 1))
    deep = net.silu(net.conv(wide, 32, 32, stride=2))
    pools = [deep]
    for _ in range(3):
        pools.append(net.add("MaxPool", pools[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    deep = net.silu(net.conv(net.add("Concat", *pools, axis=1), 128, 32, 1))
    up = net.add("Resize", deep, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    fine = net.silu(net.conv(net.add("Concat", up, wide, axis=1), 64, 32, 1))
    rows = []
    for part, cells in ((fine, 256), (deep, 64)):
        boxes, scores = net.conv(part, 32, 4, 1), net.add("Sigmoid", net.conv(part, 32, 5, 1))
        rows.append(net.add("Reshape", net.add("Concat", boxes, scores, axis=1), net.ints(1, 9, cells)))
    made = net.add("Concat", *rows, axis=2)
    return net.finish([value("x", [1, 3, 32, 32])], {made: [1, 9, 320]}), pictures(16, 1, 3, 32, 32)


def unet() -> Kind:
    net = Net(5)
    top = net.relu(net.conv("x", 1, 16))
    deep = net.relu(net.conv(top, 16, 32, stride=2))
    weight = net.floats(32, 16, 2, 2, fan=32)
    up = net.add("ConvTranspose", deep, weight, net.floats(16), kernel_shape=[2, 2], strides=[2, 2])
    made = net.add("Sigmoid", net.conv(net.relu(net.conv(net.add("Concat", up, top, axis=1), 32, 16)), 16, 1, 1))
    return net.finish([value("x", [1, 1, 32, 32])], {made: [1, 1, 32, 32]}), pictures(16, 1, 1, 32, 32)


def vit() -> Kind:
    """Patches by a convolution, a class token, two encoders."""
    net, width = Net(6), 48
    patches = net.conv("x", 3, width, 1)
    patches = net.add("MaxPool", patches, kernel_shape=[8, 8], strides=[8, 8])
    tokens = net.add("Transpose", net.add("Reshape", patches, net.ints(1, width, 16)), perm=[0, 2, 1])
    token = net.constant(net.rng.standard_normal((1, 1, width)).astype(np.float32) / 10)
    tokens = net.add("Concat", token, tokens, axis=1)
    tokens = net.add("Add", tokens, net.constant(net.rng.standard_normal((1, 17, width)).astype(np.float32) / 10))
    for _ in range(2):
        tokens = net.encoder(tokens, width, 17, 4)
    first = net.add("Gather", net.norm(tokens, width), net.constant(np.int64(0)), axis=1)
    made = net.linear(first, width, 10)
    return net.finish([value("x", [1, 3, 32, 32])], {made: [1, 10]}), pictures(16, 1, 3, 32, 32)


def bert() -> Kind:
    """Embeddings of words and places, a mask of padding, two encoders, a pooled output."""
    net, width, length = Net(7), 64, 16
    words = net.add("Gather", net.constant(net.rng.standard_normal((200, width)).astype(np.float32)), "ids")
    places = net.constant(net.rng.standard_normal((length, width)).astype(np.float32) / 5)
    last = net.norm(net.add("Add", words, places), width)
    keep = net.add("Cast", net.add("Unsqueeze", "mask", net.ints(1, 2)), to=1)
    away = net.add("Sub", net.constant(np.float32(1)), keep)
    bias = net.add("Mul", away, net.constant(np.float32(-10000)))
    for _ in range(2):
        last = net.encoder(last, width, length, 4, bias)
    first = net.add("Gather", last, net.constant(np.int64(0)), axis=1)
    made = net.add("Tanh", net.linear(first, width, width))
    feeds = []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        mask = (np.arange(length) < rng.integers(4, length + 1)).astype(np.int64)[None]
        feeds.append({"ids": rng.integers(0, 200, (1, length)) * mask, "mask": mask})
    inputs = [value("ids", [1, length], INT64), value("mask", [1, length], INT64)]
    return net.finish(inputs, {made: [1, width]}), feeds


def mlp() -> Kind:
    net, last = Net(8), "x"
    for into, out in ((40, 128), (128, 128)):
        last = net.relu(net.linear(last, into, out))
    made = net.add("Gemm", last, net.floats(6, 128, fan=128), net.floats(6), transB=1)
    feeds = [{"x": np.random.default_rng(i).standard_normal((4, 40)).astype(np.float32)} for i in range(16)]
    return net.finish([value("x", [4, 40])], {made: [4, 6]}), feeds


def waves() -> Kind:
    """1-D convolutions with dilation-free residuals over a signal."""
    net = Net(9)
    last = net.relu(net.conv("x", 2, 16, 7, stride=2, rank=1))
    for _ in range(2):
        inner = net.conv(net.relu(net.conv(last, 16, 16, 3, rank=1)), 16, 16, 3, rank=1)
        last = net.relu(net.add("Add", inner, last))
    return net.finish([value("x", [1, 2, 256])], {net.head(last, 16, 5): [1, 5]}), pictures(16, 1, 2, 256)


ARCHITECTURES: dict[str, Callable[[], Kind]] = {
    "plain CNN": plain_cnn,
    "ResNet": resnet,
    "squeeze and excite": squeeze_excite,
    "YOLO": yolo,
    "U-Net": unet,
    "ViT": vit,
    "BERT": bert,
    "MLP": mlp,
    "1-D convolutions": waves,
}
"""Name -> how to make the graph and its samples."""
