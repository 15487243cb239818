"""Child processes of this Python: what they inherit, their log, their end with all that they started.

What crashes, hangs, leaks or prints in a library does it in a child. How far it may go, and what an end of it means,
is up to who starts it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INHERITED = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LANG")
LOG_TAIL = 64 << 10
"""Bytes of what a child printed that are kept: a long traceback with its beginning."""
_POLL = 0.5
_OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "cannot allocate memory", "failed to map segment")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended.

    Attributes:
        status: its exit status, negative for a signal; None: it took too long and was killed.
        log: the end of what it and its libraries printed.
    """

    status: int | None
    log: str

    @property
    def how(self) -> str:
        """The end in words: `signal SIGSEGV`, `exit status 3`, `too much time`."""
        return how_ended(self.status)

    @property
    def last_line(self) -> str:
        """The last line that it printed; `no message` when there is none."""
        return (self.log.strip().splitlines() or ["no message"])[-1][:300]

    @property
    def is_out_of_memory(self) -> bool:
        """Whether its last words are those of Python, C++ or the dynamic linker without memory."""
        return any(word.lower() in self.last_line.lower() for word in _OUT_OF_MEMORY)


def environment(**more: str) -> dict[str, str]:
    """Return what a child needs to find programs and the modules that are found here, and nothing else.

    Args:
        more: variables laid over that.
    """
    import edgekit

    home = str(Path(edgekit.__file__).resolve().parent.parent)
    path = [home, *(entry for entry in sys.path if Path(entry).is_absolute() and entry != home)]
    kept = {key: os.environ[key] for key in INHERITED if key in os.environ}
    return kept | {"PYTHONPATH": os.pathsep.join(path), "PYTHONUTF8": "1", **more}


def run_child(
    arguments: Sequence[str],
    *,
    folder: Path,
    log: Path,
    seconds: float,
    environment: Mapping[str, str],
    stop: Callable[[], bool] | None = None,
) -> Ended:
    """Run this Python with arguments to its end; whatever happens here, nothing of it stays behind.

    Args:
        arguments: after the interpreter's name.
        folder: where it runs.
        log: the file that gets what it prints; it reads nothing.
        seconds: how long it may take.
        environment: its variables.
        stop: asked twice a second where another thread may end it: a signal reaches the main thread alone.
    """
    with log.open("wb") as output:
        child = start_group(
            [sys.executable, *arguments],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        status: int | None = None
        try:
            status = _wait(child, seconds, stop)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if child.poll() is None:
                kill_group(child)
                child.wait()
    with log.open("rb") as printed:
        printed.seek(max(0, log.stat().st_size - LOG_TAIL))
        return Ended(status=status, log=printed.read().decode("utf-8", "replace"))


def _wait(child: subprocess.Popen[Any], seconds: float, stop: Callable[[], bool] | None) -> int:
    """Return a child's status; TimeoutExpired when it took too long, or is to stop."""
    end = time.monotonic() + seconds
    while stop is not None and not stop() and time.monotonic() < end - _POLL:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_POLL)
    left = 0.0 if stop is not None and stop() else max(end - time.monotonic(), 0.0)
    return child.wait(left)


def start_group(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process as the leader of a group of its own; `options` are those of Popen.

    An interrupt (SIGINT) that comes before its id is known here would leave it behind: it waits until then, ends the
    process, and goes on.
    """
    came: list[tuple[int, Any]] = []
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if callable(before):
        signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        process = subprocess.Popen(list(argv), start_new_session=True, **options)
    finally:
        if callable(before):
            signal.signal(signal.SIGINT, before)
    if came and callable(before):
        kill_group(process)
        process.wait()
        before(*came[-1])
    return process


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a child that leads a group, and what it started, if any of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def how_ended(status: int | None) -> str:
    """Return an exit status in words."""
    if status is None:
        return "too much time"
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
