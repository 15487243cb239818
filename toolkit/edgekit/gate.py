"""The gate: what a candidate loses against the original, how fast, big and hungry it is, and where that was found."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from edgekit import events
from edgekit.artifact import MAIN, Artifact, digest
from edgekit.budget import Budget, Figure, Provenance
from edgekit.data import Dataset, Samples, take
from edgekit.errors import InputError, UnsupportedError
from edgekit.evaluate import (
    Comparison,
    Simulated,
    disagreements,
    evaluate,
    figures,
    is_steady,
    judge_simulated,
    load_outputs,
    run_onnx,
    save_outputs,
)
from edgekit.evaluate.rows import TOGETHER, leading_axis, rows_of, together
from edgekit.events import Finding
from edgekit.exporter import Exporter
from edgekit.metrics import Metric, default_metric, find_metric
from edgekit.profile import Profile
from edgekit.score import Score
from edgekit.store import Store
from edgekit.target import Bundle, Feed, Simulator, Target, is_simulator

Split = Literal["calibration", "evaluation"]

OUTPUTS = "outputs.npz"
"""File of an artifact of kind `outputs`: what `evaluate.save_outputs` wrote."""

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
    """Holds candidates against one original on one data set.

    Attributes:
        reference: the float original, kind `onnx`.
        data: the data set; without it nothing can be said about accuracy.
        metric: what is judged; None: by the kind of the labels.
        budget: what must be kept.
        simulator: where alternatives are tried before they are ranked; None where there is none.
        allow_fallback: nodes may run off the accelerator, and latency may be that of another engine than was asked.
        sustained: seconds of load after which latency counts; 0: a device that is not hot.
    """

    store: Store
    profile: Profile
    exporter: Exporter
    reference: Artifact
    data: Dataset | None
    metric: str | None
    budget: Budget
    threads: int = 1
    sustained: float = 0
    seed: int = 0
    listen: events.Listener = events.ignore
    simulator: Simulator | None = None
    allow_fallback: bool = False

    @cached_property
    def judged_by(self) -> Metric:
        """The metric."""
        if self.metric is not None:
            return find_metric(self.metric)
        return default_metric(self.data.evaluation.labels if self.data and len(self.data.evaluation) else None)

    @cached_property
    def leading(self) -> str | int | None:
        """The axis of inputs and outputs that counts rows."""
        return leading_axis(self.reference.specs("inputs"), self.reference.specs("outputs"))

    def compare(self, split: Split, outputs: Iterable[Feed]) -> Comparison:
        """Hold a candidate's outputs on one split against the original's."""
        samples = self._samples(split)
        return evaluate(
            load_outputs(self.reference_outputs(split)),
            together(outputs, self.leading),
            rows_of(samples.labels, self.leading),
            self.judged_by,
            batched=self.leading is not None,
            seed=self.seed,
        )

    @property
    def reference_id(self) -> str | None:
        """Id of the artifact with the original's outputs on the evaluation split; None when they tell nothing."""
        known = self.data is not None and len(self.data.evaluation) and self._steady
        return self._outputs("evaluation").id if known else None

    def reference_outputs(self, split: Split) -> Path:
        """Return the file with the original's outputs on one split; computed once, then taken from the store."""
        return self.store.folder(self._outputs(split).id) / OUTPUTS

    def _outputs(self, split: Split) -> Artifact:
        assert self.data is not None
        key = digest(["outputs", TOGETHER, self.reference.id, self.data.id, split, _version("onnxruntime")])
        record = self.store.record(key)
        known = self.store.load(str(record["artifact"])) if record else None
        if known is None:
            model = self.store.folder(self.reference.id)
            with self.store.staging() as out:
                outputs = run_onnx(model, self.feeds(split, "original"), threads=self.threads)
                save_outputs(out / OUTPUTS, together(outputs, self.leading))
                known = self.store.publish(out, "outputs", {"split": split, "data": self.data.id}, ())
            self.store.remember(key, {"artifact": known.id})
        return known

    def feeds(self, split: Split, label: str) -> Iterator[Feed]:
        """Yield the feeds of a split, telling progress."""
        return feeds_of(self._samples(split), f"{split}: {label}", self.listen)

    def check_fit(self, candidate: Artifact) -> None:
        """Raise UnsupportedError when the runtime refuses a candidate, or computes something else than its graph says.

        An alternative that is refused is none; what a simulator gives is looked at on a few calibration samples.
        """
        folder = self.store.folder(candidate.id)
        errors = [f for f in self.exporter.lint(candidate, folder, self.profile) if f.severity == "error"]
        errors = [f for f in errors if not (self.allow_fallback and "fallback" in f.rule)]
        if errors:
            raise UnsupportedError(errors[0].text, where=errors[0].node, remedy=errors[0].remedy)
        if self.simulator is None or self.data is None or not len(self.data.calibration):
            return
        few = take(self.data.calibration, FEW, seed=self.seed)
        with tempfile.TemporaryDirectory(prefix="edgekit-fit-") as scratch:
            facts = self.exporter.compile(candidate, folder, self.profile, Path(scratch))
            found = self.simulator.run(
                Bundle(folder=Path(scratch), facts=facts), feeds_of(few, "simulator", self.listen)
            )
            stand_in = run_onnx(Path(scratch, str(facts["model"])), feeds_of(few, "CPU", self.listen))
            told = disagreements(stand_in, found, floats=self._floats, place=self.simulator.place)
        wrong = next((finding for finding in told if finding.severity == "error"), None)
        if wrong is not None:
            raise UnsupportedError(wrong.text, where=wrong.node, remedy=wrong.remedy)

    def score(self, candidate: Artifact) -> Score:
        """Rank a candidate among others: accuracy on the calibration data (never on the evaluation data), time, size.

        Whether it is within the budget goes by point estimates here; the verdict alone decides with intervals.
        """
        drop, size = None, model_size(self.store.folder(candidate.id))
        if self.data is not None and len(self.data.calibration) and self._steady:
            model = self.store.folder(candidate.id)
            outputs = run_onnx(model, self.feeds("calibration", "candidate"), threads=self.threads)
            drop = self.compare("calibration", outputs).drop
        latency = next((f.value for f in self.estimate(candidate) if f.name == "latency-p50"), None)
        known = [("latency", latency, min(self.budget.latency_ms.values(), default=None))]
        known += [("size", size.value, self.budget.max_size), ("drop", drop, self.budget.max_drop)]
        within = all(value is None or limit is None or value <= limit for _, value, limit in known)
        keeps = drop is None or self.budget.max_drop is None or drop <= self.budget.max_drop
        return Score(within=within, latency_ms=latency, size=int(size.value or 0), drop=drop, keeps=keeps)

    def estimate(self, artifact: Artifact) -> tuple[Figure, ...]:
        """Predict what can be predicted; nothing for a graph whose shapes are open."""
        try:
            return self.exporter.estimate(artifact, self.store.folder(artifact.id), self.profile)
        except InputError as error:
            why = str(error).replace("\n", " ")
            return (
                Figure(
                    name="latency-p50",
                    value=None,
                    unit="ms",
                    provenance="predicted",
                    on=self.profile.name,
                    note=f"no prediction: {why}",
                ),
            )

    def trial(self, bundle: Bundle, target: Target | None, candidate: Artifact) -> Trial:
        """Run a compiled candidate on the evaluation data and measure it.

        Args:
            bundle: what the exporter compiled.
            candidate: what it was compiled from.
            target: where it runs; None: accuracy on this machine's CPU kernels (`simulated`), latency predicted.
        """
        original = [model_size(self.store.folder(self.reference.id))]
        if target is None:
            place, provenance = f"onnxruntime {_version('onnxruntime')} CPU kernels here", STAND_IN
            found = self.estimate(candidate)
            original += self.estimate(self.reference)
        elif is_simulator(target):  # how long it takes is no latency
            place, provenance = target.place, target.provenance
            found = self.estimate(candidate)
            original += self.estimate(self.reference)
        else:
            provenance = target.provenance
            more = {"sustained": self.sustained} if self.sustained else {}
            found = target.measure(bundle, self._one_feed(), runs=self._runs, threads=self.threads, **more)
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

    def seeded_feeds(self) -> list[Feed]:
        """Return random feeds that the original accepts: golden inputs where there is no data."""
        from edgekit.graphs.edit import load_model
        from edgekit.graphs.seeded import SeededSamples
        from edgekit.graphs.sessions import open_session

        folder = self.store.folder(self.reference.id)
        path = folder / MAIN
        samples = SeededSamples(
            open_session(path), load_model(path), folder, self.reference.specs("inputs"), seed=self.seed
        )
        return [samples.sample(index) for index in range(len(samples))]

    @property
    def golden_samples(self) -> Samples | None:
        """The split that golden inputs come from; None without data."""
        if self.data is None:
            return None
        return self.data.evaluation if len(self.data.evaluation) else self.data.calibration

    @property
    def _original(self) -> Path:
        return self.store.folder(self.reference.id)

    @property
    def _floats(self) -> set[str]:
        return {spec.name for spec in self.reference.specs("outputs") if spec.dtype.startswith("float")}

    @property
    def _runs(self) -> int:
        return 3 * RUNS if "p99" in self.budget.latency_ms else RUNS

    @cached_property
    def _steady(self) -> bool:
        """Whether the original gives the same every time, so that something can be compared with it."""
        assert self.data is not None
        samples = self.data.calibration if len(self.data.calibration) else self.data.evaluation
        return is_steady(self.store.folder(self.reference.id), [samples.sample(0)], threads=self.threads)

    def _accuracy(
        self, bundle: Bundle, target: Target | None, place: str, provenance: Provenance
    ) -> tuple[tuple[Figure, ...], tuple[Finding, ...]]:
        if self.data is None or not len(self.data.evaluation) or not self._steady:
            why = "there is no data" if self.data is None else "too few samples for an evaluation split"
            if self.data is not None and len(self.data.evaluation):
                why = "the original draws random numbers, and gives something else each time"
            note = f"accuracy was not looked at: {why}"
            return (Figure(name="drop", value=None, unit="1", provenance=provenance, on=place, note=note),), ()
        if is_simulator(target):
            comparison, told = self._simulated(bundle, target)
            return figures(comparison, on=place, provenance=provenance), (*comparison.findings, *told)
        feeds = self.feeds("evaluation", "candidate")
        if target is None:
            outputs = run_onnx(bundle.folder / str(bundle.facts["model"]), feeds, threads=self.threads)
        else:
            outputs = target.run(bundle, feeds)
        comparison = self.compare("evaluation", outputs)
        return figures(comparison, on=place, provenance=provenance), comparison.findings

    def _simulated(self, bundle: Bundle, target: Simulator) -> tuple[Comparison, tuple[Finding, ...]]:
        """Judge by a simulator on the samples that it can run; see `edgekit.evaluate.simulated`."""
        every = self._samples("evaluation")
        few = take(every, target.affordable(bundle, self._one_feed(), len(every)), seed=self.seed)
        stand_in = bundle.folder / str(bundle.facts["model"])
        whole = self.compare("evaluation", run_onnx(stand_in, self.feeds("evaluation", "CPU"), threads=self.threads))
        return judge_simulated(
            Simulated(target.place, len(few) == len(every), self._floats),
            target.run(bundle, feeds_of(few, "evaluation: simulator", self.listen)),
            (run_onnx(graph, feeds_of(few, "evaluation: CPU", self.listen)) for graph in (self._original, stand_in)),
            whole,
            rows_of(few.labels, self.leading),
            self.judged_by,
            leading=self.leading,
            seed=self.seed,
        )

    def _measure_original(self, bundle: Bundle, target: Target) -> tuple[Figure, ...]:
        """Measure the original on the same target, in the same way: what `never ship worse` compares with."""
        original = Bundle(folder=self.store.folder(self.reference.id), facts={**bundle.facts, "model": MAIN})
        try:
            return target.measure(original, self._one_feed(), runs=RUNS, threads=self.threads)
        except UnsupportedError:
            return ()  # the runtime needs another form of the graph than the float original has

    def _one_feed(self) -> Feed:
        samples = self.golden_samples
        return samples.sample(0) if samples is not None and len(samples) else self.seeded_feeds()[0]

    def _samples(self, split: Split) -> Samples:
        assert self.data is not None
        return self.data.calibration if split == "calibration" else self.data.evaluation


def feeds_of(samples: Samples, label: str, listen: events.Listener) -> Iterator[Feed]:
    """Yield samples one by one, as a device sees them: dynamic quantization scales by what comes together."""
    for done in range(len(samples)):
        listen(events.Progress(label=label, done=done, total=len(samples)))
        yield samples.sample(done)


def model_size(folder: Path, loads: Sequence[str] | None = None) -> Figure:
    """Return the bytes of what a device loads from a folder: the files that are named, else all model files."""
    paths = [folder / name for name in loads] if loads else sorted(folder.rglob("*"))
    size = sum(path.stat().st_size for path in paths if loads or path.suffix in MODEL_FILES)
    return Figure(name="size", value=float(size), unit="B", provenance="measured", on="model files")


def findings_of(artifact: Artifact) -> list[Finding]:
    """Return the findings of the stages that made an artifact."""
    return msgspec.convert(artifact.facts.get("findings", []), list[Finding])


def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution)
