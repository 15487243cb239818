"""How far every output of the candidate is from the original's, and what must not be overlooked in it.

An average over a whole output hides what is small in it: a detector's boxes reach 640, its scores 1, and all
scores may be lost at 47 dB. So float outputs are also looked at column by column, along the last axis and
along axis 1 (where detectors and segmenters keep their channels).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError
from edgekit.events import Finding
from edgekit.numerics.distance import ColumnDistance, Distance

Array = npt.NDArray[np.generic]
Values = npt.NDArray[np.float64]

MAX_COLUMNS = 4096
"""Longer axes are positions or vocabularies rather than columns with a meaning of their own."""

_FEWEST_POSITIONS = 16
_VARIES = 1e-3
_OF_LARGEST = 0.01
_OF_PROBABILITY = 0.05
_GROUP_RATIO = 16.0
_MAX_GROUPS = 64
_LISTED = 8


class ColumnGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Neighboring columns of similar size: boxes, or scores.

    Attributes:
        axis: the axis, as counted in the output with its batch axis.
        first: index of the first column.
        last: index of the last one.
        sqnr_db: the original's variation around the means of its columns over the noise, in dB.
    """

    axis: int
    first: int
    last: int
    sqnr_db: float


class OutputDistance(msgspec.Struct, frozen=True, kw_only=True):
    """How far one output is from the original's over all samples; see `edgekit.numerics.distance`.

    Attributes:
        name: the output's name.
        elements: number of elements compared.
        sqnr_db: signal over noise in dB, inf when equal; None for text.
        cosine: between the whole outputs; None for text.
        max_abs_error: largest difference; None for text.
        broken: elements that are not finite and differ.
        groups: the same for its columns.
    """

    name: str
    elements: int
    sqnr_db: float | None
    cosine: float | None
    max_abs_error: float | None
    broken: int
    groups: tuple[ColumnGroup, ...]


class OutputDistances:
    """Accumulates the distances of all outputs, batch after batch."""

    def __init__(self, *, batched: bool) -> None:
        """Start empty; with `batched` False an item is one sample, and shapes may differ between both."""
        self._batched = batched
        self._outputs: dict[str, _Output] = {}

    def add(self, original: Mapping[str, Array], candidate: Mapping[str, Array]) -> None:
        """Add one item of both.

        Raises:
            InputError: the candidate lacks an output, or an output has another shape than the original's
                while samples are batched.
        """
        for name, array in original.items():
            if name not in candidate:
                raise InputError(f"the candidate lacks this output: it gives {', '.join(candidate)}", where=name)
            if name not in self._outputs:
                self._outputs[name] = _Output(name, array, batched=self._batched)
            self._outputs[name].add(array, candidate[name])

    def results(self) -> tuple[OutputDistance, ...]:
        """Return the distance of every output, in the original's order."""
        return tuple(output.result() for output in self._outputs.values())

    def findings(self) -> tuple[Finding, ...]:
        """Return what must not be overlooked: outputs or columns that died, drifted, or are not finite."""
        return tuple(finding for output in self._outputs.values() for finding in output.findings())


class _Output:
    """One output: its distance, its columns, and what could not be compared."""

    def __init__(self, name: str, first: Array, *, batched: bool) -> None:
        self.name = name
        self.batched = batched
        self.distance = Distance(name)
        self.items = self.reshaped = self.undefined = 0
        self.is_number = first.dtype.kind in "fiub"
        self.columns: dict[int, ColumnDistance] = {}
        if first.dtype.kind == "f":
            for axis, length in _column_axes(first.shape, batched=batched):
                self.columns[axis] = ColumnDistance(axis, length, name)

    def add(self, original: Array, candidate: Array) -> None:
        self.items += 1
        if original.dtype.kind == "f":
            self.undefined += int(np.count_nonzero(np.isnan(original)))
        if not self.batched and original.shape != candidate.shape:
            self.reshaped += 1
        elif self.is_number:
            self.distance.add(original, candidate)
            for axis, columns in list(self.columns.items()):
                left, right = (side if side.ndim > 1 else side.reshape(-1, 1) for side in (original, candidate))
                if left.ndim > axis and left.shape[axis] == columns.columns:
                    columns.add(left, right)
                else:
                    del self.columns[axis]  # an axis whose length varies has no columns

    def result(self) -> OutputDistance:
        known = self.is_number and self.distance.elements > 0
        return OutputDistance(
            name=self.name,
            elements=self.distance.elements,
            sqnr_db=self.distance.sqnr_db if known else None,
            cosine=self.distance.cosine if known else None,
            max_abs_error=self.distance.max_abs_error if known else None,
            broken=self.distance.broken,
            groups=tuple(group for columns in self.columns.values() for group in _groups(columns)),
        )

    def findings(self) -> Iterator[Finding]:
        if self.undefined:
            yield self._finding("warning", "original-not-finite", f"the original gives NaN {self.undefined} times")
        if self.distance.broken:
            text = f"{self.distance.broken} of {self.distance.elements} values are not finite on one side"
            yield self._finding("error", "output-not-finite", text)
        if self.reshaped:
            text = f"{self.reshaped} of {self.items} samples have another shape than the original's"
            yield self._finding("warning", "output-shape-differs", text)
        for columns in self.columns.values():
            found = list(_lost(columns))
            yield from (self._finding(severity, rule, text) for severity, rule, text in found)
            if any(rule == "output-constant" for _, rule, _ in found):
                return  # along the next axis it would be the same loss again

    def _finding(self, severity: str, rule: str, text: str) -> Finding:
        remedy = "Keep what computes this output in float, or give it scales of its own."
        if rule == "original-not-finite":
            remedy = "Check the original and its data: NaN in, NaN out."
        return msgspec.convert(
            {"severity": severity, "node": self.name, "rule": rule, "text": text, "remedy": remedy}, Finding
        )


