"""The latency model for Snapdragons: fitted on published measurements, its errors with the models held out.

    PYTHONPATH=toolkit:exporters python benchmarks/snapdragon.py [--write]

Qualcomm's compiler estimates the time of a graph for a few SoCs, IQ-9075 (SoC 77) among them, and for no phone. From
there a law per device and precision leads on: the log of a device's time is a weighted sum of terms of IQ-9075's time,
the number of operators, that of weights and who compiled it (`edgekit_exporters.qnn.chain`), fitted by least absolute
deviations on what both ran in Qualcomm's AI Hub (benchmarks/aihub). Where the number of weights is not published, the
one that goes with time and operators stands for it; no time is further from IQ-9075's than those of all but 1 % of the
networks either way. Which terms are used is chosen by cross-validation, and the error of the whole,
that choice included, by another one around it: no component or runtime of a model is in the fit, or had a say in the
choice, that predicts it. Intervals are as wide as errors are for networks alike: residuals are divided by a scale that
depends on the same terms (normalized conformal prediction: Papadopoulos, Gammerman, Vovk 2008). They are held against
models that neither fit nor interval has seen; the half-width is that of the median network. The step before, from the
estimate to IQ-9075's clock, was measured on 18 networks.

`--write` writes the coefficients to exporters/edgekit_exporters/qnn/chains.json.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit_exporters.qnn.chain import FORMS, SPREAD, Seen, terms

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
GOALS = dict.fromkeys(("QCS8550 (Proxy)", "Samsung Galaxy S24", "Samsung Galaxy S25", "Samsung Galaxy S26"), 0.1)
GOALS |= {"Snapdragon X Elite CRD": 0.1}
OTHERS = 0.2
PRECISIONS = ("float", "w8a8", "w8a16")
NATIVE = {"soc_model": 77, "scale": 0.909, "offset_ms": 0.295, "n": 18, "mean_error": 0.077}
"""ms on IQ-9075 = scale * Qualcomm's estimate + offset: 18 networks, leave-one-out error 7.7 % in the mean."""

FIRST = 1.645 * NATIVE["mean_error"] * math.sqrt(math.pi / 2)
"""Half of the first step's interval, natural log; the second's is added as independent ones are."""

FOLDS = 10
LEAST = 20
CONFIDENCE = 0.9
ROUNDS = 3
"""Divisions into folds over which forms are compared: one alone is luck to a good part."""
SHRINK = 0.1
"""How far the scale of errors is drawn to one for all networks, as a share of their number."""
RIDGE = 1e-3
"""How far weights are drawn to 0, as a share of the number of rows: cubes of the same few numbers are much alike."""
ALL_BUT = 0.99
"""Quantile of the ratios of a device's times to IQ-9075's beyond which none is predicted."""
LEAST_DEVIATION = 1e-2
"""Residuals below it weigh alike: clocks are not better than that."""
BY_ONNXRUNTIME = ("onnx", "precompiled_qnn_onnx")
FLOOR = 0.01
"""Errors below it count as this large when their scale is fitted: logs of chance hits are no use."""
GAIN = 0.03
"""A form of more terms is taken when it lowers the error by this share of it at least."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pairs:
    """What both devices ran: models, the terms of each form, the natural logs of IQ-9075's ms and the device's."""

    models: npt.NDArray[np.str_]
    tables: dict[str, Floats]
    base: Floats
    log: Floats

    def part(self, chosen: npt.NDArray[np.bool_]) -> Pairs:
        """Return some of the rows."""
        tables = {form: table[chosen] for form, table in self.tables.items()}
        return Pairs(self.models[chosen], tables, self.base[chosen], self.log[chosen])


def pairs(rows: list[dict[str, str]], device: str, precision: str) -> Pairs:
    kept = [row for row in rows if row["precision"] == precision and row[BASE] and row[device]]
    seen = [
        Seen(
            ms=float(row[BASE]),
            operators=int(row["layers"]),
            parameters=count,
            by_onnxruntime=row["runtime"] in BY_ONNXRUNTIME,
        )
        for row, count in zip(kept, parameters(kept), strict=True)
    ]
    tables = {form: np.array([terms(form, one) for one in seen]) for form in FORMS}
    models = np.array([row["model"] for row in kept])
    base = np.log([one.ms for one in seen])
    return Pairs(models, tables, base, np.log([float(row[device]) for row in kept]))


def parameters(rows: list[dict[str, str]]) -> list[float]:
    """Return each row's number of weights; where none is published the one that goes with its time and operators."""
    known = np.array([bool(row["parameters"]) for row in rows])
    if not known.any():
        return [1.0] * len(rows)
    told = np.array([float(row["parameters"] or 1) for row in rows])
    table = np.array([[1.0, math.log(float(row[BASE])), math.log(float(row["layers"]))] for row in rows])
    usual = np.exp(table @ np.linalg.lstsq(table[known], np.log(told[known]), rcond=None)[0])
    return [float(value) for value in np.where(known, told, usual)]


