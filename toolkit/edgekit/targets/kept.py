"""Outputs of an evaluation's finished chunks, kept at home until it has ended: a kill loses only the unfinished ones.

A chunk's outputs lie in one file, `CHUNK.ENGINE.CONTENT.npz`, under a folder per model, machine and runner:

    scratch/outputs-<digest of all that outputs depend on, the data aside>/<chunk>.<engine>.<sha256 of the file>.npz

The folder goes when the evaluation has ended, so that nothing that was measured once stands for a later measurement;
what nobody came back to goes after `MAX_AGE`, or with `edgekit cache prune`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekit.artifact import digest
from edgekit.atomic import sync_folder
from edgekit.events import Finding

MAX_BYTES = 2 << 30
"""Bytes of outputs that are kept, of all evaluations together."""
MAX_AGE = 14 * 24 * 3600
"""Seconds after which outputs that nobody came back to are removed."""
REVISION = 1

_PREFIX = "outputs-"
_NEW = ".new-"
_SHORT = 24


class Kept:
    """The finished chunks of one evaluation on one machine.

    Keeping is never what an evaluation fails of: a folder that cannot be written, or is full, is told as a finding.

    Attributes:
        found: how many chunks were taken from an earlier run.
    """

    def __init__(self, root: Path | None, key: Mapping[str, Any]) -> None:
        """Look at what there is.

        Args:
            root: the folder that holds evaluations; None: nothing is kept.
            key: everything but the data and the engine that outputs depend on.
        """
        self.found = 0
        self._why = ""
        self._root = root
        self._folder = None if root is None else root / f"{_PREFIX}{digest([REVISION, dict(key)])[:_SHORT]}"
        if root is not None and root.is_dir():
            _sweep(root, self._folder)

    def __bool__(self) -> bool:
        """Whether an earlier run left anything."""
        return self._folder is not None and self._folder.is_dir() and any(self._folder.glob("*.npz"))

    def find(self, chunk: str, engine: str) -> Path | None:
        """Return the whole outputs of a chunk, as an engine gave them; None when they are not here.

        Args:
            chunk: its number and the digest of its feeds.
            engine: what ran it, see `engine_key`.
        """
        if self._folder is None:
            return None
        for path in self._folder.glob(f"{chunk}.{engine}.*.npz"):
            if _sha256(path) == path.name.split(".")[2]:
                self.found += 1
                return path
            path.unlink(missing_ok=True)  # a disk lost part of it
        return None

    def keep(self, chunk: str, engine: str, outputs: Path) -> None:
        """Keep a chunk's outputs: in whole, or not at all."""
        if self._folder is None or self._why:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._make_room(outputs.stat().st_size):
                self._why = f"they take more than {MAX_BYTES >> 20} MiB"
                return
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=_NEW)
            try:
                with os.fdopen(handle, "wb") as target, open(outputs, "rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)
                    target.flush()
                    os.fsync(target.fileno())
                Path(name).replace(self._folder / f"{chunk}.{engine}.{_sha256(Path(name))}.npz")
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            sync_folder(self._folder)
        except OSError as error:  # the disk is full, or another process has ended the same evaluation
            self._why = error.strerror or str(error)

    def forget(self) -> None:
        """Remove what was kept: the evaluation has ended."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def findings(self, chunks: int, where: str) -> list[Finding]:
        """Say what was taken from an earlier run, of so many chunks, and what could not be kept for a later one."""
        told = []
        if self.found:
            text = f"outputs of {self.found} of {chunks} chunks come from a run that was interrupted"
            told.append(Finding(severity="note", node=where, rule="target-resumed", text=text))
        if self._why:
            text = f"not all outputs could be kept: {self._why}; a run that is killed begins them again"
            remedy = "Free space with: edgekit cache prune"
            told.append(Finding(severity="note", node=where, rule="target-not-kept", text=text, remedy=remedy))
        return told

    def _make_room(self, size: int) -> bool:
        """Remove the oldest evaluations until `size` bytes more may be kept; say whether they may."""
        assert self._root is not None
        sizes = {folder: _bytes(folder) for folder in self._root.glob(f"{_PREFIX}*")}
        others = sorted((folder for folder in sizes if folder != self._folder), key=_used)
        while sum(sizes.values()) + size > MAX_BYTES and others:
            shutil.rmtree(oldest := others.pop(0), ignore_errors=True)
            del sizes[oldest]
        return sum(sizes.values()) + size <= MAX_BYTES


def engine_key(result: Mapping[str, Any]) -> str:
    """Return what tells engines apart, of what the runner said of a job: what ran, and what it ran instead of."""
    return digest([result["engine"], result["fallback"]])[:16]


def _sweep(root: Path, ours: Path | None) -> None:
    """Remove evaluations that nobody came back to, and the half files that killed processes left in ours."""
    now = time.time()
    for folder in root.glob(f"{_PREFIX}*"):
        if now - _used(folder) > MAX_AGE:
            shutil.rmtree(folder, ignore_errors=True)
    for path in ours.glob(f"{_NEW}*") if ours is not None else ():
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > 3600:  # noqa: PLR2004 - an hour: another process may be writing it
                path.unlink()


def _used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
