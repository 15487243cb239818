"""Where a machine is: `ssh://[user@]host[:port]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgekit.errors import UsageError

PORTS = {None, *range(1, 1 << 16)}

_URL = re.compile(r"ssh://(?:(?P<user>[^@/?#]+)@)?(?P<host>\[[0-9A-Za-z:.%]+\]|[^\[\]@:/?#\s]+)(?::(?P<port>\d+))?/?")


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a `ssh://[user@]host[:port]` URL leads."""

    host: str
    user: str = ""
    port: int | None = None

    def options(self) -> list[str]:
        """Return the address as options of ssh, the host aside."""
        port = ["-p", str(self.port)] if self.port else []
        return port + (["-l", self.user] if self.user else [])


def parse_url(url: str) -> Address:
    """Read a URL; UsageError when it is none that ssh can be given safely."""
    match = _URL.fullmatch(url)
    user, host = (match["user"] or "", match["host"].strip("[]")) if match else ("", "")
    port = int(match["port"]) if match and match["port"] else None
    if ":" in user:
        raise UsageError(
            f"'ssh://{user.partition(':')[0]}:...' holds a password",
            remedy="Passwords do not belong on a command line: give the machine a key (ssh-copy-id).",
        )
    if match is None or host.startswith("-") or user.startswith("-") or port not in PORTS:
        raise UsageError(f"'{url}' is no ssh URL", remedy="Write it like ssh://user@host or ssh://user@host:2222.")
    return Address(host=host, user=user, port=port)
