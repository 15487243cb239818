"""Rounding weights so that a layer's output, not its weights, stays close: on second moments, in plain numpy.

A layer computes `y = W x + b`. What it should give, `y`, comes from the float model; what it is fed, `x`, from the
quantized one. Over calibration samples only second moments of both are kept, so memory does not grow with samples.
With them

- the error of any weight is exact: `|y - Q x - b|^2` summed over all samples, `b` at its best;
- weights are refitted to the inputs that they will see (ridge regression toward the old weights);
- rounding goes column by column, and each column's error is passed on to the columns that are not rounded yet, as in
  GPTQ (Frantar et al., 2022, after Optimal Brain Surgeon), then single steps are taken while they help.

Layers have groups: arrays begin with `[groups, outputs of a group, inputs of a group]`, written `[G, M, K]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_SWEEPS = 2
_BLOCK = 48
_DAMPINGS = (0.01, 0.1, 1.0)


@dataclass(kw_only=True)
class Moments:
    """Running second moments of a layer's inputs and outputs.

    Attributes:
        count: columns seen.
        xx: sum of `x x^T`, `[G, K, K]`.
        yx: sum of `y x^T`, `[G, M, K]`.
        yy: sum of `y * y`, `[G, M]`.
        x: sum of `x`, `[G, K]`.
        y: sum of `y`, `[G, M]`.
    """

    count: int
    xx: Doubles
    yx: Doubles
    yy: Doubles
    x: Doubles
    y: Doubles

    @classmethod
    def empty(cls, groups: int, outputs: int, inputs: int) -> Moments:
        """Return the moments of no samples."""
        return cls(
            count=0,
            xx=np.zeros((groups, inputs, inputs)),
            yx=np.zeros((groups, outputs, inputs)),
            yy=np.zeros((groups, outputs)),
            x=np.zeros((groups, inputs)),
            y=np.zeros((groups, outputs)),
        )

    @property
    def finite(self) -> bool:
        """Whether every sum is finite."""
        return all(bool(np.isfinite(sums).all()) for sums in (self.xx, self.yx, self.yy))

    def add(self, x: npt.NDArray[np.float32], y: npt.NDArray[np.float32]) -> None:
        """Add columns: `x` is `[G, K, n]`, `y` is `[G, M, n]`."""
        across = x.transpose(0, 2, 1)
        self.count += x.shape[2]
        self.xx += x @ across
        self.yx += y @ across
        self.yy += np.square(y, dtype=np.float64).sum(axis=2)
        self.x += x.sum(axis=2, dtype=np.float64)
        self.y += y.sum(axis=2, dtype=np.float64)

    def centered(self) -> Moments:
        """Return the moments around the means: what is left when the bias is at its best."""
        n = max(self.count, 1)
        return Moments(
            count=self.count,
            xx=self.xx - self.x[:, :, None] * self.x[:, None, :] / n,
            yx=self.yx - self.y[:, :, None] * self.x[:, None, :] / n,
            yy=self.yy - self.y * self.y / n,
            x=np.zeros_like(self.x),
            y=np.zeros_like(self.y),
        )

    def plus(self, other: Moments) -> Moments:
        """Return the moments of both."""
        return Moments(
            count=self.count + other.count,
            xx=self.xx + other.xx,
            yx=self.yx + other.yx,
            yy=self.yy + other.yy,
            x=self.x + other.x,
            y=self.y + other.y,
        )

    def error(self, weights: npt.NDArray[np.floating], bias: npt.NDArray[np.floating] | float = 0.0) -> Doubles:
        """Return the squared output error of weights `[G, M, K]` and biases `[G, M]`, summed over columns: `[G, M]`."""
        w = weights.astype(np.float64)
        b = np.broadcast_to(np.asarray(bias, np.float64), self.y.shape)
        found = ((w @ self.xx - 2 * self.yx) * w).sum(axis=2) + self.yy
        found += 2 * b * ((w * self.x[:, None, :]).sum(axis=2) - self.y) + self.count * b * b
        errors: Doubles = np.maximum(found, 0.0)
        return errors

    def best_bias(self, weights: npt.NDArray[np.floating]) -> Doubles:
        """Return the biases `[G, M]` with the least error for these weights: they make the mean outputs equal."""
        found: Doubles = (self.y - (weights.astype(np.float64) * self.x[:, None, :]).sum(axis=2)) / max(self.count, 1)
        return found


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
    target: npt.NDArray[np.floating], scales: npt.NDArray[np.floating], xx: Doubles, *, most: int = 127
) -> npt.NDArray[np.int8]:
    """Round weights to steps of `scales` so that `(Q - target) xx (Q - target)^T` is small.

    Args:
        target: `[G, M, K]`.
        scales: `[G, M]`.
        xx: second moments of the inputs, `[G, K, K]`.
        most: largest integer; the smallest is `-most`.
    """
    damped, upper = _factored(xx)
    return _rounded(target, scales, damped, upper, most)


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
    target: npt.NDArray[np.floating], scales: npt.NDArray[np.floating], damped: Doubles, upper: Doubles, most: int
) -> npt.NDArray[np.int8]:
    """Round column by column; the columns behind a block get that block's errors at once."""
    goal = (target.astype(np.float64) / scales[:, :, None]).transpose(0, 2, 1)
    left = np.array(goal, order="C")
    values = np.zeros(left.shape)
    inputs = left.shape[1]
    for start in range(0, inputs, _BLOCK):
        stop = min(start + _BLOCK, inputs)
        gaps = np.zeros((left.shape[0], stop - start, left.shape[2]))
        for k in range(start, stop):
            values[:, k] = np.clip(np.rint(left[:, k]), -most, most)
            gaps[:, k - start] = (left[:, k] - values[:, k]) / upper[:, k, k, None]
            left[:, k + 1 : stop] -= upper[:, k, k + 1 : stop, None] * gaps[:, None, k - start]
        left[:, stop:] -= upper[:, start:stop, stop:].transpose(0, 2, 1) @ gaps
    _descend(values, goal, damped, most)
    return np.ascontiguousarray(values.transpose(0, 2, 1)).astype(np.int8)


