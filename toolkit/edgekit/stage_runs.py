"""Run stages on artifacts, each through the content-addressed cache."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from edgekit import events
from edgekit.artifact import Artifact, Step, digest
from edgekit.data import Dataset
from edgekit.dialect import Dialect
from edgekit.errors import UnsupportedError
from edgekit.exporter import Exporter
from edgekit.profile import Profile
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


@dataclass(kw_only=True)
class StageRuns:
    """Everything that surrounds the stages of one build, and what ran so far."""

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
    originals: dict[str, Artifact] = field(default_factory=dict)
    runs: list[StageRun] = field(default_factory=list)

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


def _versions(distributions: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found
