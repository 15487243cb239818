"""Artifacts: what flows between stages. Frozen, content-addressed, with the steps that made them."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

MAIN = "model.onnx"
"""Name of the main graph of an artifact of kind `onnx`; its external data is `model.onnx.data`."""

_CHUNK = 1 << 20


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A named, typed input or output.

    Attributes:
        name: the tensor's name in the graph.
        dtype: a numpy dtype name (`float32`, `int64`, `bfloat16`, ...) or `string`.
        shape: one entry per axis: an int when fixed, a str (the axis name) when dynamic.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One stage that ran: enough to say how an artifact came to be, and nothing that changes from run to run.

    Attributes:
        stage: the stage's name.
        revision: the stage's revision.
        options: its options as JSON values.
        inputs: ids of everything it read: the artifact, the data, the teacher.
        libraries: versions of the libraries that it uses.
        facts: what the stage reported.
    """

    stage: str
    revision: int
    options: dict[str, Any]
    inputs: dict[str, str]
    libraries: dict[str, str]
    facts: dict[str, Any]


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A model (or data set, or compiled engine) as named files, facts and lineage.

    Attributes:
        kind: `onnx`, `torch`, `source`, `engine`, ...
        files: file name (relative, forward slashes) -> sha256 of its bytes, in hex.
        facts: what is known about it, as JSON values. Common keys: `graphs` (file name -> {"inputs", "outputs"},
            lists of TensorSpec as dicts), `task`, `labels`, `preprocessing`, `license`, `coverage`, `findings`.
        lineage: the steps that made it, first to last.
    """

    kind: str
    files: dict[str, str]
    facts: dict[str, Any]
    lineage: tuple[Step, ...] = ()

    @property
    def id(self) -> str:
        """Hex sha256 over kind, files, facts and lineage."""
        return digest({"kind": self.kind, "files": self.files, "facts": self.facts, "lineage": self.lineage})

    def specs(self, side: str, graph: str = MAIN) -> tuple[TensorSpec, ...]:
        """Return the inputs (`side="inputs"`) or outputs of one of the artifact's graphs."""
        return msgspec.convert(self.facts["graphs"][graph][side], tuple[TensorSpec, ...])


def canonical_json(value: Any) -> bytes:
    """Encode a JSON value (or Struct) so that equal values give equal bytes: sorted keys, no spaces, UTF-8."""
    return msgspec.json.encode(value, order="sorted")


def digest(value: Any) -> str:
    """Hex sha256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes; memoized in this process by (device, inode, size, mtime_ns)."""
    stat = path.stat()
    return _sha256(os.fspath(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _sha256(path: str, *_identity: int) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
