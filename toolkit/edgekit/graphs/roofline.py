"""A latency from a device's data sheet: the roofline model (Williams, Waterman, Patterson 2009) per fused kernel.

A kernel takes the longer of its arithmetic and its memory traffic, and one launch:

    seconds = max(operations / (peak x share x wave x tile), bytes / (bandwidth x share)) + launch

Products are done in tiles, as many at a time as the device has units (multiprocessors): what is padded to whole tiles
(`tile`) and whole rounds of units (`wave`) takes time and does nothing. Of the tile sizes the fastest counts, as a
runtime that tries its kernels would choose; small tiles reach less of the peak. The shares are fitted, per family of
devices: see docs/predict.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgekit.graphs.fusion import Group
from edgekit.graphs.work import KINDS, Numbers, Work, work_of
from edgekit.profile import Profile

Protocol = Literal["graph", "plain"]
"""How a run is started: all kernels at once as a captured CUDA graph, or one by one. One and the same without a GPU."""

TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
"""Rows and columns of the tiles that GPU kernels for matrix units come in."""

_LARGE_TILE = 128 * 128
_DENSE = [KINDS.index("conv"), KINDS.index("matmul")]
_INDEX = {kind: index for index, kind in enumerate(KINDS)}


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What `seconds_of` needs to know of a device.

    Attributes:
        peaks: operations per second for each of `DTYPES`.
        shares: reached share of the peak for each of `DTYPES`.
        matmul: reached share of the peak by matrix products, of whatever type; 0: the same as convolutions.
        depthwise: reached share of the peak by depthwise convolutions, of whatever type.
        grouped: the same for grouped ones.
        recurrent: the same for recurrent layers.
        vector: reached share of the fp32 peak by operations that are no multiply-accumulates.
        bandwidth: reached bytes per second.
        launch: seconds per kernel.
        units: multiprocessors; 0 where work is not done in rounds of tiles.
        small_tile: the share of the peak that tiles reach is their area over 128 x 128 to this power.
        cache_bytes: size of the last cache; 0 where it makes no difference.
        cache_bandwidth: bytes per second that kernels reach within it.
    """

    peaks: tuple[float, float, float]
    shares: tuple[float, float, float]
    depthwise: float
    grouped: float
    recurrent: float
    vector: float
    bandwidth: float
    launch: float
    units: int = 0
    small_tile: float = 0.0
    cache_bytes: float = 0.0
    cache_bandwidth: float = 0.0
    matmul: float = 0.0


def constants_of(profile: Profile, protocol: Protocol = "graph") -> Constants:
    """Return a profile's constants."""
    compute, shares = profile.compute, profile.roofline
    peaks = [(found or compute.fp32_tops).value for found in (compute.fp32_tops, compute.fp16_tops, compute.int8_tops)]
    reached = [
        shares.fp32.value,
        shares.fp16.value if compute.fp16_tops else shares.fp32.value,
        shares.int8.value if compute.int8_tops else shares.fp32.value,
    ]
    plain = protocol == "plain" and shares.launch_plain_us is not None
    launch = shares.launch_plain_us if plain and shares.launch_plain_us else shares.launch_us
    return Constants(
        peaks=(peaks[0] * 1e12, peaks[1] * 1e12, peaks[2] * 1e12),
        shares=(reached[0], reached[1], reached[2]),
        depthwise=shares.depthwise.value,
        grouped=shares.grouped.value,
        recurrent=(shares.recurrent or shares.depthwise).value,
        vector=(shares.vector or shares.fp32).value,
        bandwidth=profile.memory.bandwidth_gbs.value * 1e9 * shares.bandwidth.value,
        launch=launch.value * 1e-6,
        units=round(compute.units.value) if compute.units else 0,
        small_tile=shares.small_tile.value if shares.small_tile else 0.0,
        cache_bytes=1e6 * profile.memory.cache_mb.value if profile.memory.cache_mb and shares.cache_gbs else 0.0,
        matmul=shares.matmul.value if shares.matmul else 0.0,
        cache_bandwidth=shares.cache_gbs.value * 1e9 if shares.cache_gbs else 0.0,
    )


def seconds_of(work: Work, known: Constants) -> Numbers:
    """Return how long each kernel takes, its launch included."""
    peak = np.array(known.peaks)[work.dtype]
    rate = peak * np.array(known.shares)[work.dtype]
    if known.matmul:
        rate = np.where(work.kind == _INDEX["matmul"], peak * known.matmul, rate)
    rate = np.where(work.kind == _INDEX["depthwise"], peak * known.depthwise, rate)
    rate = np.where(work.kind == _INDEX["grouped"], peak * known.grouped, rate)
    rate = np.where(work.kind == _INDEX["recurrent"], peak * known.recurrent, rate)
    arithmetic = 2 * work.macs / rate
    if known.units:
        dense = np.isin(work.kind, _DENSE) & (work.macs > 0)
        arithmetic = np.where(dense, arithmetic * _padding(work, known), arithmetic)
    others = work.operations / (known.peaks[0] * known.vector)
    arithmetic = np.maximum(arithmetic, others) if known.units else arithmetic + others
    longest: Numbers = np.maximum(arithmetic, traffic_of(work, known))
    return longest + known.launch


def traffic_of(work: Work, known: Constants) -> Numbers:
    """Return the seconds that each kernel's bytes take.

    Weights come from the cache when those of the whole model fit into it, the rest when what a kernel reads and
    writes does.
    """
    if not known.cache_bytes:
        return work.moved / known.bandwidth
    rest = work.moved - work.weights
    weights = known.cache_bandwidth if work.weights.sum() <= known.cache_bytes else known.bandwidth
    return work.weights / weights + rest / np.where(rest <= known.cache_bytes, known.cache_bandwidth, known.bandwidth)


def _padding(work: Work, known: Constants) -> Numbers:
    """Return how much longer products take than their multiply-accumulates say: whole tiles, whole rounds of units."""
    best: Numbers = np.full(len(work), np.inf)
    for height, width in TILES:
        tiles = np.ceil(work.rows / height) * np.ceil(work.columns / width) * work.batch
        done = np.ceil(tiles / known.units) * known.units * height * width
        reached = min(1.0, (height * width / _LARGE_TILE) ** known.small_tile)
        best = np.minimum(best, done / (work.batch * work.rows * work.columns * reached))
    return best


def kernel_seconds(group: Group, profile: Profile, protocol: Protocol = "graph") -> float:
    """Return how long one fused kernel takes, its launch included."""
    return float(seconds_of(work_of([group]), constants_of(profile, protocol))[0])


def shares_of(work: Work, busy: Numbers, launches: float, protocol: Protocol) -> dict[str, float]:
    """Return what takes which share of the time: each of `KINDS`, and launches, by the name `launch_PROTOCOL`.

    Args:
        work: the kernels.
        busy: seconds of each without its launch.
        launches: seconds of all launches.
        protocol: how they are started.
    """
    total = float(busy.sum()) + launches or 1.0
    shares = {kind: float(busy[work.kind == index].sum()) / total for index, kind in enumerate(KINDS)}
    return {**shares, f"launch_{protocol}": launches / total}
