"""What is handed to AI Hub, and what comes back, seen as the graph's own inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.artifact import sha256_file
from edgekit.errors import InputError
from edgekit.target import Bundle, Feed, Tolerance

RUNTIME = "precompiled_qnn_onnx"
"""What AI Hub compiles to: a context binary in an ONNX graph, as our own."""

_PLAIN_NAME = re.compile(r"[^\s,]+")


def restored(outputs: Feed, bundle: Bundle) -> Feed:
    """Return outputs under the graph's names, in its order and dtypes: the compiled model may have shorter integers."""
    specs = bundle.facts.get("graphs", {}).get(bundle.facts["model"], {}).get("outputs", [])
    if {spec["name"] for spec in specs} != set(outputs):
        return outputs
    kept = {spec["name"]: np.dtype(spec["dtype"]) for spec in specs}
    return {name: outputs[name].astype(dtype, copy=False) for name, dtype in kept.items()}


def check_feed(feed: Mapping[str, Any], bundle: Bundle) -> None:
    """Raise InputError for a feed that the graph does not take, before it has been sent and waited for."""
    specs = bundle.facts.get("graphs", {}).get(bundle.facts["model"], {}).get("inputs", [])
    wanted = {str(spec["name"]): spec for spec in specs}
    remedy = "Compare the data's preprocessing with the model's inputs."
    if wanted and set(wanted) != set(feed):
        text = f"the model takes {', '.join(wanted)}, not {', '.join(feed)}"
        raise InputError(text, where="inputs", remedy=remedy)
    for name, spec in wanted.items():
        array, shape = feed[name], list(spec["shape"])
        fits = len(shape) == array.ndim and all(
            size == found for size, found in zip(shape, array.shape, strict=True) if isinstance(size, int)
        )
        if not fits or str(array.dtype) != spec["dtype"]:
            text = f"is {array.dtype} {list(array.shape)}; the model takes {spec['dtype']} {shape}"
            raise InputError(text, where=f"input '{name}'", remedy=remedy)


def compared(found: Any, wanted: Any, tolerance: Tolerance) -> dict[str, Any]:
    """Hold an output against a golden one: floats within the tolerance, the rest equal."""
    if found is None:
        return {"matches": False, "error": None, "text": "it is missing"}
    if found.shape != wanted.shape or found.dtype.kind != wanted.dtype.kind:
        text = f"{found.dtype} {list(found.shape)} instead of {wanted.dtype} {list(wanted.shape)}"
        return {"matches": False, "error": None, "text": text}
    if wanted.dtype.kind != "f":
        equal = bool(np.array_equal(found, wanted))
        return {"matches": equal, "error": None, "text": "" if equal else "other values"}
    left, right = found.astype(np.float64), wanted.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    apart = np.abs(np.where(same, 0.0, left) - np.where(same, 0.0, right))
    size = np.abs(np.where(np.isfinite(right), right, 0.0))
    fits = bool((apart <= tolerance.absolute + tolerance.relative * size).all())
    error = float(apart.max()) if apart.size else 0.0
    return {"matches": fits, "error": error if np.isfinite(error) else None, "text": "" if fits else "other values"}


def model_of(bundle: Bundle, scratch: Path) -> tuple[Path, dict[str, str]]:
    """Return what is uploaded, and its sums: the graph, or a folder when its weights lie beside it."""
    name = str(bundle.facts["model"])
    files = [bundle.folder / name, *sorted(bundle.folder.glob(f"{name}.data"))]
    sums = {path.name: sha256_file(path) for path in files}
    if len(files) == 1:
        return files[0], sums
    folder = scratch / "model"
    folder.mkdir()
    for path in files:
        (folder / path.name).symlink_to(path.resolve())
    return folder, sums


def compile_options(bundle: Bundle, feed: Mapping[str, Any]) -> str:
    """Return AI Hub's options: the runtime, the outputs' names, and shorter integers where the graph has 64 bits."""
    outputs = bundle.facts.get("graphs", {}).get(bundle.facts["model"], {}).get("outputs", [])
    names = [str(spec["name"]) for spec in outputs]
    long = any(str(array.dtype) in ("int64", "uint64") for array in feed.values())
    long = long or any(spec["dtype"] in ("int64", "uint64") for spec in outputs)
    words = [f"--target_runtime {RUNTIME}"]
    words += [f"--output_names {','.join(names)}"] if names and all(map(_PLAIN_NAME.fullmatch, names)) else []
    return " ".join([*words, *(["--truncate_64bit_io"] if long else [])])


def inputs_of(bundle: Bundle, feed: Mapping[str, Any]) -> list[str]:
    """Return the inputs in the graph's order: a dataset has one, and so has a compiled model."""
    specs = bundle.facts.get("graphs", {}).get(bundle.facts["model"], {}).get("inputs", [])
    names = [str(spec["name"]) for spec in specs if spec["name"] in feed]
    return names if len(names) == len(feed) else list(feed)
