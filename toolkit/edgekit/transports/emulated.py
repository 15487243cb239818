"""The transport to an emulated machine: this one's files, another processor's Python."""

from __future__ import annotations

from edgekit.errors import UsageError
from edgekit.transports.aarch64_root import NAME, aarch64_python
from edgekit.transports.local import LocalTransport


class EmulatedTransport(LocalTransport):
    """Runs commands on this machine; its `python` is an aarch64 one under QEMU (`transports/aarch64_root.py`)."""

    def __init__(self, url: str = NAME) -> None:
        """Take the URL `emulated-aarch64`; UsageError when it says more."""
        super().__init__()
        if url.partition("://")[2]:
            raise UsageError(f"'{url}' names a machine", remedy=f"Write `{NAME}`: it is emulated here.")
        self.url = self.title = NAME

    def open(self) -> None:
        """Make the work folder; set the machine up when that was not done yet (under a minute)."""
        self.python = str(aarch64_python())
        super().open()
