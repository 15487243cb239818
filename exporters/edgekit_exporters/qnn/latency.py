"""Latency on the HTP without a device: Qualcomm's own estimate, and what published measurements make of it.

Where Qualcomm's compiler estimates a SoC (`estimate = "native"` in the profile), its figure is taken, straightened by
what it was off on IQ-9075. For the others (`chained`) the graph is compiled for IQ-9075, and a law per precision leads
from there to the device; see benchmarks/snapdragon.py. Else, and without the compiler, the roofline.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit.artifact import MAIN, Artifact
from edgekit.budget import Figure
from edgekit.errors import UnsupportedError
from edgekit.profile import Profile
from edgekit_exporters.qnn.chain import SPREAD, Seen, terms
from edgekit_exporters.qnn.context import Context, RefusedError
from edgekit_exporters.qnn.desk import Desk, soc_of
from edgekit_exporters.qnn.told import Estimate

if TYPE_CHECKING:
    from edgekit.graphs.forecast import Forecast

CHAINS = Path(__file__).with_name("chains.json")
_MS = 1e-3
_INTERVAL = {
    "native": "90 %: Qualcomm's estimate against a clock on IQ-9075, 18 networks, each left out in turn",
    "chained": "90 %: the same, and published latencies of the device against IQ-9075's, models held out",
}
_ONE_SIDED_95 = 1.645
_NORMAL_MEAN = math.sqrt(math.pi / 2)
"""Standard deviation over mean absolute error of a normal distribution."""


def predict(desk: Desk, artifact: Artifact, folder: Path, profile: Profile, *, compiles: bool) -> Forecast:
    """Predict latency and memory; with the compiler also the traffic to memory, and what spilled.

    The kernels are those of the roofline: Qualcomm's compiler tells the whole only.

    Args:
        desk: compiles.
        artifact: kind `onnx`.
        folder: where it lies.
        profile: the device.
        compiles: whether the compiler is there and the profile names a SoC.
    """
    from edgekit.graphs.cost import cost_of
    from edgekit.graphs.forecast import forecast
    from edgekit.graphs.fusion import rules_of
    from edgekit.graphs.rules import usual_shapes

    base = forecast(cost_of(folder / MAIN, usual_shapes(artifact)), profile, rules=rules_of("qnn"))
    how = profile.settings.get("htp", {}).get("estimate", "none")
    if not compiles or how == "none":
        return base
    others = tuple(figure for figure in base.figures if not figure.name.startswith("latency"))
    try:
        context = _compiled(desk, artifact, folder, profile, how)
    except UnsupportedError as error:
        why = " ".join(str(error).split())[:300]
        latency = _latency(None, profile, note=f"no prediction: {why}")
        return msgspec.structs.replace(base, figures=(latency, *others), interval="none: it does not compile")
    if context.estimate is None:
        return base
    latency = _native(context, profile) if how == "native" else _chained(context, artifact, profile, base.parameters)
    figures = (latency, *others, *_traffic(context.estimate, context.soc_model))
    return msgspec.structs.replace(base, figures=figures, interval=_INTERVAL[how])


def _compiled(desk: Desk, artifact: Artifact, folder: Path, profile: Profile, how: str) -> Context:
    """Compile for the SoC whose estimate is taken; nodes that it refuses stay on the CPU and are told."""
    soc = None if how == "native" else int(_chains()["native"]["soc_model"])
    try:
        return desk.context(artifact, folder, profile, soc=soc)
    except RefusedError:
        return desk.context(artifact, folder, profile, soc=soc, fallback=True)


def _native(context: Context, profile: Profile) -> Figure:
    spread = _native_spread()
    on = f"Qualcomm's estimate for {profile.name}"
    return _latency(_straightened(context), profile, -spread, spread, on=on, note=_off_htp(context))


def _chained(context: Context, artifact: Artifact, profile: Profile, parameters: int) -> Figure:
    precision = precision_of(artifact)
    chain = _chains()["chains"].get(str(soc_of(profile)), {})
    found = chain.get("precisions", {}).get(precision)
    if found is None:
        return _latency(None, profile, note=f"no prediction: nothing was published of {precision} on this device")
    base = _straightened(context)
    if not context.operators:
        return _latency(None, profile, note="no prediction: the compiler did not tell its operators")
    seen = Seen(ms=base, operators=context.operators, parameters=parameters)
    notes = [_off_htp(context), *_outside(seen, found)]
    log = sum(weight * part for weight, part in zip(found["weights"], terms(found["form"], seen), strict=True))
    least, most = found["ratios"]
    value = base * math.exp(min(max(log - math.log(base), least), most))
    on = f"Qualcomm's estimate for IQ-9075, carried to {chain['device']} by {found['rows']} published latencies"
    low, high = _spreads(seen, found)
    return _latency(value, profile, low, high, on=on, note="; ".join(filter(None, notes)))


def _native_spread() -> float:
    """Return half of the interval of Qualcomm's estimate against a clock, as a natural log."""
    return _ONE_SIDED_95 * _NORMAL_MEAN * float(_chains()["native"]["mean_error"])


