"""The emulated aarch64 machine: what it computes is what this one computes, and nothing it takes is a latency."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import architectures
import house
from contract import run_stage
from edgekit.device import machine
from edgekit.errors import TargetError, UsageError
from edgekit.exporter import load_exporter
from edgekit.jobs import encode_feeds
from edgekit.manifest import Tolerance
from edgekit.profile import Cpu, load_profile
from edgekit.stages.quantize_int8 import QuantizeInt8
from edgekit.target import Bundle
from edgekit.targets import open_target
from edgekit.transport import open_transport
from edgekit.transports import aarch64_root
from edgekit.transports.emulated import EmulatedTransport

URL = "emulated-aarch64"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))


def test_url():
    assert isinstance(open_transport(URL), EmulatedTransport)
    with pytest.raises(UsageError, match="emulated here"):
        open_transport(f"{URL}://orin")


def test_apt_works_in_a_folder_of_its_own(tmp_path):
    """Golden: arm64, no root, none of this machine's package state touched."""
    words = aarch64_root.apt_options(tmp_path)
    assert words[::2] == ["-o"] * 9
    assert set(words[1::2]) == {
        "APT::Architecture=arm64",
        "APT::Architectures=arm64",
        "APT::Sandbox::User=",
        "Acquire::Languages=none",
        "Debug::NoLocking=1",
        f"Dir::Cache={tmp_path}",
        f"Dir::State={tmp_path}",
        f"Dir::State::lists={tmp_path}/lists",
        "Dir::State::status=/dev/null",
    }


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 1", "apt-get failed with status 1"),
        ("echo no such host; exit 100", "no such host"),
        ("exit 0", "no answer"),
    ],
)
def test_a_machine_without_packages_is_told_with_what_apt_said(script, words, tmp_path, monkeypatch):
    for name in ("apt-get", "apt-cache", "dpkg-deb"):
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        told = "echo '  Depends: python3.11-minimal'" if name == "apt-cache" and script != "exit 0" else script
        tool.write_text(f"#!/bin/sh\n{told}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("EDGEKIT_EMULATOR", str(tmp_path / "emulator"))
    (tmp_path / "emulator" / ".new-999999999-half").mkdir(parents=True)
    with pytest.raises(TargetError, match=words) as caught:
        aarch64_root.aarch64_python()
    assert caught.value.exit_status == 5
    assert not list((tmp_path / "emulator").iterdir()), "nothing half is left"


def test_elsewhere_than_on_debian_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("EDGEKIT_EMULATOR", str(tmp_path))
    with pytest.raises(TargetError, match="apt-get is not here"):
        aarch64_root.aarch64_python()


def test_an_arm_process_that_sees_an_x86_proc_is_emulated(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\n")
    assert machine.emulator(str(tmp_path), "aarch64") == "emulated-aarch64"
    assert machine.emulator(str(tmp_path), "x86_64") == ""
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n")
    assert machine.emulator(str(tmp_path), "aarch64") == ""


def quantized(name, tmp_path):
    """A float network and its int8 graphs as onnxruntime and TensorRT take them."""
    model, feeds = architectures.ARCHITECTURES[name]()
    made = {"float": (model, feeds)}
    for runtime in ("onnx", "tensorrt"):
        folder = tmp_path / runtime
        folder.mkdir()
        arm = house.profile(runtime=runtime, cpu=Cpu(arch="aarch64", cores=house.sourced(4), features=("dotprod",)))
        rules = load_exporter(runtime).dialect(arm)
        _, graph = run_stage(QuantizeInt8(), model, folder, data=house.dataset(feeds), dialect=rules)
        made[runtime] = (graph, feeds)
    return made


@pytest.fixture
def bundle(tmp_path):
    def make(model):
        folder = tmp_path / "bundle"
        folder.mkdir(exist_ok=True)
        onnx.save(model, folder / "model.onnx")
        return Bundle(
            folder=folder,
            facts={"runtime": "onnxruntime", "model": "model.onnx", "providers": ["CPUExecutionProvider"]},
        )

    return make


def here(bundle, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    path = str(bundle.folder / "model.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [session.run(None, feed)[0] for feed in feeds]


@pytest.mark.slow
def test_the_runner_runs_there_and_int8_outputs_are_those_of_x86(emulator, bundle, tmp_path):
    with open_target(URL, load_profile("jetson")) as target:
        probe = target.probe()
        assert (probe["machine"], probe["emulator"]) == ("aarch64", URL)
        assert probe["runtimes"]["onnxruntime"]["version"] == onnxruntime.__version__
        assert probe["runtimes"]["numpy"]["version"] == np.__version__
        assert target.provenance == "simulated"
        assert target.fingerprint()["emulator"] == URL
        (finding,) = target.findings
        assert finding.rule == "target-emulated"
        for kind, (model, feeds) in quantized("ResNet", tmp_path).items():
            made = bundle(model)
            expected = here(made, feeds[:4])
            found = [next(iter(outputs.values())) for outputs in target.run(made, feeds[:4])]
            scale = max(np.abs(array).max() for array in expected)
            for one, other in zip(expected, found, strict=True):
                if kind == "onnx":  # int8 kernels from end to end
                    np.testing.assert_array_equal(other, one)
                else:  # the dialect of TensorRT leaves sums in floating point
                    np.testing.assert_allclose(other, one, atol=1e-5 * scale, err_msg=kind)


@pytest.mark.slow
def test_golden_outputs_are_checked_there_without_the_host(emulator, bundle, tmp_path):
    model, feeds = architectures.mlp()
    made = bundle(model)
    name = model.graph.output[0].name
    expected = [{name: array} for array in here(made, feeds[:3])]
    (tmp_path / "in.npz").write_bytes(encode_feeds(feeds[:3]))
    (tmp_path / "out.npz").write_bytes(encode_feeds(expected))
    wrong = [{name: array + 1} for array in here(made, feeds[:3])]
    (tmp_path / "wrong.npz").write_bytes(encode_feeds(wrong))
    with open_target(URL, load_profile("raspberry-pi-5")) as target:
        close = Tolerance(absolute=1e-4, relative=1e-4)
        assert target.golden(made, tmp_path / "in.npz", tmp_path / "out.npz", tolerance=close).matches
        assert not target.golden(made, tmp_path / "in.npz", tmp_path / "wrong.npz", tolerance=close).matches


@pytest.mark.slow
def test_it_is_not_timed(emulator, bundle):
    model, feeds = architectures.mlp()
    with open_target(URL, load_profile("raspberry-pi-5")) as target:
        figures = target.measure(bundle(model), feeds[0], runs=100, threads=1)
    assert {figure.name for figure in figures} == {*(f"latency-p{n}" for n in (50, 90, 95, 99)), "memory"}
    for figure in figures:
        assert (figure.value, figure.provenance, figure.on) == (None, "simulated", URL)
        assert "say nothing" in figure.note


@pytest.mark.slow
def test_children_of_its_python_are_emulated_too(emulator):
    script = "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', %r], text=True))"
    inner = "import platform; print(platform.machine())"
    done = subprocess.run([str(emulator), "-c", script % inner], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "aarch64"


@pytest.mark.slow
@pytest.mark.system("openssh-server")
def test_a_build_for_a_jetson_ends_with_a_verdict_of_an_emulated_device_over_ssh(edgekit, emulator, sshd, tmp_path):
    """The accuracy is that of another processor and says so; the latency budget is neither kept nor missed."""
    sample = Path(__file__).parents[2] / "samples" / "vision"
    data = tmp_path / "data"
    data.mkdir()
    (data / "preprocessing.toml").write_bytes((sample / "data/preprocessing.toml").read_bytes())
    for name, count in (("calibration", 128), ("evaluation", 200)):
        with np.load(sample / "data" / f"{name}.npz") as file:
            np.savez(data / f"{name}.npz", x=file["x"][:count], y=file["y"][:count])
    url, environment = sshd
    asked = ("--data", data, "--max-drop", "5%", "--latency-p95", "20ms", "--target", url, "--out", tmp_path / "out")
    ran = edgekit.build(
        *(sample / "model.onnx", *asked),
        profile="jetson-orin-nano-8gb",
        EDGEKIT_REMOTE_PYTHON=emulator,
        **environment,
    )
    assert ran.status == 0, ran.err
    assert ran.json["status"] == "unproven"
    for name in ("drop", "accuracy"):
        assert ran.check(name)["provenance"] == "simulated"
        assert ran.check(name)["on"] == URL
    assert ran.check("drop")["status"] == "pass"
    assert ran.check("accuracy")["n"] == 200
    latency = ran.check("latency-p95")
    assert latency["status"] == "unproven"
    assert latency["on"] == URL
    assert latency["value"] is None
    assert {"target-emulated", "target-fallback"} <= set(ran.rules)
