"""Quantizers side by side, in one run: edgekit's recipes, onnxruntime at its best, and the peers of the bar.

    python benchmarks/quantize.py INPUTS --bar [ROW ...] --peers DIR --keep DIR [--minilm DIR] [--limit N] [--pairs N]
                                  [--windows N] [--iterations N] [--threads N] [--table]
    python benchmarks/quantize.py INPUTS [--only effnet|minilm] [--recipe NAME|FILE] [--profile NAME] [--keep DIR]

INPUTS holds `effnet96_fp32.onnx`, `effnet96_calibration.npz`, `minilm_calibration.npz`, `minilm_evaluation.npz` and
`sotu_windows.npz`; MiniLM itself comes from `python -m samples.text.fetch --no-model`, Fashion-MNIST from Debian, the
language model with the peers.

With --bar, the bar's rows (see quantize_bar.py) with every peer in its own environment, which
`python benchmarks/peers/venvs.py DIR` builds; a peer that is not there is named under the table. Without, two models
against onnxruntime:

- EfficientNet-Lite0 at 96 px: against `quantize_static`, u8 activations, s8 weights per channel, min-max, QDQ.
- MiniLM-L6, 64 tokens: against `quantize_dynamic`, s8 weights per channel.

The figures:

- drop: points of accuracy lost against the float model, with the standard error of the paired difference.
- MB: of the file, float weights behind a QuantizeLinear counted as the integers that they become.
- latency: ratio to the float model; one process, batch 1, one thread, float and candidate alternating, median of the
  pairs' ratios; blocks of pairs of each candidate take turns. CPU time of the thread that computes: others who use the
  machine do not count.
- CPU s and peak MB: of a process that only calibrates and quantizes, without its imports and without simplifying.
- --profile: the device whose runtime the graph is written for; on others than `host` the CPU's latency says nothing.
- --keep: where candidates and figures stay; a run that was stopped goes on with them. Figures that were found with
  another --limit, --windows or --iterations are found again; --table prints them as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_inputs import Task
from quantize_bar import ROWS, bar
from quantize_measure import HERE, MODEL, Row, answers, build, judge, latencies
from quantize_rows import load


def compare(task: Task, options: argparse.Namespace, folder: Path) -> list[Row]:
    """Quantize a model both ways and measure."""
    ours = build(task, "edgekit", folder / "edgekit", options, recipe=options.recipe, profile=options.profile)
    original = Path(ours["original"])
    theirs = build(task, "onnxruntime", folder / "onnxruntime", options, original=str(original))
    print(json.dumps(ours["facts"]), file=sys.stderr)
    float_rows = answers(task, original)
    accuracy = 100 * float((task.decide(float_rows) == task.labels).mean())
    print(f"\n{task.name}: float {accuracy:.2f} %, {original.stat().st_size / 1e6:.2f} MB, {len(float_rows)} rows")
    both = {"edgekit": ours, "onnxruntime": theirs}
    paths = [folder / name / MODEL for name in both]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", type=Path, help="folder of the models and calibration data")
    parser.add_argument("--bar", nargs="*", choices=list(ROWS), metavar="ROW", help=f"rows: {', '.join(ROWS)}")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--keep", type=Path, help="folder for candidates and figures; a stopped run goes on with it")
    parser.add_argument("--table", action="store_true", help="with --bar: print what --keep holds, measure nothing")
    parser.add_argument("--minilm", type=Path, default=HERE.parent / "samples" / "text" / "minilm")
    parser.add_argument("--limit", type=int, help="evaluation rows")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of timed runs")
    parser.add_argument("--windows", type=int, default=16, help="windows of 512 tokens")
    parser.add_argument("--iterations", type=int, default=10000, help="AIMET's AdaRound steps a layer")
    parser.add_argument("--threads", type=int, default=2, help="threads for the language model")
    parser.add_argument("--only", choices=("effnet", "minilm"), help="without --bar: one model")
    parser.add_argument("--recipe", default="int8", help="without --bar: edgekit's recipe")
    parser.add_argument("--profile", default="host", help="without --bar: edgekit's profile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        keep = options.keep or Path(scratch)
        if options.bar is not None:
            bar(options.bar or list(ROWS), options, keep)
            return
        for name in (options.only,) if options.only else ("effnet", "minilm"):
            task = load(name, options)
            show(compare(task, options, keep / name))


if __name__ == "__main__":
    main()
