"""How `quantize.py` makes candidates, each in a process of its own, and measures them: accuracy, agreement, latency."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from bench_inputs import ArraySamples, Floats, Task
from venvs import interpreter
from work_order import Work

HERE = Path(__file__).resolve().parent
BLOCK, WARM_UP = 10, 3
MODEL, TOLD, LOG = "model.onnx", "told.json", "log"


class MissingError(Exception):
    """A candidate that is not to be had, and why."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The figures of one quantizer on one model."""

    name: str
    drop: float
    error: float
    agreement: float
    cosine: float
    sqnr: float
    megabytes: float
    ratio: float
    cpu_seconds: float
    peak_mb: float


def made(folder: Path, script: Path, work: Work, python: Path | str = sys.executable, out: str = MODEL) -> Work:
    """Let a child process do a work order unless `folder` says that this very one is done.

    Args:
        folder: where its output, what it told and its log go; `out` in the work order is added here.
        script: the child.
        work: the order, JSON values only.
        python: whose environment it runs in.
        out: name of the output.

    Returns:
        What the child told, with `work`.

    Raises:
        MissingError: the child failed; the last line that it wrote.
    """
    folder.mkdir(parents=True, exist_ok=True)
    work = {**work, "out": str((folder / out).resolve())}
    if (folder / TOLD).exists():
        held: Work = json.loads((folder / TOLD).read_text(encoding="utf-8"))
        if held["work"] == work:
            return held
    (folder / TOLD).unlink(missing_ok=True)
    with (folder / LOG).open("w", encoding="utf-8") as log:
        done = subprocess.run(
            [str(python), str(script), json.dumps(work)], check=False, stdout=subprocess.PIPE, stderr=log, text=True
        )
    if done.returncode:
        lines = (folder / LOG).read_text(encoding="utf-8").strip().splitlines()
        raise MissingError(f"exit status {done.returncode}: {lines[-1] if lines else 'it said nothing'}")
    told: Work = json.loads(done.stdout.splitlines()[-1]) | {"work": work}
    (folder / TOLD).write_text(json.dumps(told, default=str), encoding="utf-8")
    return told


def build(task: Task, way: str, folder: Path, options: argparse.Namespace, **work: Any) -> Work:
    """Quantize a task's model with edgekit or onnxruntime, in a process of its own; see `quantize_child.py`."""
    inputs = {"inputs": str(options.inputs.resolve()), "minilm": str(options.minilm.resolve())}
    return made(folder, HERE / "quantize_child.py", {"way": way, "task": task.name, **inputs, **work})


def peer(name: str, options: argparse.Namespace, folder: Path, work: Work, out: str = MODEL) -> Work:
    """Let a peer's child do a work order in its own environment."""
    script = "off_grid" if name == "export" else f"{name}_child"
    return made(folder, HERE / "peers" / f"{script}.py", work, environment(name, options), out)


def environment(name: str, options: argparse.Namespace) -> Path:
    """Return the Python of a peer; MissingError when there is none."""
    if options.peers is None:
        raise MissingError("--peers was not given")
    try:
        return interpreter(options.peers, name)
    except FileNotFoundError as error:
        raise MissingError(str(error)) from None


def slug(name: str) -> str:
    """Return a candidate's name as that of its folder."""
    return name.replace(", ", "-").replace(" ", "-")


def cost(told: Work) -> dict[str, float]:
    """Return what a child's work took."""
    return {key: float(told[key]) for key in ("cpu_seconds", "peak_mb")}


def save_samples(samples: ArraySamples, file: Path) -> Path:
    """Write samples, each a batch of one, as peers read them."""
    feeds = [samples.sample(row) for row in range(len(samples))]
    np.savez(file, allow_pickle=False, **{name: np.stack([feed[name] for feed in feeds]) for name in feeds[0]})
    return file.resolve()


def session(path: Path, threads: int = 1) -> Any:
    """Open a model as a device would."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def answers(task: Task, path: Path) -> Floats:
    """Run the evaluation rows; what is judged, one row each."""
    opened = session(path)
    feeds = task.evaluation.batches(task.batch)
    return np.concatenate([task.answer(feed, opened.run(None, feed)[0]) for feed in feeds])


def latencies(task: Task, original: Path, candidates: Sequence[Path], pairs: int) -> list[float]:
    """Return each candidate's median ratio to the original; blocks of pairs take turns, so all see the same machine.

    A session of one thread computes in the thread that calls it, so that thread's CPU time is its latency, less the
    waits for a machine that others use too.
    """
    reference, feed = session(original), task.evaluation.sample(0)
    opened = [session(path) for path in candidates]
    ratios: list[list[float]] = [[] for _ in opened]
    for _ in range(-(-pairs // BLOCK)):
        for candidate, found in zip(opened, ratios, strict=True):
            block = [_pair(reference, candidate, feed, first=number % 2) for number in range(BLOCK + WARM_UP)]
            found.extend(block[WARM_UP:])
    return [statistics.median(found) for found in ratios]


def _pair(reference: Any, candidate: Any, feed: Any, *, first: int) -> float:
    seconds = {}
    for which in (first, 1 - first):
        started = time.thread_time()
        (reference, candidate)[which].run(None, feed)
        seconds[which] = time.thread_time() - started
    return seconds[1] / seconds[0]


def judge(task: Task, name: str, path: Path, float_rows: Floats, told: Work, ratio: float) -> Row:
    """Compare a quantized model with the original."""
    rows = answers(task, path)
    right, kept = (task.decide(r) == task.labels for r in (float_rows, rows))
    lost = right.astype(np.float64) - kept
    cosines = (float_rows * rows).sum(1) / np.linalg.norm(float_rows, axis=1) / np.linalg.norm(rows, axis=1)
    noise = float(np.square(rows - float_rows, dtype=np.float64).sum())
    return Row(
        name=name,
        drop=100 * float(lost.mean()),
        error=100 * float(lost.std(ddof=1)) / len(lost) ** 0.5,
        agreement=float((task.decide(float_rows) == task.decide(rows)).mean()),
        cosine=float(cosines.mean()),
        sqnr=10 * float(np.log10(float(np.square(float_rows, dtype=np.float64).sum()) / noise)),
        megabytes=stored(path) / 1e6,
        ratio=ratio,
        cpu_seconds=told["cpu_seconds"],
        peak_mb=told["peak_mb"],
    )


def stored(path: Path) -> int:
    """Return the bytes of a model, constants behind a QuantizeLinear counted as the integers that they become."""
    import onnx

    graph = onnx.load(path).graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    uses = [name for node in graph.node for name in node.input]
    saved = 0
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in held and uses.count(node.input[0]) == 1:
            saved += 3 * int(np.prod(held[node.input[0]].dims))  # float32 -> 8 bits
    return path.stat().st_size - saved
