"""The Transport protocol: how files get to a machine and commands run there."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgekit.errors import UsageError, did_you_mean

TRANSPORTS = {
    "local": "edgekit.transports.local:LocalTransport",
    "ssh": "edgekit.transports.ssh:SshTransport",
    "adb": "edgekit.transports.adb:AdbTransport",
    "emulated-aarch64": "edgekit.transports.emulated:EmulatedTransport",
}
"""URL scheme -> `module:Class`. Adding a transport is one file and one line here."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that ended. `status` is its exit status; output is cut at 64 KiB each."""

    status: int
    stdout: str
    stderr: str


class Transport(Protocol):
    """A machine: a work folder on it, files in and out, argv lists run there, never a shell string of the user's.

    Attributes:
        url: where it is.
        title: what people call it: `local`, `ssh orin`.
        python: its interpreter (3.8 or later, with numpy), once open.
        far: whether a network lies between: what goes there is worth compressing.

    One that has an attribute `said` calls it with each line that a running command writes to standard error.
    """

    url: str
    title: str
    python: str
    far: bool

    def open(self) -> None:
        """Connect, take the lock of the work folder; TargetError when the machine cannot be reached."""
        ...

    def close(self) -> None:
        """Release the lock and the connection; never raises."""
        ...

    def push(self, source: Path, name: str) -> str:
        """Copy a file to `name` in the work folder (atomic; skipped when its sha256 is there); return its path."""
        ...

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """Run a command in the work folder; TargetError after `timeout` seconds, LinkError when the link breaks."""
        ...

    def pull(self, name: str, destination: Path) -> None:
        """Copy `name` from the work folder to a local file, atomically."""
        ...


def open_transport(url: str) -> Transport:
    """Return the transport of a URL (`local`, `ssh://user@host[:port]`, `emulated-aarch64`), not yet connected."""
    scheme = url.partition("://")[0]
    if scheme not in TRANSPORTS:
        raise UsageError(f"unknown target '{url}'", remedy=did_you_mean(scheme, list(TRANSPORTS)))
    module, _, attribute = TRANSPORTS[scheme].partition(":")
    transport: Transport = getattr(importlib.import_module(module), attribute)(url)
    return transport
