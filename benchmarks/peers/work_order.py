"""What the peers' child processes share; it runs in their environments: the standard library and numpy only."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Work = dict[str, Any]


def cpu() -> float:
    """Return CPU seconds of this process and its children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def peak_mb() -> float:
    """Return the peak memory of this program; `ru_maxrss` would be the parent's where that was larger at the fork."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def answer(ways: Mapping[str, Callable[[Work], Work | None]]) -> None:
    """Do the work order in the first argument, the way it names; print what that took as the last line, in JSON.

    What is imported before this call is not counted as CPU time; it is in the peak memory.
    """
    work = json.loads(sys.argv[1])
    started = cpu()
    told = ways[work["way"]](work) or {}
    took = {"cpu_seconds": cpu() - started, "peak_mb": peak_mb()}
    print("\n" + json.dumps(took | told))


def samples(path: str | Path) -> list[dict[str, Any]]:
    """Return calibration samples, each a batch of one, of a file that holds `[n, 1, ...]` for every input."""
    with np.load(path, allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files}
    return [{name: array[row] for name, array in arrays.items()} for row in range(len(next(iter(arrays.values()))))]


def losses(logits: Any, window: Any) -> tuple[Any, Any]:
    """Return the nll of every next token and the likeliest token at every position but the last.

    Args:
        logits: `[tokens, vocabulary]`.
        window: the ids, `[tokens]`.
    """
    rows = np.asarray(logits[:-1], np.float64)
    peak = rows.max(axis=1)
    total = peak + np.log(np.exp(rows - peak[:, None]).sum(axis=1))
    return total - rows[np.arange(len(rows)), window[1:]], rows.argmax(axis=1)
