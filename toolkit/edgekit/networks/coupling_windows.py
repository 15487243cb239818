"""Rules of the coupling for operators that work on maps: pooling, resizing, padding, windows, sub-pixels, sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgekit.networks.coupled import Axes
from edgekit.networks.coupling_trace import Arguments, Trace, name_of
from edgekit.networks.labels import PLAIN

_MAP = 2
"""Axes of a map: height and width."""


def pool(trace: Trace, given: Arguments) -> Any:
    """Pooling and resizing: what is left of the spatial axes passes, they themselves are kept."""
    x, value = given.tensors()[0], trace.node.meta["val"]
    spatial = next((int(digit) for digit in name_of(trace.node).replace("with_indices", "") if digit.isdigit()), _MAP)
    for axis in x[-spatial:]:
        trace.keep(axis, f"{name_of(trace.node)} works along it")
    for other in given.tensors()[1:]:  # where the largest stood, for max_unpool
        for labels, same in zip(x[:-spatial], other[:-spatial], strict=True):
            trace.tie(labels, same)

    def one(tensor: Any) -> Axes:
        return [*x[:-spatial], *(np.zeros(int(size), np.int64) for size in tensor.shape[-spatial:])]

    return [one(tensor) for tensor in value] if isinstance(value, (tuple, list)) else one(value)


def pad(trace: Trace, given: Arguments) -> Axes:
    """Padding: a constant around an axis leaves its labels, and the new indices are kept; other padding keeps it."""
    x, pads, shape = given.tensors()[0], list(given["pad"] or given["padding"]), trace.shape()
    constant = name_of(trace.node) == "constant_pad_nd" or (given["mode"] or "constant") == "constant"
    constant = constant and not name_of(trace.node).startswith(("reflection", "replication"))
    out = list(x)
    for number in range(len(pads) // 2):
        axis, (before, after) = len(x) - 1 - number, pads[2 * number : 2 * number + 2]
        if not before and not after:
            continue
        if constant and before >= 0 and after >= 0:
            out[axis] = np.concatenate([np.full(before, PLAIN), x[axis], np.full(after, PLAIN)])
        else:
            trace.keep(x[axis], "it is padded")
            out[axis] = np.zeros(shape[axis], np.int64)
    return out


def windows(trace: Trace, given: Arguments) -> Axes:
    """im2col: every channel is as many features as a window has pixels."""
    x, shape = given.tensors()[0], trace.shape()
    for axis in x[-_MAP:]:
        trace.keep(axis, "im2col works along it")
    wide = np.repeat(x[-_MAP - 1], shape[-2] // len(x[-_MAP - 1]))
    return [*x[: -_MAP - 1], wide, np.zeros(shape[-1], np.int64)]


def folded(trace: Trace, given: Arguments) -> Axes:
    """col2im: the features of a window that belong to one channel go together."""
    x, shape = given.tensors()[0], trace.shape()
    trace.keep(x[-1], "col2im works along it")
    blocks = x[-2].reshape(shape[-_MAP - 1], -1)
    trace.tie(blocks[:, :1], blocks)
    return [*x[:-2], blocks[:, 0], *(np.zeros(size, np.int64) for size in shape[-_MAP:])]


def slid(trace: Trace, given: Arguments) -> Axes:
    """Tensor.unfold: windows along one axis."""
    axes, dim = list(given.tensors()[0]), int(given["dimension"])
    dim %= len(axes)
    trace.keep(axes[dim], "windows slide along it")
    sizes = trace.shape()
    axes[dim] = np.zeros(sizes[dim], np.int64)
    return [*axes, np.zeros(sizes[-1], np.int64)]


def sampled(trace: Trace, given: Arguments) -> Axes:
    """grid_sample: a grid says where every channel of the map is read."""
    x, grid = given.tensors()[:2]
    for axis in (*x[2:], *grid):
        trace.keep(axis, f"{name_of(trace.node)} works along it")
    return [*x[:2], *(np.zeros(size, np.int64) for size in trace.shape()[2:])]


def grid(trace: Trace, given: Arguments) -> Axes:
    """affine_grid: what makes its matrices is kept."""
    for axis in given.tensors()[0]:
        trace.keep(axis, "affine_grid reads it as a matrix")
    return [np.zeros(size, np.int64) for size in trace.shape()]


def channel_shuffle(trace: Trace, given: Arguments) -> Axes:
    """channel_shuffle: the channels at one position of every group go together."""
    x = list(given.tensors()[0])
    blocks = x[1].reshape(int(given["groups"]), -1)
    trace.tie(blocks[:1], blocks)
    x[1] = blocks.T.ravel()
    return x


def pixel_shuffle(trace: Trace, given: Arguments) -> Axes:
    """pixel_shuffle: the channels that become the pixels of one channel go together."""
    x, shape = given.tensors()[0], trace.shape()
    blocks = x[-3].reshape(shape[-3], -1)
    trace.tie(blocks[:, :1], blocks)
    for axis in x[-_MAP:]:
        trace.keep(axis, "pixel_shuffle works along it")
    return [*x[:-3], blocks[:, 0], *(np.zeros(size, np.int64) for size in shape[-_MAP:])]


def pixel_unshuffle(trace: Trace, given: Arguments) -> Axes:
    """pixel_unshuffle: a channel becomes several."""
    x, shape = given.tensors()[0], trace.shape()
    for axis in x[-_MAP:]:
        trace.keep(axis, "pixel_unshuffle works along it")
    wide = np.repeat(x[-3], shape[-3] // len(x[-3]))
    return [*x[:-3], wide, *(np.zeros(size, np.int64) for size in shape[-_MAP:])]
