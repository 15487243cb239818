"""`python -m edgekit` and the command `edgekit`."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the command line and exit with its status."""
    from edgekit.cli import INTERRUPTED, run_cli

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not fit what a terminal can show
    status = run_cli(sys.argv[1:])
    if status == INTERRUPTED:
        # an interrupt inside `exec` (a dataclass is being made) lets CPython end by the signal, whatever exit is asked
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
