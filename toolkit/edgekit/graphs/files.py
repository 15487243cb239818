"""Taking in models from outside, in child processes under limits: nothing here parses an untrusted file itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edgekit.artifact import MAIN, TensorSpec
from edgekit.errors import EdgekitError, InputError
from edgekit.events import Finding
from edgekit.graphs.child import DEFAULT_LIMITS, Limits, run_task


def read_onnx(path: Path, out: Path, *, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """Take an untrusted `.onnx` into the empty folder `out` as `model.onnx`, checked and in one form.

    Weights of up to 1 GiB go into the file wherever they lay before; larger ones into one `model.onnx.data`. The
    source is only read. What `out` holds then: IR and opset that the installed runtime reads, at least opset 13
    when the conversion is faithful, no local functions, no sparse weights, no weights among the inputs, unique node
    names, every axis of inputs and outputs fixed or named; it passes onnx's checker and onnxruntime loads it.

    Args:
        path: the file; external data is looked for in its folder and never outside.
        out: an empty folder, written only by the child; to be thrown away when this raises.
        limits: what reading may cost.

    Returns:
        Facts of the artifact: `graphs`, `opset`, `ir`, `producer`, `domains`, `quantized`, `findings`, `external`
        (names of the files beside the source that its weights lie in); `license` when the model's metadata has one;
        `renamed_nodes` (new name -> old) when node names were not unique.

    Raises:
        InputError: not an ONNX model, damaged, unsafe, too new, or over the limits.
        UnsupportedError: inputs, outputs or operators that cannot be handled; names them.
    """
    size = _regular_file(path)
    request = {"source": str(path.absolute()), "limits": vars(limits)}
    try:
        return run_task("intake", request, folder=out, size=size, limits=limits)
    except EdgekitError as error:
        where = _shown(path) + (f", {error.where}" if error.where else "")
        raise type(error)(error.text, where=where, remedy=error.remedy) from None


def _shown(path: Path) -> str:
    """Return a path as text that any terminal and JSON can carry."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _regular_file(path: Path) -> int:
    """Return a file's size; InputError unless it is a regular file with something in it."""
    where, remedy = _shown(path), "Name an .onnx file."
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where, remedy="Check the path.") from None
    except ValueError:
        raise InputError("is not a path", where=where, remedy=remedy) from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError("is a directory, not an ONNX file", where=where, remedy=remedy)
    if not stat.S_ISREG(status.st_mode):
        raise InputError("is not a regular file", where=where, remedy=remedy)
    if not status.st_size:
        raise InputError("is empty", where=where, remedy="Export or download it again.")
    return status.st_size


@dataclass(frozen=True, kw_only=True)
class AxisCheck:
    """What `check_dynamic` found.

    Attributes:
        base: sizes of the dynamic axes with which the model runs; None when none was found.
        fixed: axes that are dynamic only in name -> the size that works; freeze them.
        findings: what to tell the user.
    """

    base: dict[str, int] | None
    fixed: dict[str, int]
    findings: tuple[Finding, ...]


def check_dynamic(
    folder: Path,
    signature: Mapping[str, Any],
    *,
    graph: str = MAIN,
    needed: bool = True,
    known: Mapping[str, int] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    threads: int = 1,
) -> AxisCheck:
    """Run a model with a second size of every dynamic axis, and find those that are dynamic in name only.

    The first axes of all inputs are taken as the batch and go together (1, then 3): when they do not work the
    declaration is wrong, because any batch is a legal size. Other axes are doubled; a model may rightly accept only
    some sizes there, so that is never an error. A batch that runs but whose rows influence each other is reported.

    Args:
        folder: where the artifact lies.
        signature: `facts["graphs"][graph]`.
        graph: the file's name.
        needed: the package promises the batch axis. When it does not (the user fixed the shape, or the profile
            takes static shapes only) a broken batch is a warning and the axis is to be fixed.
        known: sizes that a real sample has, for axes whose usual sizes do not work.
        limits: what the check may cost.
        threads: CPU threads.

    Raises:
        InputError: a batch axis that is needed does not work; names axis, size and node.
    """
    sides = {side: msgspec.convert(signature[side], list[TensorSpec]) for side in ("inputs", "outputs")}
    names = {dim for spec in sides["inputs"] for dim in spec.shape if isinstance(dim, str)}
    if not names:
        return AxisCheck(base={}, fixed={}, findings=())
    request = {
        "model": graph,
        "inputs": signature["inputs"],
        "outputs": signature["outputs"],
        "known": {name: size for name, size in (known or {}).items() if name in names},
        "threads": threads,
    }
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    answer = run_task("dynamic", request, folder=folder, size=size, limits=limits)
    base = answer["base"]
    if base is None:
        text = f"dynamic axes {', '.join(sorted(names))} could not be checked: {answer['reason']}"
        remedy = "Give data, or fix the shape: --shape NAME=1x3x224x224"
        finding = Finding(severity="warning", node="", rule="dynamic-axis-unchecked", text=text, remedy=remedy)
        return AxisCheck(base=None, fixed={}, findings=(finding,))
    first = {spec.shape[0] for spec in sides["inputs"] if spec.shape}
    findings, fixed = [], {}
    for broken in answer["broken"]:
        finding = _broken(broken, batch=bool(first & set(broken["axes"])), base=base)
        if first & set(broken["axes"]) and needed:
            raise InputError(finding.text, where=f"{graph}, {broken['node']}".removesuffix(", "), remedy=finding.remedy)
        findings.append(finding)
        if first & set(broken["axes"]):
            fixed.update({axis: base[axis] for axis in broken["axes"]})
    if answer["mixes"]:
        findings.append(_mixing(answer["mixes"]))
    return AxisCheck(base=base, fixed=fixed, findings=tuple(findings))


def _broken(broken: dict[str, Any], *, batch: bool, base: dict[str, int]) -> Finding:
    axes = broken["axes"]
    node = broken["node"].removeprefix("node '").removesuffix("'")
    named = f"axis '{axes[0]}' does" if len(axes) == 1 else f"axes {', '.join(repr(axis) for axis in axes)} do"
    at = f" (node {node})" if node else ""
    return Finding(
        severity="warning",
        node=node,
        rule="dynamic-axis-broken" if batch else "dynamic-axis-limited",
        text=f"declared dynamic {named} not work for {axes[0]}={broken['size']}{at}: {broken['text']}",
        remedy=f"Export it so that any size works, or fix the axis at {base[axes[0]]} with --shape."
        if batch
        else f"Only sizes such as {base[axes[0]]} are known to work; give the sizes you use with --shape.",
    )


def _mixing(mixes: list[Any]) -> Finding:
    name, found = mixes
    by = f"by {found:.1%} of its range" if found is not None else "in NaN or infinite values"
    return Finding(
        severity="warning",
        node=name,
        rule="batch-rows-mix",
        text=f"output '{name}' of a sample changes {by} with the other samples of its batch",
        remedy="Results depend on how samples are batched; call model.eval() before the export, or use batch 1.",
    )
