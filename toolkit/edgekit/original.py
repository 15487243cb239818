"""The float original that every candidate is held against: its data, its metric, its outputs on each split."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Literal

from edgekit import events
from edgekit.artifact import MAIN, Artifact, digest, sha256_file
from edgekit.data import Dataset, Samples, take
from edgekit.evaluate import Comparison, evaluate, is_steady, load_outputs, run_onnx, save_outputs
from edgekit.evaluate.rows import TOGETHER, leading_axis, rows_of, together
from edgekit.metrics import Metric, default_metric, find_metric
from edgekit.store import Store
from edgekit.target import Feed

Split = Literal["calibration", "evaluation"]

OUTPUTS = "outputs.npz"
"""File of an artifact of kind `outputs`: what `evaluate.save_outputs` wrote."""

LOOKED_AT = 32
"""Samples that are looked at for how large inputs are."""


@dataclass(frozen=True, kw_only=True)
class Original:
    """One float model with what is known of it.

    Attributes:
        artifact: the model, kind `onnx`.
        data: the data set; without it nothing can be said about accuracy.
        metric: what is judged; None: by the kind of the labels.
    """

    store: Store
    artifact: Artifact
    data: Dataset | None
    metric: str | None
    threads: int = 1
    seed: int = 0
    listen: events.Listener = events.ignore

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return self.store.folder(self.artifact.id)

    @cached_property
    def judged_by(self) -> Metric:
        """The metric."""
        if self.metric is not None:
            return find_metric(self.metric)
        return default_metric(self.samples("evaluation").labels if self.has("evaluation") else None)

    @cached_property
    def leading(self) -> str | int | None:
        """The axis of inputs and outputs that counts rows."""
        return leading_axis(self.artifact.specs("inputs"), self.artifact.specs("outputs"))

    @property
    def floats(self) -> set[str]:
        """Names of the outputs that are floating-point numbers."""
        return {spec.name for spec in self.artifact.specs("outputs") if spec.dtype.startswith("float")}

    @property
    def silence(self) -> str:
        """Why its evaluation split tells nothing about a candidate; empty when it does."""
        if self.data is None:
            return "there is no data"
        if not self.has("evaluation"):
            return "too few samples for an evaluation split"
        return "" if self._steady else "the original draws random numbers, and gives something else each time"

    def has(self, split: Split) -> bool:
        """Say whether there are samples of a split."""
        return self.data is not None and len(self.samples(split)) > 0

    def tells(self, split: Split) -> bool:
        """Say whether a candidate's outputs on a split can be held against its own."""
        return self.has(split) and self._steady

    @property
    def outputs_id(self) -> str | None:
        """Id of the artifact with its outputs on the evaluation split; None when they tell nothing."""
        return self._outputs("evaluation").id if self.tells("evaluation") else None

    def outputs(self, split: Split) -> Path:
        """Return the file with its outputs on one split; computed once, then taken from the store."""
        return self.store.folder(self._outputs(split).id) / OUTPUTS

    def compare(self, split: Split, outputs: Iterable[Feed]) -> Comparison:
        """Hold a candidate's outputs on one split against its own."""
        return self._compared(split, together(outputs, self.leading))

    def compare_graph(self, graph: Path, split: Split, label: str) -> Comparison:
        """Hold what another graph gives on this CPU against its own outputs; it is run once, then known.

        Args:
            graph: its file; what lies in its folder may be its external data.
            split: the samples.
            label: what progress calls it.
        """
        content = {path.name: sha256_file(path) for path in sorted(graph.parent.iterdir()) if path.is_file()}
        known = self._computed(split, digest([graph.name, content]), graph, label)
        return self._compared(split, load_outputs(self.store.folder(known.id) / OUTPUTS))

    def _compared(self, split: Split, outputs: Iterable[Feed]) -> Comparison:
        return evaluate(
            load_outputs(self.outputs(split)),
            outputs,
            rows_of(self.samples(split).labels, self.leading),
            self.judged_by,
            batched=self.leading is not None,
            seed=self.seed,
        )

    def samples(self, split: Split) -> Samples:
        """Return the samples of a split."""
        assert self.data is not None
        return self.data.calibration if split == "calibration" else self.data.evaluation

    def some(self, split: Split, count: int) -> Samples:
        """Return at most `count` samples of a split, the same every time."""
        return take(self.samples(split), count, seed=self.seed)

    def feeds(self, split: Split, label: str) -> Iterator[Feed]:
        """Yield the feeds of a split, telling progress."""
        return feeds_of(self.samples(split), f"{split}: {label}", self.listen)

    def seeded_feeds(self) -> list[Feed]:
        """Return random feeds that it accepts: golden inputs where there is no data."""
        from edgekit.graphs.edit import load_model
        from edgekit.graphs.seeded import SeededSamples
        from edgekit.graphs.sessions import open_session

        path, specs = self.folder / MAIN, self.artifact.specs("inputs")
        samples = SeededSamples(open_session(path), load_model(path), self.folder, specs, seed=self.seed)
        return [samples.sample(index) for index in range(len(samples))]

    @property
    def golden_samples(self) -> Samples | None:
        """The split that golden inputs come from; None without data."""
        if self.data is None:
            return None
        return self.samples("evaluation" if self.has("evaluation") else "calibration")

    def one_feed(self) -> Feed:
        """Return one sample to measure with."""
        samples = self.golden_samples
        return samples.sample(0) if samples is not None and len(samples) else self.seeded_feeds()[0]

    @cached_property
    def _steady(self) -> bool:
        """Whether it gives the same every time, so that something can be compared with it."""
        return is_steady(self.folder, [self.samples(self._any_split).sample(0)], threads=self.threads)

    @property
    def _any_split(self) -> Split:
        """A split that may be looked at before the verdict: the evaluation split only when there is no other."""
        return "calibration" if self.has("calibration") else "evaluation"

    @cached_property
    def largest_shapes(self) -> dict[str, tuple[int, ...]]:
        """Input name -> shape in the largest of a few samples; empty without data."""
        split = self._any_split
        if not self.has(split):
            return {}
        some = self.some(split, LOOKED_AT)
        feeds = (some.sample(index) for index in range(len(some)))
        shapes = ({name: array.shape for name, array in feed.items()} for feed in feeds)
        return max(shapes, key=lambda found: sum(prod(shape) for shape in found.values()))

    def _outputs(self, split: Split) -> Artifact:
        return self._computed(split, self.artifact.id, self.folder, "original")

    def _computed(self, split: Split, what: str, graph: Path, label: str) -> Artifact:
        """Run a graph on one split, or take what it gave from the store; `what` tells graphs apart."""
        assert self.data is not None
        version = importlib.metadata.version("onnxruntime")
        key = digest(["outputs", TOGETHER, what, self.data.id, split, version])
        record = self.store.record(key)
        known = self.store.load(str(record["artifact"])) if record else None
        if known is None:
            with self.store.staging() as out:
                outputs = run_onnx(graph, self.feeds(split, label), threads=self.threads)
                save_outputs(out / OUTPUTS, together(outputs, self.leading))
                known = self.store.publish(out, "outputs", {"split": split, "data": self.data.id}, ())
            self.store.remember(key, {"artifact": known.id})
        return known


def feeds_of(samples: Samples, label: str, listen: events.Listener) -> Iterator[Feed]:
    """Yield samples one by one, as a device sees them: dynamic quantization scales by what comes together."""
    for done in range(len(samples)):
        listen(events.Progress(label=label, done=done, total=len(samples)))
        yield samples.sample(done)
