"""Distill a teacher into the network of an artifact: features first, then outputs. Runs in a child process."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit import events
from edgekit.networks.blends import blended, can_blend
from edgekit.networks.child import Tell
from edgekit.networks.features import Matching, pair_layers, watched
from edgekit.networks.feeds import Batch, Feeds
from edgekit.networks.finetune import opened, schedule_of
from edgekit.networks.goal import Goal, make_goal
from edgekit.networks.launched import place
from edgekit.networks.network import Network, evaluating
from edgekit.networks.saving import save_network
from edgekit.networks.student import write_smaller
from edgekit.networks.train import Forward, Loss, Tensors, fit, outputs_of, runner_of

if TYPE_CHECKING:
    import torch

_SOLVED = 16
"""Batches over which projections are solved for before anything is trained."""


def distill(arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Train the network of an artifact to give what a teacher gives, and write the new one.

    Args:
        arguments: as `finetune.finetune` has them, with a teacher, and `feature_epochs`, `layers` (student's module ->
            teacher's module; empty: automatic), `blend` (whether samples are blended, where they can be) and `config`
            (of a smaller student; empty: the network itself).
        tell: gets progress and findings.

    Returns:
        Facts: `features` (pairs of layers and the losses by epoch; None where there was nothing to match), `training`
        and `findings`.

    Raises:
        InputError: labels, outputs and teacher do not fit together, or the loss is not finite.
        UsageError: a layer that is named, or a key of the configuration, is not there.
        UnsupportedError: a smaller configuration is asked of a model that has none.
    """
    import torch

    torch.set_num_threads(int(arguments["threads"]))
    if arguments["config"]:
        smaller = Path(arguments["scratch"]) / f"smaller-{place().rank}"  # several processes write one each
        shutil.rmtree(smaller, ignore_errors=True)
        smaller.mkdir(parents=True)
        write_smaller(Path(arguments["folder"]), smaller, arguments["config"], int(arguments["seed"]))
        arguments = {**arguments, "folder": smaller}
    network, feeds = opened(arguments)
    runner = runner_of(network)
    goal = make_goal(runner, feeds, arguments, tell)
    schedule, scratch = schedule_of(arguments, network), Path(arguments["scratch"])
    findings = [*network.findings, *goal.findings]
    features = _match_features(runner, network, feeds, goal, arguments, tell, findings)
    blending = bool(arguments["blend"]) and can_blend(goal, feeds)
    loss = blended(goal) if blending else goal.loss()
    fitted = fit(runner, feeds, loss, schedule, judge=goal.loss(), scratch=scratch / "train", tell=tell)
    save_network(network.module, Path(arguments["folder"]), Path(arguments["out"]))
    return {
        "features": features,
        "training": {**fitted.facts(), "rate": schedule.rate, "goal": goal.words(), "blended": blending},
        "findings": [msgspec.to_builtins(finding) for finding in findings],
    }


def _match_features(
    runner: torch.nn.Module,
    network: Network,
    feeds: Feeds,
    goal: Goal,
    arguments: dict[str, Any],
    tell: Tell,
    findings: list[events.Finding],
) -> dict[str, Any] | None:
    """Bring the student's layers near the teacher's; None where there is nothing to match."""
    import torch

    epochs = int(arguments["feature_epochs"])
    assert goal.teacher is not None
    teacher = goal.teacher.network
    if epochs == 0:
        return None
    if teacher is None:
        findings.append(_nothing("the teacher is a graph, of which only the outputs are used"))
        return None
    guide = runner_of(teacher)
    pairs = pair_layers(network.module, teacher.module, arguments["layers"])
    seed = int(arguments["seed"])
    with watched(network.module, [own for own, _ in pairs]) as mine, watched(teacher.module, _others(pairs)) as theirs:
        batch = feeds.load(feeds.held_out()[0])
        feed = {name: torch.from_numpy(array) for name, array in batch.feed.items()}
        with torch.no_grad(), evaluating(runner), evaluating(guide):
            runner(feed)
            guide(feed)
        matching = Matching(pairs, mine, theirs, seed)
        for own, other in matching.left_out:
            findings.append(
                _nothing(f"features of '{own}' and the teacher's '{other}' have shapes that do not go together")
            )
        if not matching.pairs:
            if not pairs:
                findings.append(_nothing("no row of blocks was found in student and teacher"))
            return None
        matching.solve(_seen(runner, guide, feeds, mine, theirs))
        both = _with_projections(runner, matching.projections)
        loss = _loss(matching, guide, mine, theirs)
        base = schedule_of(arguments, network)
        schedule = dataclasses.replace(base, epochs=epochs, start_counts=True, label="features")
        fitted = fit(both, feeds, loss, schedule, scratch=Path(arguments["scratch"]) / "features", tell=tell)
    projected = [own for own, _ in matching.pairs if own.replace(".", "/") in matching.projections]
    return {**fitted.facts(), "layers": [list(pair) for pair in matching.pairs], "projected": projected}


def _others(pairs: tuple[tuple[str, str], ...]) -> list[str]:
    return [other for _, other in pairs]


def _seen(
    runner: torch.nn.Module, guide: torch.nn.Module, feeds: Feeds, mine: Tensors, theirs: Tensors
) -> Iterator[tuple[Tensors, Tensors]]:
    """Yield the features of both on some training batches."""
    for samples in feeds.epoch(0)[:_SOLVED]:
        for module in (runner, guide):
            list(outputs_of(module, feeds, [samples]))
        yield mine, theirs


def _loss(matching: Matching, guide: torch.nn.Module, mine: Tensors, theirs: Tensors) -> Loss:
    import torch

    def loss(forward: Forward, _batch: Batch, feed: Tensors, _done: float) -> Tensors:
        mine.clear()
        theirs.clear()
        guide.to(next(iter(feed.values())).device)
        with torch.no_grad(), evaluating(guide):
            guide({name: value.contiguous() for name, value in feed.items()})
        forward(feed)
        return {"features": matching.loss(mine, theirs)}

    return loss


def _with_projections(runner: torch.nn.Module, projections: torch.nn.Module) -> torch.nn.Module:
    """Return the runner with the projections among its parameters."""
    import torch

    class Student(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.projections = runner, projections

        def forward(self, feed: Tensors) -> Any:
            return self.inner(feed)

    return Student()


def _nothing(text: str) -> events.Finding:
    return events.Finding(severity="note", node="", rule="features-not-matched", text=text)
