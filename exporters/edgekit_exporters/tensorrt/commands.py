"""The exact trtexec commands that build an engine, per TensorRT version. Argv lists: nothing here goes through a shell.

Up to TensorRT 8 precisions are allowed by flags. From 9 on a network can be strongly typed, so that the graph's own
Q/DQ and Casts decide; TensorRT 11 knows nothing else and has no such flags any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ENGINE = "model.engine"

TYPING: dict[str, tuple[str, ...]] = {
    "8.5": ("--int8", "--fp16"),
    "8.6": ("--int8", "--fp16"),
    "10.3": ("--stronglyTyped",),
    "10.16": ("--stronglyTyped",),
    "11": (),
}
"""TensorRT version -> trtexec's flags for a graph with explicit precisions."""

JETPACKS = {"5.1": "8.5", "6.0": "8.6", "6.1 - 6.2.2": "10.3", "7.2": "10.16", "7.2.2 and later": "11"}
"""JetPack -> the TensorRT that it ships, a key of `TYPING`."""

WITH_DLA = frozenset({"8.5", "8.6", "10.3", "11"})
"""The versions that drive a DLA: none from 10.8 on until JetPack 7.2.2 (11.4.1)."""

EXPLICIT_DLA = frozenset({"11"})
"""The versions whose DLA takes Q/DQ."""

CALIBRATED_DLA = {"8.6": "8.6.2", "10.3": "10.3.0"}
"""The versions whose DLA takes a calibration cache instead -> the release that JetPack 6 ships: a cache names it."""

WHY_NOT = {
    "explicit": "no Q/DQ on the DLA: set `dla_calibration = true` in the profile",
    "calibrated": "no calibration for the DLA: leave `dla_calibration` out of the profile",
    "none": "it drives no DLA",
}


@dataclass(frozen=True, kw_only=True)
class How:
    """How an engine is built.

    Attributes:
        shapes: input -> (min, opt, max) of dynamic inputs.
        dla: run on DLA core 0, layers that it does not take on the GPU.
        explicit: the graph has Q/DQ.
        calibrated: for the DLA they become a calibration cache beside a float graph.
        half: the nodes that stay float16 then.
        sparse: weights are in the pattern 2:4.
    """

    shapes: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    dla: bool = False
    explicit: bool = False
    calibrated: bool = False
    half: Sequence[str] = ()
    sparse: bool = False

    def refused(self, version: str) -> str:
        """Say why a version, a key of `TYPING`, cannot build so; empty when it can."""
        if not self.dla:
            return ""
        if version not in WITH_DLA:
            return WHY_NOT["none"]
        if self.calibrated:
            return "" if version in CALIBRATED_DLA else WHY_NOT["calibrated"]
        return WHY_NOT["explicit"] if self.explicit and version not in EXPLICIT_DLA else ""


def cache_name(version: str) -> str:
    """Return the file of a version's calibration cache."""
    return f"dla-{version}.cache"


def trtexec_argv(model: str, version: str, how: How) -> list[str]:
    """Return the command that builds an engine from `model` with trtexec of a version.

    Args:
        model: the ONNX file, relative to the working folder.
        version: a key of `TYPING`.
        how: how it is built.
    """
    argv = ["trtexec", f"--onnx={model}", f"--saveEngine={ENGINE}", _build_only(version), *_typing(version, how)]
    for position, option in enumerate(("--minShapes=", "--optShapes=", "--maxShapes=")):
        if how.shapes:
            words = (f"{name}:{'x'.join(map(str, triple[position]))}" for name, triple in sorted(how.shapes.items()))
            argv.append(option + ",".join(words))
    return argv + (["--useDLACore=0", "--allowGPUFallback"] if how.dla else [])


def build_plan(model: str, how: How) -> dict[str, Any]:
    """Return the contents of `build.json`: what to run on the device, by the TensorRT found there."""
    refused = {version: why for version in TYPING if (why := how.refused(version))}
    versions = [version for version in TYPING if version not in refused]
    return {
        "schema": 1,
        "about": "Build the engine on the device it runs on: engines fit one TensorRT version and one GPU only. "
        "Take the command of the TensorRT found there; edgekit's runner does the same by itself.",
        "engine": ENGINE,
        "jetpacks": {jetpack: version for jetpack, version in JETPACKS.items() if version in versions},
        "shapes": {name: [list(shape) for shape in triple] for name, triple in sorted(how.shapes.items())},
        "commands": {version: trtexec_argv(model, version, how) for version in versions},
        **({"refused": refused} if refused else {}),
    }


def _typing(version: str, how: How) -> list[str]:
    more = ["--sparsity=enable"] if how.sparse else []
    if not how.calibrated:
        return [*TYPING[version], *more]
    words = ["--int8", "--fp16", f"--calib={cache_name(version)}"]
    if how.half:
        words += ["--precisionConstraints=prefer", "--layerPrecisions=" + ",".join(f"{name}:fp16" for name in how.half)]
    return words + more


def _build_only(version: str) -> str:
    """Return trtexec's flag for building without a run, whose name changed with 8.6."""
    return "--buildOnly" if version == "8.5" else "--skipInference"
