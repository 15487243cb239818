"""Take a user's model into the store as Artifact#0: read safely once, found again by the bytes of its files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgekit import events
from edgekit.artifact import Artifact, Step, digest, sha256_file
from edgekit.errors import InputError
from edgekit.store import Store

REVISION = 1
"""Raise it when the same files give another Artifact#0."""

Reader = Callable[[Path], dict[str, Any]]


def ingest(
    model: str, store: Store, *, weights: Path | None = None, listen: events.Listener = events.ignore
) -> Artifact:
    """Return Artifact#0 of a model: kind `onnx` for ONNX files, `torch` for everything that torch must load.

    Args:
        model: a `.onnx` or `.pt2` file, a Hugging Face directory or hub id, `python:module:factory`,
            or an edgekit package (its model is taken).
        store: where it goes.
        weights: a safetensors file for a `python:` factory.
        listen: where progress goes.

    Raises:
        InputError, UnsupportedError, TargetError: as the reader of that kind says.
    """
    key = _key(model, weights)
    if key and (known := _known(store, key)):
        return known
    with store.staging() as out:
        read = _reader(model, weights, listen)
        facts = read(out)
        kind = str(facts.pop("kind", "onnx"))
        files = {str(path): _hash(path) for path in map(Path, facts.pop("read", []))}
        step = Step(stage="ingest", revision=REVISION, options={}, inputs={}, libraries={}, facts={})
        made = store.publish(out, kind, facts, (step,))
    if key:
        store.remember(key, {"artifact": made.id, "files": files})
    return made


def _reader(model: str, weights: Path | None, listen: events.Listener) -> Reader:
    path = Path(model)
    if model.endswith((".edgekit", ".onnx")):
        if not path.exists():
            raise InputError("no such file", where=model, remedy="Check the path of the model.")
        return _read_package(path) if model.endswith(".edgekit") else _read_onnx(path)
    from edgekit.networks.intake import intake_torch

    return lambda out: {"kind": "torch", **intake_torch(model, out, weights=weights, listen=listen)}


def _read_onnx(path: Path) -> Reader:
    def read(out: Path) -> dict[str, Any]:
        from edgekit.graphs.files import read_onnx

        return read_onnx(path, out)

    return read


def _read_package(path: Path) -> Reader:
    """Take the model out of a package: its hashes are checked first."""

    def read(out: Path) -> dict[str, Any]:
        from edgekit.graphs.files import read_onnx
        from edgekit.package import extract_package

        with tempfile.TemporaryDirectory() as folder:
            package = extract_package(path, Path(folder) / "package")
            facts = read_onnx(package.model, out)
        facts.pop("read", None)
        return {**package.carried_facts(), **facts}

    return read


def _key(model: str, weights: Path | None) -> str | None:
    """Return the cache key of a model: over the files that it names; what they refer to is checked by `_known`."""
    found: dict[str, Any] = {"revision": REVISION, "model": model if model.startswith("python:") else ""}
    path = Path(model)
    if path.is_dir():
        found["files"] = {p.relative_to(path).as_posix(): _hash(p) for p in sorted(path.rglob("*")) if p.is_file()}
        found["name"] = path.name
    elif path.is_file():
        found["files"] = {path.name: sha256_file(path)}
        found["folder"] = str(path.resolve().parent)
    elif not model.startswith("python:"):
        return None  # a hub id: the hub decides what it is today
    else:
        found["folder"] = str(Path.cwd())
    if weights is not None:
        if not weights.is_file():
            raise InputError("no such file", where=str(weights), remedy="Check --weights.")
        found["weights"] = sha256_file(weights)
    return digest(found)


def _known(store: Store, key: str) -> Artifact | None:
    record = store.record(key)
    if record is None:
        return None
    if any(_hash(Path(name)) != sha for name, sha in record.get("files", {}).items()):
        return None
    return store.load(str(record["artifact"]))


def _hash(path: Path) -> str:
    return sha256_file(path) if path.is_file() else ""
