"""What the store holds, and how it is made smaller."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgekit.store import GONE, Store, remove


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What the store holds: number of artifacts and cache records, and bytes on disk."""

    artifacts: int
    records: int
    bytes: int


def count(store: Store) -> Stats:
    """Count what the store holds."""
    records = sum(1 for _ in (store.root / "records").glob("*/*.json"))
    total = sum(path.lstat().st_size for path in store.root.rglob("*") if path.is_file())
    return Stats(artifacts=sum(1 for _ in _manifests(store)), records=records, bytes=total)


def prune(store: Store, *, max_bytes: int | None = None, max_age: float | None = None) -> tuple[int, int]:
    """Remove the artifacts used longest ago until `max_bytes` remain, and what was unused for `max_age` seconds.

    Checkpoints of work that never ended, and what stages share, go by their age too, or all of it with `max_bytes` 0.

    Returns:
        The number of artifacts removed and the bytes freed.
    """
    rows = [(manifest.stat().st_mtime, _bytes(manifest.parent), manifest.parent) for manifest in _manifests(store)]
    rows.sort(key=lambda row: row[0])
    total, removed, freed = sum(size for _, size, _ in rows), 0, 0
    now = time.time()
    for used, size, home in rows:
        too_old = max_age is not None and now - used > max_age
        too_much = max_bytes is not None and total > max_bytes
        if not (too_old or too_much):
            continue
        gone = home.with_name(GONE + home.name)
        home.rename(gone)
        remove(gone)
        total, removed, freed = total - size, removed + 1, freed + size
    for folder in [*(store.root / "scratch").iterdir(), *store.shared.iterdir()]:
        if max_bytes == 0 or (max_age is not None and now - folder.stat().st_mtime > max_age):
            freed += _bytes(folder)
            remove(folder)
    store.forget_dangling()
    return removed, freed


def _manifests(store: Store) -> Iterator[Path]:
    yield from (store.root / "artifacts").glob("[0-9a-f][0-9a-f]/*/manifest.json")


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
