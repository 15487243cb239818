"""Equalization of a product's input channels, so that one grid for all of them loses less.

Dividing channel c of the input by `f_c` and multiplying the weights that read it by it changes nothing in float. With
`f_c = peak(x_c)^alpha / peak(w_c)^(1 - alpha)` large channels shrink to what the weights, which have a scale for each
output, can take (SmoothQuant: Xiao et al., 2022), or the weights of one output come closer to each other (cross-layer
equalization: Nagel et al., 2019). Alpha is searched by the error of the outputs of quantized products.

A layer's weights are `[groups, outputs of a group, inputs of a group]`, written `[G, M, K]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.integer]

ALPHAS = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8)
_WIDEST = 256.0
_LEVELS = 255
_TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A product that reads the tensor.

    Attributes:
        weights: `[G, M, K]`.
        channels: channel of the tensor that each input is of, `[G, K]`.
    """

    weights: Floats
    channels: Places


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one sample showed.

    Attributes:
        low: smallest value of each channel, `[C]`.
        high: largest value of each channel, `[C]`.
        columns: inputs of some outputs of each reader, `[G, K, n]`.
    """

    low: Floats
    high: Floats
    columns: tuple[Floats, ...]


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How the products will be quantized.

    Attributes:
        bits: of a weight, which have a scale for each output.
        levels: steps of an activation's grid.
        fixed: whether one grid serves all samples; else each sample has its own, as at run time.
        each: whether the error of every column counts relative to that column: a few tokens with huge activations
            would decide alone otherwise. Else that of every sample.
    """

    bits: int = 8
    levels: int = _LEVELS
    fixed: bool = False
    each: bool = True


@dataclass(frozen=True, kw_only=True)
class Equalized:
    """What was found for products that read one tensor.

    Attributes:
        factors: `[C]`: the input is divided by them, weights that read it are multiplied.
        alpha: the exponent that was chosen.
        error: relative error of the outputs of quantized products with the factors, summed over the held-out samples.
        plain: the same without.
        kept: whether the factors are not all 1.
    """

    factors: Floats
    alpha: float
    error: float
    plain: float
    kept: bool


def at_run_time(x: Floats) -> Floats:
    """Return what DynamicQuantizeLinear makes of a tensor of any shape, as floats."""
    return _on_grid(x, float(x.min(initial=0.0)), float(x.max(initial=0.0)), _LEVELS)


def _on_grid(x: Floats, low: float, high: float, levels: int) -> Floats:
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / levels)
    if scale == 0:
        return x
    zero = np.clip(np.rint(-low / scale), 0, levels)
    found: Floats = ((np.clip(np.rint(x / scale) + zero, 0, levels) - zero) * scale).astype(np.float32)
    return found


def factors_of(peaks: Floats, readers: Sequence[Reader], alpha: float) -> Floats:
    """Return the factors `[C]` for an exponent, their geometric mean 1, none further from it than 256.

    Args:
        peaks: largest magnitude of each channel, `[C]`.
        readers: the products.
        alpha: 0 to 1: how much of the channels' differences the weights take over.
    """
    rows = np.zeros(peaks.shape)
    for reader in readers:
        np.maximum.at(rows, reader.channels, np.abs(reader.weights).max(axis=1))
    live = (peaks > 0) & (rows > 0)
    found = np.ones(peaks.shape)
    found[live] = peaks[live].astype(np.float64) ** alpha / rows[live] ** (1 - alpha)
    if live.any():
        found[live] /= np.exp(np.log(found[live]).mean())
    return np.clip(found, 1 / _WIDEST, _WIDEST).astype(np.float32)


def equalize(
    fit: Sequence[Seen],
    held: Sequence[Seen],
    readers: Sequence[Reader],
    precision: Precision,
    alphas: Sequence[float] = ALPHAS,
) -> Equalized:
    """Find the factors with the least error on samples, and keep them when the error falls on held-out samples too.

    Args:
        fit: samples that factors and fixed grids are taken from.
        held: samples that decide.
        readers: the products.
        precision: how they will be quantized.
        alphas: exponents to try.
    """
    peaks: Floats = np.max(np.stack([np.maximum(-seen.low, seen.high) for seen in fit]), axis=0)
    ones = np.ones(peaks.shape, np.float32)
    tried = [(alpha, factors_of(peaks, readers, alpha)) for alpha in alphas]
    errors = [quantized_error(fit, fit, readers, factors, precision) for _, factors in [(0.0, ones), *tried]]
    plain = quantized_error(held, fit, readers, ones, precision)
    best = int(np.argmin(errors))
    if best:
        alpha, factors = tried[best - 1]
        error = quantized_error(held, fit, readers, factors, precision)
        if error < plain:
            return Equalized(factors=factors, alpha=alpha, error=error, plain=plain, kept=True)
    return Equalized(factors=ones, alpha=0.0, error=plain, plain=plain, kept=False)


def quantized_error(
    samples: Sequence[Seen],
    ranges: Sequence[Seen],
    readers: Sequence[Reader],
    factors: Floats,
    precision: Precision,
) -> float:
    """Return the relative error of quantized products with some factors, summed over samples (or their columns).

    Args:
        samples: those to count.
        ranges: those that a fixed grid is taken from.
        readers: the products.
        factors: `[C]`.
        precision: how they are quantized.
    """
    grid = _range(ranges, factors) if precision.fixed else None
    matrices = [_rounded(reader, factors, precision.bits) for reader in readers]
    total = 0.0
    for seen in samples:
        low, high = grid or _range([seen], factors)
        gaps, rights = [], []
        for columns, reader, matrix in zip(seen.columns, readers, matrices, strict=True):
            x = _on_grid(columns / factors[reader.channels][:, :, None], low, high, precision.levels)
            right = reader.weights @ columns
            gaps.append(np.square(matrix @ x - right, dtype=np.float64).sum(axis=(0, 1)))
            rights.append(np.square(right, dtype=np.float64).sum(axis=(0, 1)))
        if precision.each and len({len(found) for found in gaps}) == 1:
            total += float((sum(gaps) / np.maximum(sum(rights), _TINY)).sum())
        else:
            total += sum(map(np.sum, gaps)) / max(float(sum(map(np.sum, rights))), _TINY)
    return total


def _range(samples: Sequence[Seen], factors: Floats) -> tuple[float, float]:
    low = min(float((seen.low / factors).min()) for seen in samples)
    return low, max(float((seen.high / factors).max()) for seen in samples)


def _rounded(reader: Reader, factors: Floats, bits: int) -> Floats:
    """Return the weights with the factors, on the grid of a scale for each output."""
    scaled = reader.weights * factors[reader.channels][:, None, :]
    most = np.float32(2 ** (bits - 1) - 1)
    steps = np.abs(scaled).max(axis=2, keepdims=True) / most
    steps = np.where(steps > 0, steps, np.float32(1))
    found: Floats = (np.clip(np.rint(scaled / steps), -most, most) * steps).astype(np.float32)
    return found
