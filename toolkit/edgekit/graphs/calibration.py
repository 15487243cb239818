"""From measured times of known graphs to the constants of the machine that ran them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgekit.graphs.roofline import Constants, seconds_of
from edgekit.graphs.work import DTYPES, Numbers, Work
from edgekit.numerics.fitting import fit_constants, leave_out, spread_factor

_PRIOR = 0.05
"""What no graph tells stays where it was, give or take a factor of three."""

_RATES = (
    "fp32",
    "int8",
    "matmul",
    "depthwise",
    "grouped",
    "recurrent",
    "vector",
    "bandwidth",
    "cache_bandwidth",
    "launch",
)
_SHARES = frozenset({"depthwise", "grouped", "recurrent", "vector"})


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A graph that was measured.

    Attributes:
        name: of the graph; float and int8 forms of one (`NAME-int8`) count as one model.
        network: its error tells what to expect of other networks.
        work: what its kernels have to do.
        ms: measured, one run.
    """

    name: str
    network: bool
    work: Work
    ms: float


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the times tell.

    Attributes:
        constants: of the roofline; peaks are rates that are reached, so that their shares are 1.
        spread: factor of the 90 % interval, from networks that were left out of the fit.
        networks: how many those were.
        ratios: name -> prediction over measurement, for networks when left out, else in the fit.
    """

    constants: Constants
    spread: float
    networks: int
    ratios: dict[str, float]


def milliseconds(work: Work, known: Constants) -> float:
    """Predict one run."""
    return 1e3 * float(seconds_of(work, known).sum())


def fit_machine(timed: Sequence[Timed], start: Constants) -> Machine:
    """Fit constants to what was measured.

    Args:
        timed: the graphs; at least one.
        start: what the machine's profile says; what the graphs do not tell stays near it.
    """
    origin = _reached(start)
    models = [item.name.removesuffix("-int8") for item in timed]
    observed = np.array([item.ms for item in timed])

    def fit(mask: Sequence[bool] | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Constants:
        chosen = [item for item, used in zip(timed, mask, strict=True) if used]
        first, upper = _vector(origin), np.array([1.0 if name in _SHARES else math.inf for name in _RATES])
        values = fit_constants(
            lambda values: np.array([milliseconds(item.work, _with(origin, values)) for item in chosen]),
            np.array([item.ms for item in chosen]),
            first,
            upper=upper,
            prior=_PRIOR,
        )
        return _with(origin, values)

    everything = fit([True] * len(timed))
    ratios = np.array([milliseconds(item.work, everything) for item in timed]) / observed
    networks = [at for at, item in enumerate(timed) if item.network]
    if len({models[at] for at in networks}) > 1:
        unseen = _unseen(timed, models, fit) / observed
        ratios[networks] = unseen[networks]
    off = ratios[networks] if networks else ratios
    names = [models[at] for at in networks] if networks else models
    return Machine(
        constants=everything,
        spread=max(spread_factor(off, names), 1.0),
        networks=len(set(names)),
        ratios={item.name: float(ratio) for item, ratio in zip(timed, ratios, strict=True)},
    )


def slowdown(timed: Sequence[Timed], known: Constants) -> float:
    """Return how many times slower a machine is than its constants say: the median of what was measured."""
    return float(np.exp(np.median([math.log(item.ms / milliseconds(item.work, known)) for item in timed])))


def _unseen(timed: Sequence[Timed], models: Sequence[str], fit: object) -> Numbers:
    """Predict every network by a fit that did not see it; other graphs are in every fit."""

    def run(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Numbers:
        assert callable(fit)
        left_out = {model for model, used in zip(models, mask, strict=True) if not used}
        if not any(item.network for item, model in zip(timed, models, strict=True) if model in left_out):
            return np.ones(len(timed))
        known = fit(mask)
        return np.array([milliseconds(item.work, known) for item in timed])

    return leave_out(models, run)


def _reached(known: Constants) -> Constants:
    """Return the same constants with the shares of the peaks in the peaks."""
    peaks = [peak * share for peak, share in zip(known.peaks, known.shares, strict=True)]
    reached = known.shares[0]
    return dataclasses.replace(
        known,
        peaks=(peaks[0], peaks[1], peaks[2]),
        shares=(1.0, 1.0, 1.0),
        matmul=known.matmul / reached if known.matmul else 1.0,
        depthwise=min(known.depthwise / reached, 1.0),
        grouped=min(known.grouped / reached, 1.0),
        recurrent=min(known.recurrent / reached, 1.0),
        vector=min(known.vector / reached, 1.0),
    )


def _vector(known: Constants) -> Numbers:
    fp32, _, int8 = known.peaks
    values = {"fp32": fp32, "int8": int8}
    made = [values.get(name) or getattr(known, name) or 1.0 for name in _RATES]
    return np.array(made, np.float64)


def _with(known: Constants, values: Numbers) -> Constants:
    found = dict(zip(_RATES, (float(value) for value in values), strict=True))
    half = known.peaks[DTYPES.index("fp16")] * found["fp32"] / known.peaks[0]
    return dataclasses.replace(
        known,
        peaks=(found["fp32"], half, found["int8"]),
        matmul=found["matmul"],
        depthwise=found["depthwise"],
        grouped=found["grouped"],
        recurrent=found["recurrent"],
        vector=found["vector"],
        bandwidth=found["bandwidth"],
        cache_bandwidth=found["cache_bandwidth"] if known.cache_bytes else 0.0,
        launch=found["launch"],
    )
