"""Fit the roofline's constants for Jetson Orin to published latencies, and say how far off they are on unseen models.

    python benchmarks/jetson/fit.py

Prints the error of every used point when its model was left out of the fit, the interval that nested cross-validation
gives and how often it covers, the errors when a whole family of networks is left out, and the table `roofline` of
`profiles/_jetson.toml`. `points.json` says for each published figure how it is used, or why it is not. The engines in
int8 were calibrated by TensorRT itself: there every kernel is taken to read and write 8-bit integers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgekit.graphs.roofline import Constants, Protocol, seconds_of, shares_of
from edgekit.graphs.work import DTYPES, KINDS, Work, pack
from edgekit.numerics.fitting import fit_constants, leave_out, spread_factor
from edgekit.profile import load_profile

HERE = Path(__file__).parent
BYTES = {"fp32": 4, "fp16": 2, "int8": 1}

START = {
    "int8": 0.5,
    "fp16": 0.5,
    "fp32": 0.5,
    "bandwidth": 0.75,
    "depthwise": 0.35,
    "grouped": 0.35,
    "launch_us": 4.0,
    "launch_plain_us": 25.0,
    "small_tile": 0.35,
}
"""Where the fit starts; a constant that the points do not determine stays near."""

UPPER = {"launch_us": np.inf, "launch_plain_us": np.inf}
PRIOR = 0.1
"""Residuals are about 5 %: constants are held as if they were known to 50 %."""

VECTOR = 0.25
"""Not fitted: the CUDA cores of an Orin do a quarter of what its tensor cores do in TF32."""

FAMILIES = {"yolo": "YOLO", "resnet": "ResNet and RetinaNet", "retinanet": "ResNet and RetinaNet", "bert": "BERT"}

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A published latency and what was run."""

    model: str
    profile: str
    precision: str
    protocol: Protocol
    ms: float
    work: Work
    counts: Vector

    @property
    def family(self) -> str:
        """What kind of network it is."""
        return next(family for start, family in FAMILIES.items() if self.model.startswith(start))


def load_points() -> list[Point]:
    """Read the points that are used, with the work of their networks."""
    found = []
    for row in json.loads((HERE / "points.json").read_text(encoding="utf-8")):
        if "use" not in row:
            continue
        table = json.loads((HERE / "tables" / f"{row['use']['table']}.json").read_text(encoding="utf-8"))
        columns = dict(zip(table["columns"], zip(*table["kernels"], strict=True), strict=True))
        elements = np.array(columns.pop("elements"), np.float64)
        counts = np.array(columns.pop("count"), np.float64)
        columns["kind"] = tuple(KINDS.index(kind) for kind in columns["kind"])
        columns["dtype"] = (DTYPES.index(row["precision"]),) * len(counts)
        columns["moved"] = tuple(elements * BYTES[row["precision"]])
        columns["weights"] = (0.0,) * len(counts)  # no cache is modeled
        found.append(
            Point(
                model=row["model"],
                profile=row["use"]["profile"],
                precision=row["precision"],
                protocol=row["use"]["protocol"],
                ms=row["latency_ms"],
                work=pack(columns),
                counts=counts,
            )
        )
    return found


def device_of(profile: str) -> Constants:
    """Return what the data sheet says of a device; every share is 1."""
    device = load_profile(profile)
    compute = device.compute
    assert compute.fp16_tops is not None
    assert compute.int8_tops is not None
    assert compute.units is not None
    return Constants(
        peaks=(compute.fp32_tops.value * 1e12, compute.fp16_tops.value * 1e12, compute.int8_tops.value * 1e12),
        shares=(1.0, 1.0, 1.0),
        depthwise=1.0,
        grouped=1.0,
        recurrent=1.0,
        vector=VECTOR,
        bandwidth=device.memory.bandwidth_gbs.value * 1e9,
        launch=0.0,
        units=round(compute.units.value),
    )