def _column_axes(shape: Sequence[int], *, batched: bool) -> Iterator[tuple[int, int]]:
    """Yield the axes whose indices are columns, and their lengths; a scalar per sample is one column."""
    if len(shape) <= 1:
        yield 1, 1
        return
    channels = 1 if batched else 0
    for axis in sorted({channels, len(shape) - 1}):
        if (axis == len(shape) - 1 or len(shape) > channels + 1) and 1 <= shape[axis] <= MAX_COLUMNS:
            yield axis, shape[axis]


def _groups(columns: ColumnDistance) -> Iterator[ColumnGroup]:
    """Yield runs of neighboring columns with spans within a factor of 16; one group if there are many."""
    spans = columns.spans[0]
    starts = [0]
    for index in range(1, columns.columns):
        run = spans[starts[-1] : index + 1]
        if run.max() > _GROUP_RATIO * run.min():
            starts.append(index)
    if len(starts) > _MAX_GROUPS:
        starts = [0]
    for first, end in zip(starts, [*starts[1:], columns.columns], strict=True):
        sqnr = columns.joint_sqnr_db(slice(first, end))
        yield ColumnGroup(axis=columns.axis, first=first, last=end - 1, sqnr_db=sqnr)


def _lost(columns: ColumnDistance) -> Iterator[tuple[str, str, str]]:
    """Yield severity, rule and text for columns that no longer tell what the original's tell.

    A column is constant when the candidate gives one value at all of at least 16 positions where the
    original's varies. That is an error when the variation matters: 0.05 for columns within [0, 1], else 1 %
    of the widest column of the output; a class that never comes up rounds to 0 rightly, which is a warning.
    Columns that follow the original worse than a constant would are warnings too.
    """
    spans, changed = columns.spans
    low, high = columns.limits
    varies = (columns.counts >= _FEWEST_POSITIONS) & (spans > _VARIES * np.maximum(np.abs(low), np.abs(high)))
    constant = varies & (changed == 0)
    is_probability = (low >= 0) & (high <= 1)
    matters = spans >= np.where(is_probability, _OF_PROBABILITY, _OF_LARGEST * spans.max(initial=0))
    for chosen, severity in ((constant & matters, "error"), (constant & ~matters, "warning")):
        if chosen.any():
            widest = float(spans[chosen].max())
            text = f"{_named(chosen, columns.axis)} constant, where the original varies by up to {widest:.3g}"
            yield severity, "output-constant", text
    drifted = varies & ~constant & matters & (columns.varied_sqnr_db <= 0)
    if drifted.any():
        worst = float(columns.varied_sqnr_db[drifted].min())
        text = f"{_named(drifted, columns.axis)} further off the original than a constant ({worst:.1f} dB)"
        yield "warning", "output-drifted", text


def _named(chosen: npt.NDArray[np.bool_], axis: int) -> str:
    """Name columns by ranges, as the subject of a sentence."""
    if chosen.all():
        return "the output is" if len(chosen) == 1 else f"all {len(chosen)} columns of axis {axis} are"
    indices = np.flatnonzero(chosen)
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    words = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:_LISTED]]
    more = f" and {sum(map(len, runs[_LISTED:]))} more" if len(runs) > _LISTED else ""
    return f"columns {', '.join(words)}{more} of axis {axis} (of {len(chosen)}) are"
