"""The bar of the quantizer: its rows, what each must reach, and the table of ours beside the best peer of the run.

- effnet, minilm: INT8 on a CPU; peers onnxruntime and NNCF.
- language-4, language-8: SmolLM2-135M, weights only; peers NNCF, onnxruntime, llama.cpp.
- calibration: what choosing ranges costs on EfficientNet's 256 images; peer onnxruntime.
- tensorrt: the graph for Orin, judged on the CPU, and TensorRT-RTX's parser and builder; peer ModelOpt.
- qnn: a depthwise CNN and a small ViT on the HTP simulator; peer AIMET-ONNX.

Below the bar's rows, the recipe `mixed` beside `int8`, both ours.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantize_kept import Figures, Kept
from quantize_language import language
from quantize_rows import calibration, cpu_int8, qnn, tensorrt


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One figure that a part of a row must reach.

    Attributes:
        key: of the figures.
        text: format of the number with its unit.
        limit: what must be reached; None where only the peers count.
        most: whether more is better.
        rivals: whether the best peer's figure must be reached too.
        error: key of its standard error, if it has one.
    """

    key: str
    text: str
    limit: float | None = None
    most: bool = False
    rivals: bool = True
    error: str = ""

    def short(self, found: float, wanted: float) -> float:
        """Return by how much `found` misses `wanted`; 0 or less when it does not."""
        return wanted - found if self.most else found - wanted

    def told(self, figures: Figures) -> str:
        """Return the figure with its unit and standard error."""
        return self.text.format(figures[self.key]) + (f" +- {figures[self.error]:.2g}" if self.error else "")

    def behind(self, ours: Figures, theirs: Figures) -> str:
        """Say by how much ours misses a peer's figure; nothing when it does not, or both read the same."""
        missed = self.short(ours[self.key], theirs[self.key])
        if missed <= 0 or self.text.format(ours[self.key]) == self.text.format(theirs[self.key]):
            return ""
        error = math.hypot(ours[self.error], theirs[self.error]) if self.error else 0.0
        return self.text.format(missed) + (f", within the error of {error:.2g}" if missed <= error else "")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A line of the table: one candidate of ours held against some peers, by the figures of a row."""

    row: str
    title: str
    ours: str
    peers: tuple[str, ...]
    goals: tuple[Goal, ...]


DROP = "{:.2f} points"
MB = "{:.2f} MB"
TIMES = "{:.3f} x"
CPU_INT8 = ("onnxruntime", "nncf", "nncf, full bias correction", "nncf, transformer")
WEIGHTS = ("onnxruntime rtn", "onnxruntime rtn, 8 bits", "nncf", "llama.cpp IQ4_NL", "llama.cpp Q8_0")


def _htp(title: str, bits: str, peer: str) -> Part:
    decibels = Goal(key="htp", text="{:.1f} dB", most=True)
    ours, theirs = f"{title}: edgekit {bits}, learned rounding", f"{title}: {peer}"
    return Part(row="qnn", title=f"QNN {bits}, {title}", ours=ours, peers=(theirs,), goals=(decibels,))


PARTS = (
    Part(
        row="effnet",
        title="EfficientNet-Lite0@96, INT8",
        ours="edgekit",
        peers=CPU_INT8,
        goals=(
            Goal(key="drop", text=DROP, error="error", limit=0.3),
            Goal(key="megabytes", text=MB, limit=3.8, rivals=False),
            Goal(key="latency", text=TIMES, limit=0.5),
        ),
    ),
    Part(
        row="minilm",
        title="MiniLM, INT8",
        ours="edgekit",
        peers=CPU_INT8,
        goals=(
            Goal(key="cosine", text="cosine {:.4f}", limit=0.998, most=True),
            Goal(key="latency", text=TIMES, limit=0.42),
            Goal(key="megabytes", text=MB, limit=23, rivals=False),
        ),
    ),
    Part(
        row="language-4",
        title="SmolLM2 off-grid, 4-bit",
        ours="edgekit gptq",
        peers=WEIGHTS,
        goals=(
            Goal(key="d_nll", text="d nll {:.4f}", error="error", limit=0.15),
            Goal(key="megabytes", text=MB, limit=92, rivals=False),
        ),
    ),
    Part(
        row="language-4",
        title="SmolLM2 off-grid, 4-bit mixed",
        ours="edgekit gptq, mixed, 6.2 bits",
        peers=("llama.cpp Q4_K_M",),
        goals=(
            Goal(key="d_nll", text="d nll {:.4f}", error="error", limit=0.05),
            Goal(key="megabytes", text=MB, limit=105, rivals=False),
        ),
    ),
    Part(
        row="language-8",
        title="SmolLM2 off-grid, 8-bit",
        ours="edgekit, 8 bits",
        peers=WEIGHTS,
        goals=(
            Goal(key="upper", text="d nll, upper bound {:.4f}", limit=0.001),
            Goal(key="kl", text="KL {:.5f}"),
            Goal(key="megabytes", text=MB, limit=140, rivals=False),
        ),
    ),
    Part(
        row="calibration",
        title="calibration of 256 samples: min-max, the largest of all calibrators",
        ours="edgekit: minmax, the largest",
        peers=("onnxruntime: minmax, the largest",),
        goals=(
            Goal(key="ratio", text="{:.2f} x its CPU time", limit=0.95),
            Goal(key="peak_mb", text="{:.0f} MB peak", limit=500),
        ),
    ),
    Part(
        row="tensorrt",
        title="TensorRT dialect",
        ours="edgekit",
        peers=("modelopt max", "modelopt entropy"),
        goals=(
            Goal(key="drop", text=DROP, error="error", limit=0.4),
            Goal(key="refused", text="{:.0f} refusals", limit=0),
        ),
    ),
    *(
        _htp(title, bits, peer)
        for title in ("depthwise CNN", "small ViT")
        for bits, peer in (("w8a8", "aimet w8a8"), ("w4a16", "aimet w4a16, AdaRound"))
    ),
    Part(
        row="effnet",
        title="mixed against uniform INT8, EfficientNet-Lite0",
        ours="edgekit mixed",
        peers=("edgekit",),
        goals=(
            Goal(key="drop", text=DROP, error="error"),
            Goal(key="sqnr", text="{:.1f} dB", most=True),
            Goal(key="megabytes", text=MB),
        ),
    ),
    Part(
        row="minilm",
        title="mixed against uniform INT8, MiniLM",
        ours="edgekit mixed",
        peers=("edgekit",),
        goals=(
            Goal(key="cosine", text="cosine {:.5f}", most=True),
            Goal(key="sqnr", text="{:.1f} dB", most=True),
            Goal(key="megabytes", text=MB),
        ),
    ),
)
ROWS: dict[str, Callable[[Kept, argparse.Namespace, Path], None]] = {
    "effnet": cpu_int8,
    "minilm": cpu_int8,
    "language-4": language,
    "language-8": language,
    "calibration": calibration,
    "tensorrt": tensorrt,
    "qnn": qnn,
}
"""Rows in the bar's order -> how they are measured."""


