"""Equalization of a product's input channels, so that one grid for all of them loses less (SmoothQuant).

Dividing channel j of the input by `s_j` and multiplying row j of the weights by it changes nothing in float. With
`s_j = peak(x_j)^alpha / peak(w_j)^(1 - alpha)` (Xiao et al., 2022) large channels shrink to what the weights, which
have a scale per output, can take. Here alpha is searched by the error of the outputs of int8 products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgekit.numerics.affine import dequantize_weight, quantize_weight, weight_scales

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.integer]

ALPHAS = (0.2, 0.35, 0.5, 0.65, 0.8)
_WIDEST = 256.0
_LEVELS = 255
_TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Equalized:
    """What was found for products that read one tensor.

    Attributes:
        factors: `[K]`: the input is divided by them, rows of the weights are multiplied.
        alpha: the exponent that was chosen.
        error: error of the outputs of int8 products with the factors: squares relative to each row's own, summed.
        plain: the same without.
    """

    factors: Floats
    alpha: float
    error: float
    plain: float


def at_run_time(x: Floats) -> Floats:
    """Return what DynamicQuantizeLinear makes of a tensor of any shape, as floats."""
    low, high = min(float(x.min(initial=0.0)), 0.0), max(float(x.max(initial=0.0)), 0.0)
    scale = np.float32((high - low) / _LEVELS)
    if scale == 0:
        return x
    zero = np.clip(np.rint(-low / scale), 0, _LEVELS)
    found: Floats = ((np.clip(np.rint(x / scale) + zero, 0, _LEVELS) - zero) * scale).astype(np.float32)
    return found


def factors_of(peaks: Floats, weights: Sequence[Floats], alpha: float) -> Floats:
    """Return the factors `[K]` for an exponent, their geometric mean 1, none further from it than 256.

    Args:
        peaks: largest magnitude of each input channel, `[K]`.
        weights: matrices `[K, N_i]` that read the input.
        alpha: 0 to 1: how much of the channels' differences the weights take over.
    """
    rows = np.max(np.stack([np.abs(weight).max(axis=1) for weight in weights]), axis=0).astype(np.float64)
    live = (peaks > 0) & (rows > 0)
    found = np.ones(peaks.shape)
    found[live] = peaks[live].astype(np.float64) ** alpha / rows[live] ** (1 - alpha)
    if live.any():
        found[live] /= np.exp(np.log(found[live]).mean())
    return np.clip(found, 1 / _WIDEST, _WIDEST).astype(np.float32)


def equalize(
    samples: Sequence[Floats],
    weights: Sequence[Floats],
    *,
    judged: Sequence[Places] | None = None,
    alphas: Sequence[float] = ALPHAS,
) -> Equalized:
    """Find the factors with the least error of the outputs of int8 products.

    Args:
        samples: inputs, `[n, K]` each; each is put on a grid of its own, as at run time.
        weights: matrices `[K, N_i]`.
        judged: rows of each sample whose outputs count; the grid is that of all rows. None: all of them.
        alphas: exponents to try.
    """
    peaks: Floats = np.max(np.stack([np.abs(sample).max(axis=0) for sample in samples]), axis=0)
    joined = np.concatenate(weights, axis=1).astype(np.float32)
    rows = [np.arange(len(sample)) for sample in samples] if judged is None else list(judged)
    wanted = [sample[some] @ joined for sample, some in zip(samples, rows, strict=True)]
    ones = np.ones(peaks.shape, np.float32)
    plain = _error(samples, joined, ones, wanted, rows)
    best = Equalized(factors=ones, alpha=0.0, error=plain, plain=plain)
    for alpha in alphas:
        factors = factors_of(peaks, weights, alpha)
        error = _error(samples, joined, factors, wanted, rows)
        if error < best.error:
            best = Equalized(factors=factors, alpha=alpha, error=error, plain=plain)
    return best


def _error(
    samples: Sequence[Floats], weights: Floats, factors: Floats, wanted: Sequence[Floats], rows: Sequence[Places]
) -> float:
    """Sum each row's error relative to the row: a few tokens with huge activations would decide alone otherwise."""
    scaled = weights * factors[:, None]
    scales = weight_scales(scaled, 1)
    matrix = dequantize_weight(quantize_weight(scaled, scales, 1), scales, 1)
    total = 0.0
    for sample, right, some in zip(samples, wanted, rows, strict=True):
        x = at_run_time(sample / factors)[some]
        gaps = np.square(x @ matrix - right).sum(axis=1, dtype=np.float64)
        total += float((gaps / np.maximum(np.square(right).sum(axis=1, dtype=np.float64), _TINY)).sum())
    return total
