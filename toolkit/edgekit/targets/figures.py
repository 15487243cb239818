"""From what the runner measured to figures that a budget can be held against, or that say why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.budget import Figure

PERCENTILES = ("p50", "p90", "p95", "p99")
TAIL_RUNS = 300
"""Runs that p99 takes: with fewer there is no upper bound for it."""


def latency_figures(summary: dict[str, Any], on: str, notes: Sequence[str]) -> tuple[Figure, ...]:
    """Return the figures of a latency summary (see `device/latency.py`).

    Args:
        summary: `n`, `p50` ... {"value", "low", "high"}, `drift`, `unstable`, `coarse`, `tick`; or `refused`.
        on: what it was measured on.
        notes: why nothing measured there may decide.
    """
    if "refused" in summary:
        note = "; ".join([*notes, f"latency could not be told: {summary['refused']}"])
        return tuple(_latency(name, {}, on, note, 0) for name in PERCENTILES)
    told = list(notes)
    if summary["unstable"]:
        moved = f"last to first {summary['drift']:+.0%}"
        told.append(f"unstable: thirds of the runs differ by more than 10 % ({moved})")
    if summary["coarse"]:
        told.append(f"the clock steps by {summary['tick']:.3g} ms, more than a tenth of the latency")
    runs = int(summary["n"])
    few = [f"p99 takes {TAIL_RUNS} runs, not {runs}"] if runs < TAIL_RUNS else []
    return tuple(
        _latency(name, summary[name], on, "; ".join([*told, *(few if name == "p99" else [])]), runs)
        for name in PERCENTILES
    )


def memory_figure(memory: dict[str, Any] | None, on: str, notes: Sequence[str]) -> Figure:
    """Return the peak memory of the process that ran the model, interpreter and runtime included."""
    peak = memory["peak"] if memory else None
    told = list(notes)
    if peak is None:
        told.append("the machine does not tell peak memory")
    elif memory and memory["host_only"]:
        told.append("the accelerator's own memory is not counted")
    value = None if peak is None else float(peak)
    return Figure(name="memory", value=value, unit="B", provenance="measured", on=on, n=1, note="; ".join(told))


def unproven_figures(on: str) -> tuple[Figure, ...]:
    """Return latency and memory of an emulator: no values, and why."""
    note = f"{on} emulates another processor: its time and memory say nothing about a device"
    units = {**{f"latency-{name}": "ms" for name in PERCENTILES}, "memory": "B"}
    return tuple(
        Figure(name=name, value=None, unit=unit, provenance="simulated", on=on, note=note)
        for name, unit in units.items()
    )


def _latency(name: str, percentile: dict[str, Any], on: str, note: str, runs: int) -> Figure:
    return Figure(
        name=f"latency-{name}",
        value=percentile.get("value"),
        unit="ms",
        provenance="measured",
        on=on,
        low=percentile.get("low"),
        high=percentile.get("high"),
        n=runs,
        note=note,
    )
