"""Weights on block-wise grids of 2 to 8 bits: formats, the fit of scales, rounding, the reference dequantization.

A weight is a matrix `[N, K]`, one row per output. Along K every `block` weights share a scale and a zero point; the
last block of a row may be shorter. Codes are unsigned: `x = (code - zero_point) * scale`. Symmetric means that every
zero point is `2**(bits - 1)`. ONNX's signed types hold `code - 2**(bits - 1)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Codes = npt.NDArray[np.uint8]
ScaleType = Literal["float16", "float32"]

LEAST_BLOCK = 16
"""Smallest block that runtimes take; blocks are powers of two."""

_LEAST_BITS, _MOST_BITS = 2, 8
_HALF_LEAST = float(2.0**-14)
_HALF_MOST = 65504.0
_CHUNK = 1 << 20  # weights that are searched at once
_STEPS = 12
_REFITS = 2


@dataclass(frozen=True, kw_only=True)
class BlockFormat:
    """How a matrix is stored.

    Attributes:
        bits: 2 to 8 bits a weight.
        block: weights along K that share a scale: a power of two, 16 or more.
        symmetric: every zero point is the middle code.
        negative_scales: a symmetric block may have a negative scale, so that its largest weight, whatever its sign,
            falls on the code without a counterpart. Not every runtime takes that.
        scale_type: in what type scales are stored; they are rounded to it before codes are chosen.
    """

    bits: int = 4
    block: int = 32
    symmetric: bool = True
    negative_scales: bool = False
    scale_type: ScaleType = "float16"

    def __post_init__(self) -> None:
        """Check the numbers; ValueError."""
        if not _LEAST_BITS <= self.bits <= _MOST_BITS:
            raise ValueError(f"{self.bits} bits: 2 to 8 are known")
        if self.block < LEAST_BLOCK or self.block & (self.block - 1):
            raise ValueError(f"block {self.block}: a power of two, 16 or more, is needed")

    @property
    def most(self) -> int:
        """The largest code."""
        return int(2**self.bits - 1)

    @property
    def middle(self) -> int:
        """The zero point of symmetric blocks."""
        return int(2 ** (self.bits - 1))

    def blocks(self, depth: int) -> int:
        """Return the number of blocks of a row of `depth` weights."""
        return -(-depth // self.block)

    def size(self, rows: int, depth: int) -> int:
        """Return the bytes of a packed matrix `[rows, depth]`: codes, scales and (when asymmetric) zero points."""
        blocks = self.blocks(depth)
        zeros = 0 if self.symmetric else -(-blocks * self.bits // 8)
        return rows * (-(-depth * self.bits // 8) + blocks * np.dtype(self.scale_type).itemsize + zeros)

    def stored(self, scales: Floats) -> npt.NDArray[np.float32]:
        """Return scales as they come back from storage, as float32."""
        kept: npt.NDArray[np.float32] = scales.astype(self.scale_type).astype(np.float32)
        return kept


@dataclass(frozen=True, kw_only=True)
class BlockCodes:
    """A quantized matrix.

    Attributes:
        format: how it is stored.
        codes: `[N, K]`.
        scales: `[N, blocks]`, of the format's scale type.
        zero_points: `[N, blocks]`.
    """

    format: BlockFormat
    codes: Codes
    scales: Floats
    zero_points: Codes

    def dequantized(self) -> npt.NDArray[np.float32]:
        """Return the floats that the codes stand for, `[N, K]`."""
        depth = self.codes.shape[1]
        steps, zeros = (
            np.repeat(values.astype(np.float32), self.format.block, axis=1)[:, :depth]
            for values in (self.scales, self.zero_points)
        )
        floats: npt.NDArray[np.float32] = (self.codes.astype(np.float32) - zeros) * steps
        return floats

    @property
    def size(self) -> int:
        """Bytes of codes, scales and (of asymmetric formats) zero points when they are packed."""
        rows, depth = self.codes.shape
        return self.format.size(rows, depth)


def scale_type_for(weights: Floats, fmt: BlockFormat) -> ScaleType:
    """Return the narrowest type that holds the scales of a matrix: float16, unless they would overflow or vanish.

    A row whose largest scale is below float16's normal numbers would lose precision; a small block in a row of larger
    ones would not, measured by the row's rounding error.
    """
    peaks = np.abs(weights).max(axis=1, initial=0.0).astype(np.float64) / fmt.middle
    used = peaks[peaks > 0]
    fits = not used.size or (used.min() >= _HALF_LEAST and used.max() * 2 <= _HALF_MOST)
    return "float16" if fits else "float32"


def into_blocks(matrix: npt.NDArray[Any], fmt: BlockFormat, *, fill: float = 0) -> npt.NDArray[Any]:
    """Return `[N, K]` as `[N, blocks, block]`; a short last block is filled up."""
    rows, depth = matrix.shape
    room = fmt.blocks(depth) * fmt.block - depth
    if room:
        matrix = np.pad(matrix, ((0, 0), (0, room)), constant_values=fill)
    return matrix.reshape(rows, -1, fmt.block)


def quantize_rtn(weights: Floats, fmt: BlockFormat, importance: Floats | None = None) -> BlockCodes:
    """Round a matrix to the nearest codes of the scales with the least squared error.

    Args:
        weights: `[N, K]`, finite.
        fmt: how it is to be stored.
        importance: `[K]`, weights of the squared errors (the mean squares of the inputs); None: all the same.
    """
    rows, depth = weights.shape
    count = fmt.blocks(depth)
    scales = np.empty((rows, count), np.float32)
    zeros = np.empty((rows, count), np.uint8)
    codes = np.empty((rows, depth), np.uint8)
    heavy = None if importance is None else into_blocks(importance.astype(np.float32)[None], fmt)
    for part in _row_parts(rows, depth):
        blocks = into_blocks(weights[part].astype(np.float32), fmt)
        scales[part], zeros[part] = fit_blocks(blocks, fmt, heavy)
        found = encode(blocks, scales[part], zeros[part], fmt)
        codes[part] = found.reshape(found.shape[0], -1)[:, :depth]
    return BlockCodes(format=fmt, codes=codes, scales=scales.astype(fmt.scale_type), zero_points=zeros)


def encode(blocks: Floats, scales: Floats, zeros: npt.NDArray[Any], fmt: BlockFormat) -> Codes:
    """Return the nearest codes of `[..., block]` weights for one scale and zero point a block."""
    codes: Codes = np.clip(np.rint(blocks / scales[..., None]) + zeros[..., None], 0, fmt.most).astype(np.uint8)
    return codes


def fit_blocks(
    blocks: npt.NDArray[np.float32], fmt: BlockFormat, importance: Floats | None = None
) -> tuple[npt.NDArray[np.float32], Codes]:
    """Search the scale and zero point of every block for the least (weighted) squared rounding error.

    Ranges from 0.65 to 1.05 of the block's own are tried, then the best is refitted by least squares to its codes.

    Args:
        blocks: `[..., block]`.
        fmt: how they are to be stored.
        importance: broadcasts to `blocks`; None: all the same.

    Returns:
        Scales `[...]` as they come back from storage, never 0, and zero points `[...]`. A block of zeros gets scale 1.
    """
    heavy = None if importance is None else np.broadcast_to(importance, blocks.shape)
    best = _Best(blocks, heavy, fmt)
    low, high = blocks.min(axis=-1, initial=0.0), blocks.max(axis=-1, initial=0.0)
    for shrink in np.linspace(0.65, 1.05, _STEPS):
        for scales, zeros in _candidates(low, high, float(shrink), fmt):
            best.offer(scales, zeros)
    for _ in range(_REFITS):
        best.refit()
    return best.scales, best.zeros


def _candidates(
    low: Floats, high: Floats, shrink: float, fmt: BlockFormat
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    if not fmt.symmetric:
        scales = (high - low) * (shrink / fmt.most)
        scales = np.where(scales > 0, scales, 1.0)
        exact = -low * shrink / scales
        for zeros in (np.floor(exact), np.ceil(exact)):
            yield scales, np.clip(zeros, 0, fmt.most)
        return
    middle = np.full(low.shape, fmt.middle)
    peak = np.maximum(-low, high)
    yield peak * (shrink / (fmt.middle - 1)), middle
    if fmt.negative_scales:
        yield np.where(high > -low, -1, 1) * peak * (shrink / fmt.middle), middle
    else:
        yield np.maximum(-low / fmt.middle, high / (fmt.middle - 1)) * shrink, middle


class _Best:
    """The best scale and zero point so far of every block."""

    def __init__(self, blocks: npt.NDArray[np.float32], importance: Floats | None, fmt: BlockFormat) -> None:
        self._blocks, self._heavy, self._fmt = blocks, importance, fmt
        self.scales = np.ones(blocks.shape[:-1], np.float32)
        self.zeros = np.full(blocks.shape[:-1], fmt.middle, np.uint8)
        self._errors = np.full(blocks.shape[:-1], np.inf, np.float32)

    def offer(self, scales: npt.NDArray[Any], zeros: npt.NDArray[Any]) -> None:
        """Take the offered scale where it is better."""
        kept = self._fmt.stored(scales)
        usable = np.isfinite(kept) & (kept != 0)
        kept = np.where(usable, kept, np.float32(1))
        error = self._error(kept, zeros)
        better = error < self._errors
        self.scales = np.where(better, kept, self.scales)
        self.zeros = np.where(better, zeros, self.zeros).astype(np.uint8)
        self._errors = np.where(better, error, self._errors)

    def _counts(self, scales: Floats, zeros: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        shift = zeros[..., None].astype(np.float32)
        counts: npt.NDArray[np.float32] = np.rint(self._blocks / scales[..., None])
        np.clip(counts, -shift, self._fmt.most - shift, out=counts)
        return counts

    def _error(self, scales: Floats, zeros: npt.NDArray[Any]) -> Floats:
        wrong = self._counts(scales, zeros)
        wrong *= scales[..., None]
        wrong -= self._blocks
        wrong *= wrong
        if self._heavy is not None:
            wrong *= self._heavy
        total: Floats = wrong.sum(axis=-1)
        return total

    def refit(self) -> None:
        """Offer the scales that suit the present codes best."""
        counts = self._counts(self.scales, self.zeros)
        heavy = counts if self._heavy is None else counts * self._heavy
        below = (heavy * counts).sum(axis=-1)
        above = (heavy * self._blocks).sum(axis=-1)
        scales = np.where(below > 0, above / np.where(below > 0, below, 1), self.scales)
        if not (self._fmt.negative_scales and self._fmt.symmetric):
            scales = np.where(scales > 0, scales, self.scales)
        self.offer(scales, self.zeros)


def _row_parts(rows: int, depth: int) -> Iterator[slice]:
    step = max(1, _CHUNK // max(depth, 1))
    for start in range(0, rows, step):
        yield slice(start, start + step)
