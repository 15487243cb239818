"""Fitting positive constants of a model to measured times, and how far off it is on what it was not fitted to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_STEP = 1e-4
"""Step of the numerical derivative, in the logarithm of a constant."""
_TRIES, _LARGEST = 8, 0.5


def fit_constants(
    predict: Callable[[Vector], Vector],
    observed: Vector,
    start: Vector,
    *,
    upper: Vector,
    prior: float,
    outlier: float = 0.1,
    rounds: int = 40,
) -> Vector:
    """Fit constants so that the logarithms of predictions come near those of observations.

    Minimizes sum rho(log predict(c) - log observed) + prior^2 x sum (log c - log start)^2 by Levenberg-Marquardt with
    a numerical Jacobian and iterated reweighting; rho is the pseudo-Huber loss, linear beyond `outlier`. The prior
    holds constants that the observations do not determine near where they start.

    Args:
        predict: constants [n] -> predictions [m], greater than zero.
        observed: [m], greater than zero.
        start: constants [n], greater than zero.
        upper: the largest value of each; infinity for none.
        prior: how strongly a constant is held, per unit of its logarithm.
        outlier: relative error beyond which a point pulls no stronger.
        rounds: at most so many steps.

    Returns:
        The constants [n].
    """
    target, origin, limit = np.log(observed), np.log(start), np.log(upper)
    here = np.minimum(origin, limit)

    def residual(at: Vector) -> Vector:
        found: Vector = np.log(predict(np.exp(at))) - target
        return found

    def loss(found: Vector, at: Vector) -> float:
        rho = outlier**2 * (np.sqrt(1 + (found / outlier) ** 2) - 1)
        return float(rho.sum() + 0.5 * prior**2 * ((at - origin) ** 2).sum())

    found, damping = residual(here), 1e-2
    best = loss(found, here)
    for _ in range(rounds):
        jacobian = np.stack([(residual(here + _STEP * unit) - found) / _STEP for unit in np.eye(len(here))], axis=1)
        weights = 1 / np.sqrt(1 + (found / outlier) ** 2)
        curvature = jacobian.T @ (weights[:, None] * jacobian) + prior**2 * np.eye(len(here))
        slope = jacobian.T @ (weights * found) + prior**2 * (here - origin)
        step = None
        for _ in range(_TRIES):
            move = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -slope)
            there = np.minimum(here + np.clip(move, -_LARGEST, _LARGEST), limit)
            now = residual(there)
            if loss(now, there) < best:
                step = there
                break
            damping *= 4
        if step is None:
            break
        gained = best - loss(now, step)
        here, found, best, damping = step, now, best - gained, max(damping / 4, 1e-9)
        if gained < 1e-9 * max(best, 1e-9):
            break
    fitted: Vector = np.exp(here)
    return fitted


def leave_out(groups: Sequence[Hashable], run: Callable[[npt.NDArray[np.bool_]], Vector]) -> Vector:
    """Predict every point by a fit that saw nothing of its group.

    Args:
        groups: of each point [m].
        run: mask of the points to fit on [m] -> predictions of all points [m].
    """
    made = np.zeros(len(groups))
    for group in dict.fromkeys(groups):
        inside = np.array([other == group for other in groups])
        made[inside] = run(~inside)[inside]
    return made


def spread_factor(ratios: Vector, groups: Sequence[Hashable], level: float = 0.9) -> float:
    """Return the factor within which a share `level` of predictions of models like these will be off.

    The quantile of |log ratio| over points, each group weighing the same, at `level` x (1 + 1 / points): the
    correction of conformal prediction (Vovk et al. 2005) for few points.

    Args:
        ratios: prediction over observation, of points that the fit had not seen.
        groups: the model of each point.
        level: the share.
    """
    sizes = {group: sum(other == group for other in groups) for group in dict.fromkeys(groups)}
    weights = np.array([1 / sizes[group] for group in groups])
    off = np.abs(np.log(ratios))
    order = np.argsort(off)
    reached = np.cumsum(weights[order]) / weights.sum()
    wanted = min(1.0, level * (1 + 1 / len(off)))
    at = min(int(np.searchsorted(reached, wanted - 1e-12)), len(off) - 1)
    return float(np.exp(off[order][at]))
