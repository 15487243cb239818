"""How far one set of outputs lies from another: as a whole, per column, and whether a column died."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

MOST_COLUMNS = 4096
"""Axes longer than this are not looked at column by column."""

EXACT_DB = 200.0
"""Reported for outputs without any difference."""

_MATRIX, _PLANAR = 2, 3
_NEGLIGIBLE = 1e-5
_MEANINGFUL = 256
_LEAST = 8
_SPARE = 0.02


def decibels(signal: float, noise: float) -> float:
    """Signal-to-noise ratio in dB, at most `EXACT_DB`; -EXACT_DB when there is noise and no signal."""
    if noise <= 0:
        return EXACT_DB
    if signal <= 0:
        return -EXACT_DB
    return float(np.clip(10 * np.log10(signal / noise), -EXACT_DB, EXACT_DB))


def column_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the axes whose entries may mean different things: channels, classes, coordinates.

    The second and the last axis of matrices and rank 3; of higher ranks the second, unless it looks like a picture's
    height (as long as the third axis, while the last is not).
    """
    if len(shape) < _MATRIX:
        return ()
    if len(shape) <= _PLANAR:
        return (1,) if len(shape) == _MATRIX else (1, 2)
    last = shape[1] == shape[2] != shape[-1]
    return (len(shape) - 1,) if last else (1,)


@dataclass
class _Columns:
    """Running sums per column of one axis."""

    signal: npt.NDArray[np.float64]
    noise: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    found_low: npt.NDArray[np.float64]
    found_high: npt.NDArray[np.float64]
    count: int


@dataclass
class OutputDistance:
    """Running distance of one output over samples.

    Places where the reference is not finite must be equal and do not count otherwise.

    Attributes:
        signal: sum of squares of the reference.
        noise: sum of squares of the difference.
        dot: sum of products of both, for the cosine.
        power: sum of squares of the other.
        largest: largest absolute difference.
        samples: how many samples were added.
        worst: lowest signal-to-noise ratio of one sample, in dB.
        incomparable: why a sample could not be compared (another shape, NaN elsewhere); empty when all could.
        equal: share of equal elements, for integers and booleans (1 for floats).
    """

    signal: float = 0.0
    noise: float = 0.0
    dot: float = 0.0
    power: float = 0.0
    largest: float = 0.0
    samples: int = 0
    worst: float = EXACT_DB
    incomparable: str = ""
    equal: float = 1.0
    _elements: int = 0
    _same: int = 0
    _axes: dict[int, _Columns | None] = field(default_factory=dict)

    def add(self, reference: npt.NDArray[np.generic], found: npt.NDArray[np.generic]) -> None:
        """Compare one sample's output with the reference's."""
        self.samples += 1
        if reference.shape != found.shape:
            self.incomparable = f"its shape is {list(found.shape)} where the original gives {list(reference.shape)}"
            return
        if reference.dtype.kind != "f":
            self._same += int(np.count_nonzero(reference == found))
            self._elements += reference.size
            self.equal = self._same / max(self._elements, 1)
            return
        a, b = reference.astype(np.float64), found.astype(np.float64)
        finite = np.isfinite(a)
        if not np.array_equal(np.isfinite(b), finite):
            self.incomparable = "it has NaN or infinite values where the original has none"
            return
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
        signal, noise = float((a * a).sum()), float(((a - b) ** 2).sum())
        self.signal, self.noise = self.signal + signal, self.noise + noise
        self.dot, self.power = self.dot + float((a * b).sum()), self.power + float((b * b).sum())
        self.largest = max(self.largest, float(np.abs(a - b).max(initial=0.0)))
        self.worst = min(self.worst, decibels(signal, noise))
        for axis in column_axes(a.shape):
            self._add_columns(axis, a, b)

    def _add_columns(self, axis: int, a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> None:
        known = self._axes.get(axis)
        if a.shape[axis] > MOST_COLUMNS or not a.size or (known is None and axis in self._axes):
            return
        if known is not None and known.signal.size != a.shape[axis]:
            self._axes[axis] = None  # a ragged axis has no columns
            return
        others = tuple(i for i in range(a.ndim) if i != axis)
        fresh = _Columns(
            (a * a).sum(others),
            ((a - b) ** 2).sum(others),
            a.min(others),
            a.max(others),
            b.min(others),
            b.max(others),
            a.size // a.shape[axis],
        )
        if known is not None:
            fresh.signal += known.signal
            fresh.noise += known.noise
            fresh.count += known.count
            for low in ("low", "found_low"):
                setattr(fresh, low, np.minimum(getattr(fresh, low), getattr(known, low)))
            for high in ("high", "found_high"):
                setattr(fresh, high, np.maximum(getattr(fresh, high), getattr(known, high)))
        self._axes[axis] = fresh

    @property
    def sqnr(self) -> float:
        """Signal-to-noise ratio over all samples, in dB."""
        return decibels(self.signal, self.noise)

    @property
    def cosine(self) -> float:
        """Cosine between both, over all samples at once; 1 when both are 0."""
        scale = np.sqrt(self.signal * self.power)
        return float(self.dot / scale) if scale > 0 else float(self.signal == self.power)

    def lost_columns(self, floor: float) -> list[str]:
        """Name the columns that lost their information: below `floor` dB, or constant where the original is not.

        Columns of fewer than 8 values say nothing. Columns of values that are negligible beside the rest (a factor of
        1e-5) are left out, and so are up to 2 % of the columns of long axes: a detector's few columns each mean
        something, one feature of hundreds does not.
        """
        lost = []
        for axis, columns in sorted(self._axes.items()):
            if columns is None or columns.count < _LEAST:
                continue
            peak = np.maximum(np.abs(columns.low), np.abs(columns.high))
            alive = peak > _NEGLIGIBLE * peak.max(initial=0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = 10 * np.log10(columns.signal / columns.noise)
            flat = (columns.found_low == columns.found_high) & (columns.high - columns.low > _NEGLIGIBLE * peak)
            gone = np.flatnonzero(alive & ((ratio < floor) | (flat & (columns.noise > 0))))
            if gone.size <= _SPARE * (peak.size if peak.size > _MEANINGFUL else 0):
                continue
            for column in gone:
                what = "is constant" if flat[column] else f"has {ratio[column]:.1f} dB"
                lost.append(f"column {column} of axis {axis} {what}")
        return lost
