"""Never ship worse: a candidate that loses on every axis against the model it was made from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgekit.budget.figures import Figure
from edgekit.budget.judge import show

_FEWEST_AXES = 2
_EXACT = ("size", "memory")
_COMPARATIVES = {
    "drop": "less accurate",
    "latency": "slower",
    "size": "bigger",
    "memory": "hungrier for memory",
    "energy": "hungrier for energy",
}


def dominated(original: Sequence[Figure], candidate: Sequence[Figure]) -> str | None:
    """Say why a candidate must not ship: it is worse than its input on every axis measured on both.

    Axes are accuracy (the candidate's `drop`), latency (all its percentiles are one axis), size, memory and
    energy. A candidate is worse on an axis when it is above beyond the intervals of both, and on accuracy
    when the lower bound of the drop is above 0; equal, and different within the noise, is not worse. At least
    two axes must be known. Figures count when both come from the same machine. A time or energy that is
    predicted, simulated or without an interval never counts as worse, but where it says better it speaks for
    the candidate.

    Args:
        original: figures of the model that came in.
        candidate: figures of the model that would ship.

    Returns:
        The reason, one sentence, or None when the candidate is not dominated.
    """
    worse: dict[str, list[str]] = {}
    for new in candidate:
        axis = new.name.partition("-")[0]
        old = _reference(new, original)
        if axis not in _COMPARATIVES or old is None or old.value is None or new.value is None:
            continue
        if old.note or new.note:
            continue
        if not _is_proof(old, new):
            if new.value <= old.value:
                return None
            continue
        if not _is_worse(old, new):
            return None
        worse.setdefault(axis, []).append(_compare(axis, old.value, new))
    if len(worse) < _FEWEST_AXES:
        return None
    return (
        "the candidate is "
        + ", ".join(reasons[0] for reasons in worse.values())
        + " than its input, and better at nothing"
    )


def _reference(figure: Figure, original: Sequence[Figure]) -> Figure | None:
    """Return the original's figure to compare this one with; a drop is held against no drop at all."""
    if figure.name == "drop":
        return Figure(name="drop", value=0.0, unit=figure.unit, provenance=figure.provenance, on=figure.on)
    return next(
        (
            other
            for other in original
            if (other.name, other.unit, other.provenance) == (figure.name, figure.unit, figure.provenance)
            and (figure.name == "size" or other.on == figure.on)
        ),
        None,
    )


def _is_proof(old: Figure, new: Figure) -> bool:
    """Whether being above counts: measured, and not perhaps by the noise of accuracy, time or energy."""
    if new.provenance != "measured":
        return False
    if new.name in _EXACT or not math.isfinite(new.value or 0.0):
        return True
    return new.low is not None and (new.name == "drop" or old.high is not None)


def _is_worse(old: Figure, new: Figure) -> bool:
    """Whether the new figure is above the old one beyond both intervals; what is not a number is worse."""
    assert old.value is not None
    assert new.value is not None
    if not math.isfinite(new.value):
        return math.isfinite(old.value)
    return (new.value if new.low is None else new.low) > (old.value if old.high is None else old.high)


def _compare(axis: str, old: float, new: Figure) -> str:
    assert new.value is not None
    if axis == "drop":
        return f"{_COMPARATIVES[axis]} (by {show(new.value, new.unit)})"
    return f"{_COMPARATIVES[axis]} ({show(new.value, new.unit)} against {show(old, new.unit)})"
