"""The local transport: this machine, in a work folder of its own that goes when it is closed."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from edgekit.artifact import digest, sha256_file
from edgekit.errors import EdgekitError, TargetError, UsageError
from edgekit.store import default_root
from edgekit.transport import Completed
from edgekit.transports.process import run_process

_PREFIX = f"local-{digest(platform.node())[:8]}-"
"""Of work folders: with the host, for a home folder that several machines share, each with process ids of its own."""


class LocalTransport:
    """Runs commands on this machine with this Python.

    Attributes:
        url: `local`.
        python: the interpreter that runs edgekit.
        title: what people call the machine.
        said: gets each line that a running command writes to standard error; None: nobody listens.
    """

    def __init__(self, url: str = "local") -> None:
        """Take the URL `local`; UsageError when it says more."""
        if url.partition("://")[2]:
            raise UsageError(f"'{url}' names a machine", remedy="Write `local`, or `ssh://user@host` for another one.")
        self.url = "local"
        self.title = "local"
        self.far = False
        self.python = sys.executable
        self.said: Callable[[str], None] | None = None
        self._folder: Path | None = None

    def open(self) -> None:
        """Make the work folder, and remove those that killed processes left behind."""
        for root in (default_root() / "device", Path(tempfile.gettempdir())):
            try:
                root.mkdir(parents=True, exist_ok=True)
                sweep(root, _PREFIX)
                self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
                return
            except OSError as error:
                reason = error
        raise TargetError(
            f"no work folder can be made: {reason.strerror}",
            where=str(reason.filename),
            remedy="Set EDGEKIT_HOME or TMPDIR to a folder that you can write.",
        )

    def close(self) -> None:
        """Remove the work folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def push(self, source: Path, name: str) -> str:
        """Copy a file to `name` in the work folder; return its path."""
        target = self._place(name)
        try:
            if not target.is_file() or sha256_file(target) != sha256_file(source):
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy(source, target)
        except OSError as error:
            raise _failed(f"cannot write '{name}'", error) from error
        return str(target)

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """Run a command in the work folder."""
        try:
            return run_process(argv, timeout=timeout, folder=self._place("."), said=self.said)
        except TimeoutError as error:
            raise TargetError(
                f"'{argv[0]}' was stopped: {error}", where=self.url, remedy="Give it more time or less work."
            ) from None
        except OSError as error:
            raise _failed(f"cannot start '{argv[0]}'", error) from error

    def pull(self, name: str, destination: Path) -> None:
        """Copy `name` from the work folder to a file."""
        try:
            _copy(self._place(name), destination)
        except OSError as error:
            raise _failed(f"cannot fetch '{name}'", error) from error

    def _place(self, name: str) -> Path:
        if self._folder is None:
            raise TargetError("the transport is not open", where=self.url)
        return self._folder / check_name(name)


def check_name(name: str) -> str:
    """Return a name inside a work folder: relative, without `..` and NUL; anything else is a bug of the caller."""
    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise EdgekitError(f"'{name}' is no name inside a work folder")
    return name


def _copy(source: Path, target: Path) -> None:
    part = target.with_name(f".{os.getpid()}.part")  # short: the name itself may be as long as a name can be
    try:
        shutil.copyfile(source, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _failed(text: str, error: OSError) -> TargetError:
    remedy = "Check the space and the permissions of the work folder."
    return TargetError(f"{text}: {error.strerror or error}", where="local", remedy=remedy)


def sweep(root: Path, prefix: str) -> None:
    """Remove the folders `PREFIX<process id>-...` under `root` whose processes are gone."""
    for folder in root.glob(f"{prefix}*-*"):
        with contextlib.suppress(ValueError, OSError):
            owner = int(folder.name.removeprefix(prefix).partition("-")[0])
            try:
                os.kill(owner, 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)
