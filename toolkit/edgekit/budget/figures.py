"""What is asked, what was found, and the verdict: the structs that the whole house passes around."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgekit.errors import UsageError

PERCENTILES = ("p50", "p90", "p95", "p99")
"""The latency percentiles that can have a budget."""

Provenance = Literal["measured", "simulated", "predicted"]
Status = Literal["pass", "fail", "unproven"]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What the package must keep; None or empty means that the axis has no budget.

    Attributes:
        max_drop: largest allowed loss of the metric: absolute points (0.01 = 1 %) for metrics in [0, 1],
            relative otherwise.
        latency_ms: percentile name (`p50`, `p90`, `p95`, `p99`) -> milliseconds.
        max_size: bytes of the model files.
        max_memory: bytes of peak memory while running.
        energy_mj: millijoules per inference.

    Raises:
        UsageError: a budget that nothing can keep (negative, NaN, or 0 except for `max_drop`), or an unknown
            percentile.
    """

    max_drop: float | None = None
    latency_ms: dict[str, float] = {}
    max_size: int | None = None
    max_memory: int | None = None
    energy_mj: float | None = None

    def __post_init__(self) -> None:
        for percentile in self.latency_ms:
            if percentile not in PERCENTILES:
                raise UsageError(
                    f"no budget for the latency percentile '{percentile}'",
                    remedy=f"Known: {', '.join(PERCENTILES)}.",
                )
        limits = {"max-size": self.max_size, "max-memory": self.max_memory, "energy": self.energy_mj}
        limits |= {f"latency-{percentile}": limit for percentile, limit in self.latency_ms.items()}
        for name, limit in limits.items():
            if limit is not None and not limit > 0:
                raise UsageError(f"a budget must be above 0, not {limit}", where=name)
        if self.max_drop is not None and not self.max_drop >= 0:
            raise UsageError(
                f"a drop of {self.max_drop} cannot be asked",
                where="max-drop",
                remedy="0 allows no drop at all.",
            )


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number and how it was obtained.

    Attributes:
        name: `drop`, `latency-p95`, `size`, `memory`, `energy`, or a metric's name.
        value: the point estimate, None when nothing could be obtained.
        unit: `1` (points in [0, 1], and every drop), `ms`, `B`, `mJ`, ...; empty for metrics without a unit.
        provenance: measured, simulated or predicted.
        on: the machine, simulator or model it comes from.
        low: one-sided 95 % lower bound, None when exact or unknown.
        high: one-sided 95 % upper bound, None when exact or unknown.
        n: number of samples or runs behind it; 0 when not applicable.
        note: why it cannot decide a budget (empty when it can): such a figure is judged `unproven`.
        disqualified: why it misses every budget whatever its value (empty when it does not): something else was
            measured than was asked.
    """

    name: str
    value: float | None
    unit: str
    provenance: Provenance
    on: str
    low: float | None = None
    high: float | None = None
    n: int = 0
    note: str = ""
    disqualified: str = ""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A figure held against its budget.

    Attributes:
        name: as in Figure; the other attributes shared with Figure are the same too.
        budget: what was allowed, in `unit`; None when the figure is only reported (its status is then
            `pass`).
        status: whether the budget was kept, was missed, or could not be decided.
        reason: one sentence that says why.
    """

    name: str
    value: float | None
    unit: str
    budget: float | None
    status: Status
    provenance: Provenance
    on: str
    low: float | None = None
    high: float | None = None
    n: int = 0
    reason: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The checks and what they come to: `fail` if any fails, else `unproven` if any is, else `pass`."""

    status: Status
    checks: tuple[Check, ...]