@dataclass(frozen=True)
class Law:
    """A fitted law: weights of a form's terms, and between what the log of the device's time over IQ-9075's may be."""

    form: str
    weights: Floats
    ratios: tuple[float, float]

    def of(self, data: Pairs) -> Floats:
        """Return the predicted log of each row's ms."""
        found: Floats = data.base + (data.tables[self.form] @ self.weights - data.base).clip(*self.ratios)
        return found


def fit(data: Pairs, form: str) -> Law:
    least, most = np.quantile(data.log - data.base, (1 - ALL_BUT, ALL_BUT))
    return Law(form, least_deviations(data.tables[form], data.log), (float(least), float(most)))


def least_deviations(table: Floats, log: Floats) -> Floats:
    """Fit by least absolute deviations, by reweighted least squares: a few odd measurements do not pull it."""
    middle, spread = table.mean(axis=0), table.std(axis=0)
    middle[0], spread[0] = 0.0, 1.0  # the constant term
    even = (table - middle) / np.where(spread > 0, spread, 1.0)
    ridge = np.diag([0.0] + [RIDGE * len(log)] * (table.shape[1] - 1))
    weights = np.ones(len(log))
    for _ in range(40):
        weighted = even * weights[:, None]
        found = np.linalg.solve(even.T @ weighted + ridge, weighted.T @ log)
        weights = 1 / np.maximum(np.abs(log - even @ found), LEAST_DEVIATION)
    found /= np.where(spread > 0, spread, 1.0)
    found[0] -= found[1:] @ middle[1:]
    return found


def folds(models: npt.NDArray[np.str_], seed: int) -> npt.NDArray[np.int64]:
    """Return each row's fold; all rows of a model share one."""
    names = sorted(set(models))
    order = dict(zip(names, np.random.default_rng(seed).permutation(len(names)), strict=True))
    return np.array([order[model] % FOLDS for model in models])


def held_out(data: Pairs, form: str, seed: int) -> Floats:
    """Return the residuals of a form, each of a fit that has not seen the model."""
    fold, found = folds(data.models, seed), np.zeros(len(data.log))
    for number in range(FOLDS):
        seen = fold != number
        if not seen.all():
            found[~seen] = data.log[~seen] - fit(data.part(seen), form).of(data.part(~seen))
    return found


def error_of(residuals: Floats) -> Floats:
    """Return |predicted / measured - 1|."""
    return np.abs(np.exp(-residuals) - 1)


def choose(data: Pairs, seed: int) -> str:
    """Return the form: more terms only when held-out models are predicted better by more than a trifle."""
    best, least = FORMS[0], math.inf
    for form in FORMS:
        rounds = [np.median(error_of(held_out(data, form, seed + 1000 * number))) for number in range(ROUNDS)]
        error = float(np.mean(rounds))
        if error < least * (1 - GAIN):
            best, least = form, error
    return best


@dataclass(frozen=True)
class Scale:
    """How large errors are for a network: the natural log of it is a weighted sum of the terms of `SPREAD`."""

    weights: Floats
    limits: tuple[float, float]

    def of(self, data: Pairs) -> Floats:
        """Return each row's scale."""
        found: Floats = np.exp(data.tables[SPREAD] @ self.weights).clip(*self.limits)
        return found


def fit_scale(data: Pairs, residuals: Floats) -> Scale:
    """Fit the scale by ridge regression on held-out residuals; beyond what was seen it does not go."""
    table, log = data.tables[SPREAD], np.log(np.maximum(np.abs(residuals), FLOOR))
    middle, spread = table.mean(axis=0), table.std(axis=0)
    middle[0], spread[0] = 0.0, 1.0
    even = (table - middle) / spread
    ridge = np.diag([0.0] + [SHRINK * len(log)] * (table.shape[1] - 1))
    weights = np.linalg.solve(even.T @ even + ridge, even.T @ log) / spread
    weights[0] -= weights[1:] @ middle[1:]
    found = np.exp(table @ weights)
    return Scale(weights, (float(found.min()), float(found.max())))