def bar(rows: Sequence[str], options: argparse.Namespace, keep: Path) -> None:
    """Measure rows, each with its peers, or read what was measured; print every figure, then the table."""
    found = {}
    for row in (row for row in ROWS if row in rows):
        found[row] = Kept(keep / f"{row}.json", row, options)
        if not options.table:
            ROWS[row](found[row], options, keep)
        print(f"\n{row}: {found[row].about}")
        _show(found[row].figures)
    print("\n| the bar | ours | best peer of this run | goal | |\n|---|---|---|---|---|")
    for part in PARTS:
        if part.row in found:
            print(line(part, found[part.row].figures))
    for row, kept in found.items():
        for name, why in kept.left_out.items():
            print(f"left out of {row}: {name}: {why}")


def _show(figures: Mapping[str, Figures]) -> None:
    keys = list(dict.fromkeys(key for values in figures.values() for key in values))
    print(f"| | {' | '.join(keys)} |\n|---|{'---|' * len(keys)}")
    for name, values in figures.items():
        print(f"| {name} | {' | '.join(f'{values[key]:.5g}' if key in values else '' for key in keys)} |", flush=True)


def line(part: Part, figures: Mapping[str, Figures]) -> str:
    """Return a part of a row as a line of the table."""
    ours = figures.get(part.ours, {})
    goals = ", ".join(_limit(goal) for goal in part.goals if goal.limit is not None) or "not behind"
    cells = [", ".join(goal.told(ours) for goal in part.goals if goal.key in ours) or "not measured"]
    bests, verdict = [], []
    for goal in part.goals:
        rivals = {name: figures[name] for name in part.peers if goal.key in figures.get(name, {})}
        best = (max if goal.most else min)(rivals, key=lambda name: rivals[name][goal.key], default="")
        if best:
            bests.append(f"{goal.told(rivals[best])} ({best})")
        if goal.key not in ours:
            verdict.append(f"{goal.key} not measured")
            continue
        if goal.limit is not None and (missed := goal.short(ours[goal.key], goal.limit)) > 0:
            verdict.append(f"behind the goal by {goal.text.format(missed)}")
        if goal.rivals and not best:
            verdict.append(f"no peer's {goal.key}")
        elif goal.rivals and (by := goal.behind(ours, rivals[best])):
            verdict.append(f"behind {best} by {by}")
    cells += [", ".join(bests) or "none", goals, "; ".join(verdict) or "met"]
    return f"| {part.title} | {' | '.join(cells)} |"


def _limit(goal: Goal) -> str:
    assert goal.limit is not None
    return f"at {'least' if goal.most else 'most'} {goal.text.format(goal.limit)}"
