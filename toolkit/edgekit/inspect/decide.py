"""What a recipe decides for every tensor of a model: its stages are run, through the cache that a build uses too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edgekit.artifact import Artifact
from edgekit.errors import InputError, NeedsDataError, UnsupportedError, UsageError
from edgekit.events import Finding
from edgekit.graphs.blame import Blame
from edgekit.graphs.decisions import COLUMNS, PLAN, PrecisionPlan, load_plan
from edgekit.pipeline import Pipeline
from edgekit.plan import Alternatives, Plan, PlanEntry, stages_of
from edgekit.stage import Context, Examined, Inputs, Stage
from edgekit.store import Store


@dataclass(frozen=True, kw_only=True)
class Decided:
    """The decisions of one stage; `name` says of which alternative, and is empty where the recipe has none."""

    name: str
    plan: PrecisionPlan

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found: dict[str, Any] = msgspec.to_builtins(self.plan)
        return {"alternative": self.name, **found}

    def table(self) -> tuple[str, Sequence[str], list[tuple[str, ...]]]:
        """Return title, headings and rows for people."""
        title = f"{self.name}: {self.plan.shown()}" if self.name else self.plan.shown()
        return title, COLUMNS, [decision.row() for decision in self.plan.decisions]


def decide(plan: Plan, pipeline: Pipeline, reference: Artifact) -> tuple[list[Decided], list[Finding]]:
    """Run a plan's stages and gather what they decide, with what kept one of them from deciding.

    Rounds are run once. Of alternatives all are run, and the first that can be built goes on to what follows.

    Args:
        plan: what a build would do.
        pipeline: the stages' surroundings; its data may be None.
        reference: the float graph.

    Raises:
        EdgekitError: what a stage raised, unless it is one of several alternatives or lacks data.
    """
    found: list[Decided] = []
    told: list[Finding] = []
    candidate = reference
    for entry in plan.entries:
        ends = []
        for name, body in _named(entry):
            try:
                ends.append(_run(body, pipeline, candidate, name, found))
            except (InputError, UnsupportedError, UsageError) as error:
                if not name and not isinstance(error, NeedsDataError):
                    raise
                place = f"{name}: " if name else ""
                text = f"{place}what becomes of the tensors is not known: {error.text}"
                told.append(Finding(severity="warning", node="", rule="undecided", text=text, remedy=error.remedy))
        if not ends:
            break
        candidate = ends[0]
    return found, told


def accuse(plan: Plan, pipeline: Pipeline, reference: Artifact) -> tuple[list[Blame], list[Finding]]:
    """Measure which layers lose the accuracy in every stage of a plan that can say so, instead of running it.

    What comes behind such a stage in its body is not run. Arguments and errors are those of `decide`.
    """
    found: list[Blame] = []
    told: list[Finding] = []
    candidate = reference
    for entry in plan.entries:
        ends = []
        for name, body in _named(entry):
            try:
                ends.append(_accused(body, pipeline, candidate, found))
            except (InputError, UnsupportedError, UsageError) as error:
                if not name:
                    raise
                text = f"{name}: {error.text}"
                told.append(Finding(severity="warning", node="", rule="unblamed", text=text, remedy=error.remedy))
        if not ends or (found and not isinstance(entry, Alternatives)):
            break
        candidate = ends[0]
    if not found:
        text = "no stage of the recipe quantizes layers one by one, so none can be blamed"
        told.append(Finding(severity="warning", node="", rule="unblamed", text=text, remedy="Give --recipe int8."))
    return found, told


def _accused(body: tuple[Stage, ...], pipeline: Pipeline, artifact: Artifact, found: list[Blame]) -> Artifact:
    for stage in body:
        if isinstance(stage, Examined):
            found.append(msgspec.convert(pipeline.examine(stage, artifact, "blame", _as_json(stage)), Blame))
            return artifact
        artifact = pipeline.run_stage(stage, artifact)
    return artifact


def _as_json(stage: Examined) -> Callable[[Inputs, Context], Any]:
    return lambda inputs, context: msgspec.to_builtins(stage.blame(inputs, context))


def stored_plan(artifact: Artifact, store: Store) -> list[Decided]:
    """Return the decisions that an artifact in the store was made by; empty when it has none."""
    plan = load_plan(store.folder(artifact.id))
    return [] if plan is None else [Decided(name="", plan=plan)]


def artifact_of(model: str, store: Store) -> Artifact | None:
    """Return the artifact in the store that a package was compiled from, or whose id `model` begins with.

    Raises:
        EdgekitError: the package is damaged.
    """
    if model.endswith(".edgekit"):
        from edgekit.package import read_package

        return store.load(read_package(Path(model)).manifest.artifact.id)
    return None if Path(model).exists() else store.find(model)


def _named(entry: PlanEntry) -> Iterator[tuple[str, tuple[Stage, ...]]]:
    if isinstance(entry, Alternatives):
        yield from entry.options
    else:
        yield from (("", body) for body in stages_of(entry))


def _run(body: tuple[Stage, ...], pipeline: Pipeline, artifact: Artifact, name: str, found: list[Decided]) -> Artifact:
    for stage in body:
        before = artifact.files.get(PLAN)
        artifact = pipeline.run_stage(stage, artifact)
        if artifact.files.get(PLAN) != before:
            found += [Decided(name=name, plan=decided.plan) for decided in stored_plan(artifact, pipeline.store)]
    return artifact
