"""What AI Hub tells, as our errors, findings and figures."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgekit.budget import Figure
from edgekit.errors import EdgekitError, InputError, LinkError, TargetError, UnsupportedError, did_you_mean
from edgekit.events import Finding
from edgekit.numerics.statistics import quantile_bounds
from edgekit.profile import Profile
from edgekit.targets.figures import PERCENTILES, TAIL_RUNS

PYTHON = "EDGEKIT_AIHUB_PYTHON"
_UNSTEADY = 0.1
_SOC, _ARCH = "soc-model:", "hexagon:v"


def client_python(where: str) -> str:
    """Return the interpreter that has Qualcomm's client; TargetError when none is known to."""
    if named := os.environ.get(PYTHON):
        if shutil.which(named) is None:
            raise TargetError(
                f"{PYTHON} names no program: '{named}'", where=where, remedy="Name a Python with qai-hub."
            )
        return named
    if importlib.util.find_spec("qai_hub") is None:
        raise TargetError(
            "Qualcomm's AI Hub client is not installed",
            where=where,
            remedy="pip install 'edgekit-toolkit[aihub]'; or install qai-hub in an environment of its own, whose "
            f"Python {PYTHON} names.",
        )
    return sys.executable


_CONFIGURE = "then: qai-hub configure --api_token TOKEN"
_TOLD: dict[str, tuple[type[EdgekitError], str, str]] = {
    "token": (
        TargetError,
        "AI Hub does not take the token: {text}",
        f"Make a token on your account's page in AI Hub, {_CONFIGURE}",
    ),
    "unconfigured": (TargetError, "AI Hub's client has no token: {text}", f"Make an account in AI Hub, {_CONFIGURE}"),
    "device": (TargetError, "{text}", "{close} All of them: qai-hub list-devices"),
    "deadline": (
        TargetError,
        "the deadline has passed: {text}",
        "The work goes on there. {again} EDGEKIT_AIHUB_SECONDS sets how long is waited.",
    ),
    "link": (LinkError, "AI Hub cannot be reached: {text}", "Look at the network. {again}"),
    "died": (TargetError, "{text}", "Look for free memory, and whether this works: qai-hub --version. {again}"),
    "old": (TargetError, "AI Hub takes this client no more: {text}", "pip install --upgrade qai-hub"),
    "input": (InputError, "{text}", "Give inputs that 32-bit integers hold."),
}
"""Kind -> error, its text and its remedy."""
_REFUSED = (UnsupportedError, "{text}", "Look at the job's page in AI Hub, or choose another recipe.")


def as_error(error: dict[str, Any], url: str) -> EdgekitError:
    """Return the error that the child told as one of ours; jobs that are under way are named."""
    kind, text, remedy = _TOLD.get(error["kind"], _REFUSED)
    jobs = ", ".join(f"{what} job {name}" for what, name in error.get("jobs", {}).items())
    words = {
        "text": error["text"],
        "again": "Run the same command again" + (f": it goes on with {jobs}." if jobs else "."),
        "close": did_you_mean(url.partition("://")[2], list(error.get("names", []))),
    }
    return kind(text.format(**words), where=url, remedy=remedy.format(**words))


def device_findings(device: dict[str, Any], profile: Profile, url: str) -> list[Finding]:
    """Say when the device has another chip than the profile's, as far as AI Hub tells."""
    table = profile.settings.get("htp", {})
    for mark, key in ((_SOC, "soc_model"), (_ARCH, "arch")):
        told = [word.removeprefix(mark) for word in device["attributes"] if word.startswith(mark)]
        if told and key in table:
            if str(table[key]) in told:
                return []
            text = f"{device['name']} ({mark}{' '.join(told)}) is no {profile.title} ({mark}{table[key]})"
            remedy = "Measure on a device of the profile's kind, or choose the profile of this one."
            return [Finding(severity="warning", node=url, rule="target-other-device", text=text, remedy=remedy)]
    text = f"AI Hub does not say whether {device['name']} is a {profile.title}"
    return [Finding(severity="note", node=url, rule="target-unknown-device", text=text)]


