"""Rounding that learns from the inputs: GPTQ, then scales and codes in turn until the output error stops falling.

The error of a layer on its inputs X is `trace(D H D^T)` with `D = W - Q` and `H = X^T X`. GPTQ (Frantar et al., 2022)
rounds column by column and lets the columns to come make up for each error. What follows is coordinate descent on the
same error (as in QuantEase, Behdin et al., 2023), with the scales refitted by least squares in between.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgekit.numerics.blockwise import BlockCodes, BlockFormat, Codes, Floats, encode, fit_blocks, into_blocks

Matrix = npt.NDArray[np.float32]

DAMPING = 0.01
"""Share of the mean of H's diagonal that is added to it."""

FIRM_DAMPING = 0.1
"""The same for fine grids, which would follow the noise of few samples, and for rows that are looked up as well."""

_ROW_CHUNK = 512
_ROWS_AT_ONCE = 4096


def output_error(weights: Floats, quantized: Floats, gram: Floats) -> float:
    """Return the summed squared error of the outputs, `trace(D H D^T)` with D = weights - quantized."""
    wide, total = gram.astype(np.float64), 0.0
    for start in range(0, len(weights), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        wrong = weights[part].astype(np.float64) - quantized[part]
        total += float(((wrong @ wide) * wrong).sum())
    return total


def damped(gram: Floats, damping: float = DAMPING) -> Matrix:
    """Return `X^T X` with a share of its mean added to the diagonal, so that it can be inverted."""
    out = np.array(gram, np.float32)
    mean = float(np.diagonal(out).mean())
    out[np.diag_indices_from(out)] += np.float32(damping * mean if mean > 0 else 1.0)
    return out


def quantize_gptq(
    weights: Floats,
    fmt: BlockFormat,
    gram: Floats,
    *,
    act_order: bool = False,
    damping: float = DAMPING,
    sweeps: int = 3,
) -> BlockCodes:
    """Quantize `[N, K]` for the least error of its outputs.

    Args:
        weights: `[N, K]`, finite.
        fmt: how it is to be stored.
        gram: `X^T X`, `[K, K]`.
        act_order: round the columns of the largest inputs first; scales are fitted before then.
        damping: see `damped`.
        sweeps: rounds of refitted scales and coordinate descent after GPTQ.

    Raises:
        ValueError: `gram` has another size.
    """
    depth = weights.shape[1]
    if gram.shape != (depth, depth):
        raise ValueError(f"X^T X is {gram.shape}, the weights have {depth} inputs")
    inner = _padded_gram(damped(gram, damping), fmt)
    order = np.argsort(-np.diagonal(inner), kind="stable") if act_order else np.arange(len(inner))
    factor = _inverse_factor(inner[np.ix_(order, order)])
    parts = []
    for start in range(0, max(len(weights), 1), _ROWS_AT_ONCE):  # rows know nothing of each other
        full = into_blocks(weights[start : start + _ROWS_AT_ONCE].astype(np.float32), fmt).reshape(-1, len(inner))
        codes, scales, zeros = _gptq(full, inner, factor, order, fmt, act_order=act_order)
        for _ in range(sweeps):
            scales = _refit_scales(full, inner, codes, scales, zeros, fmt)
            codes = descend(full, inner, codes, scales, zeros, fmt)
        parts.append((codes[:, :depth], scales.astype(fmt.scale_type), zeros))
    codes, scales, zeros = (np.concatenate(found) for found in zip(*parts, strict=True))
    return BlockCodes(format=fmt, codes=codes, scales=scales, zero_points=zeros)


def _padded_gram(gram: Matrix, fmt: BlockFormat) -> Matrix:
    depth = len(gram)
    width = fmt.blocks(depth) * fmt.block
    if width == depth:
        return gram
    inner = np.zeros((width, width), np.float32)
    inner[:depth, :depth] = gram
    rest = np.arange(depth, width)
    inner[rest, rest] = np.diagonal(gram).mean()
    return inner


def _inverse_factor(gram: Matrix) -> Matrix:
    """Return the upper Cholesky factor of the inverse of H."""
    inverse = np.linalg.inv(gram.astype(np.float64))
    inverse = (inverse + inverse.T) / 2
    factor: Matrix = np.linalg.cholesky(inverse).T.astype(np.float32)
    return factor


def _gptq(
    weights: Matrix, gram: Matrix, factor: Matrix, order: npt.NDArray[np.intp], fmt: BlockFormat, *, act_order: bool
) -> tuple[Codes, Matrix, Codes]:
    width = weights.shape[1]
    left = weights[:, order].copy()
    codes = np.empty(left.shape, np.uint8)
    blocks = into_blocks(weights, fmt)
    scales = np.ones(blocks.shape[:2], np.float32)
    zeros = np.full(blocks.shape[:2], fmt.middle, np.uint8)
    if act_order:
        scales, zeros = fit_blocks(blocks, fmt, into_blocks(np.diagonal(gram)[None], fmt))
    for start in range(0, width, fmt.block):
        stop = start + fmt.block
        if not act_order:
            heavy = 1 / np.diagonal(factor)[start:stop] ** 2
            number = start // fmt.block
            found = fit_blocks(left[:, None, start:stop], fmt, heavy[None, None])
            scales[:, number], zeros[:, number] = found[0][:, 0], found[1][:, 0]
        errors = np.empty((left.shape[0], fmt.block), np.float32)
        for column in range(start, stop):
            number = order[column] // fmt.block
            values = left[:, column]
            found_codes = encode(values[:, None], scales[:, number], zeros[:, number], fmt)[:, 0]
            codes[:, column] = found_codes
            near = (found_codes.astype(np.float32) - zeros[:, number]) * scales[:, number]
            error = (values - near) / factor[column, column]
            left[:, column:stop] -= error[:, None] * factor[column, column:stop]
            errors[:, column - start] = error
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    back = np.empty_like(order)
    back[order] = np.arange(width)
    return codes[:, back], scales, zeros


def _refit_scales(
    weights: Matrix, gram: Matrix, codes: Codes, scales: Matrix, zeros: Codes, fmt: BlockFormat
) -> Matrix:
    """Return the scales with the least output error for these codes; a row that cannot gain keeps its own."""
    out = scales.copy()
    count = scales.shape[1]
    columns = gram.reshape(gram.shape[0], count, fmt.block)
    for start in range(0, weights.shape[0], _ROW_CHUNK):
        part = slice(start, start + _ROW_CHUNK)
        counts = codes[part].reshape(-1, count, fmt.block).astype(np.float32) - zeros[part][..., None]
        rows = counts.shape[0]
        reach = np.empty((rows, count, count), np.float64)
        for number in range(count):
            spread = counts[:, number] @ columns[:, number].T  # [rows, K]
            reach[:, :, number] = (spread.reshape(rows, count, fmt.block) * counts).sum(axis=-1)
        target = weights[part] @ gram
        aim = (target.reshape(rows, count, fmt.block) * counts).sum(axis=-1, dtype=np.float64)
        diagonal = np.einsum("rbb->rb", reach)
        diagonal += 1e-6 * np.maximum(diagonal.mean(axis=1, keepdims=True), 1e-30)
        found = fmt.stored(np.linalg.solve(reach, aim[..., None])[..., 0])
        usable = np.isfinite(found) & (found != 0)
        if not (fmt.symmetric and fmt.negative_scales):
            usable &= found > 0
        found = np.where(usable, found, scales[part])
        old, new = (
            _row_errors(weights[part], (counts * steps[..., None]).reshape(rows, -1), gram)
            for steps in (scales[part], found)
        )
        out[part] = np.where((new < old)[:, None], found, scales[part])
    return out


def _row_errors(weights: Matrix, quantized: Matrix, gram: Matrix) -> Floats:
    wrong = weights - quantized
    errors: Floats = ((wrong @ gram) * wrong).sum(axis=1, dtype=np.float64)
    return errors


def descend(weights: Matrix, gram: Matrix, codes: Codes, scales: Matrix, zeros: Codes, fmt: BlockFormat) -> Codes:
    """Let every code in turn take its best value while all others stay; the output error never rises.

    Args:
        weights: `[N, K]`, K a multiple of the block.
        gram: `[K, K]`, with a positive diagonal.
        codes: `[N, K]`.
        scales: `[N, blocks]`.
        zeros: `[N, blocks]`.
        fmt: how they are stored.
    """
    out = codes.copy()
    steps = np.repeat(scales, fmt.block, axis=1)
    shift = np.repeat(zeros.astype(np.float32), fmt.block, axis=1)
    wrong = weights - (out.astype(np.float32) - shift) * steps
    for start in range(0, weights.shape[1], fmt.block):
        stop = start + fmt.block
        pull = wrong @ gram[:, start:stop]  # minus half the gradient by the columns of this block
        for column in range(start, stop):
            inside = column - start
            step = steps[:, column]
            best = wrong[:, column] - pull[:, inside] / gram[column, column]
            # the best value of this weight alone is its present one plus pull / H_kk
            value = weights[:, column] - best
            code = np.clip(np.rint(value / step) + shift[:, column], 0, fmt.most)
            change = (code - out[:, column]) * step
            out[:, column] = code.astype(np.uint8)
            wrong[:, column] -= change
            pull -= change[:, None] * gram[column, start:stop]
    return out
