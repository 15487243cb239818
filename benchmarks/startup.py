"""How long `edgekit --help` takes, against the same question to peers that are installed and to bare click.

    python benchmarks/startup.py [RUNS]

Whole processes, alternating, best of RUNS each (the minimum is what the machine can do when nothing disturbs it).
The goal is 0.2 s; a test counts the imports, nothing asserts the time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "edgekit --help": [sys.executable, "-m", "edgekit", "--help"],
    "python -c 'import click'": [sys.executable, "-c", "import click"],
    "python -c pass": [sys.executable, "-c", "pass"],
    "optimum-cli --help": [shutil.which("optimum-cli", path=str(Path(sys.executable).parent)) or "", "--help"],
}


def seconds(argv: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    known = {name: argv for name, argv in COMMANDS.items() if argv[0]}
    best = dict.fromkeys(known, float("inf"))
    for _ in range(runs):
        for name, argv in known.items():
            best[name] = min(best[name], seconds(argv))
    ours = best["edgekit --help"]
    print(f"best of {runs}:")
    for name, value in best.items():
        print(f"  {name:28} {value * 1000:7.0f} ms   edgekit is {ours / value:.2f} x")


if __name__ == "__main__":
    main()
