"""Fine-tune an artifact of kind `torch` on labels, on a teacher's outputs, or both. Runs in a child process."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit import events
from edgekit.errors import InputError, UsageError
from edgekit.networks.child import Tell
from edgekit.networks.feeds import Batch, Feeds
from edgekit.networks.label_order import align_labels
from edgekit.networks.losses import Soft, Task, find_soft, find_task
from edgekit.networks.network import Network
from edgekit.networks.norms import ENOUGH
from edgekit.networks.rebuild import rebuild
from edgekit.networks.saving import save_network
from edgekit.networks.schedule import Schedule
from edgekit.networks.teacher import Teacher, open_teacher
from edgekit.networks.train import Forward, Loss, Tensors, fit, outputs_of, runner_of

if TYPE_CHECKING:
    import torch

_MASK = "attention_mask"


def finetune(arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Train the network of an artifact and write the new one.

    Args:
        arguments: `folder`, `out`, `scratch`, `feeds`, `shapes`, `dtypes`, `threads`, `seed`, `labels` (names of the
            outputs), `epochs`, `batch`, `rate` (0: by the kind of model), `patience`, `decay`, `alpha`,
            `temperature`, and `teacher` (see `teacher.open_teacher`) or None.
        tell: gets progress and findings.

    Returns:
        Facts: `training` (see `Fitted.facts`) and `findings`.

    Raises:
        InputError: labels, outputs and teacher do not fit together, or the loss is not finite.
        UsageError: there is neither a label nor a teacher.
    """
    import torch

    torch.set_num_threads(int(arguments["threads"]))
    network, feeds = opened(arguments)
    runner = runner_of(network)
    goal = make_goal(runner, feeds, arguments, tell)
    schedule = schedule_of(arguments, network)
    scratch = Path(arguments["scratch"])
    fitted = fit(runner, feeds, goal.loss(), schedule, scratch=scratch / "train", tell=tell)
    save_network(network.module, Path(arguments["folder"]), Path(arguments["out"]))
    findings = [msgspec.to_builtins(finding) for finding in (*network.findings, *goal.findings)]
    return {"training": {**fitted.facts(), "rate": schedule.rate, "goal": goal.words()}, "findings": findings}


def opened(arguments: dict[str, Any]) -> tuple[Network, Feeds]:
    """Rebuild the network, checked against what it is fed with, and map its training samples."""
    network = rebuild(Path(arguments["folder"]), shapes=arguments["shapes"], dtypes=arguments["dtypes"])
    feeds = Feeds(Path(arguments["feeds"]), seed=int(arguments["seed"]), batch=int(arguments["batch"]))
    check_inputs(network, feeds)
    return network, feeds


def schedule_of(arguments: dict[str, Any], network: Network) -> Schedule:
    """Return the schedule that a stage asked for; a rate of 0 becomes what suits the kind of model."""
    return Schedule(
        epochs=int(arguments["epochs"]),
        rate=float(arguments["rate"]) or (5e-5 if network.pretrained else 1e-3),
        patience=int(arguments["patience"]),
        decay=float(arguments["decay"]),
        start_counts=False,
        live_norms=int(arguments["batch"]) >= ENOUGH,
        seed=int(arguments["seed"]),
    )


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
    task = find_task(outputs, batch.labels) if batch.labels is not None else None
    teacher = open_teacher(arguments["teacher"], feeds, tell) if arguments["teacher"] else None
    if teacher is None:
        if task is None:
            raise UsageError(
                "nothing says what to train for: the data has no labels and there is no teacher",
                where="data",
                remedy="Label the data, or use the stage `distill`.",
            )
        return Goal(task=task, soft=None, teacher=None, alpha=0.0)
    soft, widths = find_soft(outputs, teacher.outputs(batch), float(arguments["temperature"]))
    findings: tuple[events.Finding, ...] = teacher.findings
    if widths is not None:
        columns, told = align_labels(arguments["labels"], teacher.labels, widths=widths)
        soft, findings = dataclasses.replace(soft, columns=columns), (*findings, *told)
    for finding in findings:
        tell(events.Found(finding=finding))
    alpha = float(arguments["alpha"]) if task is not None else 1.0
    return Goal(task=task, soft=soft, teacher=teacher, alpha=alpha, findings=findings)


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


def check_inputs(network: Network, feeds: Feeds) -> None:
    """Raise InputError when the data does not feed what the network takes; says which names differ."""
    given = set(feeds.load(feeds.held[:1]).feed)
    wanted = set(network.examples)
    if given != wanted:
        raise InputError(
            f"the network takes {', '.join(sorted(wanted))}; the data gives {', '.join(sorted(given))}",
            where=type(network.module).__name__,
            remedy="State the inputs with --shape, by the names of the module's parameters.",
        )
