"""A device that is known by a few simulated samples: what they add to what the whole set says of its stand-in.

The stand-in (the same quantized graph on this machine's CPU) runs on all samples, the simulator on some. What the
device loses is at most what the stand-in loses, plus what simulator and stand-in differ by; both with their bounds.
"""

from __future__ import annotations

import bisect
import math
import tempfile
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgekit.data import Feed
from edgekit.evaluate.comparison import Comparison, evaluate
from edgekit.evaluate.reference import load_outputs, save_outputs
from edgekit.evaluate.rows import together
from edgekit.events import Finding
from edgekit.metrics import Labels, Metric, find_metric
from edgekit.numerics.statistics import clopper_pearson

LEAST_DB = 20.0
"""Ratio below which the simulator computes something else than the graph says: rounding alone gives 30 and more."""

EQUAL_DB = 200.0
"""Ratio that stands for no difference at all."""

_MOST_SAMPLES = 1_000_000
_ROUNDING = 1e-9
_MINUTE = 60


@dataclass(frozen=True)
class Simulated:
    """What was simulated.

    Attributes:
        place: by what.
        all: whether every sample was.
        floats: names of the outputs that hold floating-point numbers: one class that flips is no error.
        limit: the budget of the drop, if there is one.
        seconds_each: returns how many CPU seconds a sample took.
    """

    place: str
    all: bool
    floats: Container[str]
    limit: float | None = None
    seconds_each: Callable[[], float] = lambda: 0.0


def judge_simulated(
    what: Simulated,
    found: Iterable[Feed],
    others: Iterable[Iterable[Feed]],
    whole: Comparison,
    labels: Labels,
    metric: Metric,
    *,
    leading: str | int | None,
    seed: int,
) -> tuple[Comparison, tuple[Finding, ...]]:
    """Hold a simulator's outputs against the original's and the stand-in's.

    Args:
        what: what was simulated.
        found: the simulator's outputs, one by one; read once.
        others: the outputs of the original and of the stand-in on the same samples.
        whole: the original against the stand-in, on all samples.
        labels: of the simulated samples.
        metric: what is judged.
        leading: the axis that counts rows; None without one.
        seed: of the bootstrap.

    Returns:
        What is judged: the simulator alone when it ran all samples, else see `with_disagreement`; the distances, and
        how many samples a proof takes.
    """
    with tempfile.TemporaryDirectory(prefix="edgekit-sim-") as scratch:
        path = Path(scratch, "outputs.npz")
        save_outputs(path, together(found, leading))
        near, apart = (
            evaluate(
                together(outputs, leading), load_outputs(path), labels, metric, batched=leading is not None, seed=seed
            )
            for outputs in others
        )
    told = distance_findings(whole, near, apart, floats=what.floats, place=what.place)
    if what.all:
        return near, told
    return with_disagreement(whole, apart), (*told, proof_finding(what, whole, apart))


def disagreements(
    stand_in: Iterable[Feed], found: Iterable[Feed], *, floats: Container[str], place: str
) -> tuple[tuple[Finding, ...], float | None]:
    """Tell how far a simulator's outputs on a few samples are from its stand-in's; see `distance_findings`.

    Returns:
        The findings, and the lowest ratio of a floating-point output in dB, at most `EQUAL_DB`; None without one.
    """
    apart = evaluate(stand_in, found, None, find_metric("agreement"), batched=False)
    ratios = [row.sqnr_db for row in apart.outputs if row.name in floats and row.sqnr_db is not None]
    lowest = min(ratios, default=None)
    told = distance_findings(apart, apart, apart, floats=floats, place=place)
    return told, None if lowest is None else max(min(lowest, EQUAL_DB), -EQUAL_DB)


def with_disagreement(whole: Comparison, apart: Comparison) -> Comparison:
    """Return what a device loses against the original.

    Args:
        whole: the original against the stand-in, on all samples.
        apart: the stand-in against the simulator, on those that were simulated.
    """
    if whole.drop is None or apart.drop is None or math.isnan(whole.drop) or math.isnan(apart.drop):
        return msgspec.structs.replace(whole, drop=None, low=None, high=None, note=whole.note or apart.note)
    return msgspec.structs.replace(
        whole,
        drop=whole.drop + max(apart.drop, 0.0),
        low=None if whole.low is None or apart.low is None else whole.low + min(apart.low, 0.0),
        high=None if whole.high is None or apart.high is None else whole.high + max(apart.high, 0.0),
        note=whole.note,
        findings=(*whole.findings, *apart.findings),
    )


