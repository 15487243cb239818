"""The exact trtexec commands that build an engine, per TensorRT version. Argv lists: nothing here goes through a shell.

Up to TensorRT 8 precisions are allowed by flags. From 9 on a network can be strongly typed, so that the graph's own
Q/DQ and Casts decide; TensorRT 11 knows nothing else and has no such flags any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.profile import Profile

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
"""The versions that drive a DLA: none from 10.8 on until JetPack 7.2.2."""


def trtexec_argv(
    model: str, version: str, shapes: Mapping[str, Sequence[Sequence[int]]], *, dla: bool = False, sparse: bool = False
) -> list[str]:
    """Return the command that builds an engine from `model` with trtexec of a version.

    Args:
        model: the ONNX file, relative to the working folder.
        version: a key of `TYPING`.
        shapes: input -> (min, opt, max) of dynamic inputs.
        dla: run on DLA core 0, layers that it does not take on the GPU.
        sparse: try kernels for 2:4 sparse weights where the weights are so; without the flag TensorRT never does.
    """
    argv = ["trtexec", f"--onnx={model}", f"--saveEngine={ENGINE}", "--skipInference", *TYPING[version]]
    for position, option in enumerate(("--minShapes=", "--optShapes=", "--maxShapes=")):
        if shapes:
            words = (f"{name}:{'x'.join(map(str, triple[position]))}" for name, triple in sorted(shapes.items()))
            argv.append(option + ",".join(words))
    argv += ["--sparsity=enable"] if sparse else []
    return argv + (["--useDLACore=0", "--allowGPUFallback"] if dla else [])


def build_plan(
    model: str, shapes: Mapping[str, Sequence[Sequence[int]]], profile: Profile, *, sparse: bool = False
) -> dict[str, Any]:
    """Return the contents of `build.json`: what to run on the device, by the TensorRT found there."""
    dla = bool(profile.settings.get("tensorrt", {}).get("dla", False))
    versions = [version for version in TYPING if not dla or version in WITH_DLA]
    return {
        "schema": 1,
        "about": "Build the engine on the device it runs on: engines fit one TensorRT version and one GPU only. "
        "Take the command of the TensorRT found there; edgekit's runner does the same by itself.",
        "engine": ENGINE,
        "jetpacks": {jetpack: version for jetpack, version in JETPACKS.items() if version in versions},
        "shapes": {name: [list(shape) for shape in triple] for name, triple in sorted(shapes.items())},
        "commands": {version: trtexec_argv(model, version, shapes, dla=dla, sparse=sparse) for version in versions},
    }
