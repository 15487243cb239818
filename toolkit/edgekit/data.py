"""Calibration, training and evaluation data: content-hashed, streamed, splits disjoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgekit.events import Finding

Feed = dict[str, npt.NDArray[np.generic]]


class Samples(Protocol):
    """One split, decoded as it is read: no more than a batch is ever held.

    Attributes:
        ids: a name per sample that a user can find again (`folder/cat/3.png`, `test.npz[17]`).
        labels: one label per sample (int64 class index, float64 value or str), or None.
    """

    ids: Sequence[str]
    labels: npt.NDArray[np.generic] | None

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def sample(self, index: int) -> Feed:
        """Return one sample as the model is fed: every array with its batch axis, of the model's dtype."""
        ...

    def batches(self, size: int) -> Iterator[Feed]:
        """Yield consecutive samples joined along the batch axis, at most `size` each; ragged samples come alone."""
        ...


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set and its splits.

    Attributes:
        id: hex sha256 over the content of all samples, the splits and the preprocessing.
        calibration: for ranges and for choosing among candidates.
        training: for stages that train.
        evaluation: for the verdict only; no sample has the content of one in another split.
        preprocessing: what turns a raw input into a feed, as JSON values; recorded in the package.
        labels: class names in the order of the model's outputs; empty when unknown.
        findings: what was skipped, cast or too few.
    """

    id: str
    calibration: Samples
    training: Samples
    evaluation: Samples
    preprocessing: dict[str, Any]
    labels: tuple[str, ...]
    findings: tuple[Finding, ...]
