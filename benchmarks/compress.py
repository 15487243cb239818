"""What the stages that train give: parameters, MACs, bytes, latency and accuracy after each, beside peers.

    python -m benchmarks.compress vision --work DIR [--peers DIR] [--images 5000]
    python -m benchmarks.compress text --work DIR --model DIR --data DIR [--sentences 3000] [--evaluation 5000]

Run in the root of the repository. DIR of `--work` keeps the store: a run that was stopped goes on. `--peers` is what
`pip install --target DIR --no-deps torch-pruning torchao` wrote; without it the peers are left out.

- vision: a depthwise CNN of 21 MMACs on Fashion-MNIST (see samples/vision); text: a BERT classifier at 32 tokens (see
  samples/text). Every training sees the same samples; accuracy is on samples that none has seen.
- epochs: pruning takes rounds of some epochs and a longer training at the end (see `Effort`), ours and Torch-Pruning's;
  quantization-aware training as many for both.
- scratch: the pruned network from random numbers, for the epochs of the original and of all that ours saw together.
- latency: CPU milliseconds of one thread of onnxruntime, float models, median over turns of all candidates.
- drop: points of accuracy below the original, with the standard error of the paired difference.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit import events
from edgekit.artifact import MAIN, Artifact
from edgekit.exporter import load_exporter
from edgekit.pipeline import Pipeline
from edgekit.plan import capture_stages, make_stage
from edgekit.profile import load_profile
from edgekit.sources import ingest, read_data
from edgekit.store import Store

QAT_EPOCHS = 3
BATCH, TURNS = 32, 15

Flags = npt.NDArray[np.bool_]


@dataclass(kw_only=True)
class Row:
    """One candidate: its name, what it costs, and which samples it gets right."""

    name: str
    path: Path
    parameters: int
    macs: int
    right: Flags
    epochs: float = 0
    latency: dict[int, float] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How a network is brought to half of its multiply-accumulates.

    Attributes:
        rounds: of pruning.
        epochs: of training after each.
        features: epochs before these in which distillation matches features.
        last: epochs at the end.
        rate: highest learning rate; 0: that of the stages.
    """

    rounds: int
    epochs: int
    features: int
    last: int
    rate: float = 0.0

    @property
    def ratio(self) -> float:
        """What a round takes."""
        return 1 - 0.5 ** (1 / self.rounds)

    def trained(self, *, features: bool) -> int:
        """Return the epochs of all together."""
        return self.rounds * (self.epochs + self.features * features) + self.last


