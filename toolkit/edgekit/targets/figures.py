"""From what the runner measured to figures that a budget can be held against, or that say why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.budget import Figure
from edgekit.events import Finding

PERCENTILES = ("p50", "p90", "p95", "p99")
AT_WORK = 0.98
"""Share of the time at work from which a load counts as one without a pause."""
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


def settled_latency(details: dict[str, Any], sustained: float, where: str) -> tuple[dict[str, Any], Finding | None]:
    """Return the latency that counts, and what is worth knowing of it.

    Args:
        details: what the runner told of a measurement.
        sustained: seconds of load that were asked for; with them, the last window of it counts.
        where: what people call the machine.
    """
    if not sustained:
        return details["latency"], None
    told = details.get("sustained")
    if told is None:
        return {"refused": f"{details['engine'].get('runtime')} cannot be kept at work for a time"}, None
    medians = [window["p50"]["value"] for window in told["windows"]]
    text = (
        f"under load for {sustained:.0f} s p50 was {medians[0]:.3g} ms in the first of {len(medians)} windows and "
        f"{medians[-1]:.3g} ms in the last: {told['throttled'] or 'it does not throttle'}"
    )
    if told.get("load", 1) < AT_WORK:
        text += f" (at work {told['load']:.0%} of the time: between windows the engine was loaded anew)"
    if told["throttled"]:
        remedy = "Cool it better, or choose a lower power mode."
        return told["last"], Finding(severity="warning", node=where, rule="target-throttles", text=text, remedy=remedy)
    return told["last"], Finding(severity="note", node=where, rule="target-sustained", text=text)


def energy_figure(energy: dict[str, Any], on: str, notes: Sequence[str]) -> Figure:
    """Return the energy of an inference: all that the module takes, from `device/power.py`; or why there is none."""
    if "reason" in energy:
        note = "; ".join([*notes, energy["reason"]])
        return Figure(name="energy", value=None, unit="mJ", provenance="measured", on=on, note=note)
    return Figure(
        name="energy",
        value=energy["mj"],
        unit="mJ",
        provenance="measured",
        on=on,
        low=energy["low"],
        high=energy["high"],
        n=energy["runs"],
        note="; ".join(notes),
    )


def memory_figure(memory: dict[str, Any] | None, on: str, notes: Sequence[str], *, unified: bool = False) -> Figure:
    """Return the peak memory of the process that ran the model, interpreter and runtime included.

    Args:
        memory: what the runner told: `peak` and `baseline` of the process, `taken` from the whole machine, `host_only`.
        on: what it was measured on.
        notes: why it must not decide.
        unified: whether the accelerator shares the machine's memory, as on a Jetson: what the machine lost while the
            model was loaded and run counts then, on top of what the process held before.
    """
    peak = memory["peak"] if memory else None
    told = list(notes)
    if peak is None:
        told.append("the machine does not tell peak memory")
    elif memory and memory["host_only"] and unified and memory.get("taken") is not None:
        peak = max(peak, (memory["baseline"] or 0) + memory["taken"])
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
