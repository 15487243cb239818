"""How far a tensor is from its original: SQNR, cosine, largest error, as a whole and column by column.

All are accumulators: `add` batch after batch, read any time; sums are kept in float64 and nothing of the
batches is.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError

Array = npt.NDArray[np.generic]
Values = npt.NDArray[np.float64]

_CHUNK = 1 << 20


class Distance:
    """SQNR, cosine and largest absolute error between two tensors of the same name.

    Integers and booleans are compared as float64. A position where both are NaN or the same infinity counts
    as equal and is left out of the sums; any other position that is not finite makes SQNR -inf, cosine NaN
    and the error inf.

    Attributes:
        elements: number of elements compared.
        broken: number of elements that are not finite and differ.
        max_abs_error: largest absolute difference; inf when an element is broken.
    """

    def __init__(self, name: str = "") -> None:
        """Start empty; `name` is the tensor that errors are about."""
        self.name = name
        self.elements = 0
        self.broken = 0
        self.max_abs_error = 0.0
        self._signal = 0.0
        self._noise = 0.0
        self._power = 0.0
        self._dot = 0.0

    def add(self, reference: Array, candidate: Array) -> None:
        """Add one pair of arrays of the same shape, any numeric dtype.

        Raises:
            InputError: the shapes differ, or an array is no real number.
        """
        reference, candidate = comparable(reference, candidate, self.name)
        left, right = reference.reshape(-1), candidate.reshape(-1)
        for start in range(0, left.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            self._add(left[part].astype(np.float64), right[part].astype(np.float64))

    def _add(self, reference: Values, candidate: Values) -> None:
        self.elements += reference.size
        finite = np.isfinite(reference) & np.isfinite(candidate)
        if not finite.all():
            same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
            self.broken += int(np.count_nonzero(~finite & ~same))
            reference, candidate = reference[finite], candidate[finite]
        error = reference - candidate
        self._signal += float(reference @ reference)
        self._power += float(candidate @ candidate)
        self._dot += float(reference @ candidate)
        self._noise += float(error @ error)
        largest = math.inf if self.broken else float(np.abs(error).max(initial=0.0))
        self.max_abs_error = max(self.max_abs_error, largest)

    @property
    def sqnr_db(self) -> float:
        """10 log10(signal / noise) in dB: inf when equal, -inf if broken or without signal, NaN if empty."""
        if not self.elements:
            return math.nan
        return -math.inf if self.broken else decibel(self._signal, self._noise)

    @property
    def cosine(self) -> float:
        """Cosine of the angle between both: 1 when both are all 0, 0 when one is, NaN if broken or empty."""
        if not self.elements or self.broken:
            return math.nan
        if self._signal == 0 or self._power == 0:
            return float(self._signal == self._power)
        return max(-1.0, min(1.0, self._dot / (math.sqrt(self._signal) * math.sqrt(self._power))))


class ColumnDistance:
    """The distance along one axis, index by index: what an average over the whole tensor hides.

    A detector's boxes reach 640 and its scores 1: the scores may all be lost at 47 dB. So every column is
    held against the variation of its own original: `varied_sqnr_db` is 0 dB when the candidate's column is
    worth a constant. Positions that are not finite in either array are left out; `Distance` counts them.

    Attributes:
        axis: the axis whose indices are the columns.
        columns: its length.
    """

    def __init__(self, axis: int, columns: int, name: str = "") -> None:
        """Start empty, for arrays with `columns` entries along `axis`; errors are about the tensor `name`."""
        self.axis = axis
        self.columns = columns
        self.name = name
        self._count = np.zeros(columns)
        self._mean = np.zeros(columns)
        self._variation = np.zeros(columns)
        self._noise = np.zeros(columns)
        self._low = np.full((2, columns), np.inf)
        self._high = np.full((2, columns), -np.inf)

    def add(self, reference: Array, candidate: Array) -> None:
        """Add one pair of arrays of the same shape, any numeric dtype.

        Raises:
            InputError: the shapes differ, the axis has another length, or an array is no real number.
        """
        reference, candidate = comparable(reference, candidate, self.name)
        if reference.shape[self.axis] != self.columns:
            raise InputError(
                f"axis {self.axis} has {reference.shape[self.axis]} entries where there were {self.columns}",
                where=self.name,
            )
        left, right = (np.moveaxis(side, self.axis, -1) for side in (reference, candidate))
        left, right = (side.reshape(-1, self.columns) for side in (left, right))
        rows = max(1, _CHUNK // self.columns)
        for start in range(0, len(left), rows):
            part = slice(start, start + rows)
            self._add(left[part].astype(np.float64), right[part].astype(np.float64))

    def _add(self, reference: Values, candidate: Values) -> None:
        """Add rows of columns, float64 [rows, columns]."""
        finite = np.isfinite(reference) & np.isfinite(candidate)
        all_finite = bool(finite.all())

        def kept(values: Values, otherwise: float) -> Values:
            return values if all_finite else np.where(finite, values, otherwise)

        count = finite.sum(axis=0).astype(np.float64)
        mean = kept(reference, 0).sum(axis=0) / np.maximum(count, 1)
        with np.errstate(invalid="ignore"):  # infinity less infinity is left out
            deviation, error = reference - mean, reference - candidate
        # merged around the means (Chan, Golub and LeVeque 1983): raw sums would cancel
        total = np.maximum(self._count + count, 1)
        gap = np.where(count > 0, mean - self._mean, 0.0)
        self._variation += (kept(deviation, 0) ** 2).sum(axis=0)
        self._variation += gap**2 * self._count * count / total
        self._mean += gap * count / total
        self._count += count
        self._noise += (kept(error, 0) ** 2).sum(axis=0)
        for row, part in enumerate((reference, candidate)):
            self._low[row] = np.minimum(self._low[row], kept(part, np.inf).min(axis=0))
            self._high[row] = np.maximum(self._high[row], kept(part, -np.inf).max(axis=0))

    @property
    def varied_sqnr_db(self) -> Values:
        """Float64 [columns]: the original's variation around its mean over the noise, in dB."""
        return np.array([self.joint_sqnr_db(slice(i, i + 1)) for i in range(self.columns)])

    def joint_sqnr_db(self, columns: slice) -> float:
        """Return the same for several columns together: their summed variation over their summed noise."""
        return decibel(float(self._variation[columns].sum()), float(self._noise[columns].sum()))

    @property
    def counts(self) -> Values:
        """Float64 [columns]: number of positions compared."""
        return self._count

    @property
    def spans(self) -> Values:
        """Float64 [2, columns]: largest less smallest value, of original and candidate; 0 if empty."""
        return np.where(self._count > 0, self._high - self._low, 0.0)

    @property
    def limits(self) -> tuple[Values, Values]:
        """Smallest and largest value of the original's columns, float64 [columns]; inf and -inf if empty."""
        return self._low[0], self._high[0]


def comparable(reference: Array, candidate: Array, name: str) -> tuple[Array, Array]:
    """Return both as arrays, or refuse them: InputError unless they are real numbers of one shape."""
    reference, candidate = np.asarray(reference), np.asarray(candidate)
    if reference.shape != candidate.shape:
        raise InputError(
            f"the original's shape is {list(reference.shape)}, the candidate's {list(candidate.shape)}",
            where=name,
            remedy="Compare outputs of the same samples, fed in the same order.",
        )
    for array in (reference, candidate):
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            raise InputError(f"a distance needs real numbers, not {array.dtype}", where=name)
    return reference, candidate


def decibel(signal: float, noise: float) -> float:
    """10 log10(signal / noise): inf without noise, -inf without a signal."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 and signal / noise > 0 else -math.inf
