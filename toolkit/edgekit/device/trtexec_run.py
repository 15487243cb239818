"""NVIDIA's trtexec as a child process that is watched while it works. Standard library, Python 3.8."""

import os
import subprocess
import sys
import threading
import time
from typing import IO, Any, Callable, Dict, Iterable, Iterator, List, Optional

if __package__:
    from . import engine_key, machine
else:
    import engine_key  # type: ignore[import-not-found,no-redef]
    import machine  # type: ignore[import-not-found,no-redef]

BEGINS = b"Starting inference"
"""What it prints when the engine is loaded and its clock starts (8.5 to 11)."""
ERROR = "[E]"
LAST_LINES = 200


class Watch:
    """What is seen of a trtexec while it runs.

    Attributes:
        begun: when it said that its runs begin, by `time.monotonic`; None when it did not.
        peak: the most memory that it held (bytes).
        free: the least that the machine could still give (bytes).
        told: the machine's state `after` seconds of its runs.
    """

    def __init__(self, state: Optional[Callable[[], Dict[str, Any]]] = None, after: float = 0) -> None:
        self.begun = None  # type: Optional[float]
        self.peak = 0
        self.free = None  # type: Optional[int]
        self.told = {}  # type: Dict[str, Any]
        self._state, self._after = state, after

    def read(self, stream: Iterable[bytes]) -> None:
        """Pass on what it prints, and note when its runs begin."""
        for line in stream:
            if self.begun is None and BEGINS in line:
                self.begun = time.monotonic()
            sys.stderr.write(line.decode("utf-8", "replace"))

    def look(self, *, ended: bool = False) -> None:
        """Look at the machine, from time to time."""
        free = machine.available_bytes()
        if free is not None:
            self.free = free if self.free is None else min(self.free, free)
        due = self.begun is not None and time.monotonic() - self.begun >= self._after
        if self._state is not None and not self.told and (due or ended):
            self.told = self._state()


def run_trtexec(argv: List[str], timeout: float, watch: Optional[Watch] = None) -> None:
    """Run trtexec to its end.

    Raises:
        RuntimeError: it failed, or took longer: with its last words.
        MemoryError: its last words are about memory.
    """
    watch = watch or Watch()
    said = []  # type: List[str]
    # in the runner's own session: whoever ends the runner's group ends it too
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.stdout is not None
    reader = threading.Thread(target=watch.read, args=(_noting(child.stdout, said),), daemon=True)
    reader.start()
    deadline = time.monotonic() + timeout
    try:
        while True:
            watch.look()
            ended, status, usage = os.wait4(child.pid, os.WNOHANG)
            if ended:
                child.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                watch.peak = usage.ru_maxrss * 1024
                break
            if time.monotonic() > deadline:
                raise RuntimeError("{} was stopped: no end after {:g} s".format(argv[0], timeout))
            time.sleep(0.05)
        watch.look(ended=True)
    finally:
        if child.returncode is None:
            child.kill()
            child.wait()
        reader.join(5)
        if not reader.is_alive():  # else a child of it holds the pipe, and closing would wait for that
            child.stdout.close()
    if child.returncode:
        words = "; ".join(line for line in said if ERROR in line)[-1000:] or "its log says why"
        text = "{} ended with status {}: {}".format(argv[0], child.returncode, words)
        raise MemoryError(text) if engine_key.NO_MEMORY.search(words) else RuntimeError(text)


def _noting(stream: IO[bytes], said: List[str]) -> Iterator[bytes]:
    """Yield the lines of a stream, keeping the last ones."""
    for line in stream:
        said.append(line.decode("utf-8", "replace").strip())
        del said[:-LAST_LINES]
        yield line
