"""The distance to a teacher's outputs.

Soft targets follow Hinton et al. (2015): alpha * T * T * KL(teacher / T || student / T) + (1 - alpha) * task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from edgekit.errors import InputError
from edgekit.metrics.agreement import decisions, is_feature
from edgekit.networks.losses import MANY, TINY, Task, are_probabilities, shapes_of

if TYPE_CHECKING:
    import torch

_LEAST = 1e-6  # of float32 below 1
_MAPS = 4
"""Axes of a batch of maps: samples, classes, height, width."""

Tensors = dict[str, "torch.Tensor"]
How = Literal["scores", "bits", "values"]


@dataclass(frozen=True, kw_only=True)
class Soft:
    """How the outputs of a student are held against those of a teacher.

    Attributes:
        pairs: (student's output, teacher's output), and how: as class scores, as scores that each say yes or no, or as
            values.
        temperature: softens scores of both.
        columns: the teacher's column for each of the student's classes; None where they are the same.
        named: the student's output whose classes `columns` orders; None: all scores.
        probabilities: outputs of the student that are distributions already.
        teacher_probabilities: the same of the teacher.
    """

    pairs: tuple[tuple[str, str, How], ...]
    temperature: float
    columns: tuple[int, ...] | None = None
    named: str | None = None
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
            mine = outputs[own]
            target = teacher[other].to(device=mine.device, dtype=mine.dtype)
            if how == "values":
                total = total + _relative_error(mine, target)
                continue
            axis = score_axis(mine.shape)
            mine, target = mine.movedim(axis, -1), target.movedim(axis, -1)
            if self.columns is not None and self.named in (None, own):
                target = target[..., list(self.columns)]
            if how == "bits":
                total = total + self._bitwise(own, other, mine, target)
            else:
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

    def _bitwise(self, own: str, other: str, mine: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the divergence of every score that says yes or no, at the temperature."""
        from torch.nn import functional

        p = _odds(target, probabilities=other in self.teacher_probabilities) / self.temperature
        q = _odds(mine, probabilities=own in self.probabilities) / self.temperature
        wanted, none = p.sigmoid(), functional.logsigmoid
        rows = wanted * (none(p) - none(q)) + (1 - wanted) * (none(-p) - none(-q))
        return self.temperature**2 * rows.mean()


def score_axis(shape: Sequence[int]) -> int:
    """Return the axis of the classes in scores: the second of maps, else the last."""
    return 1 if len(shape) >= _MAPS else -1


def _odds(scores: torch.Tensor, *, probabilities: bool) -> torch.Tensor:
    return scores.clamp(TINY, 1 - _LEAST).logit() if probabilities else scores


def _softened(scores: torch.Tensor, temperature: float, *, probabilities: bool) -> torch.Tensor:
    from torch.nn import functional

    logits = scores.clamp_min(TINY).log() if probabilities else scores
    return functional.log_softmax(logits / temperature, -1)


def _relative_error(mine: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error in units of the target's mean square."""
    return ((mine - target) ** 2).mean() / (target**2).mean().clamp_min(TINY)


def find_soft(
    student: Tensors, teacher: Tensors, temperature: float, task: Task | None = None
) -> tuple[Soft, tuple[int, int] | None]:
    """Pair the outputs of student and teacher, from one batch of both; return also both widths of class scores.

    Outputs of the same name belong together; else class scores do, in their order. Widths are those of the output that
    labels belong to, or of the first with class scores.

    Raises:
        InputError: nothing can be compared, or one of several outputs has other classes.
    """
    mine, others = ({name: value.detach().cpu().numpy() for name, value in side.items()} for side in (student, teacher))
    bits = {task.output} if task is not None and task.kind == "bits" else set()
    scored, wanted = decisions(mine), decisions(others)
    named = [name for name in scored if name in wanted]
    rest, left = [name for name in scored if name not in named], [name for name in wanted if name not in named]
    partners = {**{name: name for name in named}, **dict(zip(rest, left, strict=False))}
    pairs: list[tuple[str, str, How]] = [
        (name, partners[name], "bits" if name in bits else "scores")
        for name in scored
        if name in partners and mine[name].dtype.kind == "f" and _places(mine[name]) == _places(others[partners[name]])
    ]
    taught = {name for name, _, _ in pairs}
    for name, array in mine.items():
        fits = name in others and array.shape == others[name].shape and array.dtype.kind == "f"
        if fits and name not in taught and not (pairs and is_feature(name)):
            pairs.append((name, name, "bits" if name in bits else "values"))
    if not pairs:
        raise InputError(
            f"no output of the teacher ({shapes_of(others)}) fits one of the student ({shapes_of(mine)})",
            where="teacher",
            remedy="Choose a teacher for the same task, with outputs of the same names.",
        )
    widths = {a: (_width(mine[a]), _width(others[b])) for a, b, how in pairs if how != "values" and a in taught}
    first = task.output if task is not None and task.output in widths else next(iter(widths), None)
    for name, (wide, most) in widths.items():
        if name != first and wide != most:
            raise InputError(
                f"the teacher has {most} classes for '{name}', the student {wide}",
                where=name,
                remedy="Choose a teacher with the same classes for it.",
            )
    soft = Soft(
        pairs=tuple(pairs),
        temperature=temperature,
        named=first,
        probabilities=frozenset(a for a, _, how in pairs if how != "values" and _chances(mine[a], how)),
        teacher_probabilities=frozenset(b for _, b, how in pairs if how != "values" and _chances(others[b], how)),
    )
    return soft, widths[first] if first is not None else None


def _places(array: npt.NDArray[Any]) -> tuple[int, ...]:
    """Return the shape of scores without their classes."""
    shape = list(array.shape)
    del shape[score_axis(shape)]
    return tuple(shape)


def _width(array: npt.NDArray[Any]) -> int:
    return int(array.shape[score_axis(array.shape)])


def _chances(array: npt.NDArray[Any], how: How) -> bool:
    """Say whether scores are probabilities already."""
    if how == "bits":
        return array.size >= MANY and bool(((array >= 0) & (array <= 1)).all())
    return are_probabilities(array, score_axis(array.shape))
