"""Metrics of numbers and texts: errors, rank correlation, word error rate."""

from __future__ import annotations

import math

import numpy as np

from edgekit.errors import InputError, UsageError
from edgekit.metrics.metric import OWN_METRIC, Labels, Outputs, Rows, Values, parts

_TEXT = "OUT"


def squared_error(outputs: Outputs, labels: Labels, _original: Outputs) -> Rows:
    """Mean squared difference between each sample's values and its label, float64 [n, 1]."""
    return np.array([[((found - truth) ** 2).mean()] for found, truth in _pairs(outputs, labels, "mse")])


def absolute_error(outputs: Outputs, labels: Labels, _original: Outputs) -> Rows:
    """Mean absolute difference between each sample's values and its label, float64 [n, 1]."""
    return np.array([[np.abs(found - truth).mean()] for found, truth in _pairs(outputs, labels, "mae")])


def value_and_truth(outputs: Outputs, labels: Labels, _original: Outputs) -> Rows:
    """The one value that the model gives for each sample, and its label, float64 [n, 2]."""
    pairs = _pairs(outputs, labels, "spearman")
    if any(found.size != 1 for found, _ in pairs):
        raise InputError("spearman needs one value per sample", where=next(iter(outputs)), remedy=OWN_METRIC)
    return np.array([[found[0], truth[0]] for found, truth in pairs])


def root_mean(rows: Rows) -> float:
    """Square root of the mean: RMSE from squared errors."""
    return math.sqrt(rows[:, 0].mean()) if len(rows) else math.nan


def rank_correlation(rows: Rows) -> float:
    """Spearman's rho: the correlation of ranks, ties at their mean rank; NaN if a side is constant."""
    if len(rows) == 0 or not np.isfinite(rows).all():
        return math.nan
    ranks = []
    for column in rows.T:
        _, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[inverse])
    left, right = (rank - rank.mean() for rank in ranks)
    scale = math.sqrt((left @ left) * (right @ right))
    return float(left @ right / scale) if scale > 0 else math.nan


def word_error_rows(outputs: Outputs, labels: Labels, _original: Outputs) -> Rows:
    """Word errors and reference words of each sample, for text outputs and text labels, float64 [n, 2]."""
    texts = next((column for column in outputs.values() if parts(column)[0].dtype.kind in _TEXT), None)
    if texts is None:
        raise InputError("wer needs an output of text", where=", ".join(outputs), remedy=OWN_METRIC)
    if labels is None or labels.dtype.kind not in _TEXT:
        raise UsageError("the metric 'wer' needs texts as labels")
    pairs = zip(texts, labels, strict=True)
    return np.array([word_errors(" ".join(map(str, np.ravel(text))), str(truth)) for text, truth in pairs], np.float64)


def word_error_rate(rows: Rows) -> float:
    """Word errors of all samples over all their reference words; NaN without words."""
    errors, words = rows.sum(axis=0)
    return float(errors / words) if words > 0 else math.nan


def word_errors(hypothesis: str, reference: str) -> tuple[int, int]:
    """Return the edit distance in words (substitute, insert, delete) and the number of reference words."""
    said, truth = np.array(hypothesis.split(), dtype=object), reference.split()
    steps = np.arange(len(said) + 1)
    costs = steps
    for row, word in enumerate(truth, start=1):
        best = np.minimum(costs[1:] + 1, costs[:-1] + (said != word))
        # an insertion costs one per step to the right: the least of all cells to the left, each plus its way
        costs = np.minimum.accumulate(np.concatenate([[row], best]) - steps) + steps
    return int(costs[-1]), len(truth)


def _pairs(outputs: Outputs, labels: Labels, metric: str) -> list[tuple[Values, Values]]:
    """Values and label of each sample, flat float64 of equal length; the first output is meant."""
    if labels is None or labels.dtype.kind not in "fiub":
        raise UsageError(
            f"the metric '{metric}' needs numbers as labels", remedy="Without labels use --metric agreement."
        )
    name = next(iter(outputs))
    pairs = []
    for sample, label in zip(outputs[name], labels, strict=True):
        found, truth = np.asarray(sample), np.asarray(label)
        if found.size != truth.size or found.dtype.kind not in "fiub":
            shapes = f"{found.dtype} {[*found.shape]} against {truth.dtype} {[*truth.shape]}"
            raise InputError(f"{metric} cannot hold {shapes}", where=name, remedy=OWN_METRIC)
        pairs.append((found.astype(np.float64).ravel(), truth.astype(np.float64).ravel()))
    return pairs
