"""The loss on labels: which output they belong to, and how they are held against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError
from edgekit.metrics.agreement import class_output
from edgekit.metrics.classes import IGNORED

if TYPE_CHECKING:
    import torch

TINY = 1e-8
MANY = 16
_IMAGE = 4
"""Axes of a batch of maps: samples, classes, height, width."""

_OWN = "Give class indices of the model's outputs or values of an output's shape, or train without labels."

Tensors = dict[str, "torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """How labels are held against outputs.

    Attributes:
        output: the output that labels belong to.
        kind: `classes` (cross entropy), `bits` (binary cross entropy: each score says yes or no), `values` (squares).
        axis: axis of the classes in the output.
        probabilities: the output is a distribution already, not logits.
        shift: labels are the tokens themselves: those this many places on are what is to be predicted.
        resized: labels are finer than the map of scores, which is resized to them.
        hot: each label is a row that is 1 at its class.
    """

    output: str
    kind: Literal["classes", "bits", "values"]
    axis: int = -1
    probabilities: bool = False
    shift: int = 0
    resized: bool = False
    hot: bool = False

    def loss(self, outputs: Tensors, labels: npt.NDArray[Any]) -> torch.Tensor:
        """Return the mean loss of a batch, 0 without any label; positions labeled -100 do not count."""
        import torch
        from torch.nn import functional

        found = outputs[self.output]
        labels = labels.argmax(-1) if self.hot else labels
        truth = torch.from_numpy(np.ascontiguousarray(labels)).to(found.device)
        if self.kind == "values":
            return functional.mse_loss(found.reshape(truth.shape), truth.to(found.dtype))
        if self.kind == "bits":
            return _bits(found.reshape(truth.shape), truth, self.probabilities)
        if self.resized:
            found = functional.interpolate(found, size=truth.shape[-2:], mode="bilinear", align_corners=False)
        scores = found.movedim(self.axis, -1)
        if self.shift:
            scores, truth = scores[:, : -self.shift], truth[:, self.shift :]
        scores, truth = scores.reshape(-1, scores.shape[-1]), truth.reshape(-1).long()
        logs = scores.clamp_min(TINY).log() if self.probabilities else functional.log_softmax(scores, -1)
        total = functional.nll_loss(logs, truth, ignore_index=IGNORED, reduction="sum")
        return total / (truth != IGNORED).sum().clamp_min(1)

    def check(self, outputs: Tensors, labels: npt.NDArray[Any]) -> None:
        """Raise InputError for labels of classes that the output does not have."""
        if self.kind == "classes" and not self.hot:
            _check_classes(labels, outputs[self.output].shape[self.axis], self.output)


def _bits(scores: torch.Tensor, truth: torch.Tensor, probabilities: bool) -> torch.Tensor:  # noqa: FBT001
    """Return the mean binary cross entropy where a label is not -100."""
    from torch.nn import functional

    counted = (truth != IGNORED).to(scores.dtype)
    wanted = truth.to(scores.dtype) * counted
    if probabilities:
        rows = functional.binary_cross_entropy(scores.clamp(0, 1), wanted, reduction="none")
    else:
        rows = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    return (rows * counted).sum() / counted.sum().clamp_min(1)


def _check_classes(labels: npt.NDArray[Any], classes: int, name: str) -> None:
    counted = labels[labels != IGNORED]
    wrong = counted[(counted < 0) | (counted >= classes)]
    if wrong.size:
        text = f"label {int(wrong.flat[0])}, and the output has {classes} classes"
        raise InputError(text, where=name, remedy=f"{_OWN} {IGNORED} marks what does not count.")


def find_task(
    outputs: Tensors,
    labels: npt.NDArray[Any],
    feed: Mapping[str, npt.NDArray[Any]] | None = None,
    *,
    hot: bool = False,
) -> Task:
    """Choose how labels are held against outputs, from one batch of both.

    Args:
        outputs: of the network.
        labels: of the batch.
        feed: its inputs: labels that are the tokens of an input are predicted one place on.
        hot: every label of the data is a row that is 1 at one class (see `are_hot`).

    Raises:
        InputError: no output fits the labels.
    """
    arrays = {name: value.detach().cpu().numpy() for name, value in outputs.items()}
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    alike = [name for name, array in floats.items() if _squeezed(array.shape) == _squeezed(labels.shape)]
    if alike and hot:
        probabilities = are_probabilities(floats[alike[0]], -1)
        return Task(output=alike[0], kind="classes", probabilities=probabilities, hot=True)
    if alike and _are_bits(labels):
        within = bool(((floats[alike[0]] >= 0) & (floats[alike[0]] <= 1)).all()) and labels.size >= MANY
        return Task(output=alike[0], kind="bits", probabilities=within)
    if labels.dtype.kind == "f" and (alike or not _are_whole(labels)):
        if not alike:
            raise InputError("no output has the shape of the labels", where=shapes_of(arrays), remedy=_OWN)
        return Task(output=alike[0], kind="values")
    for name in dict.fromkeys([*_scored(arrays), *arrays]):
        if name not in floats:
            continue
        shape = arrays[name].shape
        axis = _class_axis(shape, labels.shape) or _class_axis(shape, _squeezed(labels.shape))
        finer = axis is None and _is_finer(shape, labels.shape)
        if axis is None and not finer:
            continue
        axis = 1 if axis is None else axis
        _check_classes(labels, shape[axis], name)
        same = any(_is_tokens(labels, array) for array in (feed or {}).values()) and axis == labels.ndim
        probabilities = are_probabilities(arrays[name], axis)
        return Task(output=name, kind="classes", axis=axis, probabilities=probabilities, shift=int(same), resized=finer)
    raise InputError(f"no output fits labels of shape {list(labels.shape)}", where=shapes_of(arrays), remedy=_OWN)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without axes of one, but for the batch."""
    return (*shape[:1], *(size for size in shape[1:] if size != 1))


