"""Rounding weights so that a layer's output, not its weights, stays close: on second moments, in plain numpy.

A layer computes `y = W x + b`. What it should give, `y`, comes from the float model; what it is fed, `x`, from the
quantized one. Over calibration samples only second moments of both are kept, so memory does not grow with samples.
With them

- the error of any weight is exact: `|y - Q x - b|^2` summed over all samples, `b` at its best;
- weights are refitted to the inputs that they will see (ridge regression toward the old weights);
- rounding goes column by column, and each column's error is passed on to the columns that are not rounded yet, as in
  GPTQ (Frantar et al., 2022, after Optimal Brain Surgeon), then single steps are taken while they help;
- of several scales of a row, each rounded so, the one with the least error is taken: with few bits, cutting the largest
  weights costs less than coarse steps for all of them.

Layers have groups: arrays begin with `[groups, outputs of a group, inputs of a group]`, written `[G, M, K]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgekit.numerics.moments import Doubles, Moments

Bounds = tuple[int, int]

STRENGTHS = (np.inf, 0.3, 0.03)
"""Of the ridge that holds refitted weights back, in mean squares of the inputs; `inf`: not refitted."""

_SWEEPS = 2
_BLOCK = 48
_DAMPINGS = (0.01, 0.1, 1.0)


def refitted(weights: npt.NDArray[np.floating], moments: Moments, strength: float) -> Doubles:
    """Return the weights `[G, M, K]` with the least output error, held back toward the given ones.

    Args:
        weights: the float model's weights.
        moments: of the layer, centered when its bias is free.
        strength: of the ridge, in mean squares of the inputs; `inf` gives the weights back.
    """
    old = weights.astype(np.float64)
    if not np.isfinite(strength):
        return old
    ridge = strength * _mean_square(moments.xx)
    xx = moments.xx + ridge[:, None, None] * np.eye(moments.xx.shape[1])
    gap = moments.yx - old @ moments.xx
    try:
        solved: Doubles = old + np.linalg.solve(xx, gap.transpose(0, 2, 1)).transpose(0, 2, 1)
    except np.linalg.LinAlgError:
        return old  # the inputs say nothing
    return solved


def round_with_feedback(
    target: npt.NDArray[np.floating], scales: npt.NDArray[np.floating], xx: Doubles, bounds: Bounds = (-127, 127)
) -> npt.NDArray[np.int8]:
    """Round weights to steps of `scales` so that `(Q - target) xx (Q - target)^T` is small.

    Args:
        target: `[G, M, K]`.
        scales: `[G, M]`.
        xx: second moments of the inputs, `[G, K, K]`.
        bounds: smallest and largest integer.
    """
    return _rounded(target, scales, _factored(xx), bounds)


def _factored(xx: Doubles) -> tuple[Doubles, Doubles]:
    """Return damped moments, and the upper Cholesky factor of their inverse: row k says how column k's error goes on.

    Moments around the mean are differences of large sums, which may leave them short of positive definite: they are
    damped more then. With no factor at all, errors are not passed on.
    """
    size = _mean_square(xx)[:, None, None] * np.eye(xx.shape[1])
    for strength in _DAMPINGS:
        damped = xx + strength * size
        try:
            return damped, np.linalg.cholesky(np.linalg.inv(damped)).transpose(0, 2, 1)
        except np.linalg.LinAlgError:
            continue
    alone = np.broadcast_to(np.eye(xx.shape[1]), xx.shape)
    return size * alone, alone


def _rounded(
    target: npt.NDArray[np.floating],
    scales: npt.NDArray[np.floating],
    factored: tuple[Doubles, Doubles],
    bounds: Bounds,
) -> npt.NDArray[np.int8]:
    """Round column by column; the columns behind a block get that block's errors at once."""
    damped, upper = factored
    goal = (target.astype(np.float64) / scales[:, :, None]).transpose(0, 2, 1)
    left = np.array(goal, order="C")
    values = np.zeros(left.shape)
    inputs = left.shape[1]
    for start in range(0, inputs, _BLOCK):
        stop = min(start + _BLOCK, inputs)
        gaps = np.zeros((left.shape[0], stop - start, left.shape[2]))
        for k in range(start, stop):
            values[:, k] = np.clip(np.rint(left[:, k]), *bounds)
            gaps[:, k - start] = (left[:, k] - values[:, k]) / upper[:, k, k, None]
            left[:, k + 1 : stop] -= upper[:, k, k + 1 : stop, None] * gaps[:, None, k - start]
        left[:, stop:] -= upper[:, start:stop, stop:].transpose(0, 2, 1) @ gaps
    _descend(values, goal, damped, bounds)
    return np.ascontiguousarray(values.transpose(0, 2, 1)).astype(np.int8)


