"""Splits and data sets as everybody else sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgekit.events import Finding

Feed = dict[str, npt.NDArray[np.generic]]
"""Input name -> array, batch axis included."""


class Samples(Protocol):
    """One split, decoded as it is read: no more than a batch is ever held.

    Attributes:
        ids: a name per sample that a user can find again (`folder/cat/3.png`, `test.npz[17]`).
        labels: one label per sample along the first axis, or None. Usually int64 class indices in the order of the
            model's outputs or float64 values, of shape [n]; [n, rows] where the model's batch axis is fixed to more
            than one row; any numeric shape [n, ...] for dense targets (-100: no label there); dtype object for targets
            of unequal shape.
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
        files: files that the preprocessing names (`tokenizer.json`), by that name: the package carries them.
    """

    id: str
    calibration: Samples
    training: Samples
    evaluation: Samples
    preprocessing: dict[str, Any]
    labels: tuple[str, ...]
    findings: tuple[Finding, ...]
    files: Mapping[str, Path] = field(default_factory=dict)


class Subset:
    """Some samples of another split, in the given order: nothing is copied or decoded.

    Args:
        samples: the split that is cut; a `joinable` attribute of False says that its samples never join.
        indices: positions in `samples`.
    """

    def __init__(self, samples: Samples, indices: Sequence[int]) -> None:
        self._samples = samples
        self._indices = [int(index) for index in indices]
        self.ids: Sequence[str] = [samples.ids[index] for index in self._indices]
        self.labels: npt.NDArray[np.generic] | None = (
            None if samples.labels is None else samples.labels[np.array(self._indices, np.intp)]
        )
        self.joinable = bool(getattr(samples, "joinable", True))

    def __len__(self) -> int:
        return len(self._indices)

    def sample(self, index: int) -> Feed:
        """Return one sample as the model is fed."""
        return self._samples.sample(self._indices[index])

    def batches(self, size: int) -> Iterator[Feed]:
        """Yield consecutive samples joined along the batch axis; see `Samples`."""
        return join(self, size, joinable=self.joinable)


class Grouped:
    """`rows` consecutive samples of one row each as one sample: for a model whose batch axis is fixed to `rows`.

    What is left over at the end does not fill a batch and is not there; labels get the shape [n, rows, ...].
    """

    joinable = False

    def __init__(self, samples: Samples, rows: int) -> None:
        self._samples, self._rows = samples, rows
        count = len(samples) // rows
        self.ids: Sequence[str] = [
            f"{samples.ids[start]} .. {samples.ids[start + rows - 1]}" for start in range(0, count * rows, rows)
        ]
        labels = samples.labels
        self.labels: npt.NDArray[np.generic] | None = (
            None if labels is None else labels[: count * rows].reshape(count, rows, *labels.shape[1:])
        )

    def __len__(self) -> int:
        return len(self.ids)

    def sample(self, index: int) -> Feed:
        """Return `rows` samples as one feed."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        feeds = [self._samples.sample(index * self._rows + row) for row in range(self._rows)]
        return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}

    def batches(self, size: int) -> Iterator[Feed]:
        """Yield every sample alone: the batch axis is fixed."""
        return join(self, size, joinable=False)


def join(samples: Samples, size: int, *, joinable: bool) -> Iterator[Feed]:
    """Yield the samples in order, consecutive ones of one row and equal shapes joined, at most `size` each."""
    if size < 1:
        raise ValueError(f"a batch has at least one sample, not {size}")
    held: list[Feed] = []
    for index in range(len(samples)):
        feed = samples.sample(index)
        if held and not (joinable and len(held) < size and _signature(feed) == _signature(held[0])):
            yield _concatenate(held)
            held = []
        held.append(feed)
        if not joinable or not _one_row(feed):
            yield _concatenate(held)
            held = []
    if held:
        yield _concatenate(held)


def take(samples: Samples, n: int, *, seed: int = 0) -> Samples:
    """Return at most `n` samples, in their order: chosen by a hash of seed, position and id, the same every time.

    Spread over the split whatever its order (by class, by time), so that a cut split still looks like the whole one.
    """
    if n >= len(samples):
        return samples
    return Subset(samples, chosen(samples.ids, n, seed=seed))


def chosen(ids: Sequence[str], n: int, *, seed: int) -> list[int]:
    """Return `n` positions of `ids` in ascending order, chosen by a hash of seed, position and id."""
    ranks = sorted(
        range(len(ids)), key=lambda index: hashlib.sha256(f"{seed}\0{index}\0{ids[index]}".encode()).digest()
    )
    return sorted(ranks[:n])


def _signature(feed: Feed) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, array.shape) for name, array in feed.items()]


def _one_row(feed: Feed) -> bool:
    return all(array.ndim > 0 and array.shape[0] == 1 for array in feed.values())


def _concatenate(feeds: list[Feed]) -> Feed:
    if len(feeds) == 1:
        return feeds[0]
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
