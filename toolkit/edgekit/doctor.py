"""What this machine has for edgekit: libraries, tools and devices, and how to get what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from dataclasses import dataclass

from edgekit.store import default_root


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was looked for."""

    what: str
    state: str
    used_for: str
    remedy: str


_LIBRARIES = (
    ("onnx", "graphs", ""),
    ("onnxruntime", "calibration, accuracy, latency on this machine", ""),
    ("torch", "PyTorch and Hugging Face models", "pip install 'edgekit-toolkit[torch]'"),
    ("transformers", "Hugging Face models", "pip install 'edgekit-toolkit[torch]'"),
    ("tokenizers", "text data", "pip install 'edgekit-toolkit[text]'"),
    ("tensorrt-rtx", "NVIDIA's parser as a check on the desk", "pip install 'edgekit-toolkit[trt-check]'"),
    ("tensorrt", "engines, on the device", "part of JetPack: run the build with --target ssh://..."),
    ("onnxruntime-qnn", "Qualcomm's compiler and simulator", "pip install 'edgekit-toolkit[qnn]'"),
    ("qai-hub", "targets aihub://", "pip install 'edgekit-toolkit[aihub]', or name its Python: EDGEKIT_AIHUB_PYTHON"),
)
_TOOLS = (
    ("ssh", "targets ssh://", "install the OpenSSH client"),
    ("adb", "targets adb://", "install Android's platform tools"),
    ("trtexec", "engines, on the device", "part of JetPack"),
)


def examine() -> list[Row]:
    """Look for everything that edgekit can use; nothing heavy is imported."""
    rows = [
        Row(
            what="python",
            state=platform.python_version(),
            used_for="edgekit",
            remedy="",
        ),
        Row(
            what="machine",
            state=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            used_for="target local",
            remedy="",
        ),
        _store_row(),
    ]
    for name, used_for, remedy in _LIBRARIES:
        version = _version(name)
        rows.append(Row(what=name, state=version or "missing", used_for=used_for, remedy="" if version else remedy))
    for name, used_for, remedy in _TOOLS:
        path = shutil.which(name)
        rows.append(Row(what=name, state=path or "missing", used_for=used_for, remedy="" if path else remedy))
    return rows


def _store_row() -> Row:
    root = default_root()
    parent = next(p for p in (root, *root.parents) if p.exists())
    usable = os.access(parent, os.W_OK)
    free = shutil.disk_usage(parent).free / 1e9
    return Row(
        what="store",
        state=f"{root} ({free:.0f} GB free)" if usable else f"{root} cannot be written",
        used_for="artifacts and the cache",
        remedy="" if usable else "set EDGEKIT_HOME to a folder that you can write",
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
