"""Running statistics of one tensor and the range that a grid should cover: min-max, percentile, MSE and entropy.

Statistics are added sample by sample and take the same memory however many samples come. Two meters merge exactly:
histograms are centered on 0, their limit is a power of two, and growing joins pairs of bins.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Method = Literal["minmax", "percentile", "mse", "entropy"]
METHODS: tuple[str, ...] = get_args(Method)

BINS = 4096
PERCENTILE = 0.9999
MOST_COUNTED = 1 << 16
"""Elements of one sample that enter the histogram (evenly spaced); extrema always see all of them."""

_KL_LEVELS = 128
_KL_CANDIDATES = 96
_SHRINKS = np.linspace(1.0, 0.2, 81)


class RangeMeter:
    """Extrema and histogram of one tensor.

    Attributes:
        low: smallest value seen; +inf before the first.
        high: largest value seen; -inf before the first.
        count: elements seen.
        finite: whether all of them were finite. Samples with others leave extrema and histogram unchanged.
    """

    def __init__(self, *, histogram: bool = True) -> None:
        """Start empty; without `histogram` only `minmax` can be asked."""
        self.low = float("inf")
        self.high = float("-inf")
        self.count = 0
        self.finite = True
        self._exponent = -126
        self._counts = np.zeros(BINS, np.int64) if histogram else None

    def add(self, values: npt.NDArray[np.floating]) -> bool:
        """Add one sample's tensor of any shape; return whether all its values are finite."""
        if not values.size:
            return True
        low, high = float(values.min()), float(values.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            self.finite = False
            return False
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += values.size
        if self._counts is not None:
            flat = values.ravel()
            # an odd step does not fall into step with a layout's powers of two
            self._count(flat[:: (flat.size // MOST_COUNTED) | 1], max(-low, high))
        return True

    def merge(self, other: RangeMeter) -> RangeMeter:
        """Return the meter of both; neither is changed."""
        both = RangeMeter(histogram=self._counts is not None and other._counts is not None)
        both.low, both.high = min(self.low, other.low), max(self.high, other.high)
        both.count = self.count + other.count
        both.finite = self.finite and other.finite
        if both._counts is not None and self._counts is not None and other._counts is not None:
            both._exponent = max(self._exponent, other._exponent)
            both._counts = _widened(self._counts, both._exponent - self._exponent) + _widened(
                other._counts, both._exponent - other._exponent
            )
        return both

    def range(self, method: Method, *, levels: int = 255, symmetric: bool = False) -> tuple[float, float]:
        """Choose the range to cover, inside `low` .. `high`.

        Args:
            method: `minmax`; `percentile` (cuts 0.01 % on each side); `mse` (least squared error of rounding and
                clipping together, by the histogram); `entropy` (least KL divergence, of magnitudes, 128 levels).
            levels: steps of the grid, for `mse`.
            symmetric: whether the grid has 0 in its middle, for `mse`.

        Raises:
            ValueError: nothing was added, or the method needs a histogram that was not kept.
        """
        if self.low > self.high:
            raise ValueError("no values were added")
        if method == "minmax":
            return self.low, self.high
        if self._counts is None:
            raise ValueError(f"'{method}' needs a histogram")
        if max(-self.low, self.high) == 0:
            return self.low, self.high
        if method == "percentile":
            return self._percentile()
        if method == "mse":
            return self._least_error(levels, symmetric=symmetric)
        limit = self._least_divergence()
        return max(self.low, -limit), min(self.high, limit)

    def _count(self, flat: npt.NDArray[np.floating], peak: float) -> None:
        assert self._counts is not None
        exponent = int(np.frexp(peak)[1]) if peak > 0 else self._exponent
        if exponent > self._exponent:
            self._counts = _widened(self._counts, exponent - self._exponent)
            self._exponent = exponent
        scale = np.float64(BINS // 2) * 2.0**-self._exponent
        places = np.floor(flat.astype(np.float64) * scale).astype(np.int64) + BINS // 2
        self._counts += np.bincount(np.clip(places, 0, BINS - 1), minlength=BINS)

    def _centers(self) -> npt.NDArray[np.float64]:
        width = 2.0**self._exponent / (BINS // 2)
        centers = np.asarray((np.arange(BINS) - BINS // 2 + 0.5) * width, np.float64)
        centers[BINS // 2] = 0.0  # the bin of exact zeros: 0 has no rounding error on any grid
        return centers

    def _percentile(self) -> tuple[float, float]:
        assert self._counts is not None
        width = 2.0**self._exponent / (BINS // 2)
        total = np.cumsum(self._counts)
        edges = (np.arange(BINS + 1) - BINS // 2) * width
        low = edges[int(np.searchsorted(total, total[-1] * (1 - PERCENTILE), side="right"))]
        high = edges[int(np.searchsorted(total, total[-1] * PERCENTILE, side="left")) + 1]
        return max(self.low, float(low)), min(self.high, float(high))

    def _least_error(self, levels: int, *, symmetric: bool) -> tuple[float, float]:
        assert self._counts is not None
        centers, counts = self._centers(), self._counts.astype(np.float64)
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        best, found = np.inf, (self.low, self.high)
        for shrink in _SHRINKS:
            a, b = low * shrink, high * shrink
            step = (2 * max(-a, b) if symmetric else b - a) / levels
            outside = np.where(centers > b, centers - b, np.where(centers < a, a - centers, 0.0))
            rounded = (outside == 0) & (centers != 0)
            error = float((counts * outside**2).sum() + counts[rounded].sum() * step * step / 12)
            if error < best:
                best, found = error, (max(self.low, a), min(self.high, b))
        return found

    def _least_divergence(self) -> float:
        assert self._counts is not None
        half = BINS // 2
        counts = (self._counts[half:] + self._counts[:half][::-1]).astype(np.float64)
        counts[0] = counts[1]  # the spike at 0 is exact on every grid and would hide the rest
        used = int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else half
        width = 2.0**self._exponent / half
        if used <= _KL_LEVELS:
            return used * width
        stops = np.unique(np.linspace(_KL_LEVELS, used, _KL_CANDIDATES).astype(np.int64))
        return int(min(stops, key=lambda stop: (_divergence(counts, int(stop)), -int(stop)))) * width


def _widened(counts: npt.NDArray[np.int64], doublings: int) -> npt.NDArray[np.int64]:
    """Return the histogram over a limit `2**doublings` times as large."""
    for _ in range(min(doublings, BINS.bit_length())):
        joined = counts.reshape(-1, 2).sum(axis=1)
        counts = np.zeros_like(counts)
        counts[BINS // 4 : BINS // 4 + BINS // 2] = joined
    return counts


def _divergence(counts: npt.NDArray[np.float64], stop: int) -> float:
    """KL divergence between a histogram cut at `stop` bins and the same in `_KL_LEVELS` levels."""
    kept = counts[:stop].copy()
    kept[-1] += counts[stop:].sum()
    groups = np.arange(stop) * _KL_LEVELS // stop
    filled = counts[:stop] > 0
    mass = np.bincount(groups, weights=counts[:stop], minlength=_KL_LEVELS)
    places = np.bincount(groups, weights=filled, minlength=_KL_LEVELS)
    spread = np.where(filled, (mass / np.maximum(places, 1))[groups], 0.0)
    p, q = kept / kept.sum(), spread / max(spread.sum(), 1e-30)
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / np.maximum(q[seen], 1e-12))).sum())
