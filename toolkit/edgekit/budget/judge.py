"""Hold figures against budgets.

A figure decides only as far as it can be trusted, so each check is `pass`, `fail` or `unproven`:

- Accuracy, and whatever else carries an interval: `pass` when its upper 95 % bound is within the budget,
`fail` when
  its lower bound is above, else `unproven`: more samples or runs would tell.
- A measured latency decides by the interval of its percentile (order statistics) once there are 100 runs, 300
for p99:
  fewer cannot bound the percentile from above at all. Its point value decides when the target gave no
  interval.
- What a simulator or emulator says about time or energy never decides; what is predicted decides by its
interval only. - Sizes and measured memory are exact numbers: they are compared as they are.
- A figure that is not a number fails: something was measured, and it is broken. A figure that is missing, or
says in
  its note why it cannot decide, is `unproven`.

A figure without a budget is reported with the status `pass` and never turns the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from edgekit.budget.figures import PERCENTILES, Budget, Check, Figure, Status, Verdict

MIN_RUNS = {"latency-p99": 300}
"""Fewest runs by which a measured latency percentile decides; 100 for the others."""

_DEFAULT_MIN_RUNS = 100
_TRUST = ("measured", "predicted", "simulated")
_SCALES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))

Decision = tuple[Status, str]


def judge(budget: Budget, figures: Sequence[Figure]) -> Verdict:
    """Hold every figure against its budget and every budget against a figure.

    Args:
        budget: what was asked.
        figures: what was found; of several for one budget the one that can decide is taken, measured before
            predicted.

    Returns:
        The verdict. Its checks stand in a fixed order: drop, latencies, size, memory, energy as far as they
        have a budget, then the other figures in the order in which they came.
    """
    checks = []
    used: list[Figure] = []
    for name, unit, limit in _limits(budget):
        found = min((figure for figure in figures if figure.name == name), key=_rank, default=None)
        if found is None:
            reason = f"nothing measured: there is no figure for {name}"
            figure = Figure(name=name, value=None, unit=unit, provenance="measured", on="", note=reason)
        else:
            figure = found
            used.append(found)
        status, reason = _decide(figure, limit)
        checks.append(_check(figure, limit, status, reason))
    checks += [_reported(figure) for figure in figures if not any(figure is other for other in used)]
    statuses = [check.status for check in checks]
    worst: Status = "fail" if "fail" in statuses else "unproven" if "unproven" in statuses else "pass"
    return Verdict(status=worst, checks=tuple(checks))


def _reported(figure: Figure) -> Check:
    """Return a figure without a budget as a check that decides nothing; accuracy that nobody looked at is unproven."""
    if figure.name == "drop" and figure.value is None:
        return _check(figure, None, "unproven", figure.note)
    reason = f"reported only: {figure.note}" if figure.note else "reported only: no budget"
    return _check(figure, None, "pass", reason)


def _limits(budget: Budget) -> Iterator[tuple[str, str, float]]:
    """Yield figure name, unit and limit of every budget that is set, in the order of the report."""
    if budget.max_drop is not None:
        yield "drop", "1", budget.max_drop
    for percentile in PERCENTILES:
        if percentile in budget.latency_ms:
            yield f"latency-{percentile}", "ms", budget.latency_ms[percentile]
    if budget.max_size is not None:
        yield "size", "B", budget.max_size
    if budget.max_memory is not None:
        yield "memory", "B", budget.max_memory
    if budget.energy_mj is not None:
        yield "energy", "mJ", budget.energy_mj


def _check(figure: Figure, limit: float | None, status: Status, reason: str) -> Check:
    return Check(
        name=figure.name,
        value=figure.value,
        unit=figure.unit,
        budget=limit,
        status=status,
        provenance=figure.provenance,
        on=figure.on,
        low=figure.low,
        high=figure.high,
        n=figure.n,
        reason=reason,
    )


def _rank(figure: Figure) -> tuple[bool, int]:
    """Sort key: figures that can decide first, then by how far their provenance is trusted."""
    mute = figure.value is None or bool(figure.note and not figure.disqualified) or _is_simulated_time(figure)
    return mute, _TRUST.index(figure.provenance)


def _is_simulated_time(figure: Figure) -> bool:
    return figure.provenance == "simulated" and figure.name.startswith(("latency-", "energy"))


def _decide(figure: Figure, limit: float) -> Decision:
    """Return status and reason of one figure under its budget."""
    return _unfit(figure) or _too_few(figure) or _weigh(figure, limit)


def _unfit(figure: Figure) -> Decision | None:
    """Decide about figures whose value cannot be held against anything."""
    if figure.disqualified:
        return "fail", f"{figure.name}: {figure.disqualified}"
    if figure.value is None:
        return "unproven", figure.note or f"nothing measured: {figure.name} has no value"
    if _is_simulated_time(figure):
        return "unproven", f"a simulator ({figure.on}) cannot decide {figure.name}: measure on the device"
    if not math.isfinite(figure.value):
        why = f": {figure.note}" if figure.note else ""
        return "fail", f"{figure.name} is {figure.value}, not a number that can be judged{why}"
    return ("unproven", figure.note) if figure.note else None


def _too_few(figure: Figure) -> Decision | None:
    """Decide about figures with too few samples or runs behind them."""
    if figure.name == "drop" and figure.n == 0:
        return "unproven", "nothing measured: no sample was evaluated"
    if figure.name.startswith("latency-") and figure.provenance == "measured":
        least = MIN_RUNS.get(figure.name, _DEFAULT_MIN_RUNS)
        if figure.n < least:
            return "unproven", f"{figure.n} runs are too few for {figure.name}: it takes {least}"
    return None


def _weigh(figure: Figure, limit: float) -> Decision:
    """Decide by the interval where there is one, by the exact value where none is needed."""
    if figure.low is not None or figure.high is not None:
        return _by_interval(figure, limit, "samples" if figure.name == "drop" else "runs")
    if figure.name == "drop" or figure.provenance == "predicted":
        return "unproven", f"{figure.name} ({figure.provenance}) has no confidence interval"
    assert figure.value is not None
    shown, allowed = show(figure.value, figure.unit), show(limit, figure.unit)
    if figure.value <= limit:
        return "pass", f"{figure.name} is {shown}, within {allowed}"
    return "fail", f"{figure.name} is {shown}, above {allowed}"


def _by_interval(figure: Figure, limit: float, counted: str) -> Decision:
    """Pass within, fail beyond, unproven where the interval straddles the budget or is open on that side."""
    low = -math.inf if figure.low is None or math.isnan(figure.low) else figure.low
    high = math.inf if figure.high is None or math.isnan(figure.high) else figure.high
    bounds = f"95 % bounds {show(low, figure.unit)} and {show(high, figure.unit)}"
    of = f" of {figure.n} {counted}" if figure.n else ""
    allowed = show(limit, figure.unit)
    if high <= limit:
        return "pass", f"{figure.name} is within {allowed}: {bounds}{of}"
    if low > limit:
        return "fail", f"{figure.name} is above {allowed}: {bounds}{of}"
    more = f"more {counted} would tell" if figure.provenance == "measured" else "a measurement would tell"
    return "unproven", f"{figure.name} may be within {allowed} or not: {bounds}{of}; {more}"


def show(value: float, unit: str) -> str:
    """Write a number for people: `1` as percent, bytes with a decimal prefix, the rest with its unit."""
    if unit == "1":
        return f"{100 * value:.2f} %"
    if unit == "B" and math.isfinite(value):
        for scale, name in _SCALES:
            if abs(value) >= scale:
                return f"{value / scale:.4g} {name}"
        return f"{value:.0f} B"
    return f"{value:.4g} {unit}".rstrip()
