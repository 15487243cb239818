"""Samples for training: written once as arrays that a child process maps into memory, then drawn in seeded batches.

Samples of equal shapes lie together in a bucket: `<bucket>.<input>.npy`, `<bucket>.labels.npy`, and `feeds.json` last.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit import events
from edgekit.data import Samples
from edgekit.errors import InputError, TargetError, UnsupportedError
from edgekit.networks.padding import Bucket, joined

Array = npt.NDArray[Any]

LEAST = 32
"""Training samples below which nothing is trained: a tenth of them could not even tell when to stop."""

_INDEX = "feeds.json"
_HELD = 10
_ENOUGH = 256  # held-out samples that tell one epoch from another; more are better trained on
_CHUNK = 256


def write_feeds(samples: Samples, folder: Path, listen: events.Listener, *, label: str = "read") -> Path:
    """Write a split as arrays into `folder`, unless they are there already; return `folder`.

    Args:
        samples: the split; one pass over it.
        folder: named after what the data is; made whole or not at all.
        listen: gets progress.
        label: what progress is called.

    Raises:
        InputError: there are fewer than `LEAST` samples.
        UnsupportedError: labels of unequal shapes.
        TargetError: the disk has no room for them.
    """
    if len(samples) < LEAST:
        raise InputError(
            f"{len(samples)} training samples are too few to train with: {LEAST} or more are needed",
            where="data: training split",
            remedy="Give more data, or a folder or file 'training' beside the calibration and evaluation data.",
        )
    if (folder / _INDEX).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name[:40]}-"))
    try:
        _write(samples, made, listen, label)
        shutil.rmtree(folder, ignore_errors=True)  # a killed process may have left a part
        made.rename(folder)
    except OSError as error:
        if (folder / _INDEX).is_file():  # another process was faster
            return folder
        remedy = "Free space, or set EDGEKIT_HOME to a folder with more."
        raise TargetError(f"training data cannot be written: {error}", where=str(folder), remedy=remedy) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _write(samples: Samples, folder: Path, listen: events.Listener, label: str) -> None:
    labels = samples.labels
    if labels is not None and labels.dtype.kind not in "biuf":
        remedy = "Give targets of one shape, or train without labels: the original's outputs are the targets then."
        raise UnsupportedError("labels of unequal shapes cannot be trained on", where="data", remedy=remedy)
    buckets: dict[tuple[Any, ...], _Growing] = {}
    for index in range(len(samples)):
        if index % _CHUNK == 0:
            listen(events.Progress(label=label, done=index, total=len(samples)))
        feed = samples.sample(index)
        key = tuple((name, array.dtype.str, array.shape) for name, array in feed.items())
        bucket = buckets.setdefault(key, _Growing(folder, len(buckets)))
        bucket.add(index, feed)
    rows = []
    for bucket in buckets.values():
        bucket.flush()
        if labels is not None:
            np.save(folder / f"{bucket.number}.labels.npy", labels[bucket.indices])
        rows.append({"inputs": bucket.described(), "indices": bucket.indices})
    found = {"buckets": rows, "labels": labels is not None}
    (folder / _INDEX).write_text(json.dumps(found))


class _Growing:
    """Samples of one signature on their way to disk: raw arrays that grow by whole samples."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number, self.indices = number, list[int]()
        self._folder, self._held = folder, list[dict[str, Array]]()
        self._inputs: list[tuple[str, str, tuple[int, ...]]] = []

    def add(self, index: int, feed: dict[str, Array]) -> None:
        if not self._inputs:
            self._inputs = [(name, array.dtype.str, array.shape) for name, array in feed.items()]
        self.indices.append(index)
        self._held.append(feed)
        if len(self._held) >= _CHUNK:
            self.flush()

    def flush(self) -> None:
        for place, (name, _, _) in enumerate(self._inputs if self._held else ()):
            with (self._folder / f"{self.number}.{place}.raw").open("ab") as file:
                file.write(np.stack([feed[name] for feed in self._held]).tobytes())
        self._held = []

    def described(self) -> list[dict[str, Any]]:
        return [{"name": name, "dtype": dtype, "shape": list(shape)} for name, dtype, shape in self._inputs]


@dataclass(frozen=True)
class Batch:
    """Some samples: input name -> array with its batch axis, labels or None, and which samples they are."""

    feed: dict[str, Array]
    labels: Array | None
    indices: tuple[int, ...]


