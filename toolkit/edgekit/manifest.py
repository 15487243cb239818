"""What stands in a package beside the files: `manifest.json`, `verdict.json` and `seal.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from edgekit.artifact import Step, TensorSpec
from edgekit.budget import Check, Status
from edgekit.bundle import Entry, Member, damaged
from edgekit.errors import InputError
from edgekit.signing import Signature

FORMAT = 1
"""Version of the format; raised when a reader of an older version would misread a package."""

MANIFEST, VERDICT, SEAL = "manifest.json", "verdict.json", "seal.json"
STATEMENT = "application/vnd.edgekit.seal+json"
"""The type under which seals are signed."""

Role = Literal["model", "preprocessing", "golden", "reference", "license", "runner", "job", "readme"]
T = TypeVar("T")


class PackedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the payload: its name in the archive, what it is for, and what it must be."""

    name: str
    role: Role
    sha256: str
    size: int


class Tolerance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a floating-point output may be off: |found - expected| <= absolute + relative * |expected|."""

    absolute: float
    relative: float


class Golden(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Inputs and the outputs that the packaged model gave for them on the machine that packed it.

    Attributes:
        inputs: file with the feeds.
        outputs: file with the outputs; None when the packing machine could not run the model.
        samples: number of feeds.
        tolerance: how far another machine's outputs may be from them.
    """

    inputs: str
    outputs: str | None
    samples: int
    tolerance: Tolerance


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One compiled form of the model; a package may hold several, from which the device picks.

    Attributes:
        name: unique in the package; `default` when there is one.
        folder: the folder in the archive that holds its files.
        model: the file that the runtime loads, relative to the folder.
        runtime: what the runner uses: `onnxruntime`, `tensorrt`, ...
        providers: onnxruntime execution providers in order; empty for other runtimes.
        precision: `fp32`, `fp16`, `w8a8`, ...
        golden: what it must reproduce; None when there is nothing.
        facts: what else the exporter told, as JSON values.
    """

    name: str
    folder: str
    model: str
    runtime: str
    providers: tuple[str, ...]
    precision: str
    golden: Golden | None
    facts: dict[str, Any]


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files of the float model on the evaluation split: outputs, labels and ids; inputs if they came too."""

    outputs: str
    inputs: str | None


class PackedArtifact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The artifact that was compiled: its id, kind and facts."""

    id: str
    kind: str
    facts: dict[str, Any]


class PackedProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The profile that the package was built for, with all of its resolved values."""

    name: str
    values: dict[str, Any]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a package holds, and how it came to be; the same inputs give the same manifest.

    Attributes:
        format: version of the format, `FORMAT`.
        name: the package's name.
        created_by: `edgekit VERSION`.
        artifact: what was compiled.
        profile: for which device.
        inputs: the model's inputs.
        outputs: the model's outputs.
        preprocessing: what turns a raw input into a feed, as JSON values.
        labels: class names in the order of the outputs; empty when unknown.
        task: what the model does, as in the artifact's facts; empty when unknown.
        lineage: the steps that made the artifact.
        variants: the compiled forms; at least one.
        reference: the float model's outputs; None without evaluation data.
        license: the model's license, `unknown` when nobody told it.
        files: all files of the payload but this one, sorted by name.
    """

    format: int
    name: str
    created_by: str
    artifact: PackedArtifact
    profile: PackedProfile
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    preprocessing: dict[str, Any]
    labels: tuple[str, ...]
    task: str
    lineage: tuple[Step, ...]
    variants: tuple[Variant, ...]
    reference: Reference | None
    license: str
    files: tuple[PackedFile, ...]


class VerdictRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the package was judged when it was built; what was timed differs from build to build.

    Attributes:
        status: of the whole.
        checks: every figure with its budget, status and provenance.
        details: what else was measured or timed (the target's fingerprint, seconds of stages), as JSON.
    """

    status: Status
    checks: tuple[Check, ...]
    details: dict[str, Any]


class Seal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hashes that hold a package together, and the signature over them (None: unsigned).

    Attributes:
        format: version of the seal.
        manifest: hex sha256 of `manifest.json`.
        payload: hex sha256 over the payload, see `payload_digest`.
        verdict: hex sha256 of `verdict.json`.
        signature: over `statement`.
    """

    format: int
    manifest: str
    payload: str
    verdict: str
    signature: Signature | None

    def statement(self) -> bytes:
        """Return the body that is signed: everything but the signature."""
        body = msgspec.to_builtins(self)
        del body["signature"]
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    def encode(self) -> bytes:
        """Return the one form in which a seal is written; by the standard library, so that it stays so."""
        return json.dumps(msgspec.to_builtins(self), sort_keys=True, indent=1).encode() + b"\n"


def payload_digest(files: Iterable[Entry | Member]) -> str:
    """Hex sha256 of what `sha256sum` prints for the payload: `manifest.json` first, then by name."""
    lines = "".join(f"{file.sha256}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def encode_document(value: Any) -> bytes:
    """Encode a manifest or verdict for people and machines: sorted keys, indented JSON, UTF-8."""
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=1) + b"\n"


def decode_seal(raw: bytes, path: Path) -> Seal:
    """Parse a seal; IntegrityError unless every byte is as `Seal.encode` writes it."""
    try:
        seal = msgspec.json.decode(raw, type=Seal)
        if seal.format == FORMAT and seal.encode() == raw:
            return seal
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    raise damaged(path, f"{SEAL} is not a seal that this version of edgekit writes")


def decode_document(raw: bytes, kind: type[T], name: str, path: Path) -> T:
    """Parse a manifest or verdict whose hash was checked before.

    Raises:
        InputError: another format, or not what the format says: it was sealed so by something else than edgekit.
    """
    try:
        found = msgspec.json.decode(raw, type=dict[str, Any])
        if kind is Manifest and found.get("format") != FORMAT:
            text = f"the package has the format {found.get('format')!r}, this edgekit reads {FORMAT}"
            remedy = "Use the version of edgekit that made it, or a newer one."
            raise InputError(text, where=str(path), remedy=remedy)
        return msgspec.convert(found, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        remedy = "It was not made by edgekit: check where it comes from."
        raise InputError(f"not a package: {error}", where=f"{path}, {name}", remedy=remedy) from error
