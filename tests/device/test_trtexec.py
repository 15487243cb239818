"""Energy and sustained load on devices that have trtexec only, with stand-ins for it and for tegrastats."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import onnx_models
from edgekit.device import trtexec, trtexec_run
from edgekit.targets.figures import settled_latency
from sshd import alive, wait_for

TIMES = """[
  { "startEnqMs" : 499.119, "endEnqMs" : 499.151, "startH2dMs" : 499.122, "endH2dMs" : 499.303, "startComputeMs" : \
499.306, "endComputeMs" : 504.1, "startD2hMs" : 504.102, "endD2hMs" : 504.12, "h2dMs" : 0.181, "computeMs" : 4.794, \
"d2hMs" : 0.018, "latencyMs" : 4.993 }
, { "startEnqMs" : 504.2, "endEnqMs" : 504.23, "startH2dMs" : 504.25, "endH2dMs" : 504.43, "startComputeMs" : 504.44, \
"endComputeMs" : 509.24, "startD2hMs" : 509.25, "endD2hMs" : 509.26, "h2dMs" : 0.18, "computeMs" : 4.8, "d2hMs" : \
0.01, "latencyMs" : 4.99 }
, { "startEnqMs" : 509.3, "endEnqMs" : 509.33, "startH2dMs" : 509.35, "endH2dMs" : 509.53, "startComputeMs" : 509.54, \
"endComputeMs" : 514.34, "startD2hMs" : 514.35, "endD2hMs" : 514.36, "h2dMs" : 0.18, "computeMs" : 4.8, "d2hMs" : \
0.01, "latencyMs" : 4.99, "endToEndMs" : 5.01 }
]
"""
"""In the format of trtexec's exportJSONTrace; the first run is one of the warm-up, the last has a field of 8.4."""

STAND_IN = """#!{python}
import json, sys, time
words = dict(word.partition("=")[::2] for word in sys.argv[1:])
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
print("&&&& RUNNING TensorRT.trtexec [TensorRT v{banner}] # trtexec")
if "--help" in words:
    sys.exit(0)
if "--saveEngine" in words:
    open(words["--saveEngine"], "w").write("engine")
    sys.exit(0)
warm, lasts, each = float(words["--warmUp"]), 1e3 * float(words["--duration"]), {each}
time.sleep({loading})
if {tells}:
    print("[12/01/2026-10:00:00] [I] Starting inference", flush=True)
time.sleep((warm + lasts) / 1e3)
rows, now = [], warm
while now < warm + lasts or len(rows) < int(words["--iterations"]):
    rows.append({{"startEnqMs": now, "endEnqMs": now, "startH2dMs": now, "endH2dMs": now + 0.1,
                  "startComputeMs": now + 0.1, "endComputeMs": now + each - 0.1, "startD2hMs": now + each - 0.1,
                  "endD2hMs": now + each, "h2dMs": 0.1, "computeMs": each - 0.2, "d2hMs": 0.1, "latencyMs": each}})
    now += each
json.dump(rows, open(words["--exportTimes"], "w"))
"""
BOARD = "RAM 1474/7607MB GR3D_FREQ 99%@[1016] gpu@57.031C VDD_IN {}mW/5000mW VDD_CPU_GPU_CV 1748mW/4728mW"


@pytest.fixture
def tools(tmp_path):
    """Write stand-ins for trtexec and tegrastats (6 W at rest, 12 W at work) and return their folder."""
    folder = tmp_path / "tools"
    folder.mkdir()

    def write(*, banner="100300", each=4.0, loading=0.3, tells=True, power=True):
        text = STAND_IN.format(
            python=sys.executable, log=str(tmp_path / "log"), banner=banner, each=each, loading=loading, tells=tells
        )
        scripts = {"trtexec": text}
        if power:
            busy = f"pgrep -f loadEngine={tmp_path} >/dev/null"
            line = f'if {busy}; then echo "{BOARD.format(12000)}"; else echo "{BOARD.format(6000)}"; fi'
            scripts["tegrastats"] = f"#!/bin/sh\nwhile :; do {line}; sleep 0.02; done\n"
        for name, content in scripts.items():
            (folder / name).write_text(content)
            (folder / name).chmod(0o755 | stat.S_IEXEC)
        return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    onnx_models.linear(tmp_path / "model.onnx")
    np.savez(tmp_path / "in.npz", **{"0:x": np.zeros((2, 8), np.float32)})
    return write


def calls(tmp_path):
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def test_exported_times_are_read_without_the_warm_up():
    spans, series = trtexec.read_times(TIMES)
    assert series == [4.99, 4.99]
    assert spans == [(504.25, 509.26), (509.35, 514.36)]
    assert trtexec.read_times('[{"latencyMs": 5}]') == ([], [5.0]), "another version may tell less"


@pytest.mark.parametrize("text", ['{"latencyMs": 5}', "[1, 2]", "[[]]", '[{"computeMs": 5}]', "["])
def test_what_are_no_times_is_refused(text):
    with pytest.raises((ValueError, KeyError)):
        trtexec.read_times(text)


