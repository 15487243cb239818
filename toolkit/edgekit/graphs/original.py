"""The caller's model, as what everything is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.errors import InputError
from edgekit.graphs.calibrate import is_large, open_file, open_graph
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.widen import WIDENED


def open_original(source: Canonical, path: Path, threads: int) -> Any:
    """Open a session of the caller's model; of its float32 form when the CPU cannot run it as it is."""
    if any(finding.rule == WIDENED for finding in source.findings):
        return open_graph(source.model, source.folder, threads=threads)
    try:
        return open_file(path, large=is_large(source.model), threads=threads)
    except InputError:  # e.g. two nodes of one name: the canonical form is the same model, and loads
        return open_graph(source.model, source.folder, threads=threads)
