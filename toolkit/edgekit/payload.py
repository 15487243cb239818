"""Compose the payload of a package: which files go in, under which names, and the manifest over them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgekit import __version__
from edgekit.artifact import Artifact
from edgekit.bundle import Member, member
from edgekit.data import Feed
from edgekit.errors import EdgekitError
from edgekit.jobs import PASSED_ON, SCHEMA, encode_feeds, runner_files
from edgekit.manifest import (
    FORMAT,
    Golden,
    Manifest,
    PackedArtifact,
    PackedFile,
    PackedProfile,
    Reference,
    Role,
    Tolerance,
    Variant,
)
from edgekit.profile import Profile
from edgekit.target import Bundle

FOLDER = "model"
"""Folder of the one variant that packages have now."""

PREPROCESSING = "preprocessing"
"""Folder of the files that the preprocessing names."""

GOLDEN_INPUTS, GOLDEN_OUTPUTS = "golden/inputs.npz", "golden/outputs.npz"
REFERENCE_INPUTS, REFERENCE_OUTPUTS = "reference/inputs.npz", "reference/outputs.npz"

TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2}
"""Precision -> largest golden error, as a share of the value and of the largest magnitude in the outputs. Float sums
differ by their order, integer kernels by a few quantization steps from one instruction set to the next."""

_INTEGER_TOLERANCE = 1e-1


@dataclass(frozen=True, kw_only=True)
class GoldenSamples:
    """A few feeds, and what the compiled model gave for them here (None when it does not run here)."""

    inputs: Sequence[Feed]
    outputs: Sequence[Feed] | None


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What goes into a package.

    Attributes:
        name: the package's name.
        artifact: what was compiled.
        compiled: the files that the device loads, and the exporter's facts (`runtime`, `model`, `providers`, ...).
        profile: the device.
        precision: `fp32`, `fp16`, `w8a8`, ...
        preprocessing: what turns a raw input into a feed, as JSON values.
        preprocessing_files: the files that it names, such as `tokenizer.json`.
        labels: class names in the order of the outputs; empty when unknown.
        golden: what the device must reproduce; None without data.
        reference: file with the float model's outputs, labels and sample ids on the evaluation split.
        reference_inputs: file with the inputs that belong to it.
        license: the model's license as an SPDX expression, or `unknown`.
        license_file: its text.
    """

    name: str
    artifact: Artifact
    compiled: Bundle
    profile: Profile
    precision: str
    preprocessing: dict[str, Any] = field(default_factory=dict)
    preprocessing_files: tuple[Path, ...] = ()
    labels: tuple[str, ...] = ()
    golden: GoldenSamples | None = None
    reference: Path | None = None
    reference_inputs: Path | None = None
    license: str = "unknown"
    license_file: Path | None = None


def pack_contents(contents: Contents) -> tuple[Manifest, list[Member]]:
    """Return the manifest of a package and the files it lists, sorted by name; the same contents give the same bytes.

    Raises:
        InputError: a file cannot be read.
    """
    roles: dict[str, Role] = {}
    sources: dict[str, Path | bytes] = {}
    for role, name, source in _files(contents):
        if name in roles:
            raise EdgekitError(f"two files are to be packed as '{name}'", where=contents.name)
        roles[name], sources[name] = role, source
    members = [member(name, sources[name]) for name in sorted(sources)]
    facts = contents.artifact.facts
    manifest = Manifest(
        format=FORMAT,
        name=contents.name,
        created_by=f"edgekit {__version__}",
        artifact=PackedArtifact(id=contents.artifact.id, kind=contents.artifact.kind, facts=facts),
        profile=PackedProfile(name=contents.profile.name, values=msgspec.to_builtins(contents.profile)),
        inputs=contents.artifact.specs("inputs"),
        outputs=contents.artifact.specs("outputs"),
        preprocessing=contents.preprocessing,
        labels=contents.labels,
        task=str(facts.get("task", "")),
        lineage=contents.artifact.lineage,
        variants=(_variant(contents),),
        reference=_reference(contents),
        license=contents.license,
        files=tuple(
            PackedFile(name=packed.name, role=roles[packed.name], sha256=packed.sha256, size=packed.size)
            for packed in members
        ),
    )
    return manifest, members


def _files(contents: Contents) -> Iterator[tuple[Role, str, Path | bytes]]:
    """Yield role, name and source of every file of the payload."""
    folder = contents.compiled.folder
    for path in folder.rglob("*"):
        if path.is_file():
            yield "model", f"{FOLDER}/{path.relative_to(folder).as_posix()}", path
    for path in runner_files():
        yield "runner", f"runner/{path.name}", path
    for path in contents.preprocessing_files:
        yield "preprocessing", f"{PREPROCESSING}/{path.name}", path
    if contents.golden:
        yield from _golden_files(contents, contents.golden)
    if contents.reference:
        yield "reference", REFERENCE_OUTPUTS, contents.reference
        if contents.reference_inputs:
            yield "reference", REFERENCE_INPUTS, contents.reference_inputs
    if contents.license_file:
        yield "license", "LICENSE", contents.license_file
    yield "readme", "README.txt", readme(contents).encode()