def test_exact_commands_of_a_timed_and_of_an_economical_run():
    feed = {"x": np.zeros((1, 3, 8, 8))}
    start = ["trtexec", "--loadEngine=m.engine", "--shapes=x:1x3x8x8", "--exportTimes=t.json"]
    timed = trtexec.trtexec_time_argv("trtexec", "m.engine", "t.json", feed, 300, 10, 1)
    calm = trtexec.trtexec_time_argv("trtexec", "m.engine", "t.json", feed, 10, 6.5, spin=False)
    assert timed == [*start, "--iterations=300", "--duration=10", "--warmUp=500", "--useSpinWait", "--useDLACore=1"]
    assert calm == [*start, "--iterations=10", "--duration=6.5", "--warmUp=500"]


@pytest.mark.parametrize(("version", "flag"), [("8.5.2", "--buildOnly"), ("8.6.1", "--skipInference")])
def test_building_without_a_run_has_its_name_of_the_version(version, flag):
    assert trtexec.trtexec_build_argv("trtexec", "m.onnx", "m.engine", version)[3] == flag


def test_energy_is_that_of_the_span_in_which_the_engine_ran(tmp_path, runner, job, result, tools):
    """Samples at rest, of loading and of the warm-up do not count."""
    status, log = runner("measure", job(runtime="tensorrt", energy_seconds=2, max_seconds=1), env=tools(loading=1))
    assert status == 0, log
    energy = result()["energy"]
    assert energy["idle_mw"] == 6000
    assert energy["mean_mw"] == energy["low"] / energy["mj"] * 12000 == 12000
    assert energy["mj"] == pytest.approx(12000 * 0.004)
    assert energy["runs"] == pytest.approx(500, abs=2)
    assert energy["ram_peak_bytes"] == 1474 << 20
    economical = [call for call in calls(tmp_path) if "--duration=2" in call]
    assert len(economical) == 1
    assert "--useSpinWait" not in economical[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"power": False}, "no tegrastats"), ({"tells": False}, "trtexec 10.3.0 does not tell when its runs begin")],
)
def test_no_energy_says_why(runner, job, result, tools, changes, words):
    environment = tools(**changes)
    if not changes.get("power", True):
        environment["PATH"] = f"{Path(environment['PATH'].partition(':')[0])}:/usr/bin:/bin"
    assert runner("measure", job(runtime="tensorrt", energy_seconds=0.6, max_seconds=0.2), env=environment)[0] == 0
    assert words in result()["energy"]["reason"]


def test_sustained_load_is_a_run_for_each_window(tmp_path, runner, job, result, tools):
    told = job(runtime="tensorrt", sustained=4.5, max_seconds=0.2)
    status, log = runner("measure", told, env=tools(loading=0.1, each=2.0))
    assert status == 0, log
    found = result()["sustained"]
    windows = [call for call in calls(tmp_path) if "--duration=1.5" in call]
    assert len(found["windows"]) == len(windows) >= 2
    assert found["window_seconds"] == 1.5
    assert found["last"]["p50"]["value"] == 2.0
    assert found["throttled"] is None
    assert 0.5 < found["load"] < 1
    assert all("temperatures" in window["state"] or "cpu_mhz" in window["state"] for window in found["windows"])
    summary, finding = settled_latency({"sustained": found, "latency": {}}, 4.5, "the board")
    assert summary == found["last"]
    assert "between windows the engine was loaded anew" in finding.text


def test_memory_is_that_of_the_run_not_of_the_build(runner, job, result, tools):
    assert runner("measure", job(runtime="tensorrt", max_seconds=0.2), env=tools())[0] == 0
    memory = result()["memory"]
    assert 1 << 20 < memory["peak"] < 1 << 30
    assert memory["taken"] >= 0
    assert memory["host_only"]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("echo '[E] Error[2]: OutOfMemory (no further information)'; exit 1", MemoryError, "OutOfMemory"),
        ("echo '[I] fine so far'; echo '[E] Unknown option: --skipInference'; exit 1", RuntimeError, "Unknown option"),
        ("kill -9 $$", RuntimeError, "ended with status -9"),
        ("exec sleep 77", RuntimeError, "no end after 0.5 s"),
    ],
)
def test_what_goes_wrong_is_told_in_its_words(tmp_path, body, kind, words):
    script = tmp_path / "trtexec"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    with pytest.raises(kind, match=words):
        trtexec_run.run_trtexec([str(script)], 0.5 if "sleep" in body else 60)


def test_whoever_ends_the_runner_ends_trtexec_and_nothing_half_stays(tmp_path, runner, job):
    """As the far side of a broken link does: SIGTERM to the runner's group, in the middle of a build."""
    marker = str(500 + os.getpid() % 1000 / 1000)
    script = tmp_path / "tools" / "trtexec"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/sh\ncase "$*" in *--help*) echo "[TensorRT v100300]"; exit 0;; esac\n'
        'for word; do case $word in --saveEngine=*) echo half > "${word#--saveEngine=}";; esac; done\n'
        f"sleep {marker}\n"
    )
    script.chmod(0o755)
    onnx_models.linear(tmp_path / "model.onnx")
    np.savez(tmp_path / "in.npz", **{"0:x": np.zeros((2, 8), np.float32)})
    process = subprocess.Popen(
        [sys.executable, str(runner.path), "measure", str(job(runtime="tensorrt"))],
        env={**os.environ, "PATH": f"{script.parent}:{os.environ['PATH']}"},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: alive(marker))
    assert list(tmp_path.glob("*.engine.part"))
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    wait_for(lambda: not alive(marker))
    assert not list(tmp_path.glob("*.engine*"))
    assert not (tmp_path / "result.json").exists()
