"""How much channels matter, and which of them go: norms, first-order Taylor terms, a greedy choice in whole steps."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

Norm = Literal["l1", "l2"]


def norms(weight: npt.NDArray[np.floating], axis: int, norm: Norm) -> Floats:
    """Return the norm of every slice of `weight` along `axis`: `[weight.shape[axis]]`, float64."""
    rows = np.moveaxis(np.asarray(weight, np.float64), axis, 0).reshape(weight.shape[axis], -1)
    found: Floats = np.abs(rows).sum(1) if norm == "l1" else np.sqrt(np.square(rows).sum(1))
    return found


def taylor(weight: npt.NDArray[np.floating], gradient: npt.NDArray[np.floating], axis: int) -> Floats:
    """Return the sum of weight x gradient of every slice: how much the loss falls, to first order, without it.

    Molchanov et al., "Importance Estimation for Neural Network Pruning", 2019, eq. 8 before the square.
    """
    product = np.asarray(weight, np.float64) * np.asarray(gradient, np.float64)
    found: Floats = np.moveaxis(product, axis, 0).reshape(weight.shape[axis], -1).sum(1)
    return found


def loss_without(parts: Sequence[tuple[Floats, Places]]) -> Floats:
    """Return for every channel the mean magnitude of what the loss of a batch changes without it: `[channels]`.

    Args:
        parts: where the channels are read: changes `[batches, indices]`, signed, and `[channels, indices of each]`.
    """
    total = np.sum([changes[:, places].sum(axis=2) for changes, places in parts], axis=0)
    found: Floats = np.abs(total).mean(axis=0)
    return found


def gathered(scores: Floats, places: Places) -> Floats:
    """Return the score of every channel from those of the indices it holds: the mean over each row of `places`.

    Args:
        scores: one per index of an axis.
        places: `[channels, indices of each]`.
    """
    found: Floats = scores[places].mean(axis=1)
    return found


def combined(parts: Sequence[Floats]) -> Floats:
    """Return the mean of several scores of the same channels, each relative to its own mean; ones where all are 0."""
    relative = [part / part.mean() for part in parts if part.mean() > 0]
    if not relative:
        return np.ones_like(parts[0])
    found: Floats = np.mean(relative, axis=0)
    return found


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Channels of one kind, of which some may go.

    Attributes:
        scores: how much each matters, `[channels]`; several rows `[layers, channels]` when layers lose equally many.
        weight: how much one channel counts toward the target, summed over the layers.
        step: so many go at once, and the number that stays is a multiple of it.
        least: so many stay at least.
    """

    scores: Floats
    weight: float
    step: int
    least: int


def choose(candidates: Sequence[Candidates], target: float, *, even: bool = False) -> list[Places]:
    """Choose channels to remove, the least important first, in whole steps, until `target` is reached.

    The steps of all candidates compete by the mean score of the channels they take, times the share of their kind that
    would be gone: the more a layer lost, the dearer it gets. (On a depthwise CNN at -30 % of the work, before any
    training, that leaves 72 % accuracy, the scores alone 65 %.) A step is not taken when the target is nearer without
    it; one step is always taken when there is any.

    Args:
        candidates: kinds of channels.
        target: sum of `weight` over what goes, at which to stop.
        even: compete by the share alone: every kind loses about as much.

    Returns:
        Per candidate the channels that go: ascending indices `[removed]`, or `[layers, removed]`.
    """
    orders = [np.argsort(np.atleast_2d(kind.scores), axis=1, kind="stable") for kind in candidates]
    gone = [0] * len(candidates)
    queue: list[tuple[float, int, int]] = []
    for index in range(len(candidates)):
        _push(queue, candidates, orders, gone, index, even=even)
    removed = 0.0
    while queue:
        _, index, count = heapq.heappop(queue)
        weight = count * candidates[index].weight
        if removed and removed + weight - target > target - removed:
            continue
        removed += weight
        gone[index] += count
        if removed >= target:
            break
        _push(queue, candidates, orders, gone, index, even=even)
    found: list[Places] = []
    for kind, order, count in zip(candidates, orders, gone, strict=True):
        chosen = np.sort(order[:, :count], axis=1)
        found.append(chosen if kind.scores.ndim > 1 else chosen[0])
    return found


def _push(
    queue: list[tuple[float, int, int]],
    candidates: Sequence[Candidates],
    orders: Sequence[Places],
    gone: Sequence[int],
    index: int,
    *,
    even: bool,
) -> None:
    """Offer the next step of one kind, when enough would stay."""
    kind, order = candidates[index], orders[index]
    left = order.shape[1] - gone[index]
    keep = (left - 1) // kind.step * kind.step
    if keep < max(kind.least, 1):
        return
    count = left - keep
    taken = np.take_along_axis(np.atleast_2d(kind.scores), order[:, gone[index] : gone[index] + count], axis=1)
    share = 1 - keep / order.shape[1]
    heapq.heappush(queue, (share if even else share * float(taken.mean()), index, count))


def step_of(multiple: int, counts: Sequence[int]) -> int:
    """Return how many channels go at once, so that every axis loses a multiple of `multiple` indices.

    Args:
        multiple: what the device likes.
        counts: how many indices of each axis one channel holds.
    """
    return math.lcm(*(multiple // math.gcd(multiple, count) for count in counts))


def smallest(values: npt.NDArray[np.floating], share: float) -> npt.NDArray[np.bool_]:
    """Say which values are kept when `share` of them, the smallest by magnitude, become zero; ties go by position."""
    flat = np.abs(np.asarray(values)).ravel()
    kept = np.ones(flat.size, np.bool_)
    kept[np.argsort(flat, kind="stable")[: int(share * flat.size)]] = False
    return kept.reshape(np.shape(values))


def largest_of_block(values: npt.NDArray[np.floating], keep: int, block: int) -> npt.NDArray[np.bool_]:
    """Say which values are kept when of every `block` along the last axis the `keep` largest by magnitude stay.

    Values after the last whole block are all kept.
    """
    values = np.asarray(values)
    whole = values.shape[-1] // block * block
    kept = np.ones(values.shape, np.bool_)
    blocks = np.abs(values[..., :whole]).reshape(*values.shape[:-1], whole // block, block)
    ranks = np.argsort(np.argsort(-blocks, axis=-1, kind="stable"), axis=-1, kind="stable")
    kept[..., :whole] = (ranks < keep).reshape(*values.shape[:-1], whole)
    return kept
