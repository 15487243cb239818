"""Original against candidate on the same samples, streamed."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from edgekit.budget import Figure, Provenance
from edgekit.data import Feed
from edgekit.errors import InputError, UsageError
from edgekit.evaluate.alignment import UNBATCHED, aligned, size_of
from edgekit.evaluate.distances import OutputDistance, OutputDistances
from edgekit.evaluate.intervals import drop_of_outputs, drop_of_rows, mean_bounds
from edgekit.events import Finding
from edgekit.metrics import METRICS, Labels, Metric, Outputs, Rows

Array = npt.NDArray[np.generic]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate loses against the original on n samples. All bounds are one-sided at 95 %.

    Attributes:
        metric: the metric's name.
        bounded: whether the drop is in absolute points; otherwise it is relative to the original.
        n: number of samples.
        original: the metric of the original; None when n is 0.
        candidate: the metric of the candidate; None when n is 0.
        drop: what is lost; negative when the candidate is better, NaN when nothing was measured, None when n
            is 0.
        low: lower bound of the drop; None when there is none.
        high: upper bound of the drop; None when there is none.
        original_interval: bounds of the original's metric where it is a mean in [0, 1].
        candidate_interval: the same for the candidate.
        agreement: mean agreement with the original, 0 to 1; None when n is 0.
        agreement_interval: its bounds.
        note: why there is no drop; empty when there is one.
        outputs: how far each output is from the original's.
        findings: outputs that died, drifted or are not finite; severity `error` must stop a build.
    """

    metric: str
    bounded: bool
    n: int
    original: float | None
    candidate: float | None
    drop: float | None
    low: float | None
    high: float | None
    original_interval: tuple[float, float] | None
    candidate_interval: tuple[float, float] | None
    agreement: float | None
    agreement_interval: tuple[float, float] | None
    note: str
    outputs: tuple[OutputDistance, ...]
    findings: tuple[Finding, ...]


def evaluate(
    reference: Iterable[Feed],
    candidate: Iterable[Feed],
    labels: Labels,
    metric: Metric,
    *,
    count: int | None = None,
    batched: bool = True,
    seed: int = 0,
) -> Comparison:
    """Hold a candidate's outputs against the original's, sample by sample, in one pass over both.

    For metrics with per-sample numbers only these are kept; a user's metric that sees all outputs keeps all
    of both.

    Args:
        reference: output name -> array of the original, item after item.
        candidate: the same of the candidate, for the same samples in the same order. Both may be cut into
            batches of different sizes. Outputs that only the candidate has are left aside.
        labels: one per sample, or None.
        metric: what is judged; see `edgekit.metrics.find_metric` and `default_metric`.
        count: the number of samples that must come, where it is known.
        batched: axis 0 of every output counts the samples. False: each item is one sample, whatever its axes
            mean (boxes after non-maximum suppression), and shapes may differ from the original's.
        seed: of the bootstrap.

    Raises:
        UsageError: the metric needs labels that are not there or of another kind.
        InputError: the samples, outputs, shapes or labels of both do not fit.
    """
    if metric.needs_labels and labels is None:
        raise UsageError(f"the metric '{metric.name}' needs labels", remedy="Without labels use --metric agreement.")
    labels = None if labels is None else np.asarray(labels)
    kept = _Kept(metric, batched=batched)
    distances = OutputDistances(batched=batched)
    n = 0
    for original, given in aligned(reference, candidate, batched=batched):
        distances.add(original, given)
        found = {name: given[name] for name in original}
        size = size_of(original, batched=batched)
        if labels is not None and n + size > len(labels):
            raise InputError(f"there are more than {n + size - 1} samples and {len(labels)} labels", remedy=UNBATCHED)
        kept.add(original, found, None if labels is None else labels[n : n + size])
        n += size
    for expected, what in ((count, "samples"), (None if labels is None else len(labels), "labels")):
        if expected is not None and n != expected:
            raise InputError(f"outputs of {n} samples came for {expected} {what}", remedy=UNBATCHED)
    return kept.comparison(n, labels, seed, distances)


def compare(original: Outputs, candidate: Outputs, labels: Labels, metric: Metric, *, seed: int = 0) -> Comparison:
    """Hold outputs in memory against each other: `evaluate` for stacked arrays or lists of samples."""
    columns = [column for side in (original, candidate) for column in side.values()]
    stacked = all(isinstance(column, np.ndarray) for column in columns)
    before, after = (_items(side, stacked=stacked) for side in (original, candidate))
    return evaluate(before, after, labels, metric, batched=stacked, seed=seed)