def _descend(values: Doubles, goal: Doubles, xx: Doubles, bounds: Bounds) -> None:
    """Move single integers (`[G, K, M]`, in place) by whole steps while the error falls.

    What is passed on in one order of columns is rarely the best.
    """
    own = np.maximum(np.einsum("gkk->gk", xx), np.finfo(np.float64).tiny)
    inputs = values.shape[1]
    for _ in range(_SWEEPS):
        moved = False
        slope = xx @ (values - goal)
        for start in range(0, inputs, _BLOCK):
            stop = min(start + _BLOCK, inputs)
            steps = np.zeros((values.shape[0], stop - start, values.shape[2]))
            for k in range(start, stop):
                step = np.clip(values[:, k] - np.rint(slope[:, k] / own[:, k, None]), *bounds) - values[:, k]
                if step.any():
                    moved = True
                    values[:, k] += step
                    steps[:, k - start] = step
                    slope[:, k + 1 : stop] += xx[:, k, k + 1 : stop, None] * step[:, None]
            slope[:, stop:] += xx[:, stop:, start:stop] @ steps
        if not moved:
            break


def _mean_square(xx: Doubles) -> Doubles:
    """Return the mean of each group's diagonal, `[G]`; 1 for inputs that are always 0."""
    found = np.einsum("gkk->g", xx) / xx.shape[1]
    return np.where(found > 0, found, 1.0)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What the integers of a layer count, and may count.

    Attributes:
        scales: of each output, `[G, M]`.
        bounds: smallest and largest integer.
        factors: what scales are tried, as multiples of these.
        least: smallest factor of each output, `[G, M]` or one for all.
    """

    scales: npt.NDArray[np.float32]
    bounds: Bounds = (-127, 127)
    factors: tuple[float, ...] = (1.0,)
    least: npt.NDArray[np.floating] | float = 0.0

    def tried(self, rows: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.float32]]:
        """Return the scales to try, `[G, M]` each; only those of some rows differ."""
        multiples = (np.where(rows, np.maximum(factor, self.least), 1.0) for factor in self.factors)
        return [(self.scales * factor).astype(np.float32) for factor in multiples]


@dataclass(frozen=True, kw_only=True)
class Rounded:
    """What `round_layer` found.

    Attributes:
        values: integers `[G, M, K]`.
        scales: `[G, M]`.
        before: error of the nearest integers on the held-out moments, with the old bias.
        after: error of what was chosen, there.
    """

    values: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    before: float
    after: float


def round_layer(
    weights: npt.NDArray[np.floating],
    nearest: npt.NDArray[np.int8],
    steps: Steps,
    fit: Moments,
    held: Moments,
    *,
    free_bias: bool,
    strengths: tuple[float, ...] = STRENGTHS,
) -> Rounded:
    """Choose each output's integers and scale among candidates by their error on held-out moments.

    Candidates are `nearest` and, for each strength of the refit, weights rounded with feedback, on the scale that does
    best on the moments to fit on.

    Args:
        weights: float weights `[G, M, K]`.
        nearest: integers as they are, `[G, M, K]`.
        steps: what they count, and may count.
        fit: moments to fit on.
        held: moments to choose by.
        free_bias: the bias can follow, so moments are taken around the means.
        strengths: ridge strengths to try; with none of them integers stay as they are.
    """
    used, judged = (fit.centered(), held.centered()) if free_bias else (fit, held)
    best, scales, error = nearest, steps.scales, judged.error(_floats(nearest, steps.scales))
    before = float(error.sum())
    alive = np.any(weights, axis=2)  # the scale of a row of zeros belongs to its bias
    tried, factored = steps.tried(alive), _factored(used.xx)
    for strength in strengths:
        target = np.where(alive[:, :, None], refitted(weights, used, strength), 0.0)
        values, fitted = _on_best_scale(target, tried, used, factored, steps.bounds)
        found = judged.error(_floats(values, fitted))
        better = found < error
        best, scales = np.where(better[:, :, None], values, best), np.where(better, fitted, scales)
        error = np.where(better, found, error)
    return Rounded(values=best, scales=scales, before=before, after=float(error.sum()))


def _on_best_scale(
    target: Doubles,
    scales: list[npt.NDArray[np.float32]],
    moments: Moments,
    factored: tuple[Doubles, Doubles],
    bounds: Bounds,
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return integers and scale of each output with the least error among some scales."""
    best, steps = _rounded(target, scales[0], factored, bounds), scales[0]
    error = moments.error(_floats(best, steps))
    for tried in scales[1:]:
        values = _rounded(target, tried, factored, bounds)
        found = moments.error(_floats(values, tried))
        better = found < error
        best, steps = np.where(better[:, :, None], values, best), np.where(better, tried, steps)
        error = np.where(better, found, error)
    return best, steps


def _floats(values: npt.NDArray[np.int8], scales: npt.NDArray[np.float32]) -> Doubles:
    floats: Doubles = values.astype(np.float64) * scales[:, :, None]
    return floats
