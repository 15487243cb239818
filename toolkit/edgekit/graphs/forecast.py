"""What a model will need on a device that is not at hand: latency with an interval, memory, and where the time goes."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from edgekit.budget import Figure
from edgekit.graphs.cost import Cost
from edgekit.graphs.fusion import PLAIN, Group, Rules, fuse
from edgekit.graphs.memory import plan_memory
from edgekit.graphs.roofline import Constants, Protocol, constants_of, seconds_of, shares_of, traffic_of
from edgekit.graphs.work import DTYPES, KINDS, Numbers, Work, work_of
from edgekit.profile import Profile

_MS = 1e3


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One fused kernel.

    Attributes:
        node: its first node.
        ops: the operators of its nodes, in execution order.
        kind: one of `work.KINDS`.
        dtype: one of `work.DTYPES`.
        ms: predicted, its launch included.
        macs: multiply-accumulates.
        bytes: read and written.
        bound: what takes its time: `arithmetic`, `memory` or `launch`.
    """

    node: str
    ops: tuple[str, ...]
    kind: str
    dtype: str
    ms: float
    macs: int
    bytes: int
    bound: str


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What is predicted for one model on one device.

    Attributes:
        figures: `latency-p50` and `memory`, as the verdict takes them.
        protocol: how a run is started: `CUDA graph`, `plain launches`, or `one run at a time` without a GPU.
        interval: how the interval of the latency was obtained, and how much of the time lies outside of what the
            constants were fitted on.
        shapes: input -> shape that was counted for.
        macs: multiply-accumulates of one run.
        flops: all operations.
        parameters: elements of all distinct weights.
        weight_bytes: their bytes.
        activation_bytes: the arena that the activations need; `live_bytes` of them live at once, at `peak_node`.
        live_bytes: see above.
        peak_node: see above.
        kernels: in execution order.
    """

    figures: tuple[Figure, ...]
    protocol: str
    interval: str
    shapes: dict[str, tuple[int, ...]]
    macs: int
    flops: int
    parameters: int
    weight_bytes: int
    activation_bytes: int
    live_bytes: int
    peak_node: str
    kernels: tuple[Kernel, ...]


def forecast(
    cost: Cost, profile: Profile, *, rules: Rules = PLAIN, protocol: Protocol = "graph", calibrated: str = ""
) -> Forecast:
    """Predict what one run needs.

    Args:
        cost: what the model costs, for the input shapes of the run.
        profile: the device; its `roofline` has the constants and the spread of the interval.
        rules: what its runtime fuses.
        protocol: how a run is started.
        calibrated: where the constants come from, when not from the profile alone.
    """
    groups = fuse(cost, rules)
    work, constants = work_of(groups), constants_of(profile, protocol)
    seconds = seconds_of(work, constants)
    shares = shares_of(work, seconds - constants.launch, len(work) * constants.launch, protocol)
    spread, outside = spread_of(profile, shares)
    plan = plan_memory(cost, rules)
    total = float(seconds.sum()) * _MS
    started = _started(profile, protocol)
    missing = [*cost.uncounted, *cost.unshaped]
    latency = Figure(
        name="latency-p50",
        value=total,
        unit="ms",
        provenance="predicted",
        on=", ".join(filter(None, [f"roofline of {profile.name}", started, calibrated])),
        low=total / spread,
        high=total * spread,
        note=f"the work of {len(missing)} nodes is not known, first of '{missing[0]}'" if missing else "",
    )
    memory = Figure(
        name="memory",
        value=float(cost.held_bytes + plan.arena_bytes),
        unit="B",
        provenance="predicted",
        on="weights and activations, without the runtime's own memory",
        low=float(cost.held_bytes + plan.live_bytes),
    )
    return Forecast(
        figures=(latency, memory),
        protocol=started or "one run at a time",
        interval=_interval_text(profile, outside),
        shapes=cost.shapes,
        macs=cost.macs,
        flops=cost.flops,
        parameters=cost.parameters,
        weight_bytes=cost.weight_bytes,
        activation_bytes=plan.arena_bytes,
        live_bytes=plan.live_bytes,
        peak_node=plan.node,
        kernels=_kernels(groups, work, seconds, constants),
    )


def spread_of(profile: Profile, shares: dict[str, float]) -> tuple[float, float]:
    """Return the factor of the 90 % interval, and the share of the time that the constants were not fitted on.

    The logarithm of the factor is the mean of those of `spread` and `spread_unlike`, weighed by that share: how much
    more of the time than in any model of the fit is spent in each kind of kernel, and in launches.

    Args:
        profile: the device.
        shares: what takes which share of the time, as `roofline.shares_of` says it.
    """
    known = profile.roofline
    if known.spread_unlike is None:
        return known.spread.value, 0.0
    outside = sum(max(0.0, share - known.fitted_on.get(kind, 0.0)) for kind, share in shares.items())
    inner, outer = math.log(known.spread.value), math.log(max(known.spread_unlike.value, known.spread.value))
    return math.exp(inner * (1 - outside) + outer * outside), outside


def _started(profile: Profile, protocol: Protocol) -> str:
    if profile.roofline.launch_plain_us is None:
        return ""
    return "CUDA graph" if protocol == "graph" else "plain launches"


def _interval_text(profile: Profile, outside: float) -> str:
    text = f"90 %: {profile.roofline.spread.source}"
    if outside > 0 and profile.roofline.spread_unlike is not None:
        text += f"; {outside:.0%} of the time is unlike the models of the fit: {profile.roofline.spread_unlike.source}"
    return text


def _kernels(groups: list[Group], work: Work, seconds: Numbers, constants: Constants) -> tuple[Kernel, ...]:
    memory = traffic_of(work, constants)
    rest = seconds - constants.launch
    bound = np.where(rest < constants.launch, "launch", np.where(memory >= rest * (1 - 1e-9), "memory", "arithmetic"))
    return tuple(
        Kernel(
            node=group.rows[0].node,
            ops=tuple(row.op for row in group.rows),
            kind=KINDS[work.kind[at]],
            dtype=DTYPES[work.dtype[at]],
            ms=float(seconds[at]) * _MS,
            macs=int(work.macs[at]),
            bytes=int(work.moved[at]),
            bound=str(bound[at]),
        )
        for at, group in enumerate(groups)
    )
