"""Run a plan: rounds and alternatives by a judge of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from edgekit import events
from edgekit.artifact import MAIN, Artifact, digest
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.plan import Alternatives, Plan, PlanEntry, Rounds
from edgekit.score import Score, in_order
from edgekit.stage_runs import StageRuns

Scorer = Callable[[Artifact], Score]


@dataclass(frozen=True, kw_only=True)
class Way:
    """An artifact and how the plan came to it.

    Attributes:
        artifact: it.
        names: of the alternatives that were chosen.
        doubtful: one of them lost more than the budget allows on the calibration data, which may be chance.
    """

    artifact: Artifact
    names: tuple[str, ...] = ()
    doubtful: bool = False


@dataclass(kw_only=True)
class Pipeline(StageRuns):
    """The way from a model to its candidates, and what was found about the reference."""

    fits: Callable[[Artifact], Mapping[str, Any]] = lambda _artifact: {}
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

    def _run_entry(self, entry: PlanEntry, way: Way, score: Scorer) -> Iterator[Way]:
        if isinstance(entry, Alternatives):
            yield from self._run_alternatives(entry, way, score)
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

    def _run_alternatives(self, entry: Alternatives, way: Way, score: Scorer) -> Iterator[Way]:
        """Build all alternatives, then yield them in the order of their rank."""
        made: dict[str, Artifact] = {}
        scores: dict[str, Score] = {}
        known: dict[str, Mapping[str, Any]] = {}
        refused = dict(entry.refused)
        for name, body in entry.options:
            tried = way.artifact
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
            doubtful = way.doubtful or scores[name].doubtful
            yield Way(artifact=made[name], names=(*way.names, name), doubtful=doubtful)
            refused[name] = "did not pass on the evaluation data"

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


def _found(artifact: Artifact, rule: str) -> bool:
    """Say whether the last stage of an artifact told a finding of a rule."""
    return any(finding["rule"] == rule for finding in artifact.lineage[-1].facts.get("findings", ()))