def _descend(values: Doubles, goal: Doubles, xx: Doubles, most: int) -> None:
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
                step = np.clip(values[:, k] - np.rint(slope[:, k] / own[:, k, None]), -most, most) - values[:, k]
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
class Rounded:
    """What `round_layer` found.

    Attributes:
        values: integers `[G, M, K]`.
        before: error of the nearest integers on the held-out moments, with the old bias.
        after: error of what was chosen, there.
    """

    values: npt.NDArray[np.int8]
    before: float
    after: float


def round_layer(
    weights: npt.NDArray[np.floating],
    nearest: npt.NDArray[np.int8],
    scales: npt.NDArray[np.floating],
    fit: Moments,
    held: Moments,
    *,
    free_bias: bool,
    most: int = 127,
    strengths: tuple[float, ...] = (np.inf, 0.3, 0.03),
) -> Rounded:
    """Choose each output's integers among candidates by their error on held-out moments.

    Candidates are `nearest` and, for each strength of the refit, weights rounded with feedback.

    Args:
        weights: float weights `[G, M, K]`.
        nearest: integers as they are, `[G, M, K]`.
        scales: `[G, M]`.
        fit: moments to fit on.
        held: moments to choose by.
        free_bias: the bias can follow, so moments are taken around the means.
        most: largest integer.
        strengths: ridge strengths to try.
    """
    used, judged = (fit.centered(), held.centered()) if free_bias else (fit, held)
    steps = scales[:, :, None].astype(np.float64)
    best, error = nearest, judged.error(nearest * steps)
    before = float(error.sum())
    alive = np.any(weights, axis=2, keepdims=True)  # the scale of a row of zeros belongs to its bias
    damped, upper = _factored(used.xx)
    for strength in strengths:
        target = np.where(alive, refitted(weights, used, strength), 0.0)
        tried = _rounded(target, scales, damped, upper, most)
        found = judged.error(tried * steps)
        better = found < error
        best = np.where(better[:, :, None], tried, best)
        error = np.where(better, found, error)
    return Rounded(values=best, before=before, after=float(error.sum()))
