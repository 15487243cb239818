"""Write a package and read it back: one archive that a device can run, and that shows every change.

The archive holds `manifest.json`, the payload it lists, `verdict.json` and `seal.json`, in this order;
docs/package.md is the format in full.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edgekit.budget import Verdict
from edgekit.bundle import (
    Entry,
    Limits,
    damaged,
    extract,
    member,
    open_archive,
    read_bundle,
    read_member,
    write_bundle,
)
from edgekit.errors import InputError, IntegrityError, UsageError
from edgekit.manifest import (
    FORMAT,
    MANIFEST,
    SEAL,
    STATEMENT,
    VERDICT,
    Manifest,
    Role,
    Seal,
    Variant,
    VerdictRecord,
    decode_document,
    decode_seal,
    encode_document,
    payload_digest,
)
from edgekit.payload import Contents, pack_contents
from edgekit.signing import load_public_key, sign, signature_fault
from edgekit.target import Bundle

SUFFIX = ".edgekit"

_MAX_DOCUMENT = 64 << 20
_MAX_SEAL = 4096


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package whose every byte was checked.

    Attributes:
        path: the archive.
        manifest: what it holds.
        verdict: how it was judged when it was built.
        seal: its hashes and signature.
        entries: the files of the payload, `manifest.json` excepted.
        trusted: whether the signature was checked against a key of the user's.
    """

    path: Path
    manifest: Manifest
    verdict: VerdictRecord
    seal: Seal
    entries: tuple[Entry, ...]
    trusted: bool

    def variant(self, name: str = "default") -> Variant:
        """Return a variant by name; UsageError when there is none."""
        for variant in self.manifest.variants:
            if variant.name == name:
                return variant
        known = ", ".join(variant.name for variant in self.manifest.variants)
        raise UsageError(f"no variant '{name}'", where=str(self.path), remedy=f"It has: {known}.")

    def extract(self, folder: Path, roles: Collection[Role] | None = None) -> None:
        """Write the payload, or its files of some roles, to a new folder that appears whole or not at all."""
        wanted = {file.name for file in self.manifest.files if roles is None or file.role in roles}
        extract(self.path, [entry for entry in self.entries if entry.name in wanted], folder)


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """A package and the folder to which it was extracted."""

    package: Package
    folder: Path
    variant: Variant

    @property
    def model(self) -> Path:
        """The file that the runtime loads."""
        return self.folder / self.variant.folder / self.variant.model

    @property
    def reference(self) -> tuple[Path, Path | None] | None:
        """The files of the float model, its outputs and (if they were packed) its inputs; None without any."""
        found = self.package.manifest.reference
        if found is None:
            return None
        return self.folder / found.outputs, self.folder / found.inputs if found.inputs else None

    @property
    def golden(self) -> tuple[Path, Path | None] | None:
        """The files of golden inputs and outputs (None: the packing machine could not run it); None without any."""
        found = self.variant.golden
        if found is None:
            return None
        return self.folder / found.inputs, self.folder / found.outputs if found.outputs else None

    def compiled(self) -> Bundle:
        """Return what a target loads."""
        chosen = self.variant
        facts = {"runtime": chosen.runtime, "model": chosen.model, "providers": list(chosen.providers)}
        return Bundle(folder=self.folder / chosen.folder, facts={**chosen.facts, **facts})

    def carried_facts(self) -> dict[str, Any]:
        """Return what is known of the model beyond its file, under the names that artifacts have for it."""
        manifest = self.package.manifest
        told = {
            "task": manifest.task,
            "labels": list(manifest.labels),
            "preprocessing": manifest.preprocessing,
            "license": manifest.license,
        }
        return {name: value for name, value in told.items() if value not in ("", [], {}, "unknown")}


def write_package(
    out_file: Path, contents: Contents, *, verdict: Verdict, details: dict[str, Any], key: Path | None = None
) -> Package:
    """Write a package, whole or not at all, and return it as read back.

    Args:
        out_file: `NAME.edgekit`; an older file of the name is replaced.
        contents: the payload; the same contents give the same payload, byte by byte.
        verdict: how it was judged.
        details: what else was measured or timed, as JSON values; outside of the payload like the verdict.
        key: private Ed25519 key (PEM) to sign with; None leaves the package unsigned.

    Raises:
        UsageError: the file cannot be written, or is not named `.edgekit`.
        InputError: a file of the contents cannot be read or packed, or the key cannot be used.
    """
    if out_file.suffix != SUFFIX:
        raise UsageError(f"packages are named NAME{SUFFIX}", where=str(out_file), remedy="Choose another name.")
    manifest, payload = pack_contents(contents)
    first = member(MANIFEST, encode_document(manifest))
    record = VerdictRecord(status=verdict.status, checks=verdict.checks, details=details)
    last = member(VERDICT, encode_document(record))
    digest = payload_digest([first, *payload])
    seal = Seal(format=FORMAT, manifest=first.sha256, payload=digest, verdict=last.sha256, signature=None)
    if key is not None:
        seal = msgspec.structs.replace(seal, signature=sign(STATEMENT, seal.statement(), key))
    write_bundle(out_file, [first, *payload, last, member(SEAL, seal.encode())])
    return read_package(out_file)


