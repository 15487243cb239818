"""YOLO11 and YOLOv8 detectors, drawn from Ultralytics' published configurations and module descriptions.

YOLO11 (2024): C3k2 blocks, SPPF, C2PSA (position-sensitive attention), depthwise class heads. YOLOv8 (2023): C2f
blocks.
"""

from __future__ import annotations

import math

import numpy as np
from drawing import Pencil

SCALES = {
    "n": (0.50, 0.25, 1024),
    "s": (0.50, 0.50, 1024),
    "m": (0.50, 1.00, 512),
    "l": (1.00, 1.00, 512),
    "x": (1.00, 1.50, 512),
}
"""Depth multiple, width multiple, largest width."""

CLASSES, BINS = 80, 16


def _bottleneck(p: Pencil, x: str, width: int, *, inner: int, add: bool) -> str:
    y = p.conv(p.conv(x, inner, 3, act="silu"), width, 3, act="silu")
    return p.same("Add", x, y) if add else y


def _c3k(p: Pencil, x: str, width: int, *, add: bool) -> str:
    inner = width // 2
    y = p.conv(x, inner, act="silu")
    for _ in range(2):
        y = _bottleneck(p, y, inner, inner=inner, add=add)
    return p.conv(p.concat([y, p.conv(x, inner, act="silu")]), width, act="silu")


