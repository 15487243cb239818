"""Compiled TensorRT engines as input: they fit one TensorRT and one GPU only, so they are refused, never loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekit.errors import UnsupportedError

SUFFIXES = frozenset({".engine", ".plan", ".trt"})

_LIMIT = 1 << 20
_COMPUTE = re.compile(r"\b(\d{1,2}\.\d)\b")


def is_engine(model: str) -> bool:
    """Say whether a model is a compiled engine, by its name."""
    return Path(model).suffix.lower() in SUFFIXES


def engine_error(path: Path, fingerprint: Mapping[str, str] | None = None) -> UnsupportedError:
    """Return the error for an engine that is given as a model. The engine itself is not opened.

    Args:
        path: the engine. What it was built for is read from `NAME.engine.json` (as the runner writes it) or a
            `manifest.json` beside it.
        fingerprint: what the target is; None without one.
    """
    built, has = built_for(path), _of_target(fingerprint or {})
    text = f"engine built for {built}" if built else "an engine, and nothing beside it says for which TensorRT and GPU"
    text += f", target has {has}" if has else ""
    return UnsupportedError(
        f"{text}: engines are not portable",
        where=str(path),
        remedy="Give the ONNX model: edgekit builds the engine on the target, for what is there.",
    )


def built_for(path: Path) -> str:
    """Return `TensorRT 10.3.0 / sm_87` as far as the files beside an engine tell; else an empty text."""
    for place in (path.with_name(path.name + ".json"), path.with_name("manifest.json")):
        try:
            about = json.loads(place.read_bytes()[:_LIMIT])
        except (OSError, ValueError):
            continue
        if isinstance(about, dict) and isinstance(about.get("tensorrt"), str):
            return _shown(about["tensorrt"], about.get("compute") or _compute_in(about.get("gpu")))
    return ""


def _compute_in(gpu: Any) -> str:
    """Return the compute capability in what the runner wrote of a GPU."""
    try:
        return str(json.loads(gpu)["gpu"]["compute"])
    except (TypeError, ValueError, KeyError):
        return ""


def _of_target(fingerprint: Mapping[str, str]) -> str:
    if "tensorrt" not in fingerprint:
        return "no TensorRT" if fingerprint else ""
    found = _COMPUTE.findall(fingerprint.get("gpu", ""))
    return _shown(fingerprint["tensorrt"], found[-1] if found else "").removeprefix("TensorRT ")


def _shown(version: str, compute: Any) -> str:
    match = _COMPUTE.search(str(compute or ""))
    return f"TensorRT {version}" + (f" / sm_{match.group(1).replace('.', '')}" if match else "")
