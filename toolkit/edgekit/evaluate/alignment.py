"""Two streams of outputs, cut so that items hold the same samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgekit.data import Feed
from edgekit.errors import InputError

UNBATCHED = "Outputs without a batch axis need batched=False: one sample per item."
"""The remedy wherever samples do not add up."""


def aligned(reference: Iterable[Feed], candidate: Iterable[Feed], *, batched: bool) -> Iterator[tuple[Feed, Feed]]:
    """Yield items of both that hold the same samples, cutting batches where those of one side are longer."""
    sides = iter(reference), iter(candidate)
    items: list[Feed | None] = [None, None]
    done = 0
    while True:
        items = [next(side, None) if item is None else item for side, item in zip(sides, items, strict=True)]
        original, found = items
        if original is None or found is None:
            if original is not found:
                short, long = ("original", "candidate") if original is None else ("candidate", "original")
                raise InputError(f"the {short} gave outputs for {done} samples, the {long} for more", remedy=UNBATCHED)
            return
        sizes = [size_of(item, batched=batched) for item in (original, found)]
        size = min(sizes)
        if sizes[0] == sizes[1]:
            yield original, found
            items = [None, None]
        else:
            yield _cut(original, slice(size)), _cut(found, slice(size))
            items = [
                None if length == size else _cut(item, slice(size, None))
                for item, length in zip((original, found), sizes, strict=True)
            ]
        done += size


def _cut(item: Feed, part: slice) -> Feed:
    return {name: array[part] for name, array in item.items()}


def size_of(item: Feed, *, batched: bool) -> int:
    """Number of samples in an item."""
    if not batched:
        return 1
    lengths = {name: array.shape[0] if array.ndim else None for name, array in item.items()}
    first: int | None = next(iter(lengths.values()), None)
    if first is None or any(length != first for length in lengths.values()):
        shapes = ", ".join(f"{name} {[*array.shape]}" for name, array in item.items()) or "none"
        raise InputError(f"the outputs do not share a batch axis: {shapes}", remedy=UNBATCHED)
    return first
