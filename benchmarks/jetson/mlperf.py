"""The networks of MLPerf inference 3.1 that run on Jetson, drawn from their papers and the reference models.

ResNet-50 v1.5 (He et al. 2015, the stride in the 3x3), RetinaNet with ResNeXt-50 32x4d and FPN (Lin et al. 2017; Xie et
al. 2017) for the 264 classes of OpenImages, BERT-large for SQuAD (Devlin et al. 2018).
"""

from __future__ import annotations

import math

import numpy as np
from drawing import Pencil
from onnx import TensorProto

ANCHORS, OPENIMAGES = 9, 264


def _stages(p: Pencil, x: str, *, groups: int, base: int) -> list[str]:
    """Draw the residual stages of a 50-layer network; return what each gives."""
    made = []
    x = p.pool(p.conv(x, 64, 7, 2, act="relu"), 3, 2, 1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        out = 256 << stage
        inner = groups * (base << stage)
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = p.conv(p.conv(x, inner, act="relu"), inner, 3, stride, groups=groups, act="relu")
            y = p.conv(y, out)
            x = p.same("Relu", p.same("Add", y, x if block else p.conv(x, out, 1, stride)))
        made.append(x)
    return made


def resnet50(batch: int = 1, seed: int | None = None) -> tuple[Pencil, list[str]]:
    p = Pencil(seed)
    x = _stages(p, p.input("image", batch, 3, 224, 224), groups=1, base=64)[-1]
    x = p.reshape(p.node("GlobalAveragePool", [x], [batch, 2048, 1, 1]), batch, 2048)
    return p, [p.linear(x, 1000)]


def retinanet(seed: int | None = None) -> tuple[Pencil, list[str]]:
    p = Pencil(seed)
    _, *backbone = _stages(p, p.input("image", 1, 3, 800, 800), groups=32, base=4)
    lateral = [p.conv(x, 256) for x in backbone]
    inner = [lateral[2]]
    for x in (lateral[1], lateral[0]):
        inner.insert(0, p.same("Add", x, p.double(inner[0])))
    levels = [p.conv(x, 256, 3) for x in inner]
    levels.append(p.conv(levels[-1], 256, 3, 2))
    levels.append(p.conv(p.same("Relu", levels[-1]), 256, 3, 2))
    made = []
    for width in (OPENIMAGES, 4):
        parts = []
        first = len(p.weights)
        for x in levels:
            p.reuse(first if parts else None)
            y = x
            for _ in range(4):
                y = p.conv(y, 256, 3, act="relu")
            y = p.conv(y, ANCHORS * width, 3)
            p.reuse(None)
            sides = p.shapes[y][2:]
            y = p.transpose(p.reshape(y, 1, ANCHORS, width, *sides), 0, 3, 4, 1, 2)
            parts.append(p.reshape(y, 1, math.prod(sides) * ANCHORS, width))
        made.append(p.concat(parts))
    return p, [p.same("Sigmoid", made[0]), made[1]]


def bert_large(length: int = 384, seed: int | None = None) -> tuple[Pencil, list[str]]:
    p = Pencil(seed)
    width, heads, layers = 1024, 16, 24
    ids = p.input("input_ids", 1, length, dtype=TensorProto.INT64)
    mask = p.input("mask", 1, 1, 1, length)
    x = p.node("Gather", [p.weight(30522, width), ids], [1, length, width])
    x = _norm(p, p.same("Add", x, p.weight(1, length, width)), width)
    for _ in range(layers):
        q, k, v = (
            p.transpose(p.reshape(p.linear(x, width), 1, length, heads, 64), 0, 2, *order)
            for order in ((1, 3), (3, 1), (1, 3))
        )
        scores = p.same("Div", p.matmul(q, k), p.constant(8.0, np.float32))
        seen = p.matmul(p.same("Softmax", p.same("Add", scores, mask), axis=-1), v)
        seen = p.reshape(p.transpose(seen, 0, 2, 1, 3), 1, length, width)
        x = _norm(p, p.same("Add", p.linear(seen, width), x), width)
        y = p.linear(x, 4 * width)
        half = p.same("Mul", y, p.constant(0.5, np.float32))
        bent = p.same("Erf", p.same("Div", y, p.constant(math.sqrt(2), np.float32)))
        y = p.same("Mul", half, p.same("Add", bent, p.constant(1.0, np.float32)))
        x = _norm(p, p.same("Add", p.linear(y, width), x), width)
    return p, [p.linear(x, 2)]


def _norm(p: Pencil, x: str, width: int) -> str:
    return p.same("LayerNormalization", x, p.weight(width), p.weight(width), axis=-1)
