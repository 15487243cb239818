"""Child processes that cannot outstay their time: a group of their own, bounded output, no shell."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

from edgekit.children import start_group
from edgekit.transport import Completed

LIMIT = 64 << 10
"""Bytes of standard output and of standard error that are kept: the last ones, where errors stand."""


class Tail:
    """The last bytes of a stream, read by a thread so that the writer never waits.

    Its lines also go to `said`, as they come, in that thread.
    """

    def __init__(self, stream: IO[bytes] | None, said: Callable[[str], None] | None = None) -> None:
        self._kept = bytearray()
        self._said, self._line = said, b""
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes] | None) -> None:
        if stream is None:
            return
        with stream, contextlib.suppress(OSError, ValueError):
            while chunk := os.read(stream.fileno(), LIMIT):
                self._kept += chunk
                del self._kept[:-LIMIT]
                self._pass_on(chunk)

    def _pass_on(self, chunk: bytes) -> None:
        if self._said is None:
            return
        *lines, rest = (self._line + chunk).split(b"\n")
        self._line = rest[-LIMIT:]
        for line in lines:
            self._said(line.decode("utf-8", "replace"))

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the stream; say whether it came."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def text(self) -> str:
        """Return what was kept."""
        return bytes(self._kept).decode("utf-8", "replace")


def run_process(
    argv: Sequence[str],
    *,
    timeout: float,
    folder: Path | None = None,
    source: BinaryIO | None = None,
    sink: BinaryIO | None = None,
    hold: bool = False,
    said: Callable[[str], None] | None = None,
) -> Completed:
    """Run a command to its end.

    Args:
        argv: program and arguments.
        timeout: seconds after which it and its children are killed.
        folder: where it runs.
        source: what it reads as standard input; nothing without it.
        sink: where its standard output goes instead of into the result.
        hold: standard input is a pipe that stays open, silent, until the command ends: its far end sees it close when
            this process dies or the link breaks.
        said: gets each line of standard error as it comes, in another thread.

    Raises:
        TimeoutError: it took longer.
        OSError: it cannot be started.
    """
    process = start_group(
        argv,
        cwd=folder,
        stdin=source or (subprocess.PIPE if hold else subprocess.DEVNULL),
        stdout=sink or subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    streams: list[Tail] = []
    try:
        streams += [Tail(process.stdout), Tail(process.stderr, said)]
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no end after {timeout:g} s") from None
    finally:
        if process.poll() is None:
            end_group(process)
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        if not all(stream.wait(1) for stream in streams):  # a child of it lives on and holds the pipes
            signal_group(process, signal.SIGKILL)
            for stream in streams:
                stream.wait(1)
    return Completed(status=status, stdout=streams[0].text(), stderr=streams[1].text())


def end_group(process: subprocess.Popen[Any], patience: float = 2) -> None:
    """End a process and its group: politely, then not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_group(process, number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        return


def signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to the group that a process leads, if any of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
