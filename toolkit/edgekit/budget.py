"""Budgets, figures and the verdict over them."""

from __future__ import annotations

from typing import Literal

import msgspec

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
    """

    max_drop: float | None = None
    latency_ms: dict[str, float] = {}
    max_size: int | None = None
    max_memory: int | None = None
    energy_mj: float | None = None


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number and how it was obtained.

    Attributes:
        name: `drop`, `latency-p95`, `size`, `memory`, `energy`, or a metric's name.
        value: the point estimate, None when nothing could be obtained.
        unit: `1` (points in [0, 1]), `ms`, `B`, `mJ`, ...
        provenance: measured, simulated or predicted.
        on: the machine, simulator or model it comes from.
        low: one-sided 95 % lower bound, None when exact or unknown.
        high: one-sided 95 % upper bound, None when exact or unknown.
        n: number of samples or runs behind it; 0 when not applicable.
        note: why it cannot decide a budget (empty when it can): such a figure is judged `unproven`.
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


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A figure held against its budget. `budget` None means that it is only reported."""

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
