"""INT8 side by side: `edgekit build --recipe int8` and onnxruntime's quantizer at its best, in one run.

    python benchmarks/quantize.py INPUTS [--only effnet|minilm] [--limit N] [--pairs N] [--recipe NAME|FILE]
                                  [--profile NAME] [--minilm DIR] [--keep DIR]
    python benchmarks/quantize.py INPUTS --calibrators

INPUTS holds `effnet96_fp32.onnx`, `effnet96_calibration.npz`, `minilm_calibration.npz` and `minilm_evaluation.npz`;
MiniLM itself comes from `python -m samples.text.fetch --no-model`, Fashion-MNIST from Debian.

- EfficientNet-Lite0 at 96 px: against `quantize_static`, u8 activations, s8 weights per channel, min-max, QDQ.
- MiniLM-L6, 64 tokens: against `quantize_dynamic`, s8 weights per channel.
- drop: points of accuracy lost against the float model, with the standard error of the paired difference.
- latency: ratio to the float model; one process, batch 1, one thread, float and candidate alternating, median of the
  pairs' ratios; blocks of pairs of each candidate take turns.
- --profile: the device whose runtime the graph is written for; on others than `host` the CPU's latency says nothing.
- --calibrators: what each way to choose ranges costs on EfficientNet's 256 images, beside onnxruntime's min-max.
- CPU s and peak MB: of a process that only calibrates and quantizes, without its imports and without simplifying.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_inputs import Floats, Task, effnet, minilm

HERE = Path(__file__).resolve().parent
BLOCK, WARM_UP = 10, 3
CALIBRATORS = ("minmax", "percentile", "mse", "entropy", "auto")


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


def latencies(task: Task, original: Path, candidates: list[Path], pairs: int) -> list[float]:
    """Return each candidate's median ratio to the original; blocks of pairs take turns, so all see the same machine."""
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
        started = time.perf_counter()
        (reference, candidate)[which].run(None, feed)
        seconds[which] = time.perf_counter() - started
    return seconds[1] / seconds[0]


def build(
    task: Task, side: str, out: Path, options: argparse.Namespace, original: Path | None, recipe: str = ""
) -> dict[str, Any]:
    """Quantize in a process of its own; its CPU seconds and peak memory."""
    work = {
        "task": task.name,
        "side": side,
        "out": str(out),
        "inputs": str(options.inputs),
        "minilm": str(options.minilm),
        "recipe": recipe or options.recipe,
        "profile": options.profile,
        "original": str(original or ""),
    }
    argv = [sys.executable, str(HERE / "quantize_child.py"), json.dumps(work)]
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{side} failed on {task.name}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def judge(task: Task, name: str, path: Path, float_rows: Floats, told: dict[str, Any], ratio: float) -> Row:
    """Compare a quantized model with the original."""
    rows = answers(task, path)
    right, kept = (task.decide(r) == task.labels for r in (float_rows, rows))
    lost = right.astype(np.float64) - kept
    cosines = (float_rows * rows).sum(1) / np.linalg.norm(float_rows, axis=1) / np.linalg.norm(rows, axis=1)
    noise = float(np.square(rows - float_rows, dtype=np.float64).sum())
    return Row(
        name=name,
        drop=100 * lost.mean(),
        error=100 * lost.std(ddof=1) / len(lost) ** 0.5,
        agreement=float((task.decide(float_rows) == task.decide(rows)).mean()),
        cosine=float(cosines.mean()),
        sqnr=10 * np.log10(float(np.square(float_rows, dtype=np.float64).sum()) / noise),
        megabytes=path.stat().st_size / 1e6,
        ratio=ratio,
        cpu_seconds=told["cpu_seconds"],
        peak_mb=told["peak_mb"],
    )


