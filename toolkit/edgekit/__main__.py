"""`python -m edgekit` and the command `edgekit`."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line and exit with its status."""
    from edgekit.cli import run_cli

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not fit what a terminal can show
    sys.exit(run_cli(sys.argv[1:]))


if __name__ == "__main__":
    main()
