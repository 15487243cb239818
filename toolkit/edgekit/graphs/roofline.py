"""A first latency from a device's data sheet: the roofline model (Williams, Waterman, Patterson 2009) per kernel."""

from __future__ import annotations

from edgekit.budget import Figure
from edgekit.graphs.cost import Cost, Row
from edgekit.graphs.fusion import Group, fuse
from edgekit.profile import Profile

_MS = 1e3


def predict_latency(cost: Cost, profile: Profile) -> Figure:
    """Predict the median latency of one run.

    Every fused kernel takes the longer of its arithmetic (operations over the reached share of the peak for its type)
    and its memory traffic (bytes over the reached share of the bandwidth), plus one launch.

    Args:
        cost: what the model costs, for the input shapes of the run.
        profile: the device; `roofline.spread` gives the interval.

    Returns:
        `latency-p50` in ms, predicted. Its note is not empty when the work of some nodes is not known: then it is too
        low, and decides nothing.
    """
    seconds = sum(kernel_seconds(group, profile) for group in fuse(cost))
    spread = profile.roofline.spread.value
    missing = [*cost.uncounted, *cost.unshaped]
    note = f"the work of {len(missing)} nodes is not known, first of '{missing[0]}'" if missing else ""
    return Figure(
        name="latency-p50",
        value=seconds * _MS,
        unit="ms",
        provenance="predicted",
        on=f"roofline of {profile.name}",
        low=seconds * _MS / spread,
        high=seconds * _MS * spread,
        n=0,
        note=note,
    )


def kernel_seconds(group: Group, profile: Profile) -> float:
    """Return how long one fused kernel takes, its launch included."""
    arithmetic = sum(row.flops / reached_rate(row, profile) for row in group.rows)
    bandwidth = profile.memory.bandwidth_gbs.value * 1e9 * profile.roofline.bandwidth.value
    traffic = (group.read_bytes + group.written_bytes) / bandwidth
    return max(arithmetic, traffic) + profile.roofline.launch_us.value * 1e-6


def reached_rate(row: Row, profile: Profile) -> float:
    """Return the operations per second that a row reaches: the peak for its type times the share that is reached."""
    compute, shares = profile.compute, profile.roofline
    peak, share = compute.fp32_tops, shares.fp32
    if row.dtype in {"float16", "bfloat16", "int16"}:
        peak, share = compute.fp16_tops or peak, shares.fp16
    elif row.dtype in {"int8", "uint8"}:
        peak, share = compute.int8_tops or peak, shares.int8
    if row.kind == "depthwise":
        share = shares.depthwise
    elif row.kind == "grouped":
        share = shares.grouped
    return peak.value * 1e12 * share.value
