"""From a judged candidate to the package on disk: remembered in the store, so that it can be packed again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgekit.artifact import Artifact, digest
from edgekit.budget import Verdict
from edgekit.data import Dataset, Samples, take
from edgekit.errors import BudgetMissedError, InputError, UsageError
from edgekit.jobs import encode_feeds, read_feeds
from edgekit.package import Package, write_package
from edgekit.payload import Contents, GoldenSamples
from edgekit.profile import Profile
from edgekit.store import Store
from edgekit.target import Bundle, Feed

GOLDEN_SAMPLES = 4
_ELSEWHERE = "Choose another folder with --out."
_INPUTS, _OUTPUTS = "inputs.npz", "outputs.npz"


class Shipment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that goes into a package, by artifact ids: what is remembered of a candidate that was judged.

    Attributes:
        artifact: id of the candidate.
        bundle: id of what was compiled from it.
        extras: id of the artifact that holds golden inputs and outputs and the files of the preprocessing.
        reference: id of the artifact with the original's outputs on the evaluation split; None without data.
        name: the package's name.
        profile: the device.
        preprocessing: what turns a raw input into a feed.
        labels: class names in the order of the outputs.
        verdict: how it was judged.
        details: what else was measured or timed.
    """

    artifact: str
    bundle: str
    extras: str
    reference: str | None
    name: str
    profile: Profile
    preprocessing: dict[str, Any]
    labels: tuple[str, ...]
    verdict: Verdict
    details: dict[str, Any]


def bundle_of(artifact: Artifact, store: Store) -> Bundle:
    """Return what a target loads of an artifact of kind `bundle`."""
    return Bundle(folder=store.folder(artifact.id), facts=artifact.facts)


def precision_of(artifact: Artifact) -> str:
    """Return the precision that the last stage asked for, `fp32` when none did."""
    return str(artifact.facts.get("coverage", {}).get("precision", "fp32"))


def pack_extras(store: Store, bundle: Bundle, data: Dataset | None, feeds: Sequence[Feed]) -> Artifact:
    """Put golden inputs, what the compiled model gives for them here, and the files of the preprocessing away.

    A model that gives something else each time has no golden outputs.

    Args:
        store: where it goes.
        bundle: the compiled model; onnxruntime's CPU kernels run it where they can.
        data: the data set, whose tokenizer comes along.
        feeds: golden inputs.
    """
    from edgekit.evaluate import is_steady, run_onnx

    with store.staging() as out:
        for name, path in (data.files if data else {}).items():
            (out / "preprocessing").mkdir(exist_ok=True)
            (out / "preprocessing" / name).write_bytes(path.read_bytes())
        if feeds:
            (out / _INPUTS).write_bytes(encode_feeds(feeds))
            model = bundle.folder / str(bundle.facts["model"])
            if model.suffix == ".onnx" and is_steady(model, feeds):
                outputs = list(run_onnx(model, feeds))
                (out / _OUTPUTS).write_bytes(encode_feeds(outputs))
        return store.publish(out, "extras", {}, ())


def golden_feeds(samples: Samples | None, fallback: Callable[[], Sequence[Feed]]) -> list[Feed]:
    """Return a few feeds that a device must reproduce: of the data, else what the fallback gives."""
    if samples is None or not len(samples):
        return list(fallback())
    few = take(samples, min(GOLDEN_SAMPLES, len(samples)))
    return [few.sample(index) for index in range(len(few))]


def remember(shipment: Shipment, store: Store) -> None:
    """Make a judged candidate packable again by its id."""
    record = msgspec.to_builtins(shipment)
    store.remember(_key(shipment.artifact), {"artifact": shipment.bundle, "shipment": record})


def recall(artifact_id: str, store: Store) -> Shipment:
    """Return what was remembered of a candidate; InputError when it was never judged or is gone."""
    record = store.record(_key(artifact_id))
    if record is None:
        raise InputError(
            "no build has judged this artifact", where=artifact_id, remedy="Build it again: edgekit build MODEL ..."
        )
    return msgspec.convert(record["shipment"], Shipment)


def ship(shipment: Shipment, store: Store, out: Path, *, key: Path | None = None) -> Package:
    """Write the package of a judged candidate.

    Args:
        shipment: what goes in.
        store: where its artifacts lie.
        out: the folder that gets `NAME.edgekit`.
        key: private Ed25519 key (PEM) to sign with.

    Raises:
        BudgetMissedError: the candidate missed a budget.
        InputError: an artifact is not in the store any more.
    """
    if shipment.verdict.status == "fail":
        missed = ", ".join(check.name for check in shipment.verdict.checks if check.status == "fail")
        raise BudgetMissedError(f"missed its budget: {missed}", where=shipment.name, remedy="It does not ship.")
    artifact, bundle, extras = (_load(store, i) for i in (shipment.artifact, shipment.bundle, shipment.extras))
    folder = store.folder(extras.id)
    terms = _license(artifact)
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "LICENSE"
        text.write_text(terms.get("text", ""), encoding="utf-8")
        contents = Contents(
            name=shipment.name,
            artifact=artifact,
            compiled=bundle_of(bundle, store),
            profile=shipment.profile,
            precision=precision_of(artifact),
            preprocessing=shipment.preprocessing,
            preprocessing_files=tuple(sorted((folder / "preprocessing").glob("*"))),
            labels=shipment.labels,
            golden=_golden(folder, extras),
            reference=_reference(shipment, store),
            license=terms.get("name", "unknown"),
            license_file=text if "text" in terms else None,
        )
        _make_folder(out)
        return write_package(
            out / f"{shipment.name}.edgekit",
            contents,
            verdict=shipment.verdict,
            details=shipment.details,
            key=key,
        )


def _license(artifact: Artifact) -> dict[str, str]:
    """Return `name` and `text` of the model's license as far as they are known."""
    found = artifact.facts.get("license") or {}
    return {"name": found} if isinstance(found, str) else found


def check_place(out: Path) -> None:
    """Raise UsageError when no package can be written into a folder, which need not exist yet."""
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise UsageError("is not a folder", where=str(nearest), remedy=_ELSEWHERE)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError("cannot be written: Permission denied", where=str(nearest), remedy=_ELSEWHERE)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(out), remedy=_ELSEWHERE) from error


def _golden(folder: Path, extras: Artifact) -> GoldenSamples | None:
    if _INPUTS not in extras.files:
        return None
    outputs = read_feeds(folder / _OUTPUTS) if _OUTPUTS in extras.files else None
    return GoldenSamples(inputs=read_feeds(folder / _INPUTS), outputs=outputs)


def _reference(shipment: Shipment, store: Store) -> Path | None:
    if shipment.reference is None:
        return None
    return next(iter(store.folder(_load(store, shipment.reference).id).glob("*.npz")))


def _load(store: Store, artifact_id: str) -> Artifact:
    found = store.load(artifact_id)
    if found is None:
        raise InputError("not in the store any more", where=artifact_id, remedy="Build it again.")
    return found


def _key(artifact_id: str) -> str:
    return digest(["shipment", artifact_id])
