"""`edgekit verify`: every byte of a package, its signature, and that the model still gives its golden outputs.

Nothing of the package is executed: its model is run by edgekit's own runner, in a child process, and only after every
hash and the signature were checked.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgekit.errors import IntegrityError
from edgekit.jobs import run_job
from edgekit.manifest import Golden, Variant
from edgekit.npz import check_arrays
from edgekit.package import Extracted, Package, read_package

_TIMEOUT = 900.0


@dataclass(frozen=True, kw_only=True)
class GoldenCheck:
    """What became of the golden outputs of one variant: `pass`, or `unproven` and why."""

    variant: str
    status: Literal["pass", "unproven"]
    text: str


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """A package that holds what it promises, as far as this machine can tell."""

    package: Package
    golden: tuple[GoldenCheck, ...]

    @property
    def status(self) -> Literal["pass", "unproven"]:
        """`unproven` when golden outputs could not be checked here."""
        return "unproven" if any(check.status == "unproven" for check in self.golden) else "pass"

    def rows(self) -> list[tuple[str, str]]:
        """Return what was checked as (check, result)."""
        package = self.package
        return [
            ("package", f"{package.manifest.name}, for {package.manifest.profile.name}"),
            ("content", f"{len(package.entries) + 3} files, every byte as sealed"),
            ("payload", package.seal.payload),
            ("signature", _signature_text(package)),
            *((f"golden, {check.variant}", f"{check.status}: {check.text}") for check in self.golden),
            ("verdict when built", package.verdict.status),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        package, signature = self.package, self.package.seal.signature
        return {
            "status": self.status,
            "package": str(package.path),
            "name": package.manifest.name,
            "artifact": package.manifest.artifact.id,
            "payload": package.seal.payload,
            "signature": {
                "status": _signature_status(package),
                "key_id": signature.key_id if signature else None,
            },
            "golden": [{"variant": check.variant, "status": check.status, "text": check.text} for check in self.golden],
            "verdict": package.verdict.status,
        }


def verify_package(path: Path, *, key: Path | None = None, golden: bool = True) -> VerifyReport:
    """Check a package.

    Args:
        path: the archive.
        key: public Ed25519 key (PEM) that must have signed it; None accepts unsigned packages and any signer.
        golden: whether the model is run on its golden inputs.

    Raises:
        InputError: not a package, beyond the limits, of another format, or a key that cannot be used.
        IntegrityError: a package that was cut, extended or changed in any byte, is not signed by `key`, or whose
            model does not give the golden outputs.
        TargetError: the runtime is missing on this machine.
    """
    package = read_package(path, key=key)
    checks = tuple(_check_golden(package, variant) for variant in package.manifest.variants) if golden else ()
    return VerifyReport(package=package, golden=checks)


def _check_golden(package: Package, variant: Variant) -> GoldenCheck:
    """Run a variant on its golden inputs; IntegrityError when its outputs differ."""
    if variant.golden is None:
        return GoldenCheck(variant=variant.name, status="unproven", text="the package has no golden samples")
    if variant.golden.outputs is None and variant.runtime == "onnxruntime":
        text = "the package has no golden outputs: the model gives something else each time"
        return GoldenCheck(variant=variant.name, status="unproven", text=text)
    if variant.golden.outputs is None or variant.runtime != "onnxruntime":
        text = f"needs device: this machine does not run {variant.runtime} as {package.manifest.profile.name} does"
        return GoldenCheck(variant=variant.name, status="unproven", text=text)
    with tempfile.TemporaryDirectory(prefix="edgekit-verify-") as scratch:
        folder = Path(scratch) / "package"
        package.extract(folder, {"model", "golden"})
        for name in (variant.golden.inputs, variant.golden.outputs):
            check_arrays(folder / name)
        result = run_golden(Extracted(package=package, folder=folder, variant=variant), variant.golden)
    told = "; ".join(f"output '{name}': {output['text']}" for name, output in sorted(result["outputs"].items()))
    if not result["matches"]:
        engine = result["engine"]
        raise IntegrityError(
            f"the model does not give its golden outputs: {told}",
            where=str(package.path),
            remedy=f"Here it ran on onnxruntime {engine['version']}; compare with the version in its lineage.",
        )
    return GoldenCheck(variant=variant.name, status="pass", text=f"{result['count']} samples, {told}")


def run_golden(extracted: Extracted, golden: Golden) -> dict[str, Any]:
    """Run the runner's `golden` job on this machine's CPU; `extracted.folder` lies in a folder of our own."""
    job = {
        "model": str(extracted.model),
        "runtime": "onnxruntime",
        "providers": ["CPUExecutionProvider"],
        "threads": 1,
        "inputs": [str(extracted.folder / golden.inputs)],
        "expected": [str(extracted.folder / str(golden.outputs))],
        "layout": "feeds",
        "tolerance": {"absolute": golden.tolerance.absolute, "relative": golden.tolerance.relative},
    }
    return run_job("golden", job, extracted.folder.parent, timeout=_TIMEOUT)


def _signature_status(package: Package) -> str:
    if package.seal.signature is None:
        return "unsigned"
    return "trusted" if package.trusted else "signed"


def _signature_text(package: Package) -> str:
    signature = package.seal.signature
    if signature is None:
        return "unsigned: whoever can write the file can make another"
    if package.trusted:
        return f"signed by the key given, {signature.key_id}"
    return f"signed by {signature.key_id}, which was not held against a key of yours (--key)"
