"""The gate: what a candidate loses against the original, how fast, big and hungry it is, and where that was found."""

from __future__ import annotations

import contextlib
import importlib.metadata
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from edgekit import events
from edgekit.artifact import MAIN, Artifact
from edgekit.budget import Budget, Figure, Provenance
from edgekit.errors import InputError, UnsupportedError
from edgekit.evaluate import (
    Comparison,
    Simulated,
    disagreements,
    figures,
    judge_simulated,
    run_onnx,
)
from edgekit.evaluate.rows import rows_of
from edgekit.events import Finding
from edgekit.exporter import Exporter, refuse
from edgekit.original import Original, feeds_of
from edgekit.profile import Profile
from edgekit.score import Score
from edgekit.target import Bundle, Simulator, Target, is_simulator

FEW = 4
"""Samples on which an alternative is simulated before it is ranked."""

RUNS = 100
"""Timed runs; a p99 budget takes three times as many."""

STAND_IN: Provenance = "simulated"
"""How outputs of this machine's CPU kernels stand for a device that is not at hand."""

MODEL_FILES = frozenset({".onnx", ".data", ".bin"})
"""What counts as size: the files that a device loads."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was found out about one candidate.

    Attributes:
        figures: of the candidate.
        original: the same figures of the model it was made from, as far as they are known.
        findings: of the outputs and of the target.
        fingerprint: what the target is; empty without one.
    """

    figures: tuple[Figure, ...]
    original: tuple[Figure, ...]
    findings: tuple[Finding, ...]
    fingerprint: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Holds candidates against one original.

    Attributes:
        original: what they are held against.
        budget: what must be kept.
        simulator: where alternatives are tried before they are ranked; None where there is none.
        allow_fallback: nodes may run off the accelerator, and latency may be that of another engine than was asked.
        sustained: seconds of load after which latency counts; 0: a device that is not hot.
    """

    original: Original
    profile: Profile
    exporter: Exporter
    budget: Budget
    threads: int = 1
    sustained: float = 0
    simulator: Simulator | None = None
    allow_fallback: bool = False
    listen: events.Listener = events.ignore

    def check_fit(self, candidate: Artifact) -> dict[str, Any]:
        """Raise UnsupportedError when the runtime refuses a candidate, or computes something else than its graph says.

        An alternative that is refused is none; what a simulator gives is looked at on a few calibration samples.

        Returns:
            Facts for the report: `simulated_db`, how near the simulator is to the graph on this CPU, and on how many
            `simulated` samples; empty where nothing is simulated.
        """
        folder = self._folder(candidate)
        refuse(self.exporter.lint(candidate, folder, self.profile), self.profile, allow_fallback=self.allow_fallback)
        if self.simulator is None or not self.original.has("calibration"):
            return {}
        few = self.original.some("calibration", FEW)
        with tempfile.TemporaryDirectory(prefix="edgekit-fit-") as scratch:
            facts = self.exporter.compile(candidate, folder, self.profile, Path(scratch))
            found = self.simulator.run(
                Bundle(folder=Path(scratch), facts=facts), feeds_of(few, "simulator", self.listen)
            )
            stand_in = run_onnx(Path(scratch, str(facts["model"])), feeds_of(few, "CPU", self.listen))
            told, near = disagreements(stand_in, found, floats=self.original.floats, place=self.simulator.place)
        wrong = next((finding for finding in told if finding.severity == "error"), None)
        if wrong is not None:
            raise UnsupportedError(wrong.text, where=wrong.node, remedy=wrong.remedy)
        return {"simulated_db": None if near is None else round(near, 1), "simulated": len(few)}

    def score(self, candidate: Artifact) -> Score:
        """Rank a candidate among others: accuracy on the calibration data (never on the evaluation data), time, size.

        A few samples more or fewer are chance: a candidate is out where the lower bound of its drop is above the
        budget, which is what fails in the verdict. Time and size go by point estimates.
        """
        drop, bounds, size = None, None, model_size(self._folder(candidate))
        if self.original.tells("calibration"):
            outputs = run_onnx(
                self._folder(candidate), self.original.feeds("calibration", "candidate"), threads=self.threads
            )
            found = self.original.compare("calibration", outputs)
            drop = found.drop
            bounds = None if found.low is None or found.high is None else (found.low, found.high)
        latency = next((f.value for f in self.estimate(candidate) if f.name == "latency-p50"), None)
        known = [("latency", latency, min(self.budget.latency_ms.values(), default=None))]
        lost = bounds[0] if bounds else drop
        known += [("size", size.value, self.budget.max_size), ("drop", lost, self.budget.max_drop)]
        within = all(value is None or limit is None or value <= limit for _, value, limit in known)
        keeps = drop is None or self.budget.max_drop is None or drop <= self.budget.max_drop
        return Score(
            within=within, latency_ms=latency, size=int(size.value or 0), drop=drop, keeps=keeps, bounds=bounds
        )

    def estimate(self, artifact: Artifact) -> tuple[Figure, ...]:
        """Predict what can be predicted; open shapes count as those of the largest of a few samples."""
        folder = self._folder(artifact)
        try:
            return self.exporter.estimate(artifact, folder, self.profile)
        except InputError as error:
            why = error
        shapes = self.original.largest_shapes
        if shapes:
            sized = {name: {"opt": list(shape)} for name, shape in shapes.items()}
            known = {**sized, **artifact.facts.get("shape_ranges", {})}
            with contextlib.suppress(InputError):
                sized_artifact = msgspec.structs.replace(artifact, facts={**artifact.facts, "shape_ranges": known})
                found = self.exporter.estimate(sized_artifact, folder, self.profile)
                return tuple(_noted(figure, f"for {_sizes(shapes)}, the largest of a few samples") for figure in found)
        return (
            Figure(
                name="latency-p50",
                value=None,
                unit="ms",
                provenance="predicted",
                on=self.profile.name,
                note="no prediction: " + str(why).replace("\n", " "),
            ),
        )

    def trial(self, bundle: Bundle, target: Target | None, candidate: Artifact) -> Trial:
        """Run a compiled candidate on the evaluation data and measure it.

        Args:
            bundle: what the exporter compiled.
            candidate: what it was compiled from.
            target: where it runs; None: accuracy on this machine's CPU kernels (`simulated`), latency predicted.
        """
        original = [model_size(self.original.folder)]
        if target is None:
            place, provenance = f"onnxruntime {_version('onnxruntime')} CPU kernels here", STAND_IN
            found = self.estimate(candidate)
            original += self.estimate(self.original.artifact)
        elif is_simulator(target):  # how long it takes is no latency
            place, provenance = target.place, target.provenance
            found = self.estimate(candidate)
            original += self.estimate(self.original.artifact)
        else:
            provenance = target.provenance
            more = {"sustained": self.sustained} if self.sustained else {}
            found = target.measure(bundle, self.original.one_feed(), runs=self._runs, threads=self.threads, **more)
            if self.allow_fallback:  # what ran there is what will run there
                found = tuple(msgspec.structs.replace(one, disqualified="") for one in found)
            place = found[0].on
            original += self._measure_original(bundle, target)
        accuracy, findings = self._accuracy(bundle, target, place, provenance)
        original.append(Figure(name="drop", value=0.0, unit="1", provenance=provenance, on=place))
        return Trial(
            figures=(*accuracy, *found, model_size(bundle.folder, bundle.facts.get("loads"))),
            original=tuple(original),
            findings=(*findings, *(target.findings if target else ())),
            fingerprint=target.fingerprint() if target else {},
        )

    def _folder(self, artifact: Artifact) -> Path:
        return self.original.store.folder(artifact.id)

    @property
    def _runs(self) -> int:
        return 3 * RUNS if "p99" in self.budget.latency_ms else RUNS

    def _accuracy(
        self, bundle: Bundle, target: Target | None, place: str, provenance: Provenance
    ) -> tuple[tuple[Figure, ...], tuple[Finding, ...]]:
        if not self.original.tells("evaluation"):
            note = f"accuracy was not looked at: {self.original.silence}"
            return (Figure(name="drop", value=None, unit="1", provenance=provenance, on=place, note=note),), ()
        if is_simulator(target):
            comparison, told, some = self._simulated(bundle, target)
            return figures(comparison, on=place + some, provenance=provenance), (*comparison.findings, *told)
        feeds = self.original.feeds("evaluation", "candidate")
        if target is None:
            outputs = run_onnx(bundle.folder / str(bundle.facts["model"]), feeds, threads=self.threads)
        else:
            outputs = target.run(bundle, feeds)
        comparison = self.original.compare("evaluation", outputs)
        return figures(comparison, on=place, provenance=provenance), comparison.findings

    def _simulated(self, bundle: Bundle, target: Simulator) -> tuple[Comparison, tuple[Finding, ...], str]:
        """Judge by a simulator on the samples that it can run, and say how many; see `edgekit.evaluate.simulated`."""
        every = len(self.original.samples("evaluation"))
        few = self.original.some("evaluation", target.affordable(bundle, self.original.one_feed(), every))
        stand_in = bundle.folder / str(bundle.facts["model"])
        whole = self.original.compare_graph(stand_in, "evaluation", "CPU")
        all_run = len(few) == every
        what = Simulated(target.place, all_run, self.original.floats, self.budget.max_drop, lambda: target.seconds_each)
        found, told = judge_simulated(
            what,
            target.run(bundle, feeds_of(few, "evaluation: simulator", self.listen)),
            (
                run_onnx(graph, feeds_of(few, "evaluation: CPU", self.listen))
                for graph in (self.original.folder, stand_in)
            ),
            whole,
            rows_of(few.labels, self.original.leading),
            self.original.judged_by,
            leading=self.original.leading,
            seed=self.original.seed,
        )
        return found, told, "" if all_run else f", {len(few)} simulated"

    def _measure_original(self, bundle: Bundle, target: Target) -> tuple[Figure, ...]:
        """Measure the original on the same target, in the same way: what `never ship worse` compares with."""
        original = Bundle(folder=self.original.folder, facts={**bundle.facts, "model": MAIN})
        try:
            return target.measure(original, self.original.one_feed(), runs=RUNS, threads=self.threads)
        except UnsupportedError:
            return ()  # the runtime needs another form of the graph than the float original has


def model_size(folder: Path, loads: Sequence[str] | None = None) -> Figure:
    """Return the bytes of what a device loads from a folder: the files that are named, else all model files."""
    paths = [folder / name for name in loads] if loads else sorted(folder.rglob("*"))
    size = sum(path.stat().st_size for path in paths if loads or path.suffix in MODEL_FILES)
    return Figure(name="size", value=float(size), unit="B", provenance="measured", on="model files")


def _noted(figure: Figure, note: str) -> Figure:
    return msgspec.structs.replace(figure, note="; ".join(part for part in (figure.note, note) if part))


def _sizes(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())


def findings_of(artifact: Artifact) -> list[Finding]:
    """Return the findings of the stages that made an artifact."""
    return msgspec.convert(artifact.facts.get("findings", []), list[Finding])


def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution)
