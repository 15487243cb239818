"""The gate: what a candidate loses against the original, how fast, big and hungry it is, and where that was found."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from edgekit import events
from edgekit.artifact import Artifact, digest
from edgekit.budget import Budget, Figure, Provenance, judge
from edgekit.data import Dataset, Samples
from edgekit.errors import InputError
from edgekit.evaluate import Comparison, evaluate, figures, load_outputs, run_onnx, save_outputs
from edgekit.events import Finding
from edgekit.exporter import Exporter
from edgekit.metrics import Metric, default_metric, find_metric
from edgekit.profile import Profile
from edgekit.store import Store
from edgekit.target import Bundle, Feed, Target

Split = Literal["calibration", "evaluation"]

BATCH = 32
"""Samples that are fed at once on the host where the batch axis is free."""

OUTPUTS = "outputs.npz"
"""File of an artifact of kind `outputs`: what `evaluate.save_outputs` wrote."""

RUNS = 100
"""Timed runs; a p99 budget takes three times as many."""

FEWEST_TO_JUDGE = 20
"""Under so many evaluation samples nothing is said about accuracy."""


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
    """

    store: Store
    profile: Profile
    exporter: Exporter
    reference: Artifact
    data: Dataset | None
    metric: str | None
    budget: Budget
    threads: int = 1
    seed: int = 0
    listen: events.Listener = events.ignore

    @cached_property
    def judged_by(self) -> Metric:
        """The metric."""
        if self.metric is not None:
            return find_metric(self.metric)
        return default_metric(self.data.evaluation.labels if self.data and len(self.data.evaluation) else None)

    @cached_property
    def batched(self) -> bool:
        """Whether axis 0 of every input and output counts the samples."""
        specs = (*self.reference.specs("inputs"), *self.reference.specs("outputs"))
        first = {spec.shape[0] if spec.shape else None for spec in specs}
        return len(first) == 1 and isinstance(next(iter(first)), str)

    def compare(self, split: Split, outputs: Iterable[Feed]) -> Comparison:
        """Hold a candidate's outputs on one split against the original's."""
        samples = self._samples(split)
        return evaluate(
            load_outputs(self.reference_outputs(split)),
            outputs,
            samples.labels,
            self.judged_by,
            batched=self.batched,
            seed=self.seed,
        )

    def reference_outputs(self, split: Split) -> Path:
        """Return the file with the original's outputs on one split; computed once, then taken from the store."""
        assert self.data is not None
        version = importlib.metadata.version("onnxruntime")
        key = digest(["outputs", self.reference.id, self.data.id, split, self.batched, version])
        record = self.store.record(key)
        known = self.store.load(str(record["artifact"])) if record else None
        if known is None:
            model = self.store.folder(self.reference.id)
            with self.store.staging() as out:
                save_outputs(out / OUTPUTS, run_onnx(model, self.feeds(split, "original"), threads=self.threads))
                known = self.store.publish(out, "outputs", {"split": split, "data": self.data.id}, ())
            self.store.remember(key, {"artifact": known.id})
        return self.store.folder(known.id) / OUTPUTS

    def feeds(self, split: Split, label: str) -> Iterator[Feed]:
        """Yield the feeds of a split, telling progress."""
        samples = self._samples(split)
        size = BATCH if self.batched else 1
        for done, feed in enumerate(samples.batches(size)):
            self.listen(events.Progress(label=f"{split}: {label}", done=min(done * size, len(samples)), total=len(samples)))
            yield feed

    def score(self, candidate: Artifact) -> Score:
        """Rank a candidate among others: accuracy on the calibration data (never the evaluation data), prediction, size.

        Whether it is within the budget goes by point estimates here; the verdict alone decides with intervals.
        """
        drop, size = None, self._size(self.store.folder(candidate.id))
        if self.data is not None and len(self.data.calibration):
            model = self.store.folder(candidate.id)
            outputs = run_onnx(model, self.feeds("calibration", "candidate"), threads=self.threads)
            drop = self.compare("calibration", outputs).drop
        latency = next((f.value for f in self.estimate(candidate) if f.name == "latency-p50"), None)
        known = [("latency", latency, min(self.budget.latency_ms.values(), default=None))]
        known += [("size", size.value, self.budget.max_size), ("drop", drop, self.budget.max_drop)]
        within = all(value is None or limit is None or value <= limit for _, value, limit in known)
        return Score(within=within, latency_ms=latency, size=int(size.value or 0), drop=drop)

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

    def trial(self, bundle: Bundle, candidate: Artifact, target: Target | None) -> Trial:
        """Run a compiled candidate on the evaluation data and measure it.

        Args:
            bundle: what the exporter compiled.
            candidate: what it was compiled from.
            target: where it runs; None: accuracy on this machine's CPU kernels, latency predicted.
        """
        findings: list[Finding] = []
        provenance: Provenance = "simulated"
        found = list(self._size(bundle.folder))
        original = list(self._size(self.store.folder(self.reference.id)))
        if target is not None:
            provenance = target.provenance
            found += self._measure(target, bundle)
            findings += getattr(target, "findings", [])
        else:
            found += self.estimate(candidate)
            original += self.estimate(self.reference)
        place = target.title if target is not None else "onnxruntime CPU kernels here"
        accuracy, told = self._accuracy(bundle, candidate, target, place, provenance)
        original.append(Figure(name="drop", value=0.0, unit="1", provenance=provenance, on=place))
        return Trial(
            figures=(*accuracy, *found),
            original=tuple(original),
            findings=(*findings, *told),
            fingerprint=target.fingerprint() if target is not None else {},
        )

    def _accuracy(
        self, bundle: Bundle, candidate: Artifact, target: Target | None, place: str, provenance: Provenance
    ) -> tuple[tuple[Figure, ...], tuple[Finding, ...]]:
        if self.data is None or not len(self.data.evaluation):
            return (_unknown_drop(place, provenance, "no evaluation samples"),), ()
        feeds = self.feeds("evaluation", "candidate")
        if target is not None:
            outputs = target.run(bundle, feeds)
        else:
            outputs = run_onnx(self.store.folder(candidate.id), feeds, threads=self.threads)
        comparison = self.compare("evaluation", outputs)
        return figures(comparison, on=place, provenance=provenance), comparison.findings

    def _measure(self, target: Target, bundle: Bundle) -> tuple[Figure, ...]:
        samples = self.data.evaluation if self.data and len(self.data.evaluation) else None
        samples = samples or (self.data.calibration if self.data else None)
        if samples is None or not len(samples):
            feed = seeded_feed(self.reference, self.store)
        else:
            feed = samples.sample(0)
        runs = 3 * RUNS if "p99" in self.budget.latency_ms else RUNS
        return target.measure(bundle, feed, runs=runs, threads=self.threads)

    def _size(self, folder: Path) -> Iterator[Figure]:
        files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in {".onnx", ".data", ".bin"}]
        size = sum(path.stat().st_size for path in files)
        yield Figure(name="size", value=float(size), unit="B", provenance="measured", on="model files")

    def _samples(self, split: Split) -> Samples:
        assert self.data is not None
        return self.data.calibration if split == "calibration" else self.data.evaluation
