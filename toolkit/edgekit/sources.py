"""Take what the user has into the house: a model as Artifact#0, data as a Dataset. Read safely once, then cached."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekit import events
from edgekit.artifact import Artifact, Step, digest, sha256_file
from edgekit.data import Dataset
from edgekit.data.faults import printable
from edgekit.errors import InputError, UsageError
from edgekit.store import Store
from edgekit.targets.engines import engine_error, is_engine

REVISION = 2
"""Raise it when the same files give another Artifact#0."""

_LICENCES = ("LICENSE*", "LICENCE*", "README.md")
"""Files beside a model that say under which license it is."""

HF_FOLDER = "hf"
"""Folder of an artifact that holds the files of a Hugging Face directory, its processor and tokenizer among them."""


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
        UsageError: weights for a model that has its own.
        InputError, UnsupportedError, TargetError: as the reader of that kind says.
    """
    if weights is not None and model.endswith((".edgekit", ".onnx")):
        remedy = "Give --weights with python:module:factory only."
        raise UsageError("the model has weights of its own", where=model, remedy=remedy)
    if is_engine(model):
        raise engine_error(Path(model))
    key = _key(model, weights)
    if key and (known := _known(model, store, key, weights)):
        return known
    listen(events.StageStarted(name="ingest"))
    with store.staging() as out:
        facts = _read(model, out, weights, listen)
        kind = str(facts.pop("kind", "onnx"))
        external = facts.pop("external", [])
        step = Step(stage="ingest", revision=REVISION, options={}, inputs={}, libraries={}, facts={})
        made = store.publish(out, kind, facts, (step,))
    if key:
        files = {name: _hash(Path(model).parent / name) for name in external}
        store.remember(key, {"artifact": made.id, "files": files})
    return made


def read_data(  # noqa: PLR0913 - keyword-only options, as the command line has them
    data: str | None,
    artifact: Artifact,
    *,
    source: Path,
    preprocessing: Mapping[str, Any] | None = None,
    label_map: str | None = None,
    limit: int | None = None,
    training: bool = False,
    strict: bool = False,
    seed: int = 0,
    listen: events.Listener = events.ignore,
) -> Dataset | None:
    """Open the user's data for a model; None when there is none.

    Args:
        data: as `edgekit.data.open_dataset` takes it.
        artifact: the float model: its inputs, its class names, and the preprocessing that it carries.
        source: the folder of Artifact#0, where a Hugging Face processor or tokenizer may lie.
        preprocessing: what the user declared; wins over everything.
        label_map: file with one class name per line, in the order of the outputs; wins over the model's names.
        limit: asked number of calibration samples.
        training: whether a stage trains.
        strict: one unreadable sample refuses the data.
        seed: another seed gives another split.
        listen: where progress goes.
    """
    if data is None:
        return None
    from edgekit.data import open_dataset

    carried = artifact.facts.get("preprocessing")
    declared = preprocessing if preprocessing is not None else carried if _is_record(carried) else None
    processor = source / HF_FOLDER
    return open_dataset(
        data,
        artifact.specs("inputs"),
        preprocessing=declared,
        processor=processor if processor.is_dir() else None,
        class_names=_class_names(label_map, artifact),
        limit=limit,
        training=training,
        strict=strict,
        seed=seed,
        listen=listen,
    )


def _is_record(carried: Any) -> bool:
    """Tell what a package recorded from what a Hugging Face directory says: only the first has rules by input."""
    return isinstance(carried, dict) and ("inputs" in carried or "text" in carried)


def _class_names(label_map: str | None, artifact: Artifact) -> tuple[str, ...]:
    if label_map is None:
        return tuple(artifact.facts.get("labels", ()))
    path = Path(label_map)
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=label_map, remedy="Give one class name per line.") from None
    if not names or len(set(names)) != len(names):
        raise InputError("needs class names, each once", where=label_map, remedy="Give one class name per line.")
    return names


def _read(model: str, out: Path, weights: Path | None, listen: events.Listener) -> dict[str, Any]:
    path = Path(model)
    if model.endswith((".edgekit", ".onnx")):
        if not path.exists():
            raise InputError("no such file", where=model, remedy="Check the path of the model.")
        return _read_package(path, out) if model.endswith(".edgekit") else _with_license(path, _read_onnx(path, out))
    from edgekit.networks.intake import intake_torch

    return {"kind": "torch", **intake_torch(model, out, weights=weights, listen=listen)}


def _read_onnx(path: Path, out: Path) -> dict[str, Any]:
    from edgekit.graphs.files import read_onnx

    return read_onnx(path, out)


def _with_license(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Add the license that lies beside the file; what the model's own metadata says of its name counts more."""
    from edgekit.networks.huggingface import license_of

    told = facts.get("license")
    known = license_of(path.resolve().parent) | ({"name": told} if isinstance(told, str) else {})
    return {**facts, "license": known} if known else facts


def _read_package(path: Path, out: Path) -> dict[str, Any]:
    """Take the model out of a package: every hash is checked first."""
    from edgekit.package import extract_package

    with tempfile.TemporaryDirectory() as folder:
        extracted = extract_package(path, Path(folder) / "package")
        facts = _read_onnx(extracted.model, out)
        facts.pop("external")
        return {**extracted.carried_facts(), **facts}


def _key(model: str, weights: Path | None) -> str | None:
    """Return the cache key of a model, over the files that it names; None when that cannot be known here."""
    try:
        found = _named(model, Path(model))
        used = _hash(weights) if weights else ""
    except OSError as error:
        where = str(error.filename or model)
        raise InputError(f"cannot be read: {error.strerror}", where=where, remedy="Check who may read it.") from error
    return digest({**found, "revision": REVISION, "weights": used}) if found else None


def _named(model: str, path: Path) -> dict[str, Any]:
    """Return what tells a model from others: the hashes of its files and where it lies; empty when unknown."""
    if model.startswith("python:"):
        return {"model": model, "folder": printable(str(Path.cwd()))}
    if path.is_dir():
        if not (path / "config.json").is_file():
            return {}  # no model: it will be refused, and may be a whole disk
        files = [p for p in sorted(path.rglob("*")) if p.is_file()]
        return {"files": {printable(p.relative_to(path).as_posix()): _hash(p) for p in files}}
    if path.is_file():
        folder = path.resolve().parent
        beside = [p for pattern in _LICENCES for p in sorted(folder.glob(pattern))]
        hashes = {path.suffix: sha256_file(path)} | {printable(p.name): _hash(p) for p in beside}
        return {"files": hashes, "folder": printable(str(folder))}
    return {}  # a hub id: the hub decides what it is today


def _known(model: str, store: Store, key: str, weights: Path | None) -> Artifact | None:
    record, folder = store.record(key), Path(model).parent
    if record is None or any(_hash(folder / name) != sha for name, sha in record.get("files", {}).items()):
        return None
    known = store.load(str(record["artifact"]))
    if known is not None and model.startswith("python:"):
        from edgekit.networks.intake import is_current

        return known if is_current(model, store.folder(known.id), weights=weights) else None
    return known


def _hash(path: Path) -> str:
    return sha256_file(path) if path.is_file() else ""
