"""Networks that people deploy, drawn small with seeded weights: what `predict.py` measures on this machine.

MobileNetV2 (Sandler et al. 2018), EfficientNet-Lite0 (Liu 2020, after Tan and Le 2019), ResNet-18 (He et al. 2015), a
text encoder of MiniLM's shape (Wang et al. 2020), a vision transformer (Dosovitskiy et al. 2020), ConvNeXt (Liu et al.
2022), squeeze-and-excitation as in MobileNetV3 (Howard et al. 2019), a U-Net (Ronneberger et al. 2015), an LSTM.
"""

from __future__ import annotations

import math

import numpy as np
from drawing import Pencil
from onnx import TensorProto

Drawn = tuple[Pencil, list[str]]

LITE0 = (
    *((16, 3, 1, 1, 1), (24, 3, 2, 6, 2), (40, 5, 2, 6, 2), (80, 3, 2, 6, 3)),
    *((112, 5, 1, 6, 3), (192, 5, 2, 6, 4), (320, 3, 1, 6, 1)),
)
MOBILE2 = (
    *((16, 3, 1, 1, 1), (24, 3, 2, 6, 2), (32, 3, 2, 6, 3), (64, 3, 2, 6, 4)),
    *((96, 3, 1, 6, 3), (160, 3, 2, 6, 3), (320, 3, 1, 6, 1)),
)
"""Channels, kernel, stride, expansion, repeats."""


def _head(p: Pencil, x: str, classes: int = 1000) -> str:
    batch, channels = p.shapes[x][:2]
    x = p.node("GlobalAveragePool", [x], [batch, channels, 1, 1])
    return p.linear(p.reshape(x, batch, channels), classes)


def inverted(side: int, table: tuple[tuple[int, ...], ...], *, squeeze: bool = False) -> Drawn:
    """Draw a network of inverted residuals: MobileNetV2, EfficientNet-Lite, with squeeze-and-excitation or without."""
    p = Pencil(1)
    x = p.conv(p.input("x", 1, 3, side, side), 32, 3, 2, act="relu6")
    for width, kernel, stride, expansion, repeats in table:
        for repeat in range(repeats):
            step, inner = (1 if repeat else stride), p.shapes[x][1] * expansion
            y = p.conv(x, inner, act="relu6") if expansion > 1 else x
            y = p.conv(y, inner, kernel, step, groups=inner, act="relu6")
            if squeeze:
                pooled = p.node("GlobalAveragePool", [y], [1, inner, 1, 1])
                gate = p.same("HardSigmoid", p.conv(p.conv(pooled, max(inner // 4, 8), act="relu"), inner))
                y = p.same("Mul", y, gate)
            y = p.conv(y, width)
            x = p.same("Add", x, y) if step == 1 and p.shapes[x] == p.shapes[y] else y
    return p, [_head(p, p.conv(x, 1280, act="relu6"))]


def resnet18(side: int) -> Drawn:
    p = Pencil(2)
    x = p.pool(p.conv(p.input("x", 1, 3, side, side), 64, 7, 2, act="relu"), 3, 2, 1)
    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            step = 2 if stage and not block else 1
            y = p.conv(p.conv(x, width, 3, step, act="relu"), width, 3)
            short = p.conv(x, width, 1, step) if step == 2 else x
            x = p.same("Relu", p.same("Add", y, short))
    return p, [_head(p, x)]


def convnext(side: int) -> Drawn:
    p = Pencil(3)
    x = p.conv(p.input("x", 1, 3, side, side), 64, 4, 4)
    for stage, width in enumerate((64, 128, 256)):
        if stage:
            x = p.conv(x, width, 2, 2)
        for _ in range(2):
            y = p.transpose(p.conv(x, width, 7, groups=width), 0, 2, 3, 1)
            y = p.same("LayerNormalization", y, p.weight(width), p.weight(width), axis=-1)
            y = p.linear(_gelu(p, p.linear(y, 4 * width)), width)
            x = p.same("Add", x, p.transpose(y, 0, 3, 1, 2))
    return p, [_head(p, x)]


def unet(side: int) -> Drawn:
    p = Pencil(4)
    x, kept = p.input("x", 1, 3, side, side), []
    for width in (16, 32, 64, 128):
        x = p.conv(p.conv(x, width, 3, act="relu"), width, 3, act="relu")
        kept.append(x)
        x = p.pool(x, 2, 2, 0)
    for width, other in zip((128, 64, 32, 16), reversed(kept), strict=True):
        x = p.conv(p.concat([p.double(x), other]), width, 3, act="relu")
    return p, [p.conv(x, 8)]


def encoder(length: int, width: int, layers: int) -> Drawn:
    """Draw a text encoder of MiniLM's kind."""
    p = Pencil(5)
    ids = p.input("ids", 1, length, dtype=TensorProto.INT64)
    x = p.node("Gather", [p.weight(8000, width), ids], [1, length, width])
    return p, [_layers(p, x, width, layers, heads=width // 32)]


def vision_transformer(side: int, width: int, layers: int) -> Drawn:
    p = Pencil(6)
    x = p.conv(p.input("x", 1, 3, side, side), width, 16, 16)
    count = math.prod(p.shapes[x][2:])
    x = p.transpose(p.reshape(x, 1, width, count), 0, 2, 1)
    return p, [p.linear(_layers(p, x, width, layers, heads=width // 64), 100)]


def lstm(steps: int, width: int) -> Drawn:
    p = Pencil(7)
    x = p.input("x", steps, 1, width)
    for _ in range(2):
        weights = [p.weight(1, 4 * width, width), p.weight(1, 4 * width, width), p.weight(1, 8 * width)]
        y = p.node("LSTM", [x, *weights], [steps, 1, 1, width], hidden_size=width)
        x = p.reshape(y, steps, 1, width)
    return p, [p.linear(x, 64)]


def perceptron(width: int) -> Drawn:
    p = Pencil(8)
    x = p.input("x", 1, 784)
    for _ in range(3):
        x = p.same("Relu", p.linear(x, width))
    return p, [p.linear(x, 10)]


def _gelu(p: Pencil, x: str) -> str:
    bent = p.same("Erf", p.same("Div", x, p.constant(math.sqrt(2), np.float32)))
    return p.same("Mul", p.same("Mul", x, p.same("Add", bent, p.constant(1, np.float32))), p.constant(0.5, np.float32))


def _layers(p: Pencil, x: str, width: int, layers: int, *, heads: int) -> str:
    length, head = p.shapes[x][1], width // heads

    def norm(y: str) -> str:
        return p.same("LayerNormalization", y, p.weight(width), p.weight(width), axis=-1)

    for _ in range(layers):
        q, k, v = (
            p.transpose(p.reshape(p.linear(x, width), 1, length, heads, head), *order)
            for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        )
        scores = p.same("Mul", p.matmul(q, k), p.constant(head**-0.5, np.float32))
        seen = p.transpose(p.matmul(p.same("Softmax", scores, axis=-1), v), 0, 2, 1, 3)
        x = norm(p.same("Add", x, p.linear(p.reshape(seen, 1, length, width), width)))
        x = norm(p.same("Add", x, p.linear(_gelu(p, p.linear(x, 4 * width)), width)))
    return x
