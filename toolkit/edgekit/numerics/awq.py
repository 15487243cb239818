"""Scaling of input channels before blocks are rounded: what a block shares suits all of its columns.

Multiplying a column of the weights and dividing the input channel by the same factor changes nothing in float, but
moves rounding error from one channel to another. Two things ask for it. Channels with large inputs should be rounded
more finely: a power of the inputs' root mean square (Lin et al., "AWQ", 2023). And a column of large weights coarsens
the block that it shares a scale with: a negative power of the columns' root mean square. Which powers is searched by
the error of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgekit.numerics.blockwise import BlockCodes, BlockFormat, Floats, quantize_rtn
from edgekit.numerics.gptq import output_error, quantize_gptq

Factors = npt.NDArray[np.float32]
Powers = tuple[float, float]

INPUT_POWERS: tuple[Powers, ...] = tuple((step / 20, 0.0) for step in range(2, 20, 2))
"""Powers of the inputs alone."""

BOTH_POWERS: tuple[Powers, ...] = ((0.0, 1.0), (0.25, 0.75))
"""Powers of the inputs and, inverted, of the columns: for a rounding that weighs the inputs itself."""

_WIDEST = 64.0
_MOST_ROWS = 128


@dataclass(frozen=True, kw_only=True)
class ChannelScales:
    """Factors of the input channels of layers that read the same tensor.

    Attributes:
        factors: `[K]`: columns of the weights are multiplied by them, the input is divided; all ones: no power helps.
            float16 holds their inverses.
        powers: the exponents of inputs and columns that were chosen; zeros: none.
        error: summed squared error of the outputs (of the rows that were looked at) with it.
        plain: the same without factors.
    """

    factors: Factors
    powers: Powers
    error: float
    plain: float


def search_channel_scales(
    weights: Sequence[Floats], fmt: BlockFormat, gram: Floats, *, learned: bool = False
) -> ChannelScales:
    """Find the factors of the input channels that several layers share, on at most 128 evenly spaced rows of each.

    Args:
        weights: matrices `[N_i, K]` that read the same input.
        fmt: how they are to be stored.
        gram: `X^T X` of the input, `[K, K]`.
        learned: whether they will be rounded by `quantize_gptq`; else to nearest.
    """
    weights = [matrix[:: -(-len(matrix) // _MOST_ROWS)] for matrix in weights]
    inputs = _filled(np.sqrt(np.maximum(np.diagonal(gram).astype(np.float64), 0)))
    columns = _filled(_root_mean_squares(weights))
    ones = np.ones(gram.shape[0], np.float32)
    rounded = _learned if learned else _nearest
    plain = _error(weights, ones, fmt, gram, rounded)
    best = ChannelScales(factors=ones, powers=(0.0, 0.0), error=plain, plain=plain)
    if inputs is None or columns is None:
        return best
    for powers in BOTH_POWERS if learned else INPUT_POWERS:
        raised = np.power(inputs, powers[0]) / np.power(columns, powers[1])
        raised /= np.sqrt(raised.max() * raised.min())
        inverse = np.clip(1 / raised, 1 / _WIDEST, _WIDEST).astype(np.float16)
        factors: Factors = np.reciprocal(inverse.astype(np.float32))
        error = _error(weights, factors, fmt, gram, rounded)
        if error < best.error:
            best = ChannelScales(factors=factors, powers=powers, error=error, plain=plain)
    return best


def scaled_gram(gram: Floats, factors: Factors) -> npt.NDArray[np.float32]:
    """Return `X^T X` of an input that was divided by factors."""
    turned = 1 / factors.astype(np.float32)
    return np.asarray(gram * turned[:, None] * turned, np.float32)


def _root_mean_squares(weights: Sequence[Floats]) -> npt.NDArray[np.float64]:
    squares = sum(np.square(matrix, dtype=np.float64).sum(axis=0) for matrix in weights)
    found: npt.NDArray[np.float64] = np.sqrt(squares / max(sum(len(matrix) for matrix in weights), 1))
    return found


def _filled(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """Return values with the least positive one in the place of zeros; None when there is none."""
    live = values[values > 0]
    return np.where(values > 0, values, live.min()) if live.size else None


def _nearest(matrix: Floats, fmt: BlockFormat, gram: Floats) -> BlockCodes:
    return quantize_rtn(matrix, fmt, np.diagonal(gram))


def _learned(matrix: Floats, fmt: BlockFormat, gram: Floats) -> BlockCodes:
    return quantize_gptq(matrix, fmt, gram, act_order=True, sweeps=1)


def _error(
    weights: Sequence[Floats],
    factors: Factors,
    fmt: BlockFormat,
    gram: Floats,
    rounded: Callable[[Floats, BlockFormat, Floats], BlockCodes],
) -> float:
    divided = scaled_gram(gram, factors)
    total = 0.0
    for matrix in weights:
        near = rounded(matrix * factors, fmt, divided).dequantized() / factors
        total += output_error(matrix, near, gram)
    return total
