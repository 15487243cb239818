"""How long and how fast a training goes, and what it did."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

_WARM = 0.1
_LEAST = 1e-3
_HARM = 2.0
_LOW = 0.5


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast to train.

    Attributes:
        epochs: at most so many passes over the training samples.
        rate: highest learning rate; it rises over the first tenth of the steps and falls along a cosine.
        patience: epochs that may be kept without a better held-out loss than those before after which training ends.
        decay: weight decay of matrices and kernels.
        start_counts: the start is kept where no epoch is better on held-out samples. Not for a network that may have
            been trained on these samples before: it knows them, and whatever else it learns seems worse, the more the
            farther it goes. Then the best of the epochs from `first` on is kept, unless training did harm (see
            `Fitted.harmed`).
        live_norms: batch normalization uses the statistics of each batch, and its running ones follow; else these are
            held.
        seed: the only source of randomness.
        label: what progress is called.
    """

    epochs: int
    rate: float
    patience: int = 3
    decay: float = 0.01
    start_counts: bool = True
    live_norms: bool = False
    seed: int = 0
    label: str = "train"

    @property
    def first(self) -> int:
        """The first epoch that may be kept: where the start does not count, the rate has fallen to a half by its end.

        An epoch at a high rate is no end of a training, and what seems better there is what is still remembered.
        """
        if self.start_counts:
            return 1
        epochs = range(1, self.epochs + 1)
        return next((epoch for epoch in epochs if _falls(epoch / self.epochs) <= _LOW), 1)


@dataclass(kw_only=True)
class Fitted:
    """What a training did.

    Attributes:
        history: per epoch the mean of every term of the loss, the held-out loss (`held_out`) and, where the start does
            not count, what is minimized on as many samples that are trained on (`seen`), on the same blends of them
            where they are blended; the first entry is what there was before
            (with `before_norms`, where statistics of batch normalization were settled first).
        best: the entry that was kept; 0 is the start.
    """

    history: list[dict[str, float]] = field(default_factory=list)
    best: int = 0

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        rounded = [{key: float(f"{value:.6g}") for key, value in row.items()} for row in self.history]
        return {"epochs": len(self.history) - 1, "kept_epoch": self.best, "history": rounded}

    def add(self, row: dict[str, float], schedule: Schedule) -> bool:
        """Add an epoch; say whether it is the best so far of those that may be kept."""
        self.history.append(row)
        if len(self.history) - 1 < schedule.first:
            return False
        rivals = schedule.start_counts or self.best > 0
        if rivals and not row["held_out"] < self.history[self.best]["held_out"]:
            return False
        self.best = len(self.history) - 1
        return True

    def harmed(self) -> bool:
        """Say whether the best epoch is worse than the start: on held-out samples, and much in what was minimized."""
        start, best = self.history[0], self.history[self.best]
        if "seen" not in start:
            return False
        return best["held_out"] > start["held_out"] and best["seen"] > _HARM * start["seen"]

    def is_stuck(self, schedule: Schedule) -> bool:
        """Say whether the last epochs gained nothing on those before them, as long as the patience of the schedule.

        The start does not count: a rate that leads to a better end may lead away from it first.
        """
        losses, patience = [row["held_out"] for row in self.history[schedule.first :]], schedule.patience
        return len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])


def share_of_rate(done: float) -> float:
    """Return the share of the highest rate that steps have when a share `done` of the training is over."""
    return max(done / _WARM if done < _WARM else _falls(done), _LEAST)


def _falls(done: float) -> float:
    """Return the share behind the highest rate, along a cosine."""
    return 0.5 * (1 + math.cos(math.pi * (max(done, _WARM) - _WARM) / (1 - _WARM)))
