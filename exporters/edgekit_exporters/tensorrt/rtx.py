"""A second opinion by a real tool: the parser and builder of TensorRT-RTX, which run without a GPU.

TensorRT-RTX builds for SM 8.6 at the nearest; Orin is SM 8.7, and its TensorRT is another product with the same
parser. So it is labelled as what it is, and runs in a child process: its libraries crash where they look for a driver.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

from edgekit.children import environment, run_child
from edgekit.events import Finding

LABEL = "TensorRT-RTX sm_86 parser/AOT, not an Orin build"

_CHILD = Path(__file__).with_name("rtx_child.py")
_PARSE_SECONDS = 300
_BUILD_SECONDS = 1800


def is_installed() -> bool:
    """Say whether `tensorrt_rtx` is there (the extra `trt-check`); it is not imported."""
    return importlib.util.find_spec("tensorrt_rtx") is not None


def check_with_rtx(
    path: Path, *, build: bool = False, shapes: dict[str, list[list[int]]] | None = None
) -> list[Finding]:
    """Let TensorRT-RTX parse a model file, and build it ahead of time for SM 8.6.

    Args:
        path: the model file.
        build: whether an engine is built as well; that takes a second for a CNN and minutes for large models.
        shapes: input -> [min, opt, max] of dynamic inputs, for building.

    Returns:
        What it refuses, in its own words, as errors; a note when it took the model; a warning when the check itself
        did not work.
    """
    with tempfile.TemporaryDirectory(prefix="edgekit-rtx-") as name:
        result = Path(name) / "result.json"
        how = ["build" if build else "parse", json.dumps(shapes or {})]
        ended = run_child(
            ["-P", str(_CHILD), str(path.resolve()), str(result), *how],
            folder=Path(name),
            log=Path(name) / "log",
            seconds=_BUILD_SECONDS if build else _PARSE_SECONDS,
            environment=environment(CUDA_VISIBLE_DEVICES=""),
        )
        if ended.status is None:
            return [_finding("warning", "", "the check took too long and was stopped")]
        if ended.status or not result.exists():
            return [_finding("warning", "", f"the check itself died with {ended.how}: {ended.last_line}")]
        return _findings(json.loads(result.read_text(encoding="utf-8")))


def _findings(answer: dict[str, Any]) -> list[Finding]:
    found = [
        _finding("error", error["node"], f"{error['op']}: {error['text']}".removeprefix(": "))
        for error in answer["errors"]
    ]
    if found:
        return found
    built = f", engine of {answer['engine_bytes']} bytes" if answer.get("engine_bytes") else ""
    return [_finding("note", "", f"accepted by version {answer['version']}{built}")]


def _finding(severity: Any, node: str, text: str) -> Finding:
    remedy = "Change what it names; edgekit's own findings say how, where they know." if severity == "error" else ""
    return Finding(severity=severity, node=node, rule="trt-rtx", text=f"{text} [{LABEL}]", remedy=remedy)
