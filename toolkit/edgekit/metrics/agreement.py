"""How far outputs are those of the original: what is judged when there are no labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError
from edgekit.metrics.metric import OWN_METRIC, Array, Classes, Labels, Outputs, Rows, Values, parts

_FEATURES = re.compile("embed|hidden|pool|feature|state", re.IGNORECASE)

Similarity = Callable[[Array, Array], Values]


def agreement(outputs: Outputs, _labels: Labels, original: Outputs) -> Rows:
    """Agreement of each sample with the original, from 0 to 1, float64 [n, 1].

    When some outputs are decisions (see `decisions`) they alone count, else all outputs do; of several the
    worst one counts. What agreement means depends on the output:

    - class indices, booleans, text: the share of elements that are equal;
    - class scores: the share of positions with the same highest score (0 or 1 where there is one position per
    sample); - everything else (boxes, embeddings, images): 2ab / (aa + bb), the cosine times how equal the
    lengths are.
    """
    chosen = decisions(original)

    def similarity(name: str, samples: Array) -> Similarity:
        if samples.dtype.kind != "f":
            return _equal
        return _same_highest if name in chosen else _concordance

    return _worst(outputs, original, chosen or original.keys(), similarity)


def cosine(outputs: Outputs, _labels: Labels, original: Outputs) -> Rows:
    """Cosine of each sample with the original, negative ones as 0; the worst of the float outputs counts."""
    floats = [name for name, column in original.items() if parts(column)[0].dtype.kind == "f"]
    return _worst(outputs, original, floats, lambda _name, _samples: _cosine)


def decisions(outputs: Outputs) -> list[str]:
    """Name the outputs that stand for classes; none when the model does something else.

    Outputs called logits are decisions. Without those, vectors per sample are, unless their name says that
    they are features (embeddings, hidden states), and only if no other output of the model has a richer
    shape: the scores of a detector are a vector too, and the position of their maximum says nothing.
    Integers, booleans and text are decisions where no float output speaks against it.
    """
    first = {name: parts(column)[0] for name, column in outputs.items()}
    logits = [name for name, samples in first.items() if _is_logits(name, samples)]
    if logits:
        return logits
    floats = [name for name, samples in first.items() if samples.dtype.kind == "f" and not _FEATURES.search(name)]
    if all(is_vector(first[name]) for name in floats):
        return floats + [name for name, samples in first.items() if samples.dtype.kind != "f"]
    return []


def class_output(outputs: Outputs) -> str:
    """Name the output to hold labels against, class scores before class indices; InputError without one."""
    first = {name: parts(column)[0] for name, column in outputs.items()}
    for fits in (
        _is_logits,
        lambda name, samples: samples.dtype.kind == "f" and is_vector(samples) and not _FEATURES.search(name),
        lambda _name, samples: samples.dtype.kind in "iu",
    ):
        for name, samples in first.items():
            if fits(name, samples):
                return name
    shapes = ", ".join(f"{name} {[*samples.shape[1:]]}" for name, samples in first.items())
    raise InputError(f"no output gives class scores: {shapes} per sample", remedy=OWN_METRIC)


def is_vector(samples: Array) -> bool:
    """Whether each sample is a vector of two or more, axes of size 1 aside."""
    return len([size for size in samples.shape[1:] if size != 1]) == 1


def is_feature(name: str) -> bool:
    """Say whether an output's name tells that it holds features: embeddings, hidden states."""
    return _FEATURES.search(name) is not None


def highest(scores: npt.NDArray[Any]) -> Classes:
    """Index of the highest score along the last axis, -1 where one is NaN; class indices as they are."""
    if scores.dtype.kind != "f":
        return scores.astype(np.int64)
    return np.where(np.isnan(scores).any(axis=-1), -1, scores.argmax(axis=-1))


def _is_logits(name: str, samples: Array) -> bool:
    return "logits" in name.lower() and samples.dtype.kind == "f" and samples.ndim > 1 and samples.shape[-1] > 1


def _worst(
    outputs: Outputs,
    original: Outputs,
    names: Collection[str],
    similarity: Callable[[str, Array], Similarity],
) -> Rows:
    """Least similarity over the named outputs, sample by sample; samples that changed their shape score 0."""
    if not names:
        raise InputError("no output can be compared", where=", ".join(original), remedy=OWN_METRIC)
    scores = []
    for name in names:
        column = []
        for samples, other in zip(parts(original[name]), parts(outputs[name]), strict=True):
            same = samples.shape == other.shape
            column.append(similarity(name, samples)(other, samples) if same else np.zeros(len(samples)))
        scores.append(np.concatenate(column))
    worst: Values = np.min(scores, axis=0)
    return worst[:, None]


def _equal(candidate: Array, original: Array) -> Values:
    same: Values = np.asarray(candidate == original, np.float64).reshape(len(original), -1)
    return np.asarray(same.mean(axis=1)) if same.shape[1] else np.ones(len(same))


def _same_highest(candidate: Array, original: Array) -> Values:
    if is_vector(original):
        candidate, original = (side.reshape(len(side), -1) for side in (candidate, original))
    found, wanted = highest(candidate), highest(original)
    same = np.asarray((found == wanted) & (found >= 0), np.float64)
    return np.asarray(same.reshape(len(original), -1).mean(axis=1))


def _concordance(candidate: Array, original: Array) -> Values:
    left, right, broken = _vectors(candidate, original)
    return _ratio(2 * (left * right).sum(axis=1), (left**2).sum(axis=1) + (right**2).sum(axis=1), broken)


def _cosine(candidate: Array, original: Array) -> Values:
    left, right, broken = _vectors(candidate, original)
    squares = (left**2).sum(axis=1), (right**2).sum(axis=1)
    one_is_zero = (squares[0] > 0) != (squares[1] > 0)
    return _ratio((left * right).sum(axis=1), np.sqrt(squares[0]) * np.sqrt(squares[1]), broken | one_is_zero)


def _vectors(candidate: Array, original: Array) -> tuple[Values, Values, Array]:
    """Both as float64 [n, d], scaled alike so that no square overflows, and which samples are broken.

    The same infinity or NaN on both sides is no difference: both are set to 0.
    """
    left, right = (side.astype(np.float64).reshape(len(side), -1) for side in (candidate, original))
    finite = np.isfinite(left) & np.isfinite(right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    broken = (~finite & ~same).any(axis=1)
    left, right = np.where(finite, left, 0), np.where(finite, right, 0)
    scale = np.maximum(np.abs(left).max(axis=1, initial=0), np.abs(right).max(axis=1, initial=0))[:, None]
    scale[scale == 0] = 1
    return left / scale, right / scale, broken


def _ratio(dot: Values, scale: Values, broken: Array) -> Values:
    """Quotient within [0, 1]; 1 where both vectors are 0, 0 where a sample is broken."""
    ratio = np.divide(dot, scale, out=np.ones(dot.shape), where=scale > 0)
    return np.where(broken, 0.0, ratio.clip(0, 1))
