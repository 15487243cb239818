"""Feeds on their way to a machine and outputs on their way back: cut into chunks, never all in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.errors import InputError, TargetError
from edgekit.npz import check_arrays
from edgekit.target import Feed

CHUNK = 32 << 20
"""Bytes of feeds that are sent, run and fetched at a time."""
CHUNK_FEEDS = 1024
"""Feeds that are sent at a time at most: outputs may be bigger than inputs."""


def plain(name: str, array: Any) -> Any:
    """Return an array that a `.npz` file can hold without pickle."""
    values = np.asarray(array)
    if values.dtype == object and all(isinstance(value, str) for value in values.flat):
        return values.astype(str)
    if values.dtype.kind not in "biufU":
        raise InputError(f"dtype {values.dtype} cannot be sent to a device", where=f"input '{name}'")
    return values


def chunks(feeds: Iterable[Feed], *, most: int = 0, feeds_at_most: int = 0) -> Iterator[list[Feed]]:
    """Yield feeds in lists that are bounded in bytes and number; one feed may exceed the bytes alone.

    Args:
        feeds: read one by one.
        most: bytes of a list; 0 is `CHUNK`.
        feeds_at_most: feeds of a list; 0 is `CHUNK_FEEDS`.
    """
    most, feeds_at_most = most or CHUNK, feeds_at_most or CHUNK_FEEDS
    chunk: list[Feed] = []
    size = 0
    for feed in feeds:
        more = sum(array.nbytes for array in feed.values())
        if chunk and (size + more > most or len(chunk) >= feeds_at_most):
            yield chunk
            chunk, size = [], 0
        chunk.append(feed)
        size += more
    if chunk:
        yield chunk


def check_outputs(path: Path, count: int, url: str) -> list[dict[str, str]]:
    """Return the keys of each feed's outputs in a file as the runner writes it: output name -> key.

    Raises:
        TargetError: it is no such file, or one of the `count` feeds has no outputs.
    """
    keys: list[dict[str, str]] = [{} for _ in range(count)]
    try:
        for key in check_arrays(path):
            index, _, name = key.partition(":")
            keys[int(index)][name] = key
    except (InputError, ValueError, IndexError) as error:
        raise TargetError(f"what came back are no outputs: {error}", where=url) from error
    if not all(keys):
        raise TargetError(f"outputs of {count} inputs should have come back, not of all did", where=url)
    return keys


def read_outputs(path: Path, keys: list[dict[str, str]]) -> Iterator[Feed]:
    """Yield the outputs in a file that `check_outputs` looked at, one dict in memory at a time."""
    with np.load(path, allow_pickle=False) as archive:
        for names in keys:
            yield {name: archive[key] for name, key in names.items()}
