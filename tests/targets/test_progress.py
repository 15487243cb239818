"""Long work on a device tells how far it is while it runs: an engine that is built, a load that is kept up."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

import onnx_models
from edgekit import events
from edgekit.device import progress
from edgekit.jobs import PROGRESS
from edgekit.profile import load_profile
from edgekit.target import Bundle
from edgekit.targets import open_target
from edgekit.targets.workplace import Workplace
from edgekit.transports.process import run_process
from house import profile

HOST = profile(cpu=load_profile("host").cpu)
FACTS = {"runtime": "onnxruntime", "model": "model.onnx", "providers": ["CPUExecutionProvider"]}
SSH = pytest.param("ssh", marks=pytest.mark.system("openssh-server"))


def test_host_and_runner_mean_the_same_lines():
    assert PROGRESS == progress.MARK


@pytest.mark.parametrize("where", ["local", SSH])
def test_what_the_runner_tells_arrives_while_it_works(where, request, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))
    url = where
    if where == "ssh":
        url, environment = request.getfixturevalue("sshd")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
    (tmp_path / "bundle").mkdir()
    onnx_models.linear(tmp_path / "bundle" / "model.onnx")
    told = []
    with open_target(url, HOST, listen=lambda event: told.append((time.monotonic(), event))) as target:
        bundle = Bundle(folder=tmp_path / "bundle", facts=FACTS)
        target.measure(bundle, {"x": np.zeros((1, 8), np.float32)}, runs=100, threads=1, sustained=1.5)
        ended = time.monotonic()
        title = target._transport.title
    labels = [event.label for _, event in told]
    assert labels[0] == f"{title}: warm up and time"
    load = [(moment, event) for moment, event in told if event.label == f"{title}: sustained load"]
    assert [event.done for _, event in load] == [0, 1, 2, 3]
    assert all(event.total == 3 for _, event in load)
    assert ended - load[0][0] > 1, "told at its beginning, not at its end"


class Silent:
    """A transport that passes nothing on."""

    url = title = "silent"


class Chatty(Silent):
    said = None


def test_lines_that_are_none_are_ignored_and_transports_without_ears_are_left_alone():
    found: list[events.Event] = []
    transport = Chatty()
    Workplace(transport, found.append)
    for line in (
        "a warning of a library",
        PROGRESS + "not json",
        PROGRESS + '["what"]',
        PROGRESS + '["what", 1, "many"]',
        "x" + PROGRESS + '["what", 1, 2]',
        PROGRESS + '["what", 1, 2]',
    ):
        transport.said(line)
    assert found == [events.Progress(label="silent: what", done=1, total=2)]
    assert not hasattr(Workplace(Silent()).transport, "said")


def test_lines_come_whole_however_they_were_written():
    code = "import os, time\nfor part in (b'one\\ntw', b'o\\n', b'x' * 300000 + b'\\nlast\\nhalf'): os.write(2, part)"
    lines = []
    run_process([sys.executable, "-c", code], timeout=60, said=lines.append)
    assert lines[:2] == ["one", "two"]
    assert lines[-1] == "last"
    assert len(lines) == 4
    assert set(lines[2]) == {"x"}
