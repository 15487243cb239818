"""The multiple-choice knapsack problem: one option for each item, the least loss within a budget, solved exactly.

Dynamic programming over lists of undominated states (Nemhauser and Ullmann 1969; Kellerer, Pferschy and Pisinger
2004, chapter 11), pruned by the bound of the linear relaxation of what is left, from an incumbent that the greedy
solution of the relaxation gives. Deterministic. The roles of cost and loss may be changed: the least cost within a
bound of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Option = tuple[float, float]
"""Cost and loss of an option; both finite and not negative."""

MOST_STATES = 1 << 16
"""States that are kept after each item; beyond, those of the worst bound go, and the result may not be the best."""

_SLACK = 1e-12


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A solution.

    Attributes:
        options: the chosen option of each item.
        cost: sum of their costs.
        loss: sum of their losses.
        bound: no solution within the budget has a smaller loss.
        exact: whether the loss is proven to be the smallest.
    """

    options: tuple[int, ...]
    cost: float
    loss: float
    bound: float
    exact: bool


def least_loss(
    items: Sequence[Sequence[Option]], budget: float, *, most_states: int = MOST_STATES
) -> Assignment | None:
    """Choose one option for each item such that the losses sum up to least while the costs stay within a budget.

    Of equal solutions one with the least cost is taken.

    Args:
        items: the options of each item, at least one.
        budget: the most that the costs may sum up to.
        most_states: see `MOST_STATES`.

    Returns:
        The solution; None when even the cheapest options cost more.

    Raises:
        ValueError: an item without options, or a cost or loss that is negative or not finite.
    """
    fronts = [_front(options) for options in items]
    limit = budget + _SLACK * max(abs(budget), 1.0)
    if sum(float(front.costs[0]) for front in fronts) > limit:
        return None
    order = sorted(range(len(items)), key=lambda i: (-float(fronts[i].losses[0] - fronts[i].losses[-1]), i))
    search = _Search([fronts[i] for i in order], limit, most_states)
    places, exact = search.run()
    chosen = [0] * len(items)
    for i, place in zip(order, places, strict=True):
        chosen[i] = int(fronts[i].options[place])
    cost, loss = (float(sum(items[i][chosen[i]][side] for i in range(len(items)))) for side in (0, 1))
    return Assignment(
        options=tuple(chosen), cost=cost, loss=loss, bound=loss if exact else min(search.bound, loss), exact=exact
    )


def least_cost(items: Sequence[Sequence[Option]], bound: float, *, most_states: int = MOST_STATES) -> Assignment | None:
    """Choose one option for each item such that the costs sum up to least while the losses stay within a bound.

    Arguments, result and errors are those of `least_loss`, but that `bound` of the result is one of the cost.
    """
    turned = [[(loss, cost) for cost, loss in options] for options in items]
    found = least_loss(turned, bound, most_states=most_states)
    if found is None:
        return None
    return Assignment(options=found.options, cost=found.loss, loss=found.cost, bound=found.bound, exact=found.exact)


@dataclass(frozen=True)
class _Front:
    """The undominated options of an item: costs rise, losses fall; `hull` are the places on the lower convex hull."""

    options: Indices
    costs: Floats
    losses: Floats
    hull: list[int]


def _front(options: Sequence[Option]) -> _Front:
    table = np.asarray(options, np.float64).reshape(-1, 2)
    if not len(table) or not np.isfinite(table).all() or (table < 0).any():
        raise ValueError("an item needs options, their costs and losses finite and not negative")
    order = np.lexsort((np.arange(len(table)), table[:, 1], table[:, 0]))
    best = np.minimum.accumulate(table[order, 1])
    kept = order[np.concatenate([[True], table[order[1:], 1] < best[:-1]])]
    costs, losses = table[kept, 0], table[kept, 1]
    hull: list[int] = []
    for place in range(len(kept)):
        while len(hull) > 1 and _above(costs, losses, hull[-2], hull[-1], place):
            hull.pop()
        hull.append(place)
    return _Front(options=kept.astype(np.int64), costs=costs, losses=losses, hull=hull)


def _above(costs: Floats, losses: Floats, a: int, b: int, c: int) -> bool:
    """Say whether point b lies on or above the line from a to c."""
    return bool((losses[a] - losses[b]) * (costs[c] - costs[a]) <= (losses[a] - losses[c]) * (costs[b] - costs[a]))


