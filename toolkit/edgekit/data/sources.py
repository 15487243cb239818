"""Readers and pipelines put together: raw samples to feeds, checked once and held against their hashes ever after."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import msgspec

from edgekit.artifact import TensorSpec
from edgekit.data.faults import NonFiniteError, Note, UnreadableError
from edgekit.data.labels import Labels
from edgekit.data.pictures import quiet
from edgekit.data.pipeline import Pipeline, digest
from edgekit.data.records import Records
from edgekit.data.samples import Feed, join
from edgekit.errors import InputError
from edgekit.events import Listener, Progress

_CHUNK = 256
_MAX_THREADS = 8


class Source:
    """The samples of one place.

    Args:
        records: the raw samples.
        pipeline: raw sample to feed.
        images: samples are decoded by Pillow, which lets several threads work.
    """

    def __init__(self, records: Records, pipeline: Pipeline, *, images: bool) -> None:
        self.records, self.pipeline, self.images = records, pipeline, images
        self.digests: dict[int, bytes] = {}

    @property
    def joinable(self) -> bool:
        """True when every input's batch axis is dynamic."""
        return all(spec.shape and isinstance(spec.shape[0], str) for spec in self.pipeline.specs)

    def sample(self, index: int) -> Feed:
        """Return one sample as a feed; InputError when it is not what was checked."""
        where, notes = self.records.ids[index], list[Note]()
        content = self.pipeline.decode(self.records[index], where, notes)
        expected = self.digests.get(index)
        if expected is not None and expected != digest(content):
            raise InputError(
                "the sample is not what it was when the data was opened",
                where=where,
                remedy="Leave the data alone while edgekit runs; a factory must give the same each time.",
            )
        return self.pipeline.feed(content, where, notes)

    def check(self, index: int) -> Checked:
        """Decode a sample, hash its content and hold it against the model's inputs."""
        where, notes = self.records.ids[index], list[Note]()
        try:
            content = self.pipeline.decode(self.records[index], where, notes)
            self.pipeline.check(content, where, notes)
        except (UnreadableError, NonFiniteError) as error:
            return Checked(index=index, error=error)
        self.digests[index] = digest(content)
        return Checked(index=index, notes=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One sample after the scan: its notes, or why it cannot be used."""

    index: int
    notes: tuple[Note, ...] = ()
    error: UnreadableError | NonFiniteError | None = None


def scan(source: Source, indices: Sequence[int], listen: Listener) -> Iterator[Checked]:
    """Check samples in order, images on several threads; progress is told every few hundred.

    Raises:
        InputError: a sample that no scan skips: another dtype, shape or name than the model's.
    """
    threads = min(_MAX_THREADS, os.cpu_count() or 1) if source.images else 1
    with quiet() if source.images else nullcontext(), ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(indices), _CHUNK):
            part = indices[start : start + _CHUNK]
            yield from pool.map(source.check, part) if threads > 1 else map(source.check, part)
            listen(Progress(label="reading data", done=min(start + _CHUNK, len(indices)), total=len(indices)))


class Split:
    """Some samples of a source, as `Samples`.

    Args:
        source: where they are read from.
        indices: which ones, in order.
        labels: one per entry of `indices`, or None.
    """

    def __init__(self, source: Source, indices: Sequence[int], labels: Labels | None) -> None:
        self._source, self._indices = source, list(indices)
        self.ids: Sequence[str] = [source.records.ids[index] for index in self._indices]
        self.labels = labels
        self.joinable = source.joinable

    def __len__(self) -> int:
        return len(self._indices)

    def sample(self, index: int) -> Feed:
        """Return one sample as the model is fed."""
        return self._source.sample(self._indices[index])

    def batches(self, size: int) -> Iterator[Feed]:
        """Yield consecutive samples joined along the batch axis; see `Samples`."""
        return join(self, size, joinable=self.joinable)

    def content(self) -> list[bytes]:
        """Return the sha256 of each sample's decoded content."""
        return [self._source.digests[index] for index in self._indices]


def row_specs(specs: Sequence[TensorSpec], rows: int) -> tuple[TensorSpec, ...]:
    """Return the specs of single rows of a model whose batch axis is fixed to `rows`."""
    return tuple(
        msgspec.structs.replace(spec, shape=(1, *spec.shape[1:])) if rows > 1 and spec.shape[:1] == (rows,) else spec
        for spec in specs
    )
