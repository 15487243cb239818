"""What a network is trained for: labels, a teacher's outputs, or both."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgekit import events
from edgekit.errors import InputError, UsageError
from edgekit.networks.child import Tell
from edgekit.networks.feeds import Batch, Feeds
from edgekit.networks.imitation import Soft, find_soft
from edgekit.networks.label_order import align_labels
from edgekit.networks.losses import Task, are_hot, find_task
from edgekit.networks.teacher import Teacher, open_teacher
from edgekit.networks.train import Forward, Loss, Tensors, outputs_of

if TYPE_CHECKING:
    import torch

_MASK = "attention_mask"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a network is trained for: labels, a teacher's outputs, or both.

    Attributes:
        task: how labels are used; None without any.
        soft: how the teacher's outputs are used; None without a teacher.
        teacher: gives its outputs; None without one.
        alpha: share of the soft targets in the loss; the rest is for hard labels.
        findings: of the teacher and of its labels.
    """

    task: Task | None
    soft: Soft | None
    teacher: Teacher | None
    alpha: float
    findings: tuple[events.Finding, ...] = ()

    def words(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found: dict[str, Any] = {"alpha": self.alpha}
        if self.task is not None:
            found["task"] = {"output": self.task.output, "kind": self.task.kind}
        if self.soft is not None:
            found["teacher"] = [list(pair) for pair in self.soft.pairs]
        return found

    def loss(self) -> Loss:
        """Return the loss for `fit`."""

        def terms(forward: Forward, batch: Batch, feed: Tensors, _done: float) -> Tensors:
            return self.terms(forward(feed), batch, feed)

        return terms

    def terms(self, outputs: Tensors, batch: Batch, feed: Tensors, *, target: Tensors | None = None) -> Tensors:
        """Return the terms of the loss for the outputs of one batch; `target`: the teacher's, if not those it kept."""
        found: Tensors = {}
        if self.soft is not None and self.teacher is not None and self.alpha > 0:
            target = self.teacher.outputs(batch) if target is None else target
            found["soft"] = self.alpha * self.soft.loss(outputs, target, feed.get(_MASK))
        if self.task is not None and batch.labels is not None and self.alpha < 1:
            found["hard"] = (1 - self.alpha) * self.task.loss(outputs, batch.labels)
        return found


def make_goal(runner: torch.nn.Module, feeds: Feeds, arguments: dict[str, Any], tell: Tell) -> Goal:
    """Settle what a network is trained for, from its outputs and the teacher's on one batch.

    Raises:
        InputError: labels, outputs and teacher do not fit together.
        UsageError: there is neither a label nor a teacher.
    """
    batch, outputs = _first(runner, feeds)
    task = None
    if batch.labels is not None:
        hot = all(are_hot(labels) for labels in feeds.labels())
        task = find_task(outputs, batch.labels, batch.feed, hot=hot)
    if task is not None:
        for labels in feeds.labels():
            task.check(outputs, labels)
    teacher = open_teacher(arguments["teacher"], feeds, tell) if arguments["teacher"] else None
    if teacher is None:
        if task is None:
            raise UsageError(
                "nothing says what to train for: the data has no labels and there is no teacher",
                where="data",
                remedy="Label the data, or use the stage `distill`.",
            )
        return Goal(task=task, soft=None, teacher=None, alpha=0.0, findings=_told(task, tell))
    soft, widths = find_soft(outputs, teacher.outputs(batch), float(arguments["temperature"]), task)
    findings: tuple[events.Finding, ...] = teacher.findings
    if widths is not None:
        columns, told = align_labels(arguments["labels"], teacher.labels, widths=widths)
        soft, findings = dataclasses.replace(soft, columns=columns), (*findings, *told)
    for finding in findings:
        tell(events.Found(finding=finding))
    alpha = float(arguments["alpha"]) if task is not None else 1.0
    findings = (*findings, *(_told(task, tell) if task is not None else ()))
    return Goal(task=task, soft=soft, teacher=teacher, alpha=alpha, findings=findings)


def _told(task: Task, tell: Tell) -> tuple[events.Finding, ...]:
    """Say how labels are read, where that is not what they look like at first."""
    told = []
    if task.shift:
        told.append("labels are the input tokens: what stands one place on is learned at each")
    if task.resized:
        told.append(f"labels are finer than '{task.output}', which is resized to them")
    found = tuple(events.Finding(severity="note", node=task.output, rule="labels", text=text) for text in told)
    for finding in found:
        tell(events.Found(finding=finding))
    return found


def _first(runner: torch.nn.Module, feeds: Feeds) -> tuple[Batch, Tensors]:
    """Run the first batch; InputError when the network does not take it, e.g. because its batch is fixed."""
    plan = feeds.held_out()
    try:
        return next(iter(outputs_of(runner, feeds, plan)))
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError) as error:
        raise InputError(
            f"the network does not take a batch of {len(plan[0])} training samples: {str(error)[:300]}",
            where="batch",
            remedy="Set the stage's `batch` to what it takes (1 where its batch is fixed), or check the data.",
        ) from error