class Fit:
    """The points and what is fitted to them; devices are loaded once."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = list(points)
        self.observed = np.array([point.ms for point in points])
        self.start = np.array(list(START.values()))
        self.upper = np.array([UPPER.get(name, 1.0) for name in START])
        self._devices = {name: device_of(name) for name in {point.profile for point in points}}

    def seconds(self, point: Point, values: Vector) -> Vector:
        """Return the seconds of each different kernel, all its occurrences together."""
        known = dict(zip(START, values, strict=True))
        device = self._devices[point.profile]
        here = dataclasses.replace(
            device,
            shares=(known["fp32"], known["fp16"], known["int8"]),
            depthwise=known["depthwise"],
            grouped=known["grouped"],
            bandwidth=device.bandwidth * known["bandwidth"],
            launch=self.launch(point, values),
            small_tile=known["small_tile"],
        )
        return seconds_of(point.work, here) * point.counts

    def launch(self, point: Point, values: Vector) -> float:
        """Return the seconds of one launch."""
        known = dict(zip(START, values, strict=True))
        return 1e-6 * float(known["launch_us"] if point.protocol == "graph" else known["launch_plain_us"])

    def predict(self, values: Vector, chosen: Sequence[int] | None = None) -> Vector:
        """Return milliseconds of the chosen points, or of all."""
        indices = range(len(self.points)) if chosen is None else chosen
        return np.array([1e3 * float(self.seconds(self.points[at], values).sum()) for at in indices])

    def constants(self, mask: npt.NDArray[np.bool_] | None = None) -> Vector:
        """Fit to all points, or to those of a mask."""
        chosen = list(range(len(self.points))) if mask is None else np.flatnonzero(mask).tolist()
        return fit_constants(
            lambda values: self.predict(values, chosen),
            self.observed[chosen],
            self.start,
            upper=self.upper,
            prior=PRIOR,
        )

    def unseen(self, groups: Sequence[str]) -> Vector:
        """Return prediction over observation of every point, its group left out of the fit."""
        return leave_out(groups, lambda mask: self.predict(self.constants(mask))) / self.observed


def nested_spreads(fit: Fit, models: Sequence[str]) -> Vector:
    """Return for each point the interval's factor that the other models' cross-validation gives."""
    spreads = np.zeros(len(models))
    for model in dict.fromkeys(models):
        others = [at for at, name in enumerate(models) if name != model]
        inner = Fit([fit.points[at] for at in others])
        names = [models[at] for at in others]
        spreads[[name == model for name in models]] = spread_factor(inner.unseen(names), names)
    return spreads


def largest_shares(fit: Fit, values: Vector) -> dict[str, float]:
    """Return for each kind of kernel, and for launches, the largest share of the time that it has in a point."""
    largest: dict[str, float] = {}
    for point in fit.points:
        launches = point.counts * fit.launch(point, values)
        busy = fit.seconds(point, values) - launches
        for kind, share in shares_of(point.work, busy, float(launches.sum()), point.protocol).items():
            largest[kind] = max(largest.get(kind, 0.0), share)
    return {kind: share for kind, share in largest.items() if share}


def main() -> None:
    fit = Fit(load_points())
    models = [point.model for point in fit.points]
    values = fit.constants()
    ratios = fit.unseen(models)
    off = np.abs(ratios - 1)
    for point, ratio in zip(fit.points, ratios, strict=True):
        words = f"{point.model:24} {point.precision:5} {point.protocol:6} {point.profile:28}"
        print(f"{words} {point.ms:8.3f} ms, predicted {ratio * point.ms:8.3f} ({ratio - 1:+.1%})")
    print(f"left out by model: median {np.median(off):.1%}, mean {off.mean():.1%}, largest {off.max():.1%}")
    spreads = nested_spreads(fit, models)
    covered = np.abs(np.log(ratios)) <= np.log(spreads) * (1 + 1e-12)
    print(f"nested intervals: cover {covered.mean():.1%}, median half-width {np.median(spreads) - 1:.1%}")
    families = [point.family for point in fit.points]
    unlike = fit.unseen(families)
    for family in dict.fromkeys(families):
        these = np.array([name == family for name in families])
        print(f"left out by family: {family}: median {np.median(np.abs(unlike[these] - 1)):.1%}")
    print(f"left out by family: largest {np.abs(unlike - 1).max():.1%}")
    print("[roofline]")
    for name, value in zip(START, values, strict=True):
        print(f"{name} = {value:.3g}")
    print(f"spread = {spread_factor(ratios, models):.3g}")
    shares = {kind: round(share, 2) for kind, share in largest_shares(fit, values).items()}
    print(f"fitted_on = {{ {', '.join(f'{kind} = {share}' for kind, share in shares.items())} }}")


if __name__ == "__main__":
    main()
