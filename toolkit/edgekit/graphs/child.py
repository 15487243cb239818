"""Running work on an untrusted model in a child process: a crash or a bomb there is an error here, not the end."""

from __future__ import annotations

import json
import resource
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit import errors
from edgekit.children import Ended, environment, run_child
from edgekit.errors import EdgekitError, InputError, TargetError

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a child process may use.

    Attributes:
        memory: bytes of address space; None: 6 GiB and four times the model's size.
        file: bytes of the largest file it may write; None: 1 GiB and twice the model's size.
        cpu_seconds: seconds of CPU time.
        wall_seconds: seconds by the clock.
    """

    memory: int | None = None
    file: int | None = None
    cpu_seconds: int = 1800
    wall_seconds: float = 1800.0

    def for_size(self, size: int) -> Limits:
        """Return limits with numbers, for a model of `size` bytes."""
        return Limits(
            memory=self.memory if self.memory is not None else 6 * GIB + 4 * size,
            file=self.file if self.file is not None else GIB + 2 * size,
            cpu_seconds=self.cpu_seconds,
            wall_seconds=self.wall_seconds,
        )


DEFAULT_LIMITS = Limits()


def run_task(
    task: str,
    request: dict[str, Any],
    *,
    folder: Path,
    size: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    deadline: float | None = None,
) -> dict[str, Any]:
    """Run a task of `edgekit.graphs.probe` in a child process and return its result.

    Args:
        task: the task's name.
        request: its arguments, as JSON values.
        folder: the child's working folder; it opens the files there by bare names.
        size: bytes of the model, for limits that grow with it.
        limits: what the child may use.
        deadline: `time.monotonic()` value by which it must end, or None.

    Raises:
        EdgekitError: whatever class the task raised; InputError when the child crashed or went over a limit;
            TargetError when the deadline passed.
    """
    numbers = limits.for_size(size)
    seconds = limits.wall_seconds if deadline is None else min(limits.wall_seconds, deadline - time.monotonic())
    with tempfile.TemporaryDirectory(prefix="edgekit-probe-") as name:
        private = Path(name)
        order = {"task": task, "request": request, "limits": vars(numbers)}
        (private / "request.json").write_text(json.dumps(order), encoding="ascii")
        ended = run_child(
            ["-P", "-m", "edgekit.graphs.probe", str(private)],
            folder=folder,
            log=private / "log",
            seconds=max(seconds, 0.1),
            environment=environment(PYTHONHASHSEED="0"),  # sets iterate alike every time
        )
        if ended.status == 0 and (private / "result.json").exists():
            return _answer(json.loads((private / "result.json").read_text(encoding="ascii")))
        if ended.status is None and deadline is not None and time.monotonic() >= deadline:
            raise TargetError(
                "work on the model did not end before the deadline and was stopped",
                where=task,
                remedy="Allow more time, or use a faster machine.",
            )
        if ended.status == 1 and "Traceback" in ended.log and not ended.is_out_of_memory:
            raise EdgekitError(f"the task '{task}' on a model failed: {ended.last_line}")
        raise _crash(ended, numbers, seconds)


def _answer(answer: dict[str, Any]) -> dict[str, Any]:
    failure = answer.get("error")
    if failure is None:
        result: dict[str, Any] = answer["result"]
        return result
    classes = {
        kind.kind: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EdgekitError)
    }
    raise classes[failure["kind"]](failure["text"], where=failure["where"], remedy=failure["remedy"])


def _crash(ended: Ended, limits: Limits, seconds: float) -> InputError:
    remedy = "The model is damaged, or larger than the limits allow; check it with onnx.checker.check_model."
    if ended.status is None:
        return InputError(f"work on the model was stopped after {seconds:.0f} s", remedy=remedy)
    if ended.status == -signal.SIGXCPU:
        return InputError(f"work on the model was stopped after {limits.cpu_seconds} s of CPU time", remedy=remedy)
    if ended.status == -signal.SIGXFSZ:
        return InputError(f"work on the model wrote a file of more than {limits.file} bytes", remedy=remedy)
    if ended.is_out_of_memory:
        return InputError(
            f"work on the model needs more than {(limits.memory or 0) >> 20} MiB of memory", remedy=remedy
        )
    return InputError(f"work on the model ended with {ended.how}: {ended.last_line}", remedy=remedy)


def confine(limits: dict[str, Any]) -> None:
    """Put this process under limits; called by the child before it imports anything that reads models.

    They are soft limits: what they stop is damage and bombs. A task that has checked how large its model really is
    may call this again.
    """
    wanted = {
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_FSIZE: limits["file"],
        resource.RLIMIT_CPU: limits["cpu_seconds"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (ceiling, hard))
