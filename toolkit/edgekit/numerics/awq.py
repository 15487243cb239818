"""Activation-aware scaling: input channels that carry much are quantized more finely.

Multiplying a column of the weights and dividing the input channel by the same factor changes nothing in float, but
moves rounding error from channels with large inputs to those with small ones. The factors are a power of the inputs'
root mean square, and the power is searched by the error of the outputs (Lin et al., "AWQ", 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgekit.numerics.blockwise import BlockFormat, Floats, quantize_rtn
from edgekit.numerics.gptq import output_error

_POWERS = tuple(step / 20 for step in range(0, 20, 2))
_WIDEST = 64.0
_MOST_ROWS = 128


@dataclass(frozen=True, kw_only=True)
class ChannelScales:
    """Factors of the input channels of layers that read the same tensor.

    Attributes:
        factors: `[K]`: columns of the weights are multiplied by them, the input is divided; all ones: no power helps.
        power: the exponent that was chosen.
        error: summed squared error of the outputs (of the rows that were looked at), rounded to nearest, with it.
        plain: the same without factors.
    """

    factors: npt.NDArray[np.float32]
    power: float
    error: float
    plain: float


def search_channel_scales(weights: Sequence[Floats], fmt: BlockFormat, gram: Floats) -> ChannelScales:
    """Find the factors of the input channels that several layers share, on at most 128 evenly spaced rows of each.

    Args:
        weights: matrices `[N_i, K]` that read the same input.
        fmt: how they are to be stored.
        gram: `X^T X` of the input, `[K, K]`.
    """
    weights = [matrix[:: -(-len(matrix) // _MOST_ROWS)] for matrix in weights]
    spread = np.sqrt(np.maximum(np.diagonal(gram).astype(np.float64), 0))
    live = spread[spread > 0]
    ones = np.ones(spread.shape, np.float32)
    plain = _error(weights, ones, fmt, gram)
    best = ChannelScales(factors=ones, power=0.0, error=plain, plain=plain)
    if not live.size:
        return best
    spread = np.where(spread > 0, spread, live.min())
    for power in _POWERS[1:]:
        raised = spread**power
        raised /= np.sqrt(raised.max() * raised.min())
        factors = np.clip(raised, 1 / _WIDEST, _WIDEST).astype(np.float32)
        error = _error(weights, factors, fmt, gram)
        if error < best.error:
            best = ChannelScales(factors=factors, power=power, error=error, plain=plain)
    return best


def _error(weights: Sequence[Floats], factors: npt.NDArray[np.float32], fmt: BlockFormat, gram: Floats) -> float:
    heavy = np.diagonal(gram) / factors**2
    total = 0.0
    for matrix in weights:
        near = quantize_rtn(matrix * factors, fmt, heavy).dequantized() / factors
        total += output_error(matrix, near, gram)
    return total
