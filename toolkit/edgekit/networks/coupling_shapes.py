"""Rules of the coupling for operators that move, cut and join axes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgekit.networks.coupled import Axes, Split
from edgekit.networks.coupling_trace import Arguments, Trace, name_of
from edgekit.networks.labels import Ids


def reshaped(trace: Trace, axes: Axes, shape: Sequence[int], stated: Sequence[Any]) -> Axes | None:
    """Reshape: both shapes are cut into the parts that they have in common; a part carries the labels of its axis.

    `stated` are the sizes as the code gives them; None when the shapes have no parts in common.
    """
    old = [len(labels) for labels in axes]
    if 0 in old or math.prod(old) != math.prod(shape):
        return None
    parts = _parts(old, shape)
    if parts is None:
        return None
    wanted: Axes = []
    queue: list[Ids] = []
    for number, labels in enumerate(axes):
        queue += _cut(trace, labels, _take(parts, len(labels)), number)
    at = 0
    for size in shape:
        taken: list[Ids] = []
        while math.prod(len(labels) for labels in taken) < size:
            taken.append(queue[at])
            at += 1
        wanted.append(_joined(trace, taken) if size > 1 else np.zeros(size, np.int64))
    for labels, value in zip(wanted, stated, strict=False):
        trace.size(labels, value)
    return wanted


def _parts(old: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """Return the common refinement of two factorizations of one number, last axis last; None when there is none."""
    cuts = {1}
    for shape in (old, new):
        total = 1
        for size in reversed(shape):
            total *= size
            cuts.add(total)
    ordered = sorted(cuts)
    if any(high % low for low, high in itertools.pairwise(ordered)):
        return None
    return [high // low for low, high in itertools.pairwise(ordered)][::-1]


def _take(parts: list[int], size: int) -> list[int]:
    """Take the parts of one axis off the front."""
    taken: list[int] = []
    while math.prod(taken) < size:
        taken.append(parts.pop(0))
    return taken


def _cut(trace: Trace, labels: Ids, parts: list[int], number: int) -> list[Ids]:
    """Cut an axis into parts, of which one carries its labels: the one they follow already, else the one chosen."""
    if len(parts) <= 1:
        return [labels] if parts else []
    grid = trace.labels.free(labels).reshape(parts)
    if grid.any() and trace.is_loose(labels):
        trace.keep(labels, "an axis of equal values is cut")
        grid = np.zeros_like(grid)
    if not grid.any():
        return [np.zeros(size, np.int64) for size in parts]
    follows = [index for index in range(len(parts)) if np.array_equal(*_lines(grid, index))]
    if follows:
        index = follows[0]
    else:
        key = f"{trace.node.name}/{number}"
        index = min(trace.choices.get(key, 0), len(parts) - 1)
        rows = np.moveaxis(labels.reshape(parts), index, 0).reshape(parts[index], -1)
        trace.tie(rows[:, :1], rows)
        kind = f"{re.sub(r'[0-9]+', '#', trace.module)} {parts}"
        trace.coupling.splits[key] = Split(kind, len(parts), rows[:, 0])
    carried = np.moveaxis(labels.reshape(parts), index, 0).reshape(parts[index], -1)[:, 0]
    return [carried if i == index else np.zeros(size, np.int64) for i, size in enumerate(parts)]


def _lines(grid: Ids, index: int) -> tuple[Ids, Ids]:
    """Return a grid of labels and the one that follows axis `index` alone."""
    moved = np.moveaxis(grid, index, 0)
    first = moved.reshape(len(moved), -1)[:, 0].reshape(-1, *[1] * (grid.ndim - 1))
    return moved, np.broadcast_to(first, moved.shape)


def _joined(trace: Trace, parts: list[Ids]) -> Ids:
    """Join parts into one axis; only one of them can carry channels, the others are kept."""
    live = [index for index, labels in enumerate(parts) if trace.live(labels)]
    live.sort(key=lambda index: trace.is_loose(parts[index]))
    for index in live[1:]:
        trace.keep(parts[index], "two axes of channels are flattened into one")
    if not live:
        return np.zeros(math.prod(len(labels) for labels in parts), np.int64)
    before = math.prod(len(labels) for labels in parts[: live[0]])
    after = math.prod(len(labels) for labels in parts[live[0] + 1 :])
    return np.tile(np.repeat(parts[live[0]], after), before)


def _transpose(_trace: Trace, given: Arguments) -> Axes:
    axes = list(given.tensors()[0])
    one = given["dim0"] if "dim0" in given.raw else given["axis0"]
    two = given["dim1"] if "dim1" in given.raw else given["axis1"]
    axes[one], axes[two] = axes[two], axes[one]
    return axes


def _turn(_trace: Trace, given: Arguments) -> Axes:
    return list(reversed(given.tensors()[0]))


def _permute(_trace: Trace, given: Arguments) -> Axes:
    axes = given.tensors()[0]
    return [axes[dim] for dim in given["dims"]]


def _movedim(trace: Trace, given: Arguments) -> Axes:
    axes = given.tensors()[0]
    listed = [
        value if isinstance(value, (list, tuple)) else [value] for value in (given["source"], given["destination"])
    ]
    source, target = ([int(dim) % len(axes) for dim in dims] for dims in listed)
    order = [dim for dim in range(len(axes)) if dim not in source]
    for to, dim in sorted(zip(target, source, strict=True)):
        order.insert(to, dim)
    assert len(trace.shape()) == len(order)
    return [axes[dim] for dim in order]


def _squeeze(trace: Trace, given: Arguments) -> Axes:
    axes = given.tensors()[0]
    stated = given["dim"]
    dims = range(len(axes)) if stated is None else stated if isinstance(stated, (list, tuple)) else [stated]
    gone = {int(dim) % len(axes) for dim in dims if len(axes[int(dim)]) == 1}
    for dim in gone:
        trace.keep(axes[dim], "an axis of one channel is dropped")
    return [labels for dim, labels in enumerate(axes) if dim not in gone]


def _unsqueeze(_trace: Trace, given: Arguments) -> Axes:
    axes = list(given.tensors()[0])
    axes.insert(int(given["dim"]) % (len(axes) + 1), np.zeros(1, np.int64))
    return axes


def _expand(trace: Trace, given: Arguments) -> Axes:
    axes, shape = given.tensors()[0], trace.shape()
    stated = list(given["size"] or ())
    out: Axes = []
    for at in range(-len(shape), 0):
        size = shape[at]
        labels = axes[at] if len(axes) >= -at and len(axes[at]) == size else trace.loose(size)
        if len(stated) == len(shape):
            trace.size(labels, stated[at])
        out.append(labels)
    return out


def _repeat(trace: Trace, given: Arguments) -> Axes:
    axes = given.tensors()[0]
    times = list(given["repeats"] or given["dims"])
    rank = max(len(times), len(axes))
    times = [1] * (rank - len(times)) + times
    padded = [np.zeros(1, np.int64)] * (rank - len(axes)) + list(axes)
    assert rank == len(trace.shape())
    return [np.tile(labels, int(count)) for labels, count in zip(padded, times, strict=True)]


def _repeat_interleave(_trace: Trace, given: Arguments) -> Axes | None:
    axes, times, dim = given.tensors()[0], given["repeats"], given["dim"]
    if not isinstance(times, int) or dim is None:
        return None
    return [np.repeat(labels, times) if at == dim % len(axes) else labels for at, labels in enumerate(axes)]


def _cat(trace: Trace, given: Arguments) -> Axes:
    parts = [axes for node in given.raw["tensors"] if (axes := given.look(node)) is not None]
    rank = max(len(axes) for axes in parts)
    parts = [axes for axes in parts if len(axes) == rank]  # an empty tensor of one axis may stand among them
    dim = int(given["dim"] or 0) % rank
    out = list(parts[0])
    for axes in parts[1:]:
        for at in range(rank):
            if at != dim:
                trace.tie(out[at], axes[at])
    out[dim] = np.concatenate([axes[dim] for axes in parts])
    return out


def _stack(trace: Trace, given: Arguments) -> Axes:
    parts = [axes for node in given.raw["tensors"] if (axes := given.look(node)) is not None]
    for axes in parts[1:]:
        for first, other in zip(parts[0], axes, strict=True):
            trace.tie(first, other)
    out = list(parts[0])
    out.insert(int(given["dim"] or 0) % (len(out) + 1), np.zeros(len(parts), np.int64))
    return out


def _split(trace: Trace, given: Arguments) -> list[Axes]:
    """Cut an axis into pieces: pieces of one size keep one size, index by index."""
    axes, dim = given.tensors()[0], int(given["dim"] or 0) % len(given.tensors()[0])
    sizes = [int(value.shape[dim]) for value in trace.node.meta["val"]]
    pieces = np.split(axes[dim], np.cumsum(sizes)[:-1])
    by_count = name_of(trace.node) in ("chunk", "tensor_split")
    stated = given["split_size"] if "split_size" in given.raw else given["split_sizes"]
    listed = list(stated) if isinstance(stated, (list, tuple)) else [stated] * len(sizes)
    equal = len(set(sizes)) == 1
    if not equal and (by_count or not isinstance(stated, (list, tuple))) and trace.live(axes[dim]):
        trace.keep(axes[dim], f"{name_of(trace.node)} cuts it into pieces of different sizes")
    for piece, size in zip(pieces, listed, strict=False):
        if equal and len(pieces) > 1:
            trace.tie(pieces[0], piece)
        if not by_count:
            trace.size(piece, size)
    return [[*axes[:dim], piece, *axes[dim + 1 :]] for piece in pieces]


SHAPES: dict[str, Callable[[Trace, Arguments], Any]] = {
    "transpose": _transpose, "swapaxes": _transpose, "swapdims": _transpose, "t": _turn, "numpy_T": _turn,
    "permute": _permute, "movedim": _movedim, "moveaxis": _movedim, "squeeze": _squeeze, "unsqueeze": _unsqueeze,
    "expand": _expand, "expand_as": _expand, "broadcast_to": _expand, "repeat": _repeat, "tile": _repeat,
    "repeat_interleave": _repeat_interleave, "cat": _cat, "concat": _cat, "concatenate": _cat, "stack": _stack,
    "split": _split, "split_with_sizes": _split, "chunk": _split, "tensor_split": _split, "unsafe_split": _split,
}  # fmt: skip
"""Operator name -> its rule."""