def compare(task: Task, options: argparse.Namespace, folder: Path) -> list[Row]:
    """Quantize a model both ways and measure."""
    ours = build(task, "edgekit", folder / "edgekit.onnx", options, None)
    original = Path(ours["original"])
    theirs = build(task, "onnxruntime", folder / "onnxruntime.onnx", options, original)
    print(json.dumps(ours["facts"]), file=sys.stderr)
    float_rows = answers(task, original)
    accuracy = 100 * float((task.decide(float_rows) == task.labels).mean())
    print(f"\n{task.name}: float {accuracy:.2f} %, {original.stat().st_size / 1e6:.2f} MB, {len(float_rows)} rows")
    both = {"edgekit": ours, "onnxruntime": theirs}
    paths = [folder / f"{name}.onnx" for name in both]
    ratios = latencies(task, original, paths, options.pairs)
    return [
        judge(task, name, path, float_rows, told, ratio)
        for (name, told), path, ratio in zip(both.items(), paths, ratios, strict=True)
    ]


def show(rows: list[Row]) -> None:
    """Print the table; CPU time and memory also as ratios to the last row's."""
    print("quantizer     drop, points    agreement  cosine   dB     MB     latency  CPU s          peak MB")
    last = rows[-1]
    for row in rows:
        print(
            f"{row.name:12} {row.drop:6.2f} +- {row.error:.2f}   {row.agreement:.4f}   {row.cosine:.5f} {row.sqnr:5.2f}"
            f"  {row.megabytes:6.2f}  {row.ratio:5.3f} x"
            f"  {row.cpu_seconds:5.1f} ({row.cpu_seconds / last.cpu_seconds:4.2f} x)"
            f"  {row.peak_mb:5.0f} ({row.peak_mb / last.peak_mb:4.2f} x)",
            flush=True,
        )


def calibrators(task: Task, options: argparse.Namespace, folder: Path) -> None:
    """Print CPU time and memory of every way to choose ranges; the first row is onnxruntime's min-max."""
    ways: dict[str, str] = {}
    for method in CALIBRATORS:
        file = folder / f"{method}.toml"
        file.write_text(f'[[stage]]\nuse = "simplify"\n\n[[stage]]\nuse = "quantize-int8"\nmethod = "{method}"\n')
        ways[method] = str(file)
    told = {way: build(task, "edgekit", folder / "edgekit.onnx", options, None, ways[way]) for way in CALIBRATORS}
    original = Path(told[CALIBRATORS[0]]["original"])
    peer = build(task, "onnxruntime", folder / "onnxruntime.onnx", options, original)
    print(f"\n{task.name}: {len(task.calibration)} calibration rows\ncalibrator               CPU s           peak MB")
    for name, found in {"onnxruntime minmax": peer, **{f"edgekit {way}": row for way, row in told.items()}}.items():
        print(
            f"{name:20}  {found['cpu_seconds']:6.1f} ({found['cpu_seconds'] / peer['cpu_seconds']:4.2f} x)  "
            f"{found['peak_mb']:6.0f} ({found['peak_mb'] / peer['peak_mb']:4.2f} x)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", type=Path, help="folder of the models and calibration data")
    parser.add_argument("--only", choices=("effnet", "minilm"))
    parser.add_argument("--limit", type=int, help="evaluation rows")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of timed runs")
    parser.add_argument("--recipe", default="int8", help="edgekit's recipe")
    parser.add_argument("--profile", default="host", help="edgekit's profile")
    parser.add_argument("--minilm", type=Path, default=HERE.parent / "samples" / "text" / "minilm")
    parser.add_argument("--keep", type=Path, help="folder to leave the quantized models in")
    parser.add_argument("--calibrators", action="store_true", help="cost of the ways to choose ranges")
    options = parser.parse_args()
    if options.calibrators:
        with tempfile.TemporaryDirectory() as scratch:
            calibrators(effnet(options.inputs, 1), options, Path(scratch))
        return
    for name in (options.only,) if options.only else ("effnet", "minilm"):
        if name == "effnet":
            task = effnet(options.inputs, options.limit)
        else:
            task = minilm(options.inputs, options.minilm, options.limit)
        with tempfile.TemporaryDirectory() as scratch:
            folder = options.keep / name if options.keep else Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            show(compare(task, options, folder))


if __name__ == "__main__":
    main()