def read_package(path: Path, limits: Limits | None = None, *, key: Path | None = None) -> Package:
    """Read a package and check every byte of it: headers, hashes, seal, signature. Runs nothing of it.

    Args:
        path: the archive.
        limits: what is accepted from it.
        key: public Ed25519 key (PEM) that must have signed it; None accepts unsigned packages and any signer.

    Raises:
        InputError: not a package, beyond the limits, of another format, or a key that cannot be used.
        IntegrityError: a package that was cut, extended or changed in any byte, or is not signed by `key`.
    """
    trusted = load_public_key(key) if key is not None else None
    if not _claims_to_be_a_package(path):
        remedy = "Give a file that edgekit build or edgekit package wrote."
        raise InputError("not an edgekit package", where=str(path), remedy=remedy)
    entries = read_bundle(path, limits or Limits())
    names = [entry.name for entry in entries]
    if names[:1] != [MANIFEST] or names[-2:] != [VERDICT, SEAL] or entries[-1].size > _MAX_SEAL:
        raise damaged(path, f"it lacks {MANIFEST} at its start or {VERDICT} and {SEAL} at its end")
    first, *files, last, sealing = entries
    seal = decode_seal(read_member(path, sealing, _MAX_SEAL), path)
    _check_seal(path, seal, [first, *files], last, trusted)
    manifest = decode_document(read_member(path, first, _MAX_DOCUMENT), Manifest, MANIFEST, path)
    verdict = decode_document(read_member(path, last, _MAX_DOCUMENT), VerdictRecord, VERDICT, path)
    _check_manifest(path, manifest, files)
    return Package(
        path=path,
        manifest=manifest,
        verdict=verdict,
        seal=seal,
        entries=tuple(files),
        trusted=trusted is not None,
    )


def extract_package(
    path: Path,
    folder: Path,
    *,
    key: Path | None = None,
    variant: str = "default",
    roles: Collection[Role] | None = None,
) -> Extracted:
    """Read a package as `read_package` does and write its payload to the new folder `folder`.

    Args:
        path: the archive.
        folder: must not exist; it appears whole or not at all.
        key: public key that must have signed it.
        variant: the compiled form that is wanted.
        roles: only the files of these roles; None means all.

    Raises:
        EdgekitError: as `read_package`; UsageError also for a folder that exists or cannot be written.
    """
    package = read_package(path, key=key)
    chosen = package.variant(variant)
    package.extract(folder, roles)
    return Extracted(package=package, folder=folder, variant=chosen)


def _check_seal(path: Path, seal: Seal, payload: list[Entry], verdict: Entry, trusted: bytes | None) -> None:
    """Raise IntegrityError unless the seal fits the archive and is signed as demanded."""
    if seal.manifest != payload[0].sha256 or seal.payload != payload_digest(payload):
        raise damaged(path, "the payload is not the one that was sealed")
    if seal.verdict != verdict.sha256:
        raise damaged(path, f"{VERDICT} is not the one that was sealed")
    if seal.signature is None and trusted is not None:
        remedy = "Get a signed copy, or leave the key away to accept unsigned packages."
        raise IntegrityError("the package is not signed", where=str(path), remedy=remedy)
    if seal.signature is not None and (fault := signature_fault(seal.signature, STATEMENT, seal.statement(), trusted)):
        raise damaged(path, fault)


def _check_manifest(path: Path, manifest: Manifest, entries: list[Entry]) -> None:
    """Raise InputError unless the manifest lists exactly the files that are there and speaks of no others."""
    listed = [(file.name, file.size, file.sha256) for file in manifest.files]
    roles = {file.name: file.role for file in manifest.files}
    named: list[tuple[str | None, Role]] = []
    for variant in manifest.variants:
        named.append((f"{variant.folder}/{variant.model}", "model"))
        if variant.golden:
            named += [(variant.golden.inputs, "golden"), (variant.golden.outputs, "golden")]
    if manifest.reference:
        named += [(manifest.reference.outputs, "reference"), (manifest.reference.inputs, "reference")]
    wrong = [name for name, role in named if name is not None and roles.get(name) != role]
    if listed != [(entry.name, entry.size, entry.sha256) for entry in entries] or wrong or not manifest.variants:
        remedy = "It was not made by edgekit: check where it comes from."
        raise InputError(f"{MANIFEST} does not fit the archive", where=", ".join([str(path), *wrong]), remedy=remedy)


def _claims_to_be_a_package(path: Path) -> bool:
    """Say whether a file is named like a package, or begins like one even where it is damaged."""
    with open_archive(path) as file:
        start = file.read(len(MANIFEST))
    alike = sum(a == b for a, b in zip(start, MANIFEST.encode(), strict=False))
    return path.suffix == SUFFIX or 2 * alike >= len(start)