def figures(comparison: Comparison, *, on: str, provenance: Provenance = "measured") -> tuple[Figure, ...]:
    """Return a comparison as figures for the verdict.

    `drop`, the metric's name for the candidate, its name with `-original` for the original, and `agreement`.

    Args:
        comparison: what was found.
        on: where the candidate ran.
        provenance: how its outputs were obtained.
    """
    unit = "1" if comparison.bounded else ""
    rows = [
        ("drop", "1", comparison.drop, (comparison.low, comparison.high), comparison.note),
        (comparison.metric, unit, comparison.candidate, comparison.candidate_interval, ""),
        (f"{comparison.metric}-original", unit, comparison.original, comparison.original_interval, ""),
    ]
    if comparison.metric != "agreement":
        rows.append(("agreement", "1", comparison.agreement, comparison.agreement_interval, ""))
    return tuple(
        Figure(
            name=name,
            value=value,
            unit=unit,
            provenance=provenance,
            on=on,
            low=bounds[0] if bounds else None,
            high=bounds[1] if bounds else None,
            n=comparison.n,
            note=note,
        )
        for name, unit, value, bounds, note in rows
    )


def _items(outputs: Outputs, *, stacked: bool) -> list[Feed]:
    """Outputs in memory as one batch, or as one item per sample."""
    if stacked:
        return [{name: np.asarray(column) for name, column in outputs.items()}]
    rows = zip(*outputs.values(), strict=True)
    return [{name: np.asarray(array) for name, array in zip(outputs, row, strict=True)} for row in rows]


class _Kept:
    """What the metric needs of both models: Rows, or all outputs."""

    def __init__(self, metric: Metric, *, batched: bool) -> None:
        self.metric = metric
        self.batched = batched
        self.agreement: list[Rows] = []
        self.rows: tuple[list[Rows], list[Rows]] = ([], [])
        self.outputs: tuple[dict[str, list[Array]], dict[str, list[Array]]] = ({}, {})

    def add(self, original: Feed, candidate: Feed, labels: Labels) -> None:
        both = [
            side if self.batched else {name: [array] for name, array in side.items()} for side in (original, candidate)
        ]
        agreement = METRICS["agreement"].per_sample
        assert agreement is not None
        self.agreement.append(agreement(both[1], None, both[0]))
        for side in range(2):
            if self.metric.per_sample is not None:
                self.rows[side].append(self.metric.per_sample(both[side], labels, both[0]))
            else:
                for name in original:
                    samples = both[side][name]
                    self.outputs[side].setdefault(name, []).extend(np.asarray(sample) for sample in samples)

    def comparison(self, n: int, labels: Labels, seed: int, distances: OutputDistances) -> Comparison:
        metric = self.metric
        if not n:
            return _nothing(metric)
        intervals: list[tuple[float, float] | None] = [None, None]
        if metric.per_sample is not None:
            rows = [np.concatenate(side) for side in self.rows]
            original, candidate, bounds = drop_of_rows(metric, rows[0], rows[1], seed)
            if metric.is_mean and metric.bounded:
                intervals = [mean_bounds(side) if np.isfinite(side).all() else None for side in rows]
        else:
            whole = [{name: _stacked(column) for name, column in side.items()} for side in self.outputs]
            original, candidate, bounds = drop_of_outputs(metric, whole[0], whole[1], labels, seed)
        agreement = np.concatenate(self.agreement)
        drop = metric.drop(original, candidate)
        return Comparison(
            metric=metric.name,
            bounded=metric.bounded,
            n=n,
            original=original,
            candidate=candidate,
            drop=drop,
            low=None if math.isnan(drop) else bounds.low,
            high=None if math.isnan(drop) else bounds.high,
            original_interval=intervals[0],
            candidate_interval=intervals[1],
            agreement=float(agreement.mean()),
            agreement_interval=mean_bounds(agreement),
            note=metric.why_no_drop(original, candidate),
            outputs=distances.results(),
            findings=distances.findings(),
        )


def _nothing(metric: Metric) -> Comparison:
    """The comparison on no samples: nothing is known and nothing is claimed."""
    return Comparison(
        metric=metric.name,
        bounded=metric.bounded,
        n=0,
        original=None,
        candidate=None,
        drop=None,
        low=None,
        high=None,
        original_interval=None,
        candidate_interval=None,
        agreement=None,
        agreement_interval=None,
        note="nothing measured: there are no evaluation samples",
        outputs=(),
        findings=(),
    )


def _stacked(samples: list[Array]) -> Array | list[Array]:
    """Samples as one read-only array where their shapes agree."""
    if any(sample.shape != samples[0].shape for sample in samples):
        return samples
    stacked = np.stack(samples)
    stacked.flags.writeable = False
    return stacked
