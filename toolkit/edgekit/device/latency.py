"""Latency: how it is measured, and what a series of durations says. Standard library and numpy, Python 3.8."""

import gc
import math
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

PERCENTILES = (50, 90, 95, 99)
CONFIDENCE = 0.95
UNSTABLE = 0.10
"""Two thirds of the runs that differ by more than this share make the series unstable."""
TRIM = 0.10
"""Share of the runs that a trimmed mean leaves out at each end, so that single outliers are no drift."""
MODE = 0.05
"""The least share of the runs that makes a second level a mode."""
WARM_RUNS, WARM_MS, WARM_CHANGE = 10, 300, 0.05
"""Warm-up: at least so many runs and milliseconds, until its second half is within this share of its first."""


class RefusedError(ValueError):
    """A series from which no latency can be told; the text says why."""


def warmup_end(series: Any) -> int:
    """Return how many leading runs are warm-up: the change point from mostly slow runs to the steady level.

    A run is slow when it takes longer than 95 % of the runs of the second half. The end is the prefix with the
    largest surplus of slow runs over others, at most half of the series. It knows neither the height nor the shape of
    the warm-up and is blind to single outliers later on. Runs that are *faster* at first are no warm-up but drift.

    Args:
        series: durations, any unit, (n,).
    """
    values = np.asarray(series, dtype=np.float64)
    half = len(values) // 2
    if half == 0:
        return 0
    slow = values[:half] > percentile(np.sort(values[half:]), 95)
    surplus = np.concatenate([[0], np.cumsum(np.where(slow, 1, -1))])
    return int(np.argmax(surplus))


def percentile(ordered: Any, percent: float) -> float:
    """Return the smallest observed value that at least `percent` % of the sorted values do not exceed."""
    rank = math.ceil(len(ordered) * percent / 100 - 1e-9)
    return float(ordered[min(max(rank, 1), len(ordered)) - 1])


