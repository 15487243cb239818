"""The drop of a metric and its bounds, from what was kept of every sample."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError
from edgekit.metrics import Labels, Metric, Outputs, Rows
from edgekit.metrics.metric import checked_value
from edgekit.numerics.bootstrap import bootstrap, bootstrap_means
from edgekit.numerics.statistics import Bounds, bounded_mean, clopper_pearson

Values = npt.NDArray[np.float64]

RESAMPLES_OF_OUTPUTS = 200
"""Resamples for a user's metric without per-sample scores: each calls the function twice."""

_GROUPS_OF_OUTPUTS = 50

_UNKNOWN = Bounds(-math.inf, math.inf)


def drop_of_rows(metric: Metric, original: Rows, candidate: Rows, seed: int) -> tuple[float, float, Bounds]:
    """Return the metric of both models and the bounds of the drop, from Rows of the same samples.

    Means in [0, 1] (accuracy, agreement, a user's scores) get the distribution-free bounds of the per-sample
    losses; all others the paired bootstrap.
    """
    values = checked_value(metric, metric.total(original)), checked_value(metric, metric.total(candidate))
    if math.isnan(metric.drop(*values)):
        return *values, _UNKNOWN
    if metric.is_mean and metric.bounded:
        for rows in (original, candidate):
            if rows.min() < 0 or rows.max() > 1:
                raise InputError(
                    f"a per-sample score is {rows.min():.6g} or {rows.max():.6g}, outside [0, 1]",
                    where=metric.name,
                )
        losses = (original - candidate)[:, 0] * (1 if metric.higher_is_better else -1)
        return *values, bounded_mean(losses, -1, 1)
    if metric.is_mean:
        both = np.concatenate([original[:, :1], candidate[:, :1]], axis=1)
        bounds = bootstrap_means(both, lambda means: metric.drops(means[:, 0], means[:, 1]), seed=seed)
    else:
        bounds = bootstrap(
            lambda indices: metric.drop(metric.total(original[indices]), metric.total(candidate[indices])),
            len(original),
            seed=seed,
        )
    return *values, _at_least(bounds, len(original))


def drop_of_outputs(
    metric: Metric, original: Outputs, candidate: Outputs, labels: Labels, seed: int
) -> tuple[float, float, Bounds]:
    """Return the same for a metric that sees all outputs at once."""
    assert metric.whole is not None
    function = metric.whole
    results = [function(outputs, labels) for outputs in (original, candidate)]
    scores = [result[1][:, None] for result in results if isinstance(result, tuple)]
    if len(scores) == len(results):
        return drop_of_rows(metric, scores[0], scores[1], seed)

    def value(outputs: Outputs, labels: Labels) -> float:
        result = function(outputs, labels)
        return checked_value(metric, result[0] if isinstance(result, tuple) else result)

    def drop(indices: npt.NDArray[np.intp]) -> float:
        chosen = None if labels is None else labels[indices]
        return metric.drop(value(_take(original, indices), chosen), value(_take(candidate, indices), chosen))

    first, second = (result[0] if isinstance(result, tuple) else result for result in results)
    values = checked_value(metric, first), checked_value(metric, second)
    if math.isnan(metric.drop(*values)):
        return *values, _UNKNOWN
    n = len(next(iter(original.values())))
    bounds = bootstrap(drop, n, seed=seed, resamples=RESAMPLES_OF_OUTPUTS, groups=_GROUPS_OF_OUTPUTS)
    return *values, _at_least(bounds, n)


def mean_bounds(rows: Rows) -> Bounds:
    """Return the bounds of a mean of numbers in [0, 1]."""
    return bounded_mean(rows[:, 0], 0, 1)


def _at_least(bounds: Bounds, n: int) -> Bounds:
    """Widen bounds of zero width by what n unchanged samples leave open.

    A bootstrap cannot see what never happened: where no resample changed the drop, up to 1 - 0.05^(1/n) of
    all samples may still change, which stands for the drop itself. A heuristic for metrics that are no mean
    in [0, 1]; exact there.
    """
    if bounds.high - bounds.low > 0:
        return bounds
    unseen = clopper_pearson(0, n).high
    return Bounds(bounds.low - unseen, bounds.high + unseen)


def _take(outputs: Outputs, indices: npt.NDArray[np.intp]) -> Outputs:
    return {
        name: column[indices] if isinstance(column, np.ndarray) else [column[index] for index in indices]
        for name, column in outputs.items()
    }
