"""The adb transport: its exact commands, and its work against a stand-in for adb that is no Android device."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

import onnx_models
from edgekit.errors import TargetError, UsageError
from edgekit.profile import load_profile
from edgekit.target import Bundle
from edgekit.targets import CompositeTarget
from edgekit.transport import open_transport
from edgekit.transports import adb
from edgekit.transports.adb import AdbTransport

STAND_IN = """#!{python}
# A stand-in for adb: one "device" whose /data/local/tmp is a folder of this machine. No Android, no USB.
import os, shutil, subprocess, sys

root, serial, words = os.environ["STAND_IN_DEVICE"], sys.argv[2], sys.argv[3:]
with open(os.path.join(root, "calls"), "a") as file:
    file.write(repr(sys.argv[1:]) + "\\n")
if os.environ.get("STAND_IN_SAYS"):
    sys.exit(sys.stderr.write(os.environ["STAND_IN_SAYS"] + "\\n") and 1)
if serial != "R5CW1":
    sys.exit(sys.stderr.write("adb: device '" + serial + "' not found\\n") and 1)
place = lambda text: text.replace("/data/local/tmp", root)
if words == ["get-state"]:
    print("device")
elif words[0] in ("push", "pull"):
    shutil.copyfile(place(words[1]), place(words[2]))
    if os.environ.get("STAND_IN_BREAKS"):
        with open(place(words[2]), "ab") as file:
            file.write(b"?")
elif words[:3] == ["shell", "-T", "-n"]:
    sys.exit(subprocess.run(["sh", "-c", place(words[3])], stdin=subprocess.DEVNULL).returncode)
else:
    sys.exit("the stand-in knows no " + words[0])
"""


@pytest.fixture
def phone(tmp_path, monkeypatch):
    device, binaries = tmp_path / "device", tmp_path / "bin"
    device.mkdir()
    binaries.mkdir()
    (binaries / "adb").write_text(STAND_IN.replace("{python}", sys.executable))
    (binaries / "adb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_DEVICE", str(device))
    monkeypatch.setenv("EDGEKIT_REMOTE_PYTHON", sys.executable)
    return device


@pytest.fixture
def opened(phone):
    transport = AdbTransport("adb://R5CW1")
    transport.open()
    yield transport
    transport.close()


@pytest.mark.parametrize(
    "url", ["adb://", "adb://-s", "adb://a b", "adb://a/b", "adb:R5CW1", "adb://a;id", "adb://a\n"]
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(UsageError, match="no adb URL"):
        AdbTransport(url)


@pytest.mark.parametrize("url", ["adb://R5CW1", "adb://192.168.0.7:5555", "adb://emulator-5554"])
def test_serials_and_addresses(url):
    transport = open_transport(url)
    assert isinstance(transport, AdbTransport)
    assert transport.url == url


def test_exact_commands():
    transport = AdbTransport("adb://R5CW1")
    assert transport.argv(["push", "/a b", "/data/x"]) == ["adb", "-s", "R5CW1", "push", "/a b", "/data/x"]
    found = transport.shell_argv("echo $1", "a b; rm -rf /", "$(id)")
    assert found[:6] == ["adb", "-s", "R5CW1", "shell", "-T", "-n"]
    assert found[6:] == ["sh -c 'echo $1' edgekit 'a b; rm -rf /' '$(id)'"]


def test_what_runs_finds_qualcomms_libraries(opened):
    script = 'import os; print(os.environ["LD_LIBRARY_PATH"], os.environ["ADSP_LIBRARY_PATH"], os.getcwd())'
    done = opened.run([sys.executable, "-c", script], timeout=30)
    assert done.status == 0
    libraries, dsp, folder = done.stdout.split()
    assert libraries.endswith("/edgekit/lib")
    assert dsp.split(";")[0] == libraries
    assert dsp.endswith("/system/lib/rfsa/adsp")
    assert folder.endswith(opened.folder.removeprefix("/data/local/tmp"))


def test_files_arrive_whole_and_once(opened, phone, tmp_path):
    source = tmp_path / "it's a file"
    source.write_bytes(b"1" * 1000)
    path = opened.push(source, "deep/name")
    opened.push(source, "deep/name")
    pushes = [line for line in (phone / "calls").read_text().splitlines() if "'push'" in line]
    assert len(pushes) == 1
    assert path == f"{opened.folder}/deep/name"
    opened.pull("deep/name", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"1" * 1000
    with pytest.raises(TargetError, match="there is no 'other'"):
        opened.pull("other", tmp_path / "back")


def test_a_broken_copy_is_told(opened, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"abc")
    opened.push(tmp_path / "file", "whole")
    monkeypatch.setenv("STAND_IN_BREAKS", "1")
    (tmp_path / "file").write_bytes(b"abd")
    with pytest.raises(TargetError, match="cannot store 'f'"):
        opened.push(tmp_path / "file", "f")
    with pytest.raises(TargetError, match="did not arrive whole"):
        opened.pull("whole", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_one_at_a_time(opened):
    with pytest.raises(TargetError, match=r"in use: held by .*pid") as caught:
        AdbTransport("adb://R5CW1").open()
    assert "rm -r /data/local/tmp/edgekit/lock" in caught.value.remedy
    opened.close()
    other = AdbTransport("adb://R5CW1")
    other.open()
    other.close()


def test_a_command_that_takes_too_long_is_ended(opened):
    done = opened.run(["sleep", "30"], timeout=1)
    assert done.status == 124


@pytest.mark.parametrize(
    ("says", "remedy"),
    [
        ("error: device unauthorized.", "allow USB debugging"),
        ("error: device offline", "kill-server"),
        ("error: no devices/emulators found", "adb devices"),
    ],
)
def test_why_a_device_is_not_there(phone, monkeypatch, says, remedy):
    monkeypatch.setenv("STAND_IN_SAYS", says)
    with pytest.raises(TargetError, match="cannot be reached") as caught:
        AdbTransport("adb://R5CW1").open()
    assert remedy in caught.value.remedy


def test_another_serial_and_no_adb_at_all(phone, monkeypatch):
    with pytest.raises(TargetError, match="'R6' not found"):
        AdbTransport("adb://R6").open()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TargetError, match="there is no adb"):
        AdbTransport("adb://R5CW1").open()


def test_a_device_without_python_says_where_it_goes(phone, monkeypatch):
    monkeypatch.delenv("EDGEKIT_REMOTE_PYTHON")
    with pytest.raises(TargetError, match="no Python with numpy") as caught:
        AdbTransport("adb://R5CW1").open()
    assert adb.ROOT in caught.value.remedy
    assert not (phone / "edgekit" / "lock").exists(), "the lock is released"


DUMPSYS = """#!/bin/sh
# A stand-in for Android's dumpsys: text in the form that phones give it.
case $1 in
battery) printf 'Current Battery Service state:\\n  USB powered: false\\n  status: 3\\n  present: true\\n  level: 9\\n'
    printf '  scale: 100\\n  temperature: 412\\n' ;;