def _spreads(seen: Seen, law: dict[str, Any]) -> tuple[float, float]:
    """Return the natural logs of the interval's ends over the value: as wide as errors are for networks alike."""
    parts = terms(SPREAD, seen)
    scale = math.exp(sum(weight * part for weight, part in zip(law["scale"], parts, strict=True)))
    scale = min(max(scale, law["scales"][0]), law["scales"][1])
    first = _native_spread()
    return -math.hypot(law["low"] * scale, first), math.hypot(law["high"] * scale, first)


def _outside(seen: Seen, law: dict[str, Any]) -> list[str]:
    """Say what of a network lies outside of all that a law was fitted on."""
    told = (
        (f"{seen.ms:.3g} ms on IQ-9075", seen.ms, law["from_ms"], " ms"),
        (f"a network of {seen.operators} operators", seen.operators, law["operators"], ""),
        (f"a network of {seen.parameters} weights", seen.parameters, law["parameters"], ""),
    )
    return [
        f"{what} is outside of what the model was fitted on ({low:.3g} to {high:.4g}{unit})"
        for what, value, (low, high), unit in told
        if not low <= value <= high
    ]


def precision_of(artifact: Artifact) -> str:
    """Return which published latencies a graph is like: `float`, `w8a8` or `w8a16` (w4a16 has too few of its own)."""
    told = str(artifact.facts.get("coverage", {}).get("precision", "float"))
    return {"w8a8": "w8a8", "w8a16": "w8a16", "w4a16": "w8a16"}.get(told, "float")


def _straightened(context: Context) -> float:
    """Return the ms of a clock on IQ-9075 that go with an estimate."""
    assert context.estimate is not None
    native = _chains()["native"]
    return float(native["scale"]) * context.estimate.us * _MS + float(native["offset_ms"])


def _off_htp(context: Context) -> str:
    """Say why an estimate is too low: nodes on the CPU, or operators that the compiler has no cost of."""
    assert context.estimate is not None
    told = [f"{len(context.refused)} nodes on the CPU are not in it"] if context.refused else []
    missing = context.estimate.missing
    return "; ".join([*told, *([f"{missing} operators have no cost in it"] if missing else [])])


def _latency(
    value: float | None, profile: Profile, low: float = 0.0, high: float = 0.0, *, on: str = "", note: str = ""
) -> Figure:
    """Return the figure; `low` and `high` are the natural logs of the interval's ends over the value."""
    return Figure(
        name="latency-p50",
        value=value,
        unit="ms",
        provenance="predicted",
        on=on or profile.name,
        low=None if value is None else value * math.exp(low),
        high=None if value is None else value * math.exp(high),
        note=note,
    )


def _traffic(estimate: Estimate, soc: int) -> tuple[Figure, ...]:
    """Return what goes between DDR and the HTP in one run, and how much of it only because VTCM is too small."""
    rows = (("ddr-traffic", estimate.read + estimate.written), ("vtcm-spill", estimate.spilled))
    on = f"Qualcomm's compiler, SoC {soc}"
    return tuple(Figure(name=name, value=float(v), unit="B", provenance="predicted", on=on) for name, v in rows)


@cache
def _chains() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CHAINS.read_text(encoding="utf-8"))
    return found