class Feeds:
    """What `write_feeds` wrote, and how it is cut: a tenth (at most 256), chosen by the seed, tells when to stop."""

    def __init__(self, folder: Path, *, seed: int, batch: int, turn: int = 0) -> None:
        """Map the arrays of `folder`; `turn` tells trainings of one network apart: each has orders of its own."""
        index = json.loads((folder / _INDEX).read_bytes())
        self._batch = batch
        buckets = [
            Bucket(
                {
                    entry["name"]: np.memmap(
                        folder / f"{number}.{place}.raw",
                        np.dtype(entry["dtype"]),
                        "r",
                        shape=(len(bucket["indices"]), *entry["shape"]),
                    )
                    for place, entry in enumerate(bucket["inputs"])
                },
                np.load(folder / f"{number}.labels.npy", mmap_mode="r") if index["labels"] else None,
                bucket["indices"],
            )
            for number, bucket in enumerate(index["buckets"])
        ]
        self._buckets = joined(buckets)
        self._places = {
            sample: (number, row)
            for number, bucket in enumerate(self._buckets)
            for row, sample in enumerate(bucket.indices)
        }
        order = np.random.default_rng(seed).permutation(len(self._places))
        held = max(1, min(len(order) // _HELD, _ENOUGH))
        self.held, self.trained = sorted(map(int, order[:held])), sorted(map(int, order[held:]))
        self.seed, self.turn = seed, turn

    def __len__(self) -> int:
        return len(self._places)

    @property
    def counts(self) -> list[int]:
        """The number of samples in every bucket."""
        return [len(bucket.indices) for bucket in self._buckets]

    def labels(self) -> Iterator[Array]:
        """Yield the labels of all samples, bucket by bucket."""
        for bucket in self._buckets:
            if bucket.labels is not None:
                yield np.asarray(bucket.labels)

    def place(self, sample: int) -> tuple[int, int]:
        """Return the bucket of a sample, and its row there."""
        return self._places[sample]

    def epoch(self, number: int) -> list[list[int]]:
        """Return the samples of every batch of an epoch: another order each epoch and turn, the same for one seed."""
        rng = np.random.default_rng([self.seed, self.turn, number])
        batches = self._cut([self.trained[place] for place in rng.permutation(len(self.trained))])
        return [batches[place] for place in rng.permutation(len(batches))]

    def held_out(self) -> list[list[int]]:
        """Return the batches of the samples that are not trained on."""
        return self._cut(self.held)

    def seen(self) -> list[list[int]]:
        """Return the batches of as many samples that are trained on, spread over all."""
        count = len(self.held)
        return self._cut([self.trained[place * len(self.trained) // count] for place in range(count)])

    def everything(self) -> list[list[int]]:
        """Return batches of all samples, in order."""
        return self._cut(sorted(self._places))

    def steps(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._cut(self.trained))

    def load(self, samples: list[int]) -> Batch:
        """Read the samples of one batch."""
        bucket = self._buckets[self._places[samples[0]][0]]
        rows = [self._places[sample][1] for sample in samples]
        feed = {name: _joined(array[rows]) for name, array in bucket.arrays.items()}
        labels = None if bucket.labels is None else np.asarray(bucket.labels[rows])
        count = len(next(iter(feed.values())))
        if (
            labels is not None
            and len(labels) != count
            and labels.ndim > 1
            and labels.shape[0] * labels.shape[1] == count
        ):
            labels = labels.reshape(count, *labels.shape[2:])  # several rows a sample
        return Batch(feed=feed, labels=labels, indices=tuple(samples))

    def _cut(self, samples: list[int]) -> list[list[int]]:
        """Cut samples into batches of one bucket each; a last one of a single sample joins the one before it."""
        groups: dict[int, list[int]] = {}
        for sample in samples:
            groups.setdefault(self._places[sample][0], []).append(sample)
        batches: list[list[int]] = []
        for group in groups.values():
            cut = [group[start : start + self._batch] for start in range(0, len(group), self._batch)]
            if len(cut) > 1 and len(cut[-1]) == 1 and self._batch > 1:
                cut[-2:] = [cut[-2] + cut[-1]]
            batches += cut
        return batches


def _joined(array: Array) -> Array:
    """Return samples [n, rows, ...] as [n * rows, ...]."""
    return np.ascontiguousarray(array.reshape(array.shape[0] * array.shape[1], *array.shape[2:]))