def proof_finding(what: Simulated, whole: Comparison, apart: Comparison) -> Finding:
    """Say how many samples were simulated, what the others leave open, and how many would decide about the budget."""
    each = what.seconds_each()
    text = f"{apart.n} of {whole.n} samples were simulated" + (f", {each:.2g} CPU seconds each" if each else "")
    remedy = ""
    if whole.high is not None and apart.high is not None and whole.bounded:
        text += f"; what the others leave open adds {max(apart.high, 0.0):.2%} to the bound of the drop"
        if what.limit is not None and whole.high + max(apart.high, 0.0) > what.limit:
            number = samples_to_prove(what.limit - whole.high, apart)
            if number is None or number >= whole.n:
                text += f"; no part of the samples proves a drop of at most {what.limit:.2%}"
                remedy = "Give more evaluation samples, choose another recipe, or allow a larger drop."
            else:
                cost = f", about {_span(number * each)} of a core" if each else ""
                text += f"; if no more come out worse, {number} prove a drop of at most {what.limit:.2%}{cost}"
                remedy = f"--simulate {number}, or --simulate TIME"
    return Finding(severity="note", node=what.place, rule="htp-samples", text=text, remedy=remedy)


def samples_to_prove(room: float, apart: Comparison) -> int | None:
    """Return how many samples bound by `room` what simulator and stand-in differ by, if all further ones agree.

    Args:
        room: largest upper bound, in points.
        apart: the stand-in against the simulator, on those that were simulated.

    Returns:
        None when over a million would not do. Losses count, gains do not: a little more than it may take.
    """
    lost = math.ceil(max(apart.drop or 0.0, 0.0) * apart.n - _ROUNDING)
    numbers = range(max(apart.n, 1), _MOST_SAMPLES)
    place = bisect.bisect_left(numbers, x=True, key=lambda number: clopper_pearson(lost, number).high <= room)
    return numbers[place] if place < len(numbers) else None


def _span(seconds: float) -> str:
    return f"{seconds / _MINUTE:.0f} minutes" if seconds > 2 * _MINUTE else f"{seconds:.0f} seconds"


def distance_findings(
    whole: Comparison, near: Comparison, apart: Comparison, *, floats: Container[str], place: str
) -> tuple[Finding, ...]:
    """Tell how far three executions are from each other; an error where the simulator disagrees with the CPU.

    Args:
        whole: the original against the stand-in, on all samples.
        near: the original against the simulator.
        apart: the stand-in against the simulator.
        floats: names of the outputs that hold floating-point numbers: one class that flips is no such error.
        place: what was simulated.
    """
    first = {row.name: row.sqnr_db for row in whole.outputs}
    second = {row.name: row.sqnr_db for row in near.outputs}
    found = []
    for row in apart.outputs:
        told = (
            f"output '{row.name}': original against this CPU {_db(first.get(row.name))}, original against the "
            f"{place} {_db(second.get(row.name))}, CPU against it {_db(row.sqnr_db)} ({apart.n} of {whole.n} samples)"
        )
        judged = row.name in floats and row.sqnr_db is not None and row.sqnr_db > -math.inf  # that is a dead output
        wrong = judged and not (row.sqnr_db or 0.0) >= LEAST_DB
        found.append(
            Finding(
                severity="error" if wrong else "note",
                node=row.name,
                rule="htp-disagrees" if wrong else "htp-distance",
                text=f"the compiled model computes something else than the graph: {told}" if wrong else told,
                remedy="Leave the nodes before it out of the network, or build with another precision." * wrong,
            )
        )
    return tuple(found)


def _db(value: float | None) -> str:
    return "unknown" if value is None else "equal" if math.isinf(value) and value > 0 else f"{value:.1f} dB"
