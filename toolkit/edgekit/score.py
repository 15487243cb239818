"""How candidates are ranked against each other while a recipe runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

ALIKE = 0.02
"""Latencies that are apart by less than this share are alike: no prediction tells them apart."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """How good a candidate is; smaller is better. `within` says whether it keeps the budgets known so far.

    Attributes:
        within: no budget is missed on the calibration data; a drop misses its own where the lower bound is above it.
        latency_ms: predicted, None when unknown.
        size: bytes.
        drop: loss of the metric (or disagreement) on the calibration data, None when unknown.
        keeps: the accuracy that the budget asks for is kept, going by `drop` itself: what a round of a recipe is judged
            by, since being still too slow or too big is no reason to stop making it smaller. None: as `within`.
        bounds: of the drop, one-sided at 95 %; None when unknown.
    """

    within: bool
    latency_ms: float | None
    size: int
    drop: float | None
    keeps: bool | None = None
    bounds: tuple[float, float] | None = None

    @property
    def doubtful(self) -> bool:
        """Whether it lost more than the budget allows, and by so few samples that this may be chance."""
        return self.within and self.keeps is False

    def key(self) -> tuple[bool, float, int, float]:
        """Order: within the budget first, then faster, then smaller, then more accurate."""
        return (not self.within, self.latency_ms or inf, self.size, self.drop or 0.0)

    def is_slower_than(self, other: Score) -> bool:
        """Say whether latency was lost, as far as it is known of both."""
        return self.latency_ms is not None and other.latency_ms is not None and self.latency_ms > other.latency_ms

    def good_after(self, other: Score) -> bool:
        """Say whether a round that went from `other` to this one stands: accuracy is kept and nothing got slower."""
        return (self.within if self.keeps is None else self.keeps) and not self.is_slower_than(other)

    def facts(self) -> dict[str, Any]:
        """Return what a report tells."""
        told = {"within": self.within, "latency_ms": self.latency_ms, "size": self.size, "drop": self.drop}
        return {**told, "drop_bounds": self.bounds, "doubtful": self.doubtful}

    def why_before(self, others: Sequence[Score], missed: Sequence[str] = ()) -> str:
        """Say what speaks for this one, the smallest, in the order in which they are ranked.

        Args:
            others: those that it is ranked before.
            missed: names of better ones that failed since.
        """
        if missed:
            return f"the next in order: {', '.join(missed)} did not pass on the evaluation data"
        if not others:
            return "the only one that could be built"
        if not self.within:
            return "none keeps the budgets on the calibration data; it is the fastest"
        if self.doubtful and self.bounds is not None:
            lost = f"{self.drop:.2%} ({self.bounds[0]:.2%} .. {self.bounds[1]:.2%})"
            return f"the fastest that the calibration data do not rule out: it loses {lost} there, which may be chance"
        return self._why_among([other for other in others if other.within])

    def _why_among(self, within: Sequence[Score]) -> str:
        if not within:
            return "the only one that keeps the budgets on the calibration data"
        if self.latency_ms is None:
            return "no latency is known: the smallest that keeps the budgets on the calibration data"
        if all(self.latency_ms * (1 + ALIKE) < (other.latency_ms or inf) for other in within):
            return "the fastest that keeps the budgets on the calibration data"
        return "as fast as others that keep the budgets on the calibration data, and smaller or more accurate"


def best_of(scores: Sequence[Score]) -> int:
    """Return which score is the best: within the budget, then the fastest; of those alike, the smallest."""
    order = sorted(range(len(scores)), key=lambda index: scores[index].key())
    first = scores[order[0]]
    if not first.within or first.latency_ms is None:
        return order[0]
    limit = first.latency_ms * (1 + ALIKE)
    alike = [index for index in order if scores[index].within and (scores[index].latency_ms or inf) <= limit]
    return min(
        alike, key=lambda index: (scores[index].size, scores[index].drop or 0.0, scores[index].latency_ms or inf)
    )


def in_order(scores: Mapping[str, Score]) -> Iterator[tuple[str, str]]:
    """Yield the name of the best and what speaks for it; after it has missed, the next ones that are within."""
    left = dict(scores)
    missed: list[str] = []
    while left:
        name = list(left)[best_of(list(left.values()))]
        found = left.pop(name)
        yield name, found.why_before(list(left.values()), missed)
        missed.append(name)
        left = {other: score for other, score in left.items() if score.within}