class Bench:
    """The stages of the house on one model and its data, and the rows that were found."""

    def __init__(
        self, shelf: Store, model: str, weights: Path | None, data: Path, shape: dict[str, tuple[int, ...]]
    ) -> None:
        """Take the model in; `shape` gives the axes of its inputs behind the batch."""
        device = load_profile("host")
        exporter = load_exporter(device.runtime)
        self.pipeline = Pipeline(store=shelf, profile=device, dialect=exporter.dialect(device), listen=_listen)
        self.shelf, self.rows = shelf, list[Row]()
        source = ingest(model, shelf, weights=weights)
        (self.capture,) = capture_stages(model, source.kind, ())
        self.pipeline.originals["torch"] = source
        reference = self.pipeline.run_stage(self.capture, source)
        self.pipeline.originals["onnx"] = reference
        found = read_data(str(data), reference, source=shelf.folder(source.id), training=True)
        assert found is not None
        self.data = self.pipeline.data = found
        self.shape = {spec.name: shape[spec.name] for spec in reference.specs("inputs")}
        self.source = source

    def stage(self, name: str, given: Artifact, **options: Any) -> Artifact:
        """Run one stage of the house."""
        started = time.process_time()
        made = self.pipeline.run_stage(make_stage(name, options, "benchmark"), given)
        say(f"  {name} {options or ''} {time.process_time() - started:.0f} s here")
        return made

    def graph(self, network: Artifact) -> Artifact:
        """Export a network and simplify its graph."""
        return self.stage("simplify", self.pipeline.run_stage(self.capture, network))

    def add(self, name: str, artifact: Artifact, epochs: float = 0) -> Row:
        """Judge a graph of the store."""
        return self.judge(name, self.shelf.folder(artifact.id) / MAIN, epochs)

    def judge(self, name: str, path: Path, epochs: float = 0) -> Row:
        """Judge an ONNX file: what it costs, and which evaluation samples it gets right."""
        from edgekit.graphs.cost import cost_of

        cost = cost_of(path, {key: (1, *axes) for key, axes in self.shape.items()})
        row = Row(
            name=name, path=path, parameters=numbers(path), macs=cost.macs, right=self._right(path), epochs=epochs
        )
        self.rows.append(row)
        say(f"{name}: {row.right.mean():.4f}, {row.macs / 1e6:.2f} MMACs, {row.parameters} parameters")
        return row

    def _right(self, path: Path) -> Flags:
        samples, opened = self.data.evaluation, session(path)
        feeds = (samples.sample(index) for index in range(len(samples)))
        found = [int(np.argmax(opened.run(None, feed)[0].reshape(-1))) for feed in feeds]
        assert samples.labels is not None
        return np.asarray(found) == samples.labels

    def time(self, names: Sequence[str]) -> None:
        """Measure the latency of float candidates in turns, at batch 1 and 32."""
        rows = [row for row in self.rows if row.name in names]
        opened = [session(row.path) for row in rows]
        for batch in (1, BATCH):
            one = self.data.evaluation.sample(0)
            feed = {key: _stacked(value, batch, self.shape.get(key)) for key, value in one.items()}
            found: list[list[float]] = [[] for _ in rows]
            for _ in range(TURNS):
                for candidate, times in zip(opened, found, strict=True):
                    candidate.run(None, feed)
                    started = time.process_time()
                    for _ in range(3):
                        candidate.run(None, feed)
                    times.append((time.process_time() - started) / 3 * 1e3)
            for row, times in zip(rows, found, strict=True):
                row.latency[batch] = statistics.median(times)

    def report(self) -> str:
        """Return all rows as a table; drops are from the first."""
        first = self.rows[0]
        lines = [
            "| | epochs | parameters | MMACs | kB | ms, batch 1 | ms, batch 32 | accuracy | drop, points |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in self.rows:
            lost = first.right.astype(float) - row.right.astype(float)
            error = 100 * float(lost.std()) / len(lost) ** 0.5
            times = [f"{row.latency[batch]:.2f}" if batch in row.latency else "" for batch in (1, BATCH)]
            lines.append(
                f"| {row.name} | {row.epochs:g} | {row.parameters:,} | {row.macs / 1e6:.2f} | "
                f"{row.path.stat().st_size / 1e3:.0f} | {times[0]} | {times[1]} | {100 * row.right.mean():.2f} | "
                f"{100 * lost.mean():.2f} +- {error:.2f} |"
            )
        return "\n".join(lines)

    def accuracy(self, name: str) -> float:
        """Return the accuracy of a row, in points."""
        return 100 * float(next(row for row in self.rows if row.name == name).right.mean())


def _stacked(value: Any, batch: int, axes: tuple[int, ...] | None) -> Any:
    """Return a batch of one sample, repeated to the shape that was asked."""
    full = np.resize(value, (1, *axes)) if axes and value.shape[1:] != axes else value
    return np.repeat(full, batch, 0)


def session(path: Path) -> Any:
    """Open a model on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def numbers(path: Path) -> int:
    """Count the numbers of a graph's tensors of one axis or more."""
    from edgekit.graphs.edit import load_model

    return sum(int(np.prod(tensor.dims)) for tensor in load_model(path).graph.initializer if tensor.dims)


def rounds(bench: Bench, effort: Effort, train: str | None, **options: Any) -> Artifact:
    """Prune in rounds, training after each and longer at the end."""
    network = bench.source
    for _ in range(effort.rounds):
        network = bench.stage("prune-channels", network, ratio=effort.ratio, of="macs")
        if train:
            network = bench.stage(train, network, epochs=effort.epochs, rate=effort.rate, **options)
    if train:
        network = bench.stage(train, network, epochs=effort.last, rate=effort.rate, **dict.fromkeys(options, 0))
    return network


def halved(bench: Bench, effort: Effort) -> Artifact:
    """Prune to half of the work: alone, with fine-tuning, with distillation; return the last."""
    bench.add("pruned, not trained", bench.graph(rounds(bench, effort, None)))
    tuned = rounds(bench, effort, "finetune")
    bench.add("pruned, fine-tuned", bench.graph(tuned), effort.trained(features=False))
    taught = rounds(bench, effort, "distill", feature_epochs=effort.features)
    bench.add("pruned, distilled", bench.graph(taught), effort.trained(features=True))
    return taught


def quantized(
    bench: Bench, graph: Artifact, name: str, bits: int = 8, epochs: int = QAT_EPOCHS, **options: Any
) -> tuple[float, float]:
    """Quantize after training, then train; return both accuracies in points."""
    made = bench.stage(f"quantize-int{bits}", graph, **options)
    bench.add(name, made)
    trained = bench.stage("quantize-aware-train", made, epochs=epochs, learn_scales=bits == 8)
    matches = trained.lineage[-1].facts["qat"]["matches"]
    say(f"  {name}: trained and written differ by {matches}")
    bench.add(f"{name}, QAT", trained, epochs)
    return bench.accuracy(name), bench.accuracy(f"{name}, QAT")


def peer(options: argparse.Namespace, work: dict[str, Any]) -> dict[str, Any]:
    """Run a peer in a process that sees its packages."""
    paths = os.pathsep.join([str(options.peers), *sys.path])
    argv = [sys.executable, "-m", "benchmarks.compress_peers", json.dumps(work)]
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths})
    if done.returncode:
        sys.exit(f"the peer failed: {work}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def goal(text: str, value: float, least: float) -> None:
    """Say whether a figure reaches its goal."""
    print(f"{'reached' if value >= least else 'MISSED '}  {text}: {value:.2f}, goal {least:.2f}", flush=True)


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def _listen(event: events.Event) -> None:
    if isinstance(event, events.StageDone):
        say(f"  {event.name}: {event.seconds:.0f} s{' cached' if event.cached else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["vision", "text"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=16, help="of the original")
    parser.add_argument("--seeds", type=int, default=3, help="networks trained from scratch")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sentences", type=int, default=3000)
    parser.add_argument("--evaluation", type=int, default=5000, help="sentences that accuracy is on")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.task == "vision":
        from benchmarks.compress_vision import vision as run
    else:
        from benchmarks.compress_text import text as run
    started = time.time()
    spent = sum(os.times()[:4])
    with Store(options.work / "store") as shelf:
        bench = run(options, shelf)
        print(bench.report())
    print(f"{sum(os.times()[:4]) - spent:.0f} CPU s, {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