def nested(data: Pairs) -> tuple[Floats, float, float]:
    """Return residuals of models that had no say in form or fit.

    With them the share of them within intervals made alike, and the median half-width of these, both steps together.
    """
    fold, found, covered = folds(data.models, 0), np.zeros(len(data.log)), np.zeros(len(data.log), bool)
    width = np.zeros(len(data.log))
    for number in range(FOLDS):
        seen = fold != number
        inner = data.part(seen)
        form = choose(inner, number + 1)
        found[~seen] = data.log[~seen] - fit(inner, form).of(data.part(~seen))
        residuals = held_out(inner, form, number + 101)
        scale = fit_scale(inner, residuals)
        low, high = ends(residuals / scale.of(inner))
        each = scale.of(data.part(~seen))
        covered[~seen] = (found[~seen] >= low * each) & (found[~seen] <= high * each)
        width[~seen] = (np.exp(np.hypot(high * each, FIRST)) - np.exp(-np.hypot(low * each, FIRST))) / 2
    return found, float(covered.mean()), float(np.median(width))


def ends(residuals: Floats) -> tuple[float, float]:
    """Return the ends of the 90 % interval: order statistics that hold for the next one, not for these."""
    ordered, n = np.sort(residuals), len(residuals)
    tail = (1 - CONFIDENCE) / 2 * (n + 1)
    rank = max(1, math.floor(tail))
    return float(ordered[rank - 1]), float(ordered[n - rank])


def chain_of(data: Pairs) -> tuple[dict[str, Any], str]:
    """Return a device's law at a precision, and its line of the table but for the names."""
    law = fit(data, choose(data, 0))
    residuals, covers, width = nested(data)
    error = error_of(residuals)
    scale = fit_scale(data, residuals)
    low, high = ends(residuals / scale.of(data))
    models = len(set(data.models))
    text = f"{len(error):>6}{models:>8}  {law.form:18}{np.median(error):>8.1%}{error.mean():>8.1%}"
    text += f"{covers:>8.0%}{width:>12.0%}"
    facts = {
        "form": law.form,
        "weights": [round(float(weight), 6) for weight in law.weights],
        "ratios": [round(ratio, 4) for ratio in law.ratios],
        "low": round(low, 4),
        "high": round(high, 4),
        "scale": [round(float(weight), 6) for weight in scale.weights],
        "scales": [round(limit, 6) for limit in scale.limits],
        "rows": len(error),
        "models": models,
        "median_error": round(float(np.median(error)), 4),
        "from_ms": [round(end, 4) for end in seen_of(data.base)],
        "operators": [round(end) for end in seen_of(data.tables["weights"][:, 2])],
        "parameters": [round(end) for end in seen_of(data.tables["weights"][:, 3])],
    }
    return facts, text


def seen_of(logs: Floats) -> tuple[float, float]:
    """Return the least and the greatest of what these are the logs of."""
    return float(np.exp(logs.min())), float(np.exp(logs.max()))


def main(argv: list[str]) -> int:
    with DATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    head = f"{'rows':>6}{'models':>8}  {'form':18}{'median':>8}{'mean':>8}{'covers':>8}{'half-width':>12}"
    print(f"{'device':34}{'precision':>10}{head}  goal")
    chains: dict[str, Any] = {}
    for device, soc in SOCS.items():
        for precision in PRECISIONS:
            data = pairs(rows, device, precision)
            if len(data.log) < LEAST:
                continue
            law, text = chain_of(data)
            goal = GOALS.get(device, OTHERS)
            met = "met" if law["median_error"] < goal else f"missed by {law['median_error'] - goal:.1%}"
            print(f"{device:34}{precision:>10}{text}  < {goal:.0%}: {met}", flush=True)
            chains.setdefault(str(soc), {"device": device, "precisions": {}})["precisions"][precision] = law
    print("errors are of the step from IQ-9075 to the device, models held out from fit and choice of the form alike;")
    print("the half-width is that of the median network, of both steps together")
    if "--write" in argv:
        about = "Fitted by benchmarks/snapdragon.py on qai_hub_models 0.65.0 (BSD-3-Clause); see benchmarks/aihub."
        text = json.dumps({"about": about, "native": NATIVE, "chains": chains}, indent=1, sort_keys=True)
        CHAINS.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
