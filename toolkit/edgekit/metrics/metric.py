"""The Metric: a name, a direction, a range, and numbers per sample wherever that is possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError

Array = npt.NDArray[np.generic]
Values = npt.NDArray[np.float64]
Classes = npt.NDArray[np.int64]

_ROUNDING = 1e-9

Outputs = Mapping[str, Array | Sequence[Array]]
"""Output name -> a stacked array [n, ...], or a list of n arrays if they differ: `column[i]` is sample i."""

Labels = Array | None
"""One label per sample: class indices, values or strings, [n] or [n, ...]; None when there are none."""

Rows = npt.NDArray[np.float64]
"""Per-sample numbers, float64 [n, k]: what a metric keeps of each sample's outputs."""

PerSample = Callable[[Outputs, Labels, Outputs], Rows]
Whole = Callable[[Outputs, Labels], "float | tuple[float, Values]"]


OWN_METRIC = "Write the metric that fits as a function and pass --metric python:module:function."


def parts(column: Array | Sequence[Array]) -> list[Array]:
    """Return stacked samples as they are, in one array; ragged ones each with a batch axis of 1."""
    return [column] if isinstance(column, np.ndarray) else [np.asarray(sample)[None] for sample in column]


def mean(rows: Rows) -> float:
    """Return the mean of the first column; NaN when there is no sample."""
    return float(rows[:, 0].mean()) if len(rows) else math.nan


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One way to judge outputs. Exactly one of `per_sample` and `whole` is there.

    Attributes:
        name: as users write it, e.g. `accuracy`, or the user's `python:module:function`.
        higher_is_better: the direction, part of the metric: a drop is always a loss.
        bounded: values lie in [0, 1] (and per-sample numbers too, where `total` is their mean), so that a
            drop is counted in absolute points; otherwise it is relative to the original.
        needs_labels: there is nothing to compute without labels.
        per_sample: (outputs, labels, the original's outputs) of some samples -> Rows of these samples; may be
            called batch after batch.
        total: Rows of all samples -> the metric.
        whole: (outputs, labels) of all samples -> the metric, or the metric and one score per sample whose
            mean it is.
    """

    name: str
    higher_is_better: bool
    bounded: bool
    needs_labels: bool = True
    per_sample: PerSample | None = None
    total: Callable[[Rows], float] = mean
    whole: Whole | None = None

    @property
    def is_mean(self) -> bool:
        """Whether the metric is the plain mean of one number per sample."""
        return self.total is mean

    def drops(self, original: Values, candidate: Values) -> Values:
        """Return what the candidate loses against the original, elementwise.

        NaN where nothing can be measured: a value that is not finite; an original at 0 where 0 is worthless
        (higher is better) or where a relative loss has no base (not bounded).
        """
        original, candidate = np.asarray(original, np.float64), np.asarray(candidate, np.float64)
        known = np.isfinite(original) & np.isfinite(candidate)
        original, candidate = np.where(known, original, 0), np.where(known, candidate, 0)
        loss = original - candidate if self.higher_is_better else candidate - original
        if not self.bounded:
            base = np.abs(original)
            loss = np.divide(loss, base, out=np.full(loss.shape, np.nan), where=base > 0)
        elif self.higher_is_better:
            loss = np.where(original == 0, np.nan, loss)
        return np.where(known, loss, np.nan)

    def drop(self, original: float, candidate: float) -> float:
        """Return the drop between two values of the metric; see `drops`."""
        return float(self.drops(np.array([original]), np.array([candidate]))[0])

    def why_no_drop(self, original: float, candidate: float) -> str:
        """Say why there is no drop between two values; empty when there is one."""
        for whose, value in (("original", original), ("candidate", candidate)):
            if not math.isfinite(value):
                return f"{self.name} of the {whose} is {value}"
        if math.isnan(self.drop(original, candidate)):
            return f"{self.name} of the original is 0: nothing was measured"
        return ""


def checked_value(metric: Metric, value: float) -> float:
    """Return a metric's value; InputError when it is outside the range that the metric declares."""
    if metric.bounded and math.isfinite(value) and abs(value - 0.5) > 0.5 + _ROUNDING:
        raise InputError(
            f"the metric is declared to lie in [0, 1] and gives {value:.6g}",
            where=metric.name,
            remedy="Set `bounded = False` on the function, or return a share instead of a percentage.",
        )
    return value