def bounds(ordered: Any, percent: float, confidence: float = CONFIDENCE) -> Tuple[Optional[float], Optional[float]]:
    """Return one-sided lower and upper confidence bounds of a percentile, by order statistics.

    Free of any assumption on the distribution; runs count as independent. With B ~ Binomial(n, percent / 100), the
    r-th smallest value is an upper bound when P(B <= r - 1) >= confidence and a lower bound when P(B >= r) >=
    confidence (e.g. Hahn and Meeker, Statistical Intervals, 5.2). None: there are too few runs for that bound;
    an upper bound of p99 takes 299.
    """
    count = len(ordered)
    share = percent / 100
    k = np.arange(count + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    log_choose = log_factorial[-1] - log_factorial - log_factorial[::-1]
    below = np.cumsum(np.exp(log_choose + k * math.log(share) + (count - k) * math.log1p(-share)))  # P(B <= k)
    upper = int(np.searchsorted(below[:count], confidence - 1e-12))  # r - 1
    lower = int(
        np.searchsorted(below[:count], 1 - confidence + 1e-12, side="right")
    )  # r: P(B <= r - 1) <= 1 - confidence
    return (
        float(ordered[lower - 1]) if lower >= 1 else None,
        float(ordered[upper]) if upper < count else None,
    )


def trimmed_mean(series: Any) -> float:
    """Return the mean without the lowest and highest tenth: as steady as a mean on two modes, blind to outliers."""
    ordered = np.sort(np.asarray(series, dtype=np.float64))
    cut = int(len(ordered) * TRIM)
    return float(ordered[cut : len(ordered) - cut].mean())


def drift(series: Any) -> Tuple[float, float]:
    """Return (last third / first third - 1, slowest third / fastest third - 1), by trimmed means; needs 3 runs."""
    levels = [trimmed_mean(third) for third in np.array_split(np.asarray(series, dtype=np.float64), 3)]
    return levels[2] / levels[0] - 1, max(levels) / min(levels) - 1


def clock_tick(series: Any) -> float:
    """Return the step of the clock when it shows (most values occur several times), else 0."""
    distinct = np.unique(np.round(np.asarray(series, dtype=np.float64), 6))
    if len(distinct) == 1 or len(distinct) > len(series) / 4:
        return 0.0
    return float(np.diff(distinct).min())


def two_modes(series: Any) -> Optional[Dict[str, float]]:
    """Return {"low", "high", "share_high"} when the durations gather around two levels, else None: a hint, no test.

    The best split into two groups (least squares) counts when each holds 5 % of the runs, the means are a tenth and
    more than two ticks of the clock apart, and the middle between them is less than half as full as either.
    """
    ordered = np.sort(np.asarray(series, dtype=np.float64))
    ordered = ordered[: max(int(len(ordered) * 0.98), 2)]  # single outliers are no mode
    count = len(ordered)
    sums = np.cumsum(ordered)
    left = np.arange(1, count)
    between = (sums[:-1] / left - (sums[-1] - sums[:-1]) / (count - left)) ** 2 * left * (count - left)
    split = int(np.argmax(between)) + 1
    low, high = float(ordered[:split].mean()), float(ordered[split:].mean())
    gap, share = high - low, (count - split) / count
    if not MODE <= share <= 1 - MODE or gap < 0.1 * low or gap <= 2 * clock_tick(series):
        return None
    middle = np.count_nonzero((ordered > low + gap / 3) & (ordered < high - gap / 3))
    beside = min(np.count_nonzero(np.abs(ordered - mode) <= gap / 6) for mode in (low, high))
    return {"low": low, "high": high, "share_high": share} if middle < 0.5 * beside else None


def check(series: Sequence[float]) -> Any:
    """Return the series as float64 (n,); RefusedError when a value is no duration."""
    try:
        values = np.asarray(series, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise RefusedError("the series holds something that is no number: {}".format(error)) from None
    if values.ndim != 1:
        raise RefusedError("the series has {} axes, not 1".format(values.ndim))
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(wrong):
        raise RefusedError(
            "run {} took {} ms: the clock stepped or is too coarse ({} of {} runs are no duration)".format(
                wrong[0], values[wrong[0]], len(wrong), len(values)
            )
        )
    return values


def summarize(series_ms: Sequence[float], minimum: int = 100) -> Dict[str, Any]:
    """Tell the latency from raw durations, warm-up included.

    Args:
        series_ms: durations in run order, milliseconds.
        minimum: timed runs that must be left after warm-up.

    Returns:
        `n` timed runs, `warmup` runs left out; `p50`, `p90`, `p95`, `p99`: each {"value", "low", "high"} in ms with
        one-sided 95 % bounds (None: too few runs for it); `mean`, `min`, `max` (to report, never to decide);
        `drift` (last third / first third - 1), `unstable`; `modes` (see `two_modes`); `tick` of the clock in ms and
        `coarse` when it is more than a tenth of p50.

    Raises:
        RefusedError: a value that is no duration (NaN, zero, negative), or fewer than `minimum` timed runs.
    """
    values = check(series_ms)
    warmup = warmup_end(values)
    steady_runs = values[warmup:]
    if len(steady_runs) < max(minimum, 3):
        raise RefusedError(
            "{} timed runs after {} of warm-up; at least {} are needed".format(
                len(steady_runs), warmup, max(minimum, 3)
            )
        )
    return dict(warmup=warmup, **describe(steady_runs))


THIRDS = 3


def describe(steady_runs: Any) -> Dict[str, Any]:
    """Return what `summarize` does of runs that are known to be steady, without `warmup`; at least one run."""
    ordered = np.sort(steady_runs)
    summary = {"n": len(ordered)}  # type: Dict[str, Any]
    for percent in PERCENTILES:
        low, high = bounds(ordered, percent)
        summary["p{}".format(percent)] = {"value": percentile(ordered, percent), "low": low, "high": high}
    enough = len(ordered) >= THIRDS
    moved, spread = drift(steady_runs) if enough else (0.0, 0.0)
    tick = clock_tick(steady_runs)
    summary.update(
        mean=float(ordered.mean()),
        min=float(ordered[0]),
        max=float(ordered[-1]),
        drift=moved,
        unstable=spread > UNSTABLE,
        modes=two_modes(steady_runs) if enough else None,
        tick=tick,
        coarse=tick > 0.1 * summary["p50"]["value"],
    )
    return summary


def is_steady(warmup_ms: Sequence[float]) -> bool:
    """Say whether warm-up is over: long enough, no slow start in its last three quarters, its halves alike."""
    if len(warmup_ms) < WARM_RUNS or sum(warmup_ms) < WARM_MS:
        return False
    start = warmup_end(warmup_ms)
    if start > len(warmup_ms) // 4:
        return False
    first, second = (trimmed_mean(half) for half in np.array_split(np.asarray(warmup_ms[start:]), 2))
    return max(first, second) <= (1 + WARM_CHANGE) * min(first, second)


def collect(
    call: Callable[[], Any],
    runs: int,
    max_seconds: float,
    min_seconds: float = 1.0,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Tuple[List[float], List[float]]:
    """Time calls one by one with the garbage collector off: warm-up until steady, then at least `runs` more.

    Warm-up takes a third of `max_seconds` at most. Timed runs go on until `runs` of them are steady and `min_seconds`
    have passed (100 x `runs` at most), or until `max_seconds` are over: then there may be fewer.

    Returns:
        (warm-up, timed) durations in milliseconds.
    """
    warmup, timed = [], []  # type: List[float], List[float]
    collecting = gc.isenabled()
    gc.collect()  # takes seconds in a big process: not of the time for the runs
    gc.disable()
    begun = clock()
    try:
        look = WARM_RUNS
        while clock() - begun < max_seconds / 3 * 1e9:
            warmup.append(_time(call, clock))
            if len(warmup) >= look:
                if is_steady(warmup):
                    break
                look = len(warmup) + 1 + len(warmup) // 4  # looking costs: not after every run
        timing, target = clock(), runs
        while clock() - begun < max_seconds * 1e9 and len(timed) < 100 * runs:
            timed.append(_time(call, clock))
            if len(timed) >= target and clock() - timing >= min_seconds * 1e9:
                missing = runs - (len(timed) - warmup_end(timed))
                if missing <= 0:
                    break
                target = len(timed) + missing
    finally:
        if collecting:
            gc.enable()
    return warmup, timed


def _time(call: Callable[[], Any], clock: Callable[[], int]) -> float:
    begun = clock()
    call()
    return (clock() - begun) / 1e6