def _c3k2(p: Pencil, x: str, width: int, repeats: int, *, deep: bool, ratio: float = 0.5, add: bool = True) -> str:
    inner = int(width * ratio)
    parts = list(p.halves(p.conv(x, 2 * inner, act="silu")))
    for _ in range(repeats):
        last = parts[-1]
        block = _c3k(p, last, inner, add=add) if deep else _bottleneck(p, last, inner, inner=inner // 2, add=add)
        parts.append(block)
    return p.conv(p.concat(parts), width, act="silu")


def _c2f(p: Pencil, x: str, width: int, repeats: int, *, add: bool) -> str:
    inner = width // 2
    parts = list(p.halves(p.conv(x, 2 * inner, act="silu")))
    for _ in range(repeats):
        parts.append(_bottleneck(p, parts[-1], inner, inner=inner, add=add))
    return p.conv(p.concat(parts), width, act="silu")


def _sppf(p: Pencil, x: str, width: int) -> str:
    parts = [p.conv(x, width // 2, act="silu")]
    for _ in range(3):
        parts.append(p.pool(parts[-1], 5, 1, 2))
    return p.conv(p.concat(parts), width, act="silu")


def _attention(p: Pencil, x: str, width: int) -> str:
    heads = width // 64
    head, key = width // heads, width // heads // 2
    _, _, height, across = p.shapes[x]
    pixels = height * across
    qkv = p.reshape(p.conv(x, width + 2 * key * heads), 1, heads, 2 * key + head, pixels)
    names, start = [], 0
    for size in (key, key, head):
        ends = [p.constant([start]), p.constant([start + size]), p.constant([2])]
        names.append(p.node("Slice", [qkv, *ends], [1, heads, size, pixels]))
        start += size
    q, k, v = names
    scores = p.same("Mul", p.matmul(p.transpose(q, 0, 1, 3, 2), k), p.constant(key**-0.5, np.float32))
    weights = p.transpose(p.same("Softmax", scores, axis=-1), 0, 1, 3, 2)
    seen = p.reshape(p.matmul(v, weights), 1, width, height, across)
    place = p.conv(p.reshape(v, 1, width, height, across), width, 3, groups=width)
    return p.conv(p.same("Add", seen, place), width)


def _c2psa(p: Pencil, x: str, width: int, repeats: int) -> str:
    inner = width // 2
    kept, y = p.halves(p.conv(x, 2 * inner, act="silu"))
    for _ in range(repeats):
        y = p.same("Add", y, _attention(p, y, inner))
        y = p.same("Add", y, p.conv(p.conv(y, 2 * inner, act="silu"), inner))
    return p.conv(p.concat([kept, y]), width, act="silu")


def _detect(p: Pencil, levels: list[str], *, depthwise: bool) -> str:
    widths = [p.shapes[x][1] for x in levels]
    boxes, classes = max(16, widths[0] // 4, BINS * 4), max(widths[0], min(CLASSES, 100))
    made = []
    for x, width in zip(levels, widths, strict=True):
        box = p.conv(p.conv(p.conv(x, boxes, 3, act="silu"), boxes, 3, act="silu"), 4 * BINS)
        if depthwise:
            y = p.conv(p.conv(x, width, 3, groups=width, act="silu"), classes, act="silu")
            y = p.conv(p.conv(y, classes, 3, groups=classes, act="silu"), classes, act="silu")
        else:
            y = p.conv(p.conv(x, classes, 3, act="silu"), classes, 3, act="silu")
        both = p.concat([box, p.conv(y, CLASSES)])
        made.append(p.reshape(both, 1, 4 * BINS + CLASSES, math.prod(p.shapes[both][2:])))
    return _decode(p, p.concat(made, axis=2))


def _decode(p: Pencil, every: str) -> str:
    count = p.shapes[every][2]

    def part(start: int, stop: int) -> str:
        ends = [p.constant([start]), p.constant([stop]), p.constant([1])]
        return p.node("Slice", [every, *ends], [1, stop - start, count])

    bins = p.transpose(p.reshape(part(0, 4 * BINS), 1, 4, BINS, count), 0, 2, 1, 3)
    distances = p.reshape(p.conv(p.same("Softmax", bins, axis=1), 1), 1, 4, count)
    boxes = p.same("Mul", p.same("Add", distances, p.weight(1, 4, count)), p.weight(1, 1, count))
    return p.concat([boxes, p.same("Sigmoid", part(4 * BINS, 4 * BINS + CLASSES))])


def yolo11(scale: str, side: int = 640, seed: int | None = None) -> tuple[Pencil, list[str]]:
    """Draw YOLO11 n, s, m, l or x."""
    depth, width, largest = SCALES[scale]
    p = Pencil(seed)

    def w(channels: int) -> int:
        return math.ceil(min(channels, largest) * width / 8) * 8

    repeats, deep = max(round(2 * depth), 1), scale in "mlx"
    x = p.conv(p.conv(p.input("images", 1, 3, side, side), w(64), 3, 2, act="silu"), w(128), 3, 2, act="silu")
    x = p.conv(_c3k2(p, x, w(256), repeats, deep=deep, ratio=0.25), w(256), 3, 2, act="silu")
    p3 = _c3k2(p, x, w(512), repeats, deep=deep, ratio=0.25)
    p4 = _c3k2(p, p.conv(p3, w(512), 3, 2, act="silu"), w(512), repeats, deep=True)
    x = _c3k2(p, p.conv(p4, w(1024), 3, 2, act="silu"), w(1024), repeats, deep=True)
    p5 = _c2psa(p, _sppf(p, x, w(1024)), w(1024), repeats)
    n4 = _c3k2(p, p.concat([p.double(p5), p4]), w(512), repeats, deep=deep)
    n3 = _c3k2(p, p.concat([p.double(n4), p3]), w(256), repeats, deep=deep)
    n4 = _c3k2(p, p.concat([p.conv(n3, w(256), 3, 2, act="silu"), n4]), w(512), repeats, deep=deep)
    n5 = _c3k2(p, p.concat([p.conv(n4, w(512), 3, 2, act="silu"), p5]), w(1024), repeats, deep=True)
    return p, [_detect(p, [n3, n4, n5], depthwise=True)]


def yolov8n(side: int = 640, seed: int | None = None) -> tuple[Pencil, list[str]]:
    """Draw YOLOv8 nano."""
    p = Pencil(seed)
    x = p.conv(p.conv(p.input("images", 1, 3, side, side), 16, 3, 2, act="silu"), 32, 3, 2, act="silu")
    x = p.conv(_c2f(p, x, 32, 1, add=True), 64, 3, 2, act="silu")
    p3 = _c2f(p, x, 64, 2, add=True)
    p4 = _c2f(p, p.conv(p3, 128, 3, 2, act="silu"), 128, 2, add=True)
    x = _c2f(p, p.conv(p4, 256, 3, 2, act="silu"), 256, 1, add=True)
    p5 = _sppf(p, x, 256)
    n4 = _c2f(p, p.concat([p.double(p5), p4]), 128, 1, add=False)
    n3 = _c2f(p, p.concat([p.double(n4), p3]), 64, 1, add=False)
    n4 = _c2f(p, p.concat([p.conv(n3, 64, 3, 2, act="silu"), n4]), 128, 1, add=False)
    n5 = _c2f(p, p.concat([p.conv(n4, 128, 3, 2, act="silu"), p5]), 256, 1, add=False)
    return p, [_detect(p, [n3, n4, n5], depthwise=False)]
