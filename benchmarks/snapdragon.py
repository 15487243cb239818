"""The latency model for Snapdragons: fitted on published measurements, its errors with the models held out.

    python benchmarks/snapdragon.py [--write]

Qualcomm's compiler estimates the time of a graph for a few SoCs, IQ-9075 (SoC 77) among them, and for no phone. From
there a power law per precision leads to each other device: ms = a * ms77 ** b, fitted on what both ran in Qualcomm's AI
Hub (benchmarks/aihub). The error of that step is cross-validated by model: no component or runtime of a model is in the
fit that predicts it. The step before it, from the estimate to IQ-9075's clock, was measured on 18 networks.

`--write` writes the coefficients to exporters/edgekit_exporters/qnn/chains.json.
"""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
DATA = HERE / "aihub" / "perf.csv"
CHAINS = HERE.parent / "exporters" / "edgekit_exporters" / "qnn" / "chains.json"
BASE = "Dragonwing IQ-9075 EVK"
SOCS = {
    "SA8775P ADP": 52,
    "Samsung Galaxy S22 5G": 36,
    "QCS8550 (Proxy)": 43,
    "Samsung Galaxy S24": 57,
    "Samsung Galaxy S25": 69,
    "Samsung Galaxy S26": 87,
    "Snapdragon X Elite CRD": 60,
    "Snapdragon X2 Elite CRD": 88,
    "Dragonwing RB3 Gen 2 Vision Kit": 93,
    "Dragonwing Q-6690 MTP": 78,
}
PRECISIONS = ("float", "w8a8", "w8a16")
NATIVE = {"soc_model": 77, "scale": 0.909, "offset_ms": 0.295, "n": 18, "mean_error": 0.077}
"""ms on IQ-9075 = scale * Qualcomm's estimate + offset: 18 networks, leave-one-out error 7.7 % in the mean."""

FOLDS = 10
LEAST = 20
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """A power law and how far it is off for models that it has not seen: natural logs of measured over predicted."""

    a: float
    b: float
    residuals: Floats
    models: int
    span: tuple[float, float]

    def errors(self) -> Floats:
        """Return |predicted / measured - 1| of every held-out row."""
        return np.abs(np.exp(-self.residuals) - 1)


def pairs(rows: list[dict[str, str]], device: str, precision: str) -> tuple[list[str], Floats, Floats]:
    """Return models and both devices' logs of ms for what both ran."""
    kept = [row for row in rows if row["precision"] == precision and row[BASE] and row[device]]
    logs = np.log([[float(row[BASE]), float(row[device])] for row in kept]).reshape(-1, 2)
    return [row["model"] for row in kept], logs[:, 0], logs[:, 1]


def line(x: Floats, y: Floats) -> tuple[float, float]:
    slope, offset = np.polyfit(x, y, 1)
    return float(offset), float(slope)


def fit(models: list[str], x: Floats, y: Floats) -> Fit:
    """Fit on all, and ten times on nine tenths of the models to predict the others."""
    names = sorted(set(models))
    order = np.random.default_rng(0).permutation(len(names))
    fold = np.array([order[names.index(model)] % FOLDS for model in models])
    residuals = np.zeros(len(x))
    for number in range(FOLDS):
        offset, slope = line(x[fold != number], y[fold != number])
        residuals[fold == number] = y[fold == number] - offset - slope * x[fold == number]
    offset, slope = line(x, y)
    return Fit(float(np.exp(offset)), slope, residuals, len(names), (float(np.exp(x.min())), float(np.exp(x.max()))))


def interval(found: Fit) -> tuple[float, float]:
    """Return the natural logs of the 90 % interval's ends: both steps' spreads, added as independent ones are."""
    first = 1.645 * NATIVE["mean_error"] * np.sqrt(np.pi / 2)
    low, high = np.quantile(found.residuals, [0.05, 0.95])
    return -float(np.hypot(low, first)), float(np.hypot(high, first))


def covered(found: Fit) -> float:
    """Return how much of the held-out rows the second step's own interval covers, its ends from the other folds."""
    half = np.random.default_rng(1).permutation(len(found.residuals)) % 2 == 0
    shares = []
    for part in (half, ~half):
        low, high = np.quantile(found.residuals[~part], [0.05, 0.95])
        shares.append(np.mean((found.residuals[part] >= low) & (found.residuals[part] <= high)))
    return float(np.mean(shares))


def main(argv: list[str]) -> int:
    with DATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    print(
        f"{'device':34}{'precision':>10}{'rows':>6}{'models':>8}{'median':>9}{'mean':>8}{'covers':>8}{'half-width':>12}"
    )
    chains: dict[str, Any] = {}
    for device, soc in SOCS.items():
        for precision in PRECISIONS:
            models, x, y = pairs(rows, device, precision)
            if len(x) < LEAST:
                continue
            found = fit(models, x, y)
            low, high = interval(found)
            error, width = found.errors(), (np.exp(high) - np.exp(low)) / 2
            print(
                f"{device:34}{precision:>10}{len(x):>6}{found.models:>8}{np.median(error):>9.1%}{error.mean():>8.1%}"
                f"{covered(found):>8.0%}{width:>12.0%}"
            )
            chains.setdefault(str(soc), {"device": device, "precisions": {}})["precisions"][precision] = {
                "a": round(found.a, 5),
                "b": round(found.b, 5),
                "low": round(low, 4),
                "high": round(high, 4),
                "rows": len(x),
                "models": found.models,
                "median_error": round(float(np.median(error)), 4),
                "from_ms": [round(end, 4) for end in found.span],
            }
    print(
        "errors are of the step from IQ-9075 to the device, models held out; the half-width is of both steps together"
    )
    if "--write" in argv:
        about = "Fitted by benchmarks/snapdragon.py on qai_hub_models 0.65.0 (BSD-3-Clause); see benchmarks/aihub."
        text = json.dumps({"about": about, "native": NATIVE, "chains": chains}, indent=1, sort_keys=True)
        CHAINS.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
