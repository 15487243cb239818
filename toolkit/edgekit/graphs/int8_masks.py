"""Masks of attention on a grid: -10000 or -3e38 beside scores would leave these no steps.

A mask puts scores out of the softmax's sight; how far does not matter. So it is put just out of it, and the sums of
scores and mask end there too: what lies 16 below the lowest score weighs less than exp(-16) of the row's largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from edgekit.graphs.edit import GraphIndex, is_standard
from edgekit.graphs.int8_regions import SAME_GRID

if TYPE_CHECKING:
    import onnx

Ranges = dict[str, tuple[float, float]]

_MASK = -1000.0
"""What lies below is a mask, not a score: exp of it is 0, as it is of far less negative values."""
_OUT_OF_SIGHT = 16.0
"""How far below the scores a mask ends on the grid: exp(-16) is a ten-millionth."""


def lower_masks(index: GraphIndex, ranges: Ranges, known: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Lower the ranges of masks and of their sums with scores; one mask may be added to the scores of many layers.

    Args:
        index: of the graph.
        ranges: of the tensors that get a grid; changed.
        known: ranges of those that are on one already.

    Returns:
        First output of a node whose constants are a mask's -> what they are to be raised to.
    """
    found: dict[str, list[tuple[onnx.NodeProto, float, float]]] = {}
    every = {**known, **ranges}
    for node in index.graph.node:
        if not is_standard(node, "Add") or node.output[0] not in ranges:
            continue
        for name in node.input:
            every.setdefault(name, _constant_range(index, name))
        mask, scores = sorted(node.input, key=lambda name: every[name][0])
        low, high = every[scores]
        if mask not in known and every[mask][0] < _MASK < low:
            found.setdefault(mask, []).append((node, low, high))
    floors: dict[str, float] = {}
    for mask, sums in found.items():
        depth = max(high - low for _, low, high in sums) + _OUT_OF_SIGHT
        most = max(every[mask][1], 0.0)
        plain = _is_plain(index, mask)
        for node, low, high in sums:
            bottom = low - _OUT_OF_SIGHT if plain else low - (high - low) - _OUT_OF_SIGHT
            ranges[node.output[0]] = (bottom, high + most)
            floors[node.output[0]] = -depth
        for name in _sources(index, mask):
            if name in ranges:
                ranges[name] = (-depth, most)
                floors[name] = -depth
    return floors


def _constant_range(index: GraphIndex, name: str) -> tuple[float, float]:
    """Return the range of a constant; one that is neither mask nor scores where there is none."""
    values = index.value(name)
    if values is None or values.dtype != np.float32 or not values.size or np.isnan(values).any():
        return (_MASK, _MASK)
    return float(values.min()), float(values.max())


def _sources(index: GraphIndex, name: str) -> list[str]:
    """Return a tensor and those that it is only a view of, the last one first."""
    found = [name]
    while (maker := index.producers.get(found[-1])) is not None and maker.op_type in SAME_GRID:
        found.append(maker.input[0])
    return found


def _is_plain(index: GraphIndex, mask: str) -> bool:
    """Say whether a mask is nothing but 0 where scores are seen: a bias in it would need steps of its own."""
    source = _sources(index, mask)[-1]
    if (constant := index.value(source)) is not None:
        return bool(((constant == 0) | (constant < _MASK)).all())
    maker = index.producers.get(source)
    if maker is None or not is_standard(maker, "Where", "Mul"):
        return False
    values = [index.value(name) for name in (maker.input[1:] if maker.op_type == "Where" else maker.input)]
    constants = [array for array in values if array is not None and array.dtype == np.float32]
    if maker.op_type == "Mul":
        return any(array.size == 1 and array.min() < _MASK for array in constants)
    return len(constants) == len(values) and all(bool(((a == 0) | (a < _MASK)).all()) for a in constants)
