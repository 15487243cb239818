"""Small models, and the runner as a device starts it: a child process in a folder of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edgekit

SOURCES = Path(edgekit.__file__).parent / "device"


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    """Call it with a command and a job (or an output path): (exit status, stderr). The files lie alone, as pushed."""
    folder = tmp_path_factory.mktemp("runner")
    for source in SOURCES.glob("[!_]*.py"):
        shutil.copy(source, folder)

    def run(command, path, **kwargs):
        argv = [sys.executable, str(folder / "runner.py"), command, str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=280, check=False, cwd=folder, **kwargs)
        return done.returncode, done.stderr

    run.path = folder / "runner.py"
    return run


@pytest.fixture
def job(tmp_path):
    """Write a job file with sensible values; return its path. The result is `result.json` beside it."""

    def write(**values):
        content = {
            "schema": 1,
            "id": "t",
            "model": "model.onnx",
            "runtime": "onnxruntime",
            "providers": ["CPUExecutionProvider"],
            "threads": 1,
            "inputs": ["in.npz"],
            "outputs": "out",
            "result": "result.json",
            **values,
        }
        path = tmp_path / "job.json"
        path.write_text(json.dumps(content))
        return path

    return write


@pytest.fixture
def result(tmp_path):
    return lambda: json.loads((tmp_path / "result.json").read_text())
