"""Run a plan: each stage through the content-addressed cache, rounds and alternatives by a judge of scores."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from edgekit import events
from edgekit.artifact import MAIN, Artifact, Step, digest
from edgekit.data import Dataset
from edgekit.dialect import Dialect
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.exporter import Exporter
from edgekit.plan import Alternatives, Plan, PlanEntry, Rounds
from edgekit.profile import Profile
from edgekit.score import Score, in_order
from edgekit.stage import Context, Inputs, Stage, options_of
from edgekit.store import Store

LEAST_COVERAGE = 0.9
"""Share of the weights that must get the asked precision, unless partial coverage is allowed."""


class StageRun(msgspec.Struct, frozen=True, kw_only=True):
    """One stage as it ran: what `--json` lists under `stages`."""

    name: str
    seconds: float
    cached: bool
    facts: dict[str, Any]


Scorer = Callable[[Artifact], Score]


@dataclass(frozen=True, kw_only=True)
class Way:
    """An artifact, and the names of the alternatives that were chosen on the way to it."""

    artifact: Artifact
    names: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Pipeline:
    """Everything that surrounds the stages of one build, what ran so far, and what was found about the reference."""

    store: Store
    profile: Profile
    dialect: Dialect
    data: Dataset | None = None
    teacher: Artifact | None = None
    listen: events.Listener = events.ignore
    seed: int = 0
    threads: int = 1
    training_threads: int = 1
    allow_partial: bool = False
    fits: Callable[[Artifact], Mapping[str, Any]] = lambda _artifact: {}
    originals: dict[str, Artifact] = field(default_factory=dict)
    runs: list[StageRun] = field(default_factory=list)
    findings: list[events.Finding] = field(default_factory=list)

    def capture(self, plan: Plan, source: Artifact) -> Artifact:
        """Turn the user's model into the float graph that everything is compared with."""
        self.originals[source.kind] = source
        reference = self._captured(plan, source)
        self.originals[reference.kind] = reference
        self._check_axes(reference)
        return reference

    def _captured(self, plan: Plan, network: Artifact) -> Artifact:
        for stage in plan.capture:
            network = self.run_stage(stage, network)
        return network

    def run(self, plan: Plan, reference: Artifact, score: Scorer) -> Artifact:
        """Turn the float reference into the candidate that is ranked first."""
        return next(self.candidates(plan, reference, score)).artifact

    def candidates(self, plan: Plan, reference: Artifact, score: Scorer) -> Iterator[Way]:
        """Yield what the float reference is turned into: first by the best alternatives, then by the next ones.

        Whoever asks for another candidate says that the last one missed a budget. Only alternatives that keep what is
        known of the budgets come second.
        """
        starts = self._trained(plan, score) if plan.training else iter([Way(artifact=reference)])
        for start in starts:
            yield from self._ways(plan.entries, start, score)

    def _trained(self, plan: Plan, score: Scorer) -> Iterator[Way]:
        """Change the model of PyTorch as the plan says, judge it by its graph, and yield that graph."""
        network = Way(artifact=self.originals["torch"])
        for way in self._ways(plan.training, network, lambda made: score(self._captured(plan, made))):
            yield replace(way, artifact=self._captured(plan, way.artifact))

    def _ways(self, entries: Sequence[PlanEntry], way: Way, score: Scorer) -> Iterator[Way]:
        if not entries:
            yield way
            return
        for made in self._run_entry(entries[0], way, score):
            yield from self._ways(entries[1:], made, score)

    def compile(self, exporter: Exporter, artifact: Artifact) -> Artifact:
        """Compile a candidate for the profile's runtime, or take the `bundle` from the cache."""
        key = digest(
            {
                "compile": exporter.name,
                "revision": exporter.revision,
                "artifact": artifact.id,
                "profile": self.profile,
                "libraries": _versions(exporter.libraries),
            }
        )
        started = time.monotonic()
        self.listen(events.StageStarted(name="compile"))
        made, cached = self._cached(key), True
        if made is None:
            with self.store.staging() as out:
                facts = exporter.compile(artifact, self.store.folder(artifact.id), self.profile, out)
                made, cached = self.store.publish(out, "bundle", facts, artifact.lineage), False
            self.store.remember(key, {"artifact": made.id})
        seconds = time.monotonic() - started
        self.runs.append(StageRun(name="compile", seconds=round(seconds, 3), cached=cached, facts=made.facts))
        self.listen(events.StageDone(name="compile", seconds=seconds, cached=cached))
        return made

    def run_stage(self, stage: Stage, artifact: Artifact) -> Artifact:
        """Run one stage, or take its result from the cache.

        Raises:
            EdgekitError: what the stage raised; UnsupportedError when too little got the asked precision.
        """
        started = time.monotonic()
        self.listen(events.StageStarted(name=stage.name))
        key = self._key(stage, artifact)
        made, cached = self._cached(key), True
        if made is None:
            with self.store.lock(key):
                made = self._cached(key)
                if made is None:
                    made, cached = self._execute(stage, artifact, key), False
        seconds = time.monotonic() - started
        facts = made.lineage[-1].facts
        self.runs.append(StageRun(name=stage.name, seconds=round(seconds, 3), cached=cached, facts=facts))
        self.listen(events.StageDone(name=stage.name, seconds=seconds, cached=cached))
        self._check_coverage(stage, facts)
        return made

    def examine(self, stage: Stage, artifact: Artifact, what: str, work: Callable[[Inputs, Context], Any]) -> Any:
        """Do other work with a stage's options and input than to run it, or take what it found from the cache.

        Args:
            stage: the stage.
            artifact: what it would transform.
            what: the work's name.
            work: does it; its result must be JSON values. Its scratch folder survives a kill.
        """
        key = digest([what, self._key(stage, artifact)])
        with self.store.lock(key):
            record = self.store.record(key)
            if record is None:
                record = {"artifact": artifact.id, "found": work(*self._surroundings(artifact, key))}
                self.store.remember(key, record)
                self.store.forget_scratch(key)
        return record["found"]

    def _run_entry(self, entry: PlanEntry, way: Way, score: Scorer) -> Iterator[Way]:
        if isinstance(entry, Alternatives):
            for name, made in self._run_alternatives(entry, way.artifact, score):
                yield Way(artifact=made, names=(*way.names, name))
        elif isinstance(entry, Rounds):
            yield replace(way, artifact=self._run_rounds(entry, way.artifact, score))
        else:
            yield replace(way, artifact=self.run_stage(entry, way.artifact))

    def _run_rounds(self, rounds: Rounds, artifact: Artifact, score: Scorer) -> Artifact:
        """Repeat the body until a budget is missed, the model gets slower or stays; keep the last good round."""
        kept, kept_score = artifact, score(artifact)
        for number in range(1, rounds.rounds + 1):
            tried = kept
            for stage in rounds.body:
                tried = self.run_stage(stage, tried)
                if tried.files == kept.files and _found(tried, "prune-nothing"):
                    break  # training on would be no round of pruning
            if tried.files == kept.files:
                self._told("repeat", {"round": number, "kept": True, "why": "nothing changed: the rounds end"})
                return tried
            tried_score = score(tried)
            good = tried_score.good_after(kept_score)
            self._told("repeat", {"round": number, "kept": good, **tried_score.facts()})
            if not good:
                break
            kept, kept_score = tried, tried_score
        return kept

    def _run_alternatives(
        self, entry: Alternatives, artifact: Artifact, score: Scorer
    ) -> Iterator[tuple[str, Artifact]]:
        """Build all alternatives, then yield them in the order of their rank, by name."""
        made: dict[str, Artifact] = {}
        scores: dict[str, Score] = {}
        known: dict[str, Mapping[str, Any]] = {}
        refused = dict(entry.refused)
        for name, body in entry.options:
            tried = artifact
            try:
                for stage in body:
                    tried = self.run_stage(stage, tried)
                known[name] = self.fits(tried)
            except (InputError, UnsupportedError, UsageError) as error:
                refused[name] = str(error)
                continue
            made[name], scores[name] = tried, score(tried)
        if not made:
            raise UnsupportedError(
                "no alternative of the recipe could be built: " + "; ".join(f"{k}: {v}" for k, v in refused.items()),
                where=f"recipe, choose from {', '.join(refused)}",
                remedy="Choose a recipe that fits the model and the profile.",
            )
        for name, why in in_order(scores):
            told = {other: {**scores[other].facts(), **known[other]} for other in scores if other not in refused}
            self._told("choose", {"chosen": name, "why": why, "scores": told, "refused": dict(refused)})
            yield name, made[name]
            refused[name] = "missed on the evaluation data"

    def _execute(self, stage: Stage, artifact: Artifact, key: str) -> Artifact:
        inputs, context = self._surroundings(artifact, key, self._teacher(stage))
        with self.store.staging() as out:
            facts = _brief(stage.run(inputs, out, context))
            step = Step(
                stage=stage.name,
                revision=stage.revision,
                options=options_of(stage),
                inputs=self._input_ids(stage, artifact),
                libraries=_versions(stage.libraries),
                facts={k: v for k, v in facts.items() if k != "graphs"},
            )
            made = self.store.publish(out, stage.makes, merge(artifact.facts, facts), (*artifact.lineage, step))
        self.store.remember(key, {"artifact": made.id})
        self.store.forget_scratch(key)
        return made

    def _surroundings(self, artifact: Artifact, key: str, teacher: Artifact | None = None) -> tuple[Inputs, Context]:
        """Return what a stage reads, and what surrounds its run; the scratch folder is that of the key."""
        inputs = Inputs(
            artifact=artifact,
            folder=self.store.folder(artifact.id),
            profile=self.profile,
            data=self.data,
            dialect=self.dialect,
            teacher=(teacher, self.store.folder(teacher.id)) if teacher else None,
        )
        context = Context(
            scratch=self.store.scratch(key),
            listen=self.listen,
            seed=self.seed,
            threads=self.threads,
            training_threads=self.training_threads,
            shared=self.store.shared,
        )
        return inputs, context

    def _cached(self, key: str) -> Artifact | None:
        record = self.store.record(key)
        return self.store.load(str(record["artifact"])) if record else None

    def _key(self, stage: Stage, artifact: Artifact) -> str:
        return digest(
            {
                "stage": stage.name,
                "revision": stage.revision,
                "options": options_of(stage),
                "inputs": self._input_ids(stage, artifact),
                "libraries": _versions(stage.libraries),
                "profile": self.profile,
                "dialect": repr(self.dialect),
                "seed": self.seed,
            }
        )

    def _teacher(self, stage: Stage) -> Artifact | None:
        """Return the teacher of a stage that needs one: the user's, or the original of the kind that it takes."""
        if not {"teacher", "original"} & stage.needs:
            return None
        return self.teacher or next((self.originals[kind] for kind in stage.takes if kind in self.originals), None)

    def _input_ids(self, stage: Stage, artifact: Artifact) -> dict[str, str]:
        ids = {"artifact": artifact.id}
        if self.data is not None:
            ids["data"] = self.data.id
        teacher = self._teacher(stage)
        if teacher is not None:
            ids["teacher"] = teacher.id
        return ids

    def _check_axes(self, reference: Artifact) -> None:
        """Refuse a batch axis that is dynamic in name only: what runs at batch 1 would fail or be wrong at another."""
        from edgekit.graphs.files import check_dynamic

        key = digest(["axes", reference.id])
        record = self.store.record(key)
        if record is None:
            folder = self.store.folder(reference.id)
            found = check_dynamic(folder, reference.facts["graphs"][MAIN], threads=self.threads)
            record = {"artifact": reference.id, "findings": msgspec.to_builtins(found.findings)}
            self.store.remember(key, record)
        for finding in msgspec.convert(record["findings"], list[events.Finding]):
            self.findings.append(finding)
            self.listen(events.Found(finding=finding))

    def _check_coverage(self, stage: Stage, facts: dict[str, Any]) -> None:
        coverage = facts.get("coverage")
        if not coverage or self.allow_partial or coverage["weights"] >= LEAST_COVERAGE:
            return
        left = coverage.get("left_float", [])
        told = (found["text"] for found in facts.get("findings", ()) if found["node"] in left)
        why = next(told, f"left float: {', '.join(left[:5])}")
        raise UnsupportedError(
            f"only {coverage['weights']:.0%} of the weights got {coverage['precision']}; {why}",
            where=f"stage {stage.name}",
            remedy="Accept it with --allow-partial, or choose another recipe.",
        )

    def _told(self, name: str, facts: dict[str, Any]) -> None:
        self.runs.append(StageRun(name=name, seconds=0.0, cached=False, facts=facts))


def _brief(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a stage's facts with what it found of many nodes told once."""
    if "findings" not in facts:
        return facts
    found = events.grouped(msgspec.convert(facts["findings"], list[events.Finding]))
    return {**facts, "findings": msgspec.to_builtins(found)}


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Lay the facts of a stage over those of its input; findings add up."""
    merged = {**old, **new}
    findings = [*old.get("findings", []), *new.get("findings", [])]
    if findings:
        merged["findings"] = findings
    return merged


def _found(artifact: Artifact, rule: str) -> bool:
    """Say whether the last stage of an artifact told a finding of a rule."""
    return any(finding["rule"] == rule for finding in artifact.lineage[-1].facts.get("findings", ()))


def _versions(distributions: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found
