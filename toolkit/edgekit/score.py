"""How candidates are ranked against each other while a recipe runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Score:
    """How good a candidate is; smaller is better. `within` says whether it keeps the budgets known so far.

    Attributes:
        within: no budget is missed on the calibration data.
        latency_ms: predicted, None when unknown.
        size: bytes.
        drop: loss of the metric (or disagreement) on the calibration data, None when unknown.
        keeps: the accuracy that the budget asks for is kept: what a round of a recipe is judged by, since being still
            too slow or too big is no reason to stop making it smaller. None: as `within`.
    """

    within: bool
    latency_ms: float | None
    size: int
    drop: float | None
    keeps: bool | None = None

    def key(self) -> tuple[bool, float, int, float]:
        """Order: within the budget first, then faster, then smaller, then more accurate."""
        return (not self.within, self.latency_ms or float("inf"), self.size, self.drop or 0.0)