def _golden_files(contents: Contents, golden: GoldenSamples) -> Iterator[tuple[Role, str, bytes]]:
    yield "golden", GOLDEN_INPUTS, encode_feeds(golden.inputs)
    if golden.outputs is not None:
        yield "golden", GOLDEN_OUTPUTS, encode_feeds(golden.outputs)
    for name, job in _jobs(contents).items():
        yield "job", name, json.dumps(job, indent=1, sort_keys=True).encode() + b"\n"


def _variant(contents: Contents) -> Variant:
    facts = dict(contents.compiled.facts)
    model = str(facts.pop("model"))
    if not (contents.compiled.folder / model).is_file():
        raise EdgekitError(f"the exporter wrote no file '{model}'", where=str(contents.compiled.folder))
    return Variant(
        name="default",
        folder=FOLDER,
        model=model,
        runtime=str(facts.pop("runtime")),
        providers=tuple(facts.pop("providers", None) or ()),
        precision=contents.precision,
        golden=_golden(contents),
        facts=facts,
    )


def _golden(contents: Contents) -> Golden | None:
    if contents.golden is None:
        return None
    feeds, outputs = contents.golden.inputs, contents.golden.outputs
    if not feeds or (outputs is not None and len(outputs) != len(feeds)):
        raise EdgekitError("golden samples need as many outputs as inputs, at least one", where=contents.name)
    return Golden(
        inputs=GOLDEN_INPUTS,
        outputs=None if outputs is None else GOLDEN_OUTPUTS,
        samples=len(feeds),
        tolerance=_tolerance(contents.precision, outputs or ()),
    )


def _tolerance(precision: str, outputs: Sequence[Feed]) -> Tolerance:
    share = TOLERANCE.get(precision, _INTEGER_TOLERANCE)
    tensors = [array for feed in outputs for array in feed.values() if array.dtype.kind == "f"]
    finite = [np.abs(array[np.isfinite(array)]) for array in tensors]
    largest = max((float(array.max()) for array in finite if array.size), default=0.0)
    return Tolerance(absolute=share * largest, relative=share)


def _reference(contents: Contents) -> Reference | None:
    if contents.reference is None:
        return None
    inputs = REFERENCE_INPUTS if contents.reference_inputs else None
    return Reference(outputs=REFERENCE_OUTPUTS, inputs=inputs)


def _jobs(contents: Contents) -> dict[str, dict[str, Any]]:
    """Return the jobs that a device can run as they stand: file name -> job, its paths relative to the archive."""
    variant = _variant(contents)
    job: dict[str, Any] = {
        "schema": SCHEMA,
        "model": f"{FOLDER}/{variant.model}",
        "runtime": variant.runtime,
        "providers": list(variant.providers),
        "threads": 1,
        "inputs": [GOLDEN_INPUTS],
    }
    job |= {key: variant.facts[key] for key in PASSED_ON if key in variant.facts}
    jobs = {"measure.json": {**job, "runs": 300, "result": "measure-result.json"}}
    if variant.golden and variant.golden.outputs:
        expected = {
            "expected": [GOLDEN_OUTPUTS],
            "layout": "feeds",
            "tolerance": msgspec.to_builtins(variant.golden.tolerance),
        }
        jobs["golden.json"] = {**job, **expected, "result": "golden-result.json"}
    return jobs


def readme(contents: Contents) -> str:
    """Return the text for whoever unpacks the archive on a device."""
    variant = _variant(contents)
    specs = [("input ", spec) for spec in contents.artifact.specs("inputs")]
    specs += [("output", spec) for spec in contents.artifact.specs("outputs")]
    tensors = "\n".join(f"    {side} {spec.name}: {spec.dtype} {list(spec.shape)}" for side, spec in specs)
    jobs = _jobs(contents) if contents.golden else {}
    runs = {
        "golden.json": "    python3 runner/runner.py golden golden.json     # does it give the outputs it must?",
        "measure.json": "    python3 runner/runner.py measure measure.json   # how long does it take?",
    }
    commands = "\n".join(line for name, line in runs.items() if name in jobs)
    told = "Each writes its result beside the job, as JSON."
    return README.format(
        name=contents.name,
        profile=contents.profile.name,
        title=contents.profile.title,
        runtime=variant.runtime,
        model=f"{FOLDER}/{variant.model}",
        precision=variant.precision,
        tensors=tensors,
        commands=f"{commands}\n\n{told}" if commands else "\nNo samples were given to try it with.",
        license=contents.license,
    )


README = """{name}
built by edgekit for {profile} ({title})

    model  {model} ({precision}, {runtime})
{tensors}

What turns a picture, text or array into these inputs stands in manifest.json under "preprocessing", the class names
under "labels". How it was judged stands in verdict.json.

On the device, with Python 3.8 or later, numpy and {runtime}:

    tar xf {name}.edgekit
{commands}

On any machine with edgekit:

    edgekit verify {name}.edgekit                       # every byte, the signature, the golden outputs
    edgekit run {name}.edgekit INPUT                    # an image, a text or a .npz: labelled output
    edgekit validate {name}.edgekit --target ssh://...  # accuracy and latency on the device itself

License of the model: {license}
"""
