"""What long work tells while it runs: lines on standard error for the host. Standard library, Python 3.8."""

import json
import sys
import time
from typing import Any, Dict, Optional

MARK = "edgekit-progress: "
Steps = Dict[str, int]
SOONEST = 0.5
"""Seconds between two lines of one phase of TensorRT's builder, which has thousands of steps."""


def tell(what: str, done: int = 0, total: int = 0) -> None:
    """Say what is done, and how far it is; `total` 0: nobody knows."""
    sys.stderr.write(MARK + json.dumps([what, done, total]) + "\n")
    sys.stderr.flush()


def monitor(trt: Any) -> Optional[Any]:
    """Return a monitor for TensorRT's builder that tells of its outermost phases; None before 10, which has none."""
    if not hasattr(trt, "IProgressMonitor"):
        return None

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps = {}  # type: Steps
            self._told = 0.0

        def phase_start(self, phase_name: str, parent_phase: Optional[str], num_steps: int) -> None:
            if not parent_phase:
                self._steps[phase_name] = num_steps
                tell("build the engine: " + phase_name, 0, num_steps)

        def phase_finish(self, phase_name: str) -> None:
            if phase_name in self._steps:
                steps = self._steps.pop(phase_name)
                tell("build the engine: " + phase_name, steps, steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            now = time.monotonic()
            if phase_name in self._steps and now - self._told >= SOONEST:
                self._told = now
                tell("build the engine: " + phase_name, step, self._steps[phase_name])
            return True  # go on

    return Monitor()
