"""What becomes of a build's candidates: compiled, tried and judged, one after the other until one may ship."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace

from edgekit.artifact import Artifact
from edgekit.budget import Verdict, dominated, judge
from edgekit.events import Finding
from edgekit.exporter import refuse
from edgekit.gate import Gate, Trial, findings_of
from edgekit.pipeline import Pipeline, Way
from edgekit.result import ErrorReport
from edgekit.shipping import bundle_of
from edgekit.target import Bundle, Target


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A candidate that was judged.

    Attributes:
        candidate: it.
        name: the alternatives that were chosen for it; empty where the recipe leaves no choice.
        compiled: the artifact that the exporter made of it.
        bundle: its files.
        trial: what was found out about it.
        verdict: its figures against the budgets.
        findings: of its stages, the exporter and the trial.
        why_not: why it must not ship, or None.
    """

    candidate: Artifact
    name: str
    compiled: Artifact
    bundle: Bundle
    trial: Trial
    verdict: Verdict
    findings: tuple[Finding, ...]
    why_not: ErrorReport | None


@dataclass(frozen=True, kw_only=True)
class Jury:
    """Judges candidates of one build.

    Attributes:
        pipeline: compiles them.
        gate: tries them.
        target: where they run; None: see `Gate.trial`.
        strict: what is unproven counts as missed.
        allow_dominated: a candidate that is worse than its input on every axis may ship.
    """

    pipeline: Pipeline
    gate: Gate
    target: Target | None
    strict: bool
    allow_dominated: bool

    def first_to_ship(self, ways: Iterable[Way]) -> Judged:
        """Judge candidates until one may ship; where none may, the first is what the build came to.

        One that lost too much on the calibration data, if perhaps by chance, and is unproven on the evaluation data too
        ships only where no other does.

        Raises:
            EdgekitError: the runtime refuses one, or the target fails.
        """
        passed_over: list[Judged] = []
        with self.target or nullcontext():
            for way in ways:
                found = self._judged(way)
                if found.why_not is None and not (way.doubtful and found.verdict.status == "unproven"):
                    return _told(found, passed_over) if passed_over else found
                passed_over.append(found)
        unsure = next((found for found in passed_over if found.why_not is None), None)
        if unsure is not None:
            others = [found for found in passed_over if found is not unsure]
            return _told(unsure, others) if others else unsure
        return _none(passed_over) if len(passed_over) > 1 else passed_over[0]

    def _judged(self, way: Way) -> Judged:
        gate, candidate = self.gate, way.artifact
        shelf, device = self.pipeline.store, gate.profile
        findings = [*findings_of(candidate), *gate.exporter.lint(candidate, shelf.folder(candidate.id), device)]
        refuse(findings, device, allow_fallback=gate.allow_fallback)
        compiled = self.pipeline.compile(gate.exporter, candidate)
        bundle = bundle_of(compiled, shelf)
        trial = gate.trial(bundle, self.target, candidate)
        verdict = judge(gate.budget, trial.figures)
        return Judged(
            candidate=candidate,
            name=", ".join(way.names),
            compiled=compiled,
            bundle=bundle,
            trial=trial,
            verdict=verdict,
            findings=(*findings, *trial.findings),
            why_not=why_not(verdict, trial, strict=self.strict, allow_dominated=self.allow_dominated),
        )


def _told(found: Judged, others: list[Judged]) -> Judged:
    """Say that the evaluation data chose a candidate, which makes what it loses look smaller than it is."""
    text = (
        f"{found.name} is built because {_reasons(others)}; the evaluation data chose it among "
        f"{len(others) + 1} alternatives, so its figures on them are a little too good"
    )
    remedy = "Judge it on other samples with `edgekit validate --data DIR`, or give more calibration samples."
    told = Finding(severity="warning", node="", rule="next-alternative", text=text, remedy=remedy)
    return replace(found, findings=(*found.findings, told))


def _none(missed: list[Judged]) -> Judged:
    """Say that all alternatives were judged; the first is what is reported."""
    text = f"no alternative may ship: {_reasons(missed)}"
    told = Finding(severity="warning", node="", rule="no-alternative", text=text, remedy="Change the budget.")
    return replace(missed[0], findings=(*missed[0].findings, told))


def _reasons(missed: list[Judged]) -> str:
    unsure = "it lost too much on the calibration data and is unproven here"
    return "; ".join(f"{one.name} does not pass ({one.why_not.text if one.why_not else unsure})" for one in missed)


def why_not(verdict: Verdict, trial: Trial, *, strict: bool, allow_dominated: bool) -> ErrorReport | None:
    """Say why nothing ships, or None: a missed budget, an unproven one under `strict`, or worse than the input."""
    missed = [c for c in verdict.checks if c.status == "fail" or (strict and c.status == "unproven")]
    broken = [finding for finding in trial.findings if finding.severity == "error"]
    worse = None if allow_dominated else dominated(trial.original, trial.figures)
    if missed:
        text = "; ".join(check.reason or f"{check.name}: {check.status}" for check in missed)
        return ErrorReport(kind="budget", text=text, where="", remedy="Change the recipe or the budget.")
    if broken:
        text = "; ".join(f"{finding.node}: {finding.text}" for finding in broken)
        return ErrorReport(kind="budget", text=text, where=broken[0].node, remedy=broken[0].remedy)
    if worse:
        remedy = "Choose another recipe, or ship it all the same with --allow-dominated."
        return ErrorReport(kind="budget", text=worse, where="", remedy=remedy)
    return None
