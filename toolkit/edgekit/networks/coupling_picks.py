"""Rules of the coupling for operators that take a part of a tensor: slices, single indices, gathered ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgekit.networks.coupled import Axes
from edgekit.networks.coupling_trace import Arguments, Trace, name_of
from edgekit.networks.labels import Ids


def _slice(trace: Trace, given: Arguments) -> Axes:
    """Cut a piece out of an axis: where it falls into pieces of one size, these keep one size, index by index."""
    axes = list(given.tensors()[0])
    dim = int(given["dim"] or 0) % len(axes)
    whole, size = axes[dim], trace.shape()[dim]
    start = int(given["start"] or 0)
    begin = min(len(whole), start + len(whole) if start < 0 else start)
    step = int(given["step"] or 1) if name_of(trace.node) == "slice" else 1
    axes[dim] = whole[begin : begin + size * step : step]
    if size == len(whole) or not trace.live(whole):
        return axes
    if step != 1 or size == 0:
        trace.keep(whole, "single indices are picked out of it")
        return axes
    if size == 1:
        _picked(trace, whole, start)
        return axes
    if len(whole) % size == 0 and begin % size == 0:
        blocks = whole.reshape(-1, size)
        trace.tie(blocks[:1], blocks)
    if name_of(trace.node) == "narrow":
        trace.size(axes[dim], size)
    for edge, stated in ((begin, start), (begin + size, int(given["end"] or 0) if "end" in given.raw else 0)):
        if stated < 0:  # counted from the end
            trace.size(whole[edge:], len(whole) - edge)
        else:
            trace.size(whole[:edge], edge)
    return axes


def _select(trace: Trace, given: Arguments) -> Axes:
    axes = list(given.tensors()[0])
    dim = int(given["dim"] or 0) % len(axes)
    _picked(trace, axes.pop(dim), int(given["index"] or 0))
    return axes


def _picked(trace: Trace, labels: Ids, index: int) -> None:
    """Keep an index that the code names by a number, and those from where it counts."""
    trace.keep(labels[index:] if index < 0 else labels[: index + 1], "one index of it is picked")


def _unbind(trace: Trace, given: Arguments) -> list[Axes]:
    axes = list(given.tensors()[0])
    gone = axes.pop(int(given["dim"] or 0) % len(axes))
    trace.keep(gone, "it is taken apart index by index")
    return [list(axes) for _ in gone]


def _index(trace: Trace, given: Arguments) -> Axes | None:
    """Index with tensors: what they index is kept; the axes before and after them pass."""
    axes, indices = given.tensors()[0], list(given.raw["indices"])
    used = [at for at, index in enumerate(indices) if index is not None]
    if not used or used != list(range(used[0], used[-1] + 1)):
        return None
    end = used[0] + sum(_taken(indices[at]) for at in used)
    for labels in axes[used[0] : end]:
        trace.keep(labels, "it is indexed")
    shape, rest = trace.shape(), axes[end:]
    between = shape[used[0] : len(shape) - len(rest)]
    return [*axes[: used[0]], *(np.zeros(size, np.int64) for size in between), *rest]


def _taken(index: Any) -> int:
    """Return how many axes an index stands for: a mask for as many as it has."""
    value: Any = getattr(index, "meta", {}).get("val")
    mask = str(getattr(value, "dtype", "")) in ("torch.bool", "torch.uint8")
    return len(value.shape) if mask else 1


def _index_select(trace: Trace, given: Arguments) -> Axes:
    axes, dim = list(given.tensors()[0]), int(given["dim"])
    trace.keep(axes[dim], "it is indexed")
    axes[dim] = np.zeros(trace.shape()[dim], np.int64)
    return axes


def _gather(trace: Trace, given: Arguments) -> Axes | None:
    """Pick along one axis, for each index of the others."""
    x, index = given.axes("self"), given.axes("index")
    if x is None or index is None:
        return None
    dim, out = int(given["dim"]) % max(len(x), 1), list(index)
    trace.keep(x[dim], "it is gathered from")
    for at, labels in enumerate(x):
        if at != dim and len(labels) == len(index[at]):
            trace.tie(labels, index[at]) if trace.live(index[at]) else None
            out[at] = labels
    return out


def _mask_triangle(trace: Trace, given: Arguments) -> Axes:
    axes = given.tensors()[0]
    for labels in axes[-2:]:
        trace.keep(labels, "a triangle of it is masked")
    return list(axes)


PICKS: dict[str, Callable[[Trace, Arguments], Any]] = {
    "slice": _slice, "narrow": _slice, "select": _select, "unbind": _unbind, "index": _index,
    "index_select": _index_select, "gather": _gather, "tril": _mask_triangle, "triu": _mask_triangle,
}  # fmt: skip
"""Operator name -> its rule."""