def unit_finding(profile: dict[str, Any], device: str) -> Finding | None:
    """Return a warning when layers ran anywhere but on the HTP; None when all did."""
    units: dict[str, int] = {}
    for layer in profile.get("execution_detail", []):
        unit = str(layer.get("compute_unit", "UNSPECIFIED"))
        units[unit] = units.get(unit, 0) + 1
    off = {unit: count for unit, count in units.items() if unit not in ("NPU", "UNSPECIFIED")}
    if not off:
        return None
    told = ", ".join(f"{count} on the {unit}" for unit, count in sorted(off.items()))
    text = f"of {sum(units.values())} layers ran {told}"
    remedy = "Change what the HTP refuses (edgekit inspect), or allow it with --allow-fallback."
    return Finding(severity="warning", node=device, rule="target-fallback", text=text, remedy=remedy)


def profile_figures(profile: dict[str, Any], on: str, notes: Sequence[str], fallen: str) -> tuple[Figure, ...]:
    """Return latency and memory of a profile.

    Args:
        profile: as the client gives it: times in microseconds, memory in bytes.
        on: the device and the job.
        notes: why nothing of it may decide.
        fallen: why it is not what was asked for.
    """
    summary = profile.get("execution_summary", {})
    times = np.asarray(summary.get("all_inference_times") or [], np.float64) / 1000
    told = [*notes, *([fallen] if fallen else []), *_unsteady(times)]
    if not times.size and (one := summary.get("estimated_inference_time")):
        note = "; ".join([*told, "AI Hub tells one figure of its own only, no series of runs"])
        figures = [_latency("p50", float(one) / 1000, on, note, fallen)]
        figures += [_latency(name, None, on, note, fallen) for name in PERCENTILES[1:]]
    else:
        figures = [_percentile(name, times, on, told, fallen) for name in PERCENTILES]
    return (*figures, _memory(summary, on, notes))


def _percentile(name: str, times: Any, on: str, notes: Sequence[str], fallen: str) -> Figure:
    if not times.size:
        return _latency(name, None, on, "; ".join([*notes, "AI Hub told no time"]), fallen)
    few = [f"p99 takes {TAIL_RUNS} runs, not {times.size}"] if name == "p99" and times.size < TAIL_RUNS else []
    found = quantile_bounds(times, int(name[1:]) / 100)
    low, high = ((bound if math.isfinite(bound) else None) for bound in (found.low, found.high))
    note = "; ".join([*notes, *few])
    return _latency(name, found.value, on, note, fallen, low=low, high=high, runs=times.size)


def _latency(
    name: str,
    value: float | None,
    on: str,
    note: str,
    fallen: str,
    *,
    low: float | None = None,
    high: float | None = None,
    runs: int = 0,
) -> Figure:
    return Figure(
        name=f"latency-{name}",
        value=value,
        unit="ms",
        provenance="measured",
        on=on,
        low=low,
        high=high,
        n=int(runs),
        note=note,
        disqualified=fallen,
    )


def _unsteady(times: Any) -> list[str]:
    """Say when the thirds of a series differ: the device throttled, or was still warming up."""
    if times.size < 3 * len(PERCENTILES):
        return []
    medians = [float(np.median(part)) for part in np.array_split(times, 3)]
    if max(medians) <= min(medians) * (1 + _UNSTEADY):
        return []
    return [
        f"unstable: thirds of the runs differ by more than 10 % (last to first {medians[-1] / medians[0] - 1:+.0%})"
    ]


def _memory(summary: dict[str, Any], on: str, notes: Sequence[str]) -> Figure:
    value = summary.get("estimated_inference_peak_memory")
    low, high = summary.get("inference_memory_peak_range") or (None, None)
    told = [*notes, *([] if value else ["AI Hub told no peak of memory"])]
    return Figure(
        name="memory",
        value=float(value) if value else None,
        unit="B",
        provenance="measured",
        on=on,
        low=None if low is None or not value else float(low),
        high=None if high is None or not value else float(high),
        n=1,
        note="; ".join(told),
    )
