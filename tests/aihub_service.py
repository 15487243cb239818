"""The stand-in for Qualcomm AI Hub (tests/aihub_stand_in.py), running: what it is told and what it was asked."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from edgekit.targets import aihub, aihub_told

STAND_IN = Path(__file__).with_name("aihub_stand_in.py")
NAME = "Stand-in Phone"
HAS_CLIENT = bool(os.environ.get(aihub_told.PYTHON)) or importlib.util.find_spec("qai_hub") is not None
needs_client = pytest.mark.skipif(not HAS_CLIENT, reason="needs the extra aihub, or EDGEKIT_AIHUB_PYTHON")


class Service:
    """The stand-in, running: what it is told, and what it was asked."""

    def __init__(self, folder):
        self.folder = folder
        self.told = {
            "token": "good",
            "devices": {NAME: ["soc-model:57", "hexagon:v75", "framework:onnx"], "Stand-in Board": ["framework:onnx"]},
            "layers": {"NPU": 12},
            "times": [500, 501, 502, 503] * 25,
        }
        self.tell()

    def tell(self, **changes):
        self.told |= changes
        part = self.folder / "control.part"
        part.write_text(json.dumps(self.told))
        part.rename(self.folder / "control.json")

    def asked(self, what):
        lines = (self.folder / "requests.txt").read_text().splitlines()
        return sum(line == what for line in lines)


@pytest.fixture
def aihub_service(tmp_path, monkeypatch):
    folder = tmp_path / "service"
    folder.mkdir()
    running = Service(folder)
    python = aihub_told.client_python("")
    command = [python, "-P", str(STAND_IN), str(folder)]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(600):
            if (folder / "port").exists() or process.poll() is not None:
                break
            time.sleep(0.05)
        url = f"http://127.0.0.1:{(folder / 'port').read_text()}"
        write_token(tmp_path, url, "good")
        monkeypatch.setenv("QAIHUB_CLIENT_INI", str(tmp_path / "client.ini"))
        monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(aihub, "POLL", 0.05)
        monkeypatch.setattr(aihub, "PATIENCE", 1.0)
        yield running
    finally:
        process.kill()
        process.wait()


def write_token(folder, url, token):
    text = f"[api]\napi_token = {token}\napi_url = {url}\nweb_url = {url}\nverbose = True\n"
    (folder / "client.ini").write_text(text)
