"""Affine quantization in plain numpy: scales, zero points, rounding. The reference that graphs are checked with.

The mapping is that of ONNX QuantizeLinear: `q = saturate(round_half_even(x / scale) + zero_point)` and
`x = (q - zero_point) * scale`, with float32 scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.integer]

BOUNDS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int4": (-8, 7),
    "uint4": (0, 15),
}
"""Integer type -> smallest and largest value."""

SMALLEST_RANGE = 1e-20
"""A tensor whose values all lie within this distance of 0 has no usable range: it is dead."""

_BLOCK = 1 << 24
_BIAS_LIMIT = float(2**31 - 1)
_BIAS_STEPS = float(2**20)


@dataclass(frozen=True, slots=True)
class Grid:
    """A per-tensor grid: `scale` (a float32 value), `zero_point` and the integer type it counts in."""

    scale: float
    zero_point: int
    dtype: str

    @property
    def low(self) -> float:
        """The smallest value on the grid."""
        return (BOUNDS[self.dtype][0] - self.zero_point) * self.scale

    @property
    def high(self) -> float:
        """The largest value on the grid."""
        return (BOUNDS[self.dtype][1] - self.zero_point) * self.scale


def is_dead(low: float, high: float) -> bool:
    """Say whether a range is too small to be given a scale."""
    return max(abs(low), abs(high)) < SMALLEST_RANGE


def activation_grid(low: float, high: float, dtype: str, *, symmetric: bool) -> Grid:
    """Fit a grid to a range that is widened to hold 0, so that 0 is exact.

    Args:
        low: smallest value; finite.
        high: largest value; finite and not smaller.
        dtype: integer type, a key of BOUNDS.
        symmetric: zero point 0 for signed types (the middle for unsigned ones).

    Raises:
        ValueError: the range is not finite, or dead (see `is_dead`).
    """
    if not (np.isfinite(low) and np.isfinite(high)) or low > high or is_dead(low, high):
        raise ValueError(f"no grid for the range {low} .. {high}")
    least, most = BOUNDS[dtype]
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        middle = 0 if least < 0 else (most + 1) // 2
        scale = float(np.float32(max(-low, high) / (most - middle)))
        return Grid(scale, middle, dtype)
    scale = float(np.float32((high - low) / (most - least)))
    zero_point = int(np.clip(np.rint(least - low / scale), least, most))
    return Grid(scale, zero_point, dtype)


def within(grid: Grid, low: float, high: float) -> Grid:
    """Return the grid with a scale that is as little lower as keeps it within `low` .. `high`.

    Runtimes drop a Clip only when the grid behind it cannot leave the Clip's bounds; but 255 * float32(6 / 255) may be
    a little more than 6, and a zero point that was rounded moves both ends by up to half a step. The zero point moves
    by one where more of the range is kept so. Bounds that leave 0 out cannot be kept: the grid is returned as it is.
    """
    if low > 0 or high < 0:
        return grid
    least, most = BOUNDS[grid.dtype]
    points = [point for point in (grid.zero_point, grid.zero_point - 1, grid.zero_point + 1) if least <= point <= most]
    tried = [
        Grid(_scale_within(grid.scale, point - least, most - point, low, high), point, grid.dtype) for point in points
    ]
    best = max(tried, key=lambda found: found.scale)
    return best if best.scale > 0 else grid


def _scale_within(scale: float, below: int, above: int, low: float, high: float) -> float:
    """Return the largest float32 up to `scale` of which so many steps below and above 0 stay within the bounds."""
    ends = [-low / below if below else np.inf, high / above if above else np.inf]
    found = np.float32(min(scale, *ends))
    while found > 0 and (found * np.float32(below) > -np.float32(low) or found * np.float32(above) > np.float32(high)):
        found = np.nextafter(found, np.float32(0))
    return float(found)


def weight_scales(weights: Floats, axis: int | None, *, bits: int = 8) -> npt.NDArray[np.float32]:
    """Symmetric scales of a weight, one per index of `axis` (shape `[dim]`) or one for all (shape `[]`).

    The largest magnitude of each slice maps to `2**(bits - 1) - 1`. A slice of zeros gets scale 1. Large weights are
    read block by block.
    """
    others = None if axis is None else tuple(i for i in range(weights.ndim) if i != axis % weights.ndim)
    peak = np.zeros(() if axis is None else weights.shape[axis], np.float32)
    for rows in _blocks(weights):
        found = np.abs(weights[rows], dtype=np.float32).max(axis=others, initial=0.0)
        if axis is not None and axis % weights.ndim == 0 and weights.ndim:
            peak[rows] = found
        else:
            peak = np.maximum(peak, found)
    scales = (peak / np.float32(2 ** (bits - 1) - 1)).astype(np.float32)
    return np.where(scales < np.finfo(np.float32).tiny, np.float32(1), scales).astype(np.float32)


def _blocks(weights: Floats) -> list[Any]:
    """Return indices of the first axis that cut a weight into blocks of at most 16 million elements."""
    if weights.ndim == 0 or weights.size <= _BLOCK:
        return [...]
    step = max(1, _BLOCK // max(weights.size // weights.shape[0], 1))
    return [slice(start, start + step) for start in range(0, weights.shape[0], step)]


def empty_slices(weights: Floats, axis: int | None) -> npt.NDArray[np.bool_]:
    """Say which slices along `axis` (or whether all, shape `[]`) hold nothing but zeros: their scale is free."""
    others = None if axis is None else tuple(i for i in range(weights.ndim) if i != axis % weights.ndim)
    return np.asarray(~np.any(weights, axis=others))


def scales_for_bias(
    scales: npt.NDArray[np.float32], weights: Floats, axis: int | None, bias: Floats, input_scale: float
) -> npt.NDArray[np.float32]:
    """Raise weight scales so that an int32 bias in steps of `input_scale * weight_scale` is neither cut nor lost.

    A bias that would not fit in 31 bits raises its channel's scale (the weights of such a channel are far below the
    bias). A channel of zeros, whose scale is free, gets at least a step that its bias is a million of: begin with a
    tiny scale there.

    Args:
        scales: a scale for each channel, or one.
        weights: the weight.
        axis: the axis of `scales`, None for a single scale.
        bias: `[channels]`.
        input_scale: scale of the activation.
    """
    biases = np.abs(bias.astype(np.float64).ravel())
    needed = biases / (input_scale * _BIAS_LIMIT / 2)
    empty = empty_slices(weights, axis)
    if axis is None:
        needed, biases = (values.max(initial=0.0) for values in (needed, biases))
    fine = np.where(empty, biases / (input_scale * _BIAS_STEPS), 0.0)
    return np.maximum(scales, np.maximum(needed, fine)).astype(np.float32)


def quantize_weight(
    weights: Floats, scales: npt.NDArray[np.float32], axis: int | None, *, bits: int = 8
) -> npt.NDArray[np.int8]:
    """Round a weight to the symmetric grid of `scales`: int8 values in `-(2**(bits-1)-1) .. 2**(bits-1)-1`."""
    most = 2 ** (bits - 1) - 1
    steps = np.broadcast_to(_along(scales, axis, weights.ndim), weights.shape)
    values = np.empty(weights.shape, np.int8)
    for rows in _blocks(weights):
        values[rows] = np.clip(np.rint(weights[rows].astype(np.float32, copy=False) / steps[rows]), -most, most)
    return values


def dequantize_weight(values: Integers, scales: npt.NDArray[np.float32], axis: int | None) -> npt.NDArray[np.float32]:
    """Return the floats that integers of a symmetric grid stand for."""
    floats: npt.NDArray[np.float32] = values.astype(np.float32) * _along(scales, axis, values.ndim)
    return floats


def rounding_error(weights: Floats, axis: int | None, *, bits: int = 8) -> float:
    """Sum of squared errors of a weight on its symmetric grid with scales along `axis`."""
    scales = weight_scales(weights, axis, bits=bits)
    back = dequantize_weight(quantize_weight(weights, scales, axis, bits=bits), scales, axis)
    return float(np.square(back - weights, dtype=np.float64).sum())


def quantize_bias(bias: Floats, steps: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Round a bias to int32 counts of `steps` (one, or one per channel)."""
    counts = np.rint(bias.astype(np.float64) / steps.astype(np.float64))
    return np.clip(counts, -_BIAS_LIMIT - 1, _BIAS_LIMIT).astype(np.int32)


def quantize(values: Floats, grid: Grid) -> Integers:
    """Put values on a grid: QuantizeLinear."""
    least, most = BOUNDS[grid.dtype]
    counts = np.rint(values.astype(np.float32, copy=False) / np.float32(grid.scale)) + grid.zero_point
    integers: Integers = np.clip(counts, least, most).astype(grid.dtype)
    return integers


def dequantize(values: Integers, grid: Grid) -> npt.NDArray[np.float32]:
    """Return the floats that integers on a grid stand for: DequantizeLinear."""
    return (values.astype(np.float32) - np.float32(grid.zero_point)) * np.float32(grid.scale)


def _along(scales: npt.NDArray[np.float32], axis: int | None, rank: int) -> npt.NDArray[np.float32]:
    if axis is None:
        return scales
    shape = [1] * rank
    shape[axis % rank] = -1
    return scales.reshape(shape)
