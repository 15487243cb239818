"""Second moments of what a layer reads and of what it should give: with them the error of any weight is exact.

Layers have groups: arrays begin with `[groups, outputs of a group, inputs of a group]`, written `[G, M, K]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


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
