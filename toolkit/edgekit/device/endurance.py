"""Latency under sustained load: the first minute against the last. Standard library and numpy, Python 3.8."""

import time
from typing import Any, Callable, Dict, List, Optional

import numpy as np

if __package__:
    from . import latency, progress
else:
    import latency  # type: ignore[import-not-found,no-redef]
    import progress  # type: ignore[import-not-found,no-redef]

WINDOW = 60.0
"""Seconds of a window; a run of less than three minutes has three windows."""
SLOWER = 0.05
"""The last window is slower when its median is this share above the first's, and their bounds do not meet."""
CLOCK_DROP = 0.05


Windows = List[Dict[str, Any]]
Durations = List[float]


def window_of(seconds: float) -> float:
    """Return the seconds of a window of a run."""
    return min(WINDOW, seconds / 3)


def sustain(
    call: Callable[[], Any],
    seconds: float,
    state: Callable[[], Dict[str, Any]],
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Dict[str, Any]:
    """Run a call without a pause for `seconds` and compare the first window of time with the last one.

    Returns:
        `window_seconds`, `windows` (each `n`, `p50`, `p90`, `p95`, `p99` as `latency.summarize` gives them, and the
        machine's `state` at its end), `last` (the summary of the last window, warm by then), `slowdown` (median of
        the last over the first, minus 1) and `throttled`: null, or why the last window is slower.
    """
    window = window_of(seconds)
    windows = []  # type: Windows
    series = []  # type: Durations
    total = int(seconds / window + 0.5)
    progress.tell("sustained load", 0, total)
    begun = opened = clock()
    while True:
        before = clock()
        call()
        now = clock()
        series.append((now - before) / 1e6)
        over = (now - begun) / 1e9 >= seconds - window / 2 - 1e-9 and (now - opened) / 1e9 >= window
        if (now - opened) / 1e9 >= window:
            windows.append(dict(state=state(), **latency.describe(latency.check(series))))
            progress.tell("sustained load", min(len(windows), total), total)
            series, opened = [], clock()
        if over:
            break
    return compare_windows(windows, window)


def compare_windows(windows: Windows, seconds: float) -> Dict[str, Any]:
    """Return what `sustain` does, of windows of so many seconds each (a summary, and the machine's `state`)."""
    first, last = windows[0], windows[-1]
    slowdown = last["p50"]["value"] / first["p50"]["value"] - 1
    return {
        "window_seconds": seconds,
        "windows": windows,
        "last": {key: value for key, value in last.items() if key != "state"},
        "slowdown": slowdown,
        "throttled": throttling(first, last, slowdown),
    }


def throttling(first: Dict[str, Any], last: Dict[str, Any], slowdown: float) -> Optional[str]:
    """Say how the last window is slower than the first, with the clocks and temperatures; None when it is not."""
    low, high = last["p50"]["low"], first["p50"]["high"]
    if slowdown <= SLOWER or low is None or high is None or low <= high:
        return None
    told = ["p50 rose by {:.0%}".format(slowdown)]
    for name, label in (("gpu_mhz", "GPU"), ("cpu_mhz", "CPU")):
        before, after = _clock(first["state"].get(name)), _clock(last["state"].get(name))
        if before and after and after < (1 - CLOCK_DROP) * before:
            told.append("{} clock fell from {:.0f} to {:.0f} MHz".format(label, before, after))
    hottest = max(last["state"].get("temperatures", {}).values(), default=None)
    if hottest is not None:
        told.append("hottest sensor at {:.0f} degrees Celsius".format(hottest))
    return ", ".join(told)


def _clock(value: Any) -> Optional[float]:
    if isinstance(value, list):
        return float(np.mean(value)) if value else None
    return float(value) if value else None