class _Search:
    """The search for one problem whose cheapest solution is within the limit."""

    def __init__(self, fronts: Sequence[_Front], limit: float, most: int) -> None:
        self.fronts, self.limit, self.most = fronts, limit, most
        self.relaxed = [_Relaxed(fronts[start:]) for start in range(len(fronts) + 1)]
        self.bound = float(self.relaxed[0].loss(np.array([limit]))[0])

    def run(self) -> tuple[list[int], bool]:
        """Return the place of each item on its front, and whether that is proven to be best."""
        greedy = self._greedy()
        best = sum(float(front.losses[place]) for front, place in zip(self.fronts, greedy, strict=True))
        costs, losses = np.zeros(1), np.zeros(1)
        trail: list[tuple[Indices, Indices]] = []
        exact = True
        for number, front in enumerate(self.fronts):
            wide = costs[:, None] + front.costs, losses[:, None] + front.losses
            costs, losses = wide[0].ravel(), wide[1].ravel()
            parents, places = np.divmod(np.arange(costs.size), len(front.costs))
            kept = self._undominated(costs, losses)
            rest = self.relaxed[number + 1]
            bounds = losses[kept] + rest.loss(self.limit - costs[kept])
            good = bounds <= best + _SLACK * max(best, 1.0)
            kept, bounds = kept[good], bounds[good]
            if kept.size > self.most:
                exact = False
                kept = np.sort(kept[np.argsort(bounds, kind="stable")[: self.most]])
                kept = kept[np.argsort(costs[kept], kind="stable")]
            trail.append((parents[kept], places[kept]))
            costs, losses = costs[kept], losses[kept]
        if not costs.size:  # only states that the cap threw away led to the incumbent
            return greedy, False
        found = self._back(trail, int(np.argmin(losses)))
        return (found, exact) if float(losses.min()) <= best or exact else (greedy, False)

    def _undominated(self, costs: Floats, losses: Floats) -> Indices:
        """Return the states within the limit that no cheaper state beats, by rising cost."""
        order = np.lexsort((losses, costs))
        order = order[costs[order] <= self.limit]
        best = np.minimum.accumulate(losses[order])
        fresh = np.concatenate([[True], losses[order[1:]] < best[:-1]]) if order.size else np.zeros(0, bool)
        found: Indices = order[fresh]
        return found

    @staticmethod
    def _back(trail: Sequence[tuple[Indices, Indices]], state: int) -> list[int]:
        places = []
        for parents, chosen in reversed(trail):
            places.append(int(chosen[state]))
            state = int(parents[state])
        return places[::-1]

    def _greedy(self) -> list[int]:
        """Take the steps along the hulls that gain most for their cost as long as they fit."""
        places = [0] * len(self.fronts)
        room = self.limit - sum(float(front.costs[0]) for front in self.fronts)
        closed: set[int] = set()
        for item, step in self.relaxed[0].order:
            front = self.fronts[item]
            price = float(front.costs[front.hull[step + 1]] - front.costs[front.hull[step]])
            if item in closed or price > room:
                closed.add(item)
                continue
            places[item] = front.hull[step + 1]
            room -= price
        return places


class _Relaxed:
    """The linear relaxation of some items: the least loss as a convex function of the budget."""

    def __init__(self, fronts: Sequence[_Front]) -> None:
        steps = [
            (
                float(front.losses[front.hull[step]] - front.losses[front.hull[step + 1]]),
                float(front.costs[front.hull[step + 1]] - front.costs[front.hull[step]]),
                item,
                step,
            )
            for item, front in enumerate(fronts)
            for step in range(len(front.hull) - 1)
        ]
        steps.sort(key=lambda found: (-found[0] / found[1], found[2], found[3]))
        self.order = [(item, step) for _, _, item, step in steps]
        start = sum(float(front.costs[0]) for front in fronts), sum(float(front.losses[0]) for front in fronts)
        self._costs = start[0] + np.concatenate([[0.0], np.cumsum([price for _, price, *_ in steps])])
        self._losses = start[1] - np.concatenate([[0.0], np.cumsum([gain for gain, *_ in steps])])

    def loss(self, budget: Floats) -> Floats:
        """Return the least loss within budgets; infinity where even the cheapest options do not fit."""
        found: Floats = np.interp(budget, self._costs, self._losses)
        return np.where(budget < self._costs[0] - _SLACK * max(self._costs[0], 1.0), np.inf, found)