def _are_bits(labels: npt.NDArray[Any]) -> bool:
    """Say whether labels are yes or no: integers, or floats that are 0 and 1 and nothing else."""
    found = set(np.unique(labels).tolist()) - {IGNORED}
    return bool(found) and found <= {0, 1} and (labels.dtype.kind != "f" or len(found) > 1)


def are_hot(labels: npt.NDArray[Any]) -> bool:
    """Say whether every label is a row of numbers that is 1 at one place and 0 at all others."""
    if labels.ndim != 2 or labels.shape[1] < 2:  # noqa: PLR2004 - samples, classes
        return False
    return bool(np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all())


def _are_whole(labels: npt.NDArray[Any]) -> bool:
    """Say whether floats are classes by number, as tables of numbers hold them."""
    return bool(np.isfinite(labels).all() and (labels == np.rint(labels)).all())


def _is_finer(output: tuple[int, ...], labels: tuple[int, ...]) -> bool:
    """Say whether labels are a map of the same proportions as the output's, with more pixels."""
    if len(output) != _IMAGE or len(labels) != _IMAGE - 1 or output[0] != labels[0]:
        return False
    (high, wide), (rows, columns) = output[2:], labels[1:]
    return rows > high and rows % high == 0 and columns % wide == 0 and rows // high == columns // wide


def _is_tokens(labels: npt.NDArray[Any], tokens: npt.NDArray[Any]) -> bool:
    """Say whether labels repeat an input of tokens wherever they count."""
    if tokens.dtype.kind not in "iu" or tokens.shape != labels.shape or labels.ndim != 2:  # noqa: PLR2004 - samples, tokens
        return False
    counted = labels != IGNORED
    return bool(counted.any()) and bool((labels == tokens)[counted].all()) and len(np.unique(labels[counted])) > 2  # noqa: PLR2004


def _scored(arrays: dict[str, npt.NDArray[Any]]) -> list[str]:
    try:
        return [class_output(arrays)]
    except InputError:
        return []


def _class_axis(output: tuple[int, ...], labels: tuple[int, ...]) -> int | None:
    """Return the axis whose removal gives the shape of the labels: the last, else the second (dense targets)."""
    if output[:-1] == labels and len(output) > 1:
        return len(output) - 1
    if len(output) > 2 and (output[0], *output[2:]) == labels:  # noqa: PLR2004 - batch, classes, and more
        return 1
    squeezed = [axis for axis, size in enumerate(output) if axis and size != 1]
    return squeezed[0] if len(squeezed) == 1 and labels == output[:1] else None


def are_probabilities(array: npt.NDArray[Any], axis: int) -> bool:
    """Say whether scores are distributions along an axis."""
    return bool((array >= 0).all() and np.allclose(array.sum(axis), 1, atol=1e-3))


def shapes_of(arrays: dict[str, npt.NDArray[Any]]) -> str:
    """Word the shapes of outputs."""
    return ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
