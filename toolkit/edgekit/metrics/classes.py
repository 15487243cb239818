"""Metrics of class labels: accuracy, top5, F1, likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from edgekit.errors import InputError, UsageError
from edgekit.metrics.agreement import class_output, highest, is_vector
from edgekit.metrics.metric import OWN_METRIC, Array, Classes, Labels, Outputs, Rows, parts

IGNORED = -100
"""Label of positions that do not count, as in torch's cross entropy."""

SMALLEST_PROBABILITY = 1e-12
"""What a label with a lower probability counts as: a quantized softmax has true zeros."""

_TOP = 5


def correct(outputs: Outputs, labels: Labels, _original: Outputs) -> Rows:
    """Share of positions whose highest score (or class index) is the label: 0 or 1 for one label a sample."""
    return _by_class(outputs, labels, "accuracy", lambda scores, truth: highest(scores) == truth)


def correct_top5(outputs: Outputs, labels: Labels, _original: Outputs) -> Rows:
    """Share of positions whose label is among the five highest scores; ties go to the lower index."""

    def among(scores: Array, truth: Classes) -> Array:
        if scores.dtype.kind != "f" or scores.shape[-1] <= _TOP:
            raise InputError(f"top5 needs more than {_TOP} scores", where=class_output(outputs), remedy="Use accuracy.")
        values = scores.astype(np.float64)
        own = np.take_along_axis(values, truth[..., None], axis=-1)
        earlier = np.arange(values.shape[-1]) < truth[..., None]
        rank = ((values > own) | ((values == own) & earlier)).sum(axis=-1)
        return np.asarray((rank < _TOP) & ~np.isnan(values).any(axis=-1))

    return _by_class(outputs, labels, "top5", among)


def negative_log_likelihood(outputs: Outputs, labels: Labels, original: Outputs) -> Rows:
    """Mean over positions of -ln p(label), from logits or from probabilities: whichever the original gives.

    The labels stand at the positions that they are predicted at: nothing is shifted.
    """
    reference = parts(original[class_output(original)])
    from_probabilities = all(_is_probability(part) for part in reference)

    def loss(scores: Array, truth: Classes) -> Array:
        if scores.dtype.kind != "f":
            raise InputError("a likelihood needs scores", where=class_output(outputs), remedy="Use accuracy.")
        values = scores.astype(np.float64)
        if from_probabilities:
            logs = np.log(np.maximum(values, SMALLEST_PROBABILITY))
        else:
            shifted = values - values.max(axis=-1, keepdims=True)
            logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return -np.take_along_axis(logs, truth[..., None], axis=-1)[..., 0]

    return _by_class(outputs, labels, "nll", loss)


def predicted_and_true(outputs: Outputs, labels: Labels, _original: Outputs) -> Rows:
    """Predicted class (-1 where scores are NaN) and label of each sample, float64 [n, 2]."""
    truth = _class_labels(labels, "f1")
    if truth.ndim != 1:
        raise InputError(f"f1 needs one label per sample, not {[*truth.shape[1:]]}", remedy=OWN_METRIC)
    predicted = _by_class(outputs, labels, "f1", lambda scores, _truth: highest(scores))
    return np.concatenate([predicted, truth[:, None].astype(np.float64)], axis=1)


def macro_f1(rows: Rows) -> float:
    """F1 averaged over the classes among labels or predictions; a class that is never right gives 0."""
    if not len(rows):
        return math.nan
    predicted, true = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
    classes = max(int(predicted.max()), int(true.max())) + 1
    hits = np.bincount(true[predicted == true], minlength=classes)
    count = np.bincount(true, minlength=classes) + np.bincount(predicted[predicted >= 0], minlength=classes)
    return float((2 * hits[count > 0] / count[count > 0]).mean())


def perplexity(rows: Rows) -> float:
    """The exponential of the mean negative log likelihood."""
    with np.errstate(over="ignore"):
        return float(np.exp(rows[:, 0].mean())) if len(rows) else math.nan


def _by_class(outputs: Outputs, labels: Labels, metric: str, score: Callable[[Array, Classes], Array]) -> Rows:
    """Score every labeled position and average over the positions of each sample: float64 [n, 1]."""
    truths = _class_labels(labels, metric)
    name = class_output(outputs)
    samples = parts(outputs[name])
    lengths = [len(part) for part in samples]
    if sum(lengths) != len(truths):
        raise InputError(f"{sum(lengths)} samples and {len(truths)} labels", where=name)
    rows = []
    for part, truth in zip(samples, np.split(truths, np.cumsum(lengths)[:-1]), strict=True):
        scores = _shaped(part, truth, name)
        counted = truth != IGNORED
        _check_range(scores, truth[counted], name)
        found = np.asarray(score(scores, np.where(counted, truth, 0)), np.float64).reshape(len(part), -1)
        weight = counted.reshape(len(part), -1)
        if not weight.any(axis=1).all():
            raise InputError(f"a sample has no label but {IGNORED}", where=name)
        rows.append((np.where(weight, found, 0).sum(axis=1) / weight.sum(axis=1))[:, None])
    return np.concatenate(rows)


def _class_labels(labels: Labels, metric: str) -> Classes:
    if labels is None:
        raise UsageError(f"the metric '{metric}' needs labels", remedy="Without labels use --metric agreement.")
    if labels.dtype.kind not in "iu":
        raise UsageError(
            f"the metric '{metric}' needs class indices as labels, the data has {labels.dtype}",
            remedy="Map class names to the indices of the model's outputs with --label-map.",
        )
    return labels.astype(np.int64)


def _shaped(part: Array, truth: Classes, name: str) -> Array:
    """Scores in the shape of the labels with an axis of classes more, or class indices in that shape."""
    if part.dtype.kind in "iu" and part.size == truth.size:
        return part.reshape(truth.shape)
    if part.dtype.kind == "f" and truth.ndim == 1 and is_vector(part):
        return part.reshape(len(part), -1)
    if part.dtype.kind == "f" and part.shape[:-1] == truth.shape:
        return part
    shapes = f"outputs of shape {[*part.shape]} and labels of shape {[*truth.shape]}"
    raise InputError(f"{shapes} do not fit", where=name, remedy=OWN_METRIC)


def _check_range(scores: Array, truth: Classes, name: str) -> None:
    if not truth.size:
        return
    lowest, largest = int(truth.min()), int(truth.max())
    classes = scores.shape[-1] if scores.dtype.kind == "f" else None
    if lowest < 0 or (classes is not None and largest >= classes):
        known = f"the model's {classes} classes 0 to {classes - 1}" if classes else "the classes from 0 up"
        wrong = lowest if lowest < 0 else largest
        raise InputError(f"the label {wrong} is none of {known}", where=name, remedy="Map the labels with --label-map.")


def _is_probability(scores: Array) -> bool:
    values = scores.astype(np.float64)
    return bool((values >= 0).all() and np.allclose(values.sum(axis=-1), 1, atol=1e-2))