thermalservice) printf 'Thermal Status: 2\\nCurrent temperatures from HAL:\\n'
    printf '\\tTemperature{mValue=47.5, mType=3, mName=SKIN, mStatus=2}\\nCurrent cooling devices from HAL:\\n' ;;
esac
"""


def linear_bundle(tmp_path):
    path = onnx_models.linear(tmp_path / "model.onnx")
    bundle = Bundle(
        folder=path.parent / "b",
        facts={"runtime": "onnxruntime", "model": "model.onnx", "providers": ["CPUExecutionProvider"]},
    )
    bundle.folder.mkdir()
    path.rename(bundle.folder / "model.onnx")
    return bundle


def test_the_phones_state_is_recorded_and_a_bad_one_told(phone, tmp_path):
    dumpsys = tmp_path / "bin" / "dumpsys"
    dumpsys.write_text(DUMPSYS)
    dumpsys.chmod(0o755)
    feed = {"x": np.zeros((1, 8), np.float32)}
    with CompositeTarget(AdbTransport("adb://R5CW1"), load_profile("snapdragon-8-gen3")) as target:
        figures = target.measure(linear_bundle(tmp_path), feed, runs=100, threads=1)
    for moment in ("before", "after"):
        state = target.details["machine"][moment]
        assert state["battery"] == {"level": 9, "status": "discharging", "powered": [], "celsius": 41.2}
        assert state["thermal"] == {"status": "moderate", "temperatures": {"SKIN": 47.5}}
    told = {finding.rule: finding.text for finding in target.findings}
    assert "at 9 % (on battery)" in told["target-battery"]
    assert "thermal status moderate, SKIN at 48 degrees" in told["target-throttles"]
    assert "measured while throttled: thermal status moderate" in figures[0].note, "it decides no budget"


def test_the_runner_works_through_it(phone, tmp_path):
    bundle = linear_bundle(tmp_path)
    feeds = [{"x": np.full((1, 8), value, np.float32)} for value in (0, 1)]
    with CompositeTarget(AdbTransport("adb://R5CW1"), load_profile("snapdragon-8-gen3")) as target:
        outputs = list(target.run(bundle, feeds))
    assert outputs[0]["y"].shape == (1, 3)
    assert not np.array_equal(outputs[0]["y"], outputs[1]["y"])
    assert any(finding.rule == "target-other-device" for finding in target.findings), "this machine is no phone"
