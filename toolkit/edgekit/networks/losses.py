"""What is minimized: the task on hard labels, and the distance to a teacher's outputs.

Soft targets follow Hinton et al. (2015): alpha * T * T * KL(teacher / T || student / T) + (1 - alpha) * task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError
from edgekit.metrics.agreement import class_output, decisions
from edgekit.metrics.classes import IGNORED

if TYPE_CHECKING:
    import torch

_TINY = 1e-8
_OWN = "Give class indices of the model's outputs or values of an output's shape, or train without labels."

Tensors = dict[str, "torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """How labels are held against outputs.

    Attributes:
        output: the output that labels belong to.
        kind: `classes` (cross entropy), `values` (mean squared error).
        axis: axis of the classes in the output.
        probabilities: the output is a distribution already, not logits.
    """

    output: str
    kind: Literal["classes", "values"]
    axis: int = -1
    probabilities: bool = False

    def loss(self, outputs: Tensors, labels: npt.NDArray[Any]) -> torch.Tensor:
        """Return the mean loss of a batch; positions labeled -100 do not count."""
        import torch
        from torch.nn import functional

        found = outputs[self.output]
        truth = torch.from_numpy(np.ascontiguousarray(labels)).to(found.device)
        if self.kind == "values":
            return functional.mse_loss(found.reshape(truth.shape), truth.to(found.dtype))
        scores = found.movedim(self.axis, -1).reshape(-1, found.shape[self.axis])
        logs = scores.clamp_min(_TINY).log() if self.probabilities else functional.log_softmax(scores, -1)
        return functional.nll_loss(logs, truth.reshape(-1).long(), ignore_index=IGNORED)


def find_task(outputs: Tensors, labels: npt.NDArray[Any]) -> Task:
    """Choose how labels are held against outputs, from one batch of both.

    Raises:
        InputError: no output fits the labels.
    """
    arrays = {name: value.detach().cpu().numpy() for name, value in outputs.items()}
    if labels.dtype.kind == "f":
        fitting = [name for name, array in arrays.items() if array.dtype.kind == "f" and array.size == labels.size]
        if not fitting:
            raise InputError("no output has the shape of the labels", where=_shapes(arrays), remedy=_OWN)
        return Task(output=fitting[0], kind="values")
    for name in [*_scored(arrays), *(name for name in arrays if name not in _scored(arrays))]:
        axis = _class_axis(arrays[name].shape, labels.shape)
        if axis is not None and arrays[name].dtype.kind == "f":
            classes = arrays[name].shape[axis]
            counted = labels[labels != IGNORED]
            if counted.size and not 0 <= int(counted.min()) <= int(counted.max()) < classes:
                raise InputError(
                    f"label {int(counted.max())}, and the output has {classes} classes", where=name, remedy=_OWN
                )
            return Task(output=name, kind="classes", axis=axis, probabilities=_are_probabilities(arrays[name], axis))
    raise InputError(f"no output fits labels of shape {list(labels.shape)}", where=_shapes(arrays), remedy=_OWN)


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


def _are_probabilities(array: npt.NDArray[Any], axis: int) -> bool:
    return bool((array >= 0).all() and np.allclose(array.sum(axis), 1, atol=1e-3))


def _shapes(arrays: dict[str, npt.NDArray[Any]]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())


@dataclass(frozen=True, kw_only=True)
class Soft:
    """How the outputs of a student are held against those of a teacher.

    Attributes:
        pairs: (student's output, teacher's output), and how: as class scores or as values.
        temperature: softens class scores of both.
        columns: the teacher's column for each of the student's classes; None where they are the same.
        probabilities: outputs of the student that are distributions already.
        teacher_probabilities: the same of the teacher.
    """

    pairs: tuple[tuple[str, str, Literal["scores", "values"]], ...]
    temperature: float
    columns: tuple[int, ...] | None = None
    probabilities: frozenset[str] = frozenset()
    teacher_probabilities: frozenset[str] = frozenset()

    def loss(self, outputs: Tensors, teacher: Tensors, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the mean loss over samples, or over tokens where there is a sequence.

        Args:
            outputs: the student's.
            teacher: the teacher's, on the same samples.
            mask: [n, tokens], 1 where a token counts; None: all do.
        """
        import torch

        total = torch.zeros((), device=next(iter(outputs.values())).device)
        for own, other, how in self.pairs:
            mine, target = outputs[own], teacher[other].to(outputs[own].device)
            if how == "values":
                total = total + _relative_error(mine, target)
                continue
            if self.columns is not None:
                target = target[..., list(self.columns)]
            total = total + self._divergence(own, other, mine, target, mask)
        return total / max(len(self.pairs), 1)

    def _divergence(
        self, own: str, other: str, mine: torch.Tensor, target: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        logs = _softened(mine, self.temperature, probabilities=own in self.probabilities)
        wanted = _softened(target, self.temperature, probabilities=other in self.teacher_probabilities)
        rows = (wanted.exp() * (wanted - logs)).sum(-1)
        scale = self.temperature**2
        if mask is not None and mask.shape == rows.shape:
            weight = mask.to(rows.dtype)
            return scale * (rows * weight).sum() / weight.sum().clamp_min(1)
        return scale * rows.mean()


def _softened(scores: torch.Tensor, temperature: float, *, probabilities: bool) -> torch.Tensor:
    from torch.nn import functional

    logits = scores.clamp_min(_TINY).log() if probabilities else scores
    return functional.log_softmax(logits / temperature, -1)


def _relative_error(mine: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error in units of the target's mean square."""
    return ((mine - target) ** 2).mean() / (target**2).mean().clamp_min(_TINY)


def find_soft(student: Tensors, teacher: Tensors, temperature: float) -> tuple[Soft, tuple[int, int] | None]:
    """Pair the outputs of student and teacher, from one batch of both; return also both widths of class scores.

    Outputs of the same name belong together; else class scores do, in their order.

    Raises:
        InputError: nothing can be compared.
    """
    mine, others = ({name: value.detach().cpu().numpy() for name, value in side.items()} for side in (student, teacher))
    scored, wanted = decisions(mine), decisions(others)
    pairs: list[tuple[str, str, Literal["scores", "values"]]] = []
    for number, name in enumerate(scored):
        other = name if name in wanted else wanted[number] if number < len(wanted) else ""
        if other and mine[name].dtype.kind == "f" and mine[name].shape[:-1] == others[other].shape[:-1]:
            pairs.append((name, other, "scores"))
    if not pairs:
        same = [name for name in mine if name in others and mine[name].shape == others[name].shape]
        pairs = [(name, name, "values") for name in same if mine[name].dtype.kind == "f"]
    if not pairs:
        raise InputError(
            f"no output of the teacher ({_shapes(others)}) fits one of the student ({_shapes(mine)})",
            where="teacher",
            remedy="Choose a teacher for the same task, with outputs of the same names.",
        )
    own = {name for name, _, _ in pairs if _are_probabilities(mine[name], -1)}
    theirs = {name for _, name, _ in pairs if _are_probabilities(others[name], -1)}
    widths = [(mine[a].shape[-1], others[b].shape[-1]) for a, b, how in pairs if how == "scores"]
    soft = Soft(
        pairs=tuple(pairs),
        temperature=temperature,
        probabilities=frozenset(own),
        teacher_probabilities=frozenset(theirs),
    )
    return soft, widths[0] if widths else None
