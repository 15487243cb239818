"""Builds a virtual environment for every peer of `quantize.py --bar`, with exact versions; what is whole is kept.

    python benchmarks/peers/venvs.py DIR [--only NAME ...]

DIR then holds a folder a peer. A peer that cannot be installed is told with pip's last words, which stay in
DIR/NAME.failed; the table names it and goes on without it. Wants Python 3.11, which the versions were tested with, and
about 5 GB. torch is the CPU build where an index or a `--find-links` folder of pip's configuration has it. Exit status
1 when a peer is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = {
    "nncf": "import nncf, onnx",
    "modelopt": "import modelopt.onnx.quantization",
    "aimet": "import aimet_onnx",
    "export": "import gguf, torch, onnxscript, transformers, accelerate",
    "llama": "import llama_cpp",
}
"""Name -> what shows that its environment is whole; `export` is no peer, it writes the language model for them."""
LAST_LINES = 12


def interpreter(folder: Path, peer: str) -> Path:
    """Return the Python of a peer; FileNotFoundError with the reason when its environment is not whole."""
    python = folder / peer / "bin" / "python"
    if _mark(folder, peer).exists() and python.exists():
        return python
    failed = folder / f"{peer}.failed"
    why = failed.read_text(encoding="utf-8").strip().splitlines()[-1] if failed.exists() else "not built"
    raise FileNotFoundError(f"{peer}: {why}")


def _requirements(peer: str) -> Path:
    return HERE / "requirements" / f"{peer}.txt"


def _mark(folder: Path, peer: str) -> Path:
    """Return the file that says that a peer's environment was built from these very requirements."""
    return folder / peer / f"whole-{hashlib.sha256(_requirements(peer).read_bytes()).hexdigest()[:16]}"


def build(folder: Path, peer: str) -> str:
    """Build one environment; return what went wrong, or nothing."""
    failed = folder / f"{peer}.failed"
    failed.unlink(missing_ok=True)
    venv.create(folder / peer, with_pip=True, clear=True)
    python = str(folder / peer / "bin" / "python")
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "-r", str(_requirements(peer))]
    one_job = {"CMAKE_BUILD_PARALLEL_LEVEL": "1", **os.environ}
    for argv in (install, ["-c", PEERS[peer]]):
        done = subprocess.run(
            [python, *argv], env=one_job, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            text = "\n".join(done.stdout.strip().splitlines()[-LAST_LINES:])
            failed.write_text(f"{text}\n", encoding="utf-8")
            return text
    _mark(folder, peer).touch()
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the environments go")
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=list(PEERS))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    missing = 0
    for peer in options.only:
        if _mark(options.folder, peer).exists():
            print(f"{peer}: whole")
            continue
        print(f"{peer}: building ...", flush=True)
        wrong = build(options.folder, peer)
        missing += bool(wrong)
        print(f"{peer}: missing\n{wrong}" if wrong else f"{peer}: whole", flush=True)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
