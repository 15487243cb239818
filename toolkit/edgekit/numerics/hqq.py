"""Half-quadratic quantization: block grids that are robust to outliers, without any data.

The error of a weight counts with a power below 1, so that few large errors are borne and the many small weights are
met well. Badri & Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023. There the zero points
are floats; here they are codes, and symmetric blocks adapt their scale instead.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgekit.numerics.blockwise import BlockCodes, BlockFormat, Codes, Floats, encode, fit_blocks, into_blocks

_POWER = 0.7
_STIFFNESS = 10.0
_GROWTH = 1.01
_ROUNDS = 20
_CHUNK = 1 << 20


def quantize_hqq(weights: Floats, fmt: BlockFormat) -> BlockCodes:
    """Quantize `[N, K]` so that the sum of `|error| ** 0.7` is small.

    It starts from the scales of the least squared error and keeps, block by block, the best round.
    """
    rows, depth = weights.shape
    scales = np.empty((rows, fmt.blocks(depth)), np.float32)
    zeros = np.empty(scales.shape, np.uint8)
    codes = np.empty((rows, depth), np.uint8)
    step = max(1, _CHUNK // max(depth, 1))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        blocks = into_blocks(weights[part].astype(np.float32), fmt)
        scales[part], zeros[part] = _solve(blocks, fmt)
        found = encode(blocks, scales[part], zeros[part], fmt)
        codes[part] = found.reshape(found.shape[0], -1)[:, :depth]
    return BlockCodes(format=fmt, codes=codes, scales=scales.astype(fmt.scale_type), zero_points=zeros)


def _solve(blocks: npt.NDArray[np.float32], fmt: BlockFormat) -> tuple[npt.NDArray[np.float32], Codes]:
    scales, zeros = fit_blocks(blocks, fmt)
    best, best_scales, best_zeros = np.full(scales.shape, np.inf), scales, zeros
    # errors are measured in steps of the block, so that the shrinkage does not depend on the weights' size
    unit = np.abs(scales)[..., None]
    stiffness = _STIFFNESS
    for _ in range(_ROUNDS):
        counts = encode(blocks, scales, zeros, fmt).astype(np.float32) - zeros[..., None].astype(np.float32)
        wrong = (blocks - counts * scales[..., None]) / unit
        score = (np.abs(wrong) ** _POWER).sum(axis=-1)
        better = score < best
        best = np.where(better, score, best)
        best_scales, best_zeros = np.where(better, scales, best_scales), np.where(better, zeros, best_zeros)
        rest = blocks - _shrink(wrong, stiffness) * unit
        scales, zeros = _adapt(rest, counts, scales, zeros, fmt)
        stiffness *= _GROWTH
    return best_scales.astype(np.float32), best_zeros.astype(np.uint8)


def _shrink(wrong: Floats, stiffness: float) -> Floats:
    """Return the part of the errors that is borne: the proximal point of `|x| ** 0.7`."""
    size = np.abs(wrong)
    pull = _POWER * np.power(np.maximum(size, np.float32(1e-8)), _POWER - 1) / stiffness
    borne: Floats = np.sign(wrong) * np.maximum(size - pull, 0)
    return borne


def _adapt(
    rest: Floats, counts: Floats, scales: npt.NDArray[np.float32], zeros: Codes, fmt: BlockFormat
) -> tuple[npt.NDArray[np.float32], Codes]:
    """Fit the zero points (asymmetric) and the scales to what is left of the weights without the borne errors."""
    if not fmt.symmetric:
        codes = counts + zeros[..., None]
        free = (codes - rest / scales[..., None]).mean(axis=-1)
        zeros = np.clip(np.rint(free), 0, fmt.most).astype(np.uint8)
        counts = codes - zeros[..., None]
    below = (counts * counts).sum(axis=-1)
    found = fmt.stored((counts * rest).sum(axis=-1) / np.where(below > 0, below, 1))
    usable = (below > 0) & np.isfinite(found) & (found != 0)
    if not (fmt.symmetric and fmt.negative_scales):
        usable &= found > 0
    return np.where(usable, found, scales).astype(np.float32), zeros
