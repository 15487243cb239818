"""What goes wrong with engines on a device: the error, its exit status, its remedy, and nothing half left there.

Wrong keys, unknown host keys, cut, slow and dead links, full disks under a copy: tests/transports/test_ssh*.py.
Engines of others given as models: tests/targets/test_engines.py. Power modes: tests/targets/test_machines.py.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import onnx_models
from edgekit.device import engine_key, engine_trt
from edgekit.errors import TargetError, UnsupportedError
from edgekit.profile import load_profile
from edgekit.target import Bundle
from edgekit.targets import open_target
from house import profile

HOST = profile(cpu=load_profile("host").cpu)
FACTS = {
    "runtime": "tensorrt",
    "model": "model.onnx",
    "providers": ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"],
}
TRTEXEC = """#!/bin/sh
case "$*" in *--help*) echo "[TensorRT v{banner}]"; exit 0;; esac
for word; do case $word in --saveEngine=*) echo half > "${{word#--saveEngine=}}";; esac; done
{rest}
"""
FEED = {"x": np.zeros((1, 8), np.float32)}


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A device (this machine) whose trtexec is a stand-in; call it with the banner's version and what building does."""
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))
    (tmp_path / "bundle").mkdir()
    onnx_models.linear(tmp_path / "bundle" / "model.onnx")
    (tmp_path / "tools").mkdir()

    def make(banner, rest):
        script = tmp_path / "tools" / "trtexec"
        script.write_text(TRTEXEC.format(banner=banner, rest=rest))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
        return open_target("local", HOST)

    make.bundle = Bundle(folder=tmp_path / "bundle", facts=FACTS)
    make.home = tmp_path / "home"
    return make


def left(device):
    """The engines and halves of engines in the bundle's folder over there."""
    names = {path.name for path in device.home.rglob("bundle-*/*")}
    return {name for name in names if name != "model.onnx"}


def test_a_build_that_runs_out_of_memory(device):
    words = "echo '[E] Error[2]: [virtualMemoryBuffer.cpp::resizePhysical] OutOfMemory (no further information)'"
    with device("100300", f"{words}; exit 1") as target:
        with pytest.raises(TargetError, match="OutOfMemory") as caught:
            target.measure(device.bundle, FEED, runs=100, threads=1)
        assert left(device) == set()
    assert caught.value.exit_status == 5
    assert "Free memory on the machine" in caught.value.remedy


def test_a_build_that_is_killed(device):
    with device("100300", "kill -9 $$") as target:
        with pytest.raises(UnsupportedError, match="ended with status -9"):
            target.measure(device.bundle, FEED, runs=100, threads=1)
        assert left(device) == set()


def test_an_old_tensorrt(device):
    with device("8401", "exit 0") as target, pytest.raises(UnsupportedError, match=r"8\.4\.1 is older") as caught:
        target.measure(device.bundle, FEED, runs=100, threads=1)
    assert caught.value.exit_status == 7
    assert "update JetPack to 5.1 or later" in caught.value.text


def test_what_trtexec_refuses_is_told_in_its_words(device):
    there = device("100300", "echo '[E] [TRT] ModelImporter.cpp: no importer for Foo'; exit 1")
    with there as target, pytest.raises(UnsupportedError, match="no importer for Foo") as caught:
        target.measure(device.bundle, FEED, runs=100, threads=1)
    assert caught.value.exit_status == 7
    assert caught.value.where.startswith("model.onnx on ")


def test_no_tensorrt_is_a_fallback_that_is_told(device, monkeypatch):
    with device("100300", "exit 0") as target:
        (device.home.parent / "tools" / "trtexec").unlink()
        figures = target.measure(device.bundle, FEED, runs=100, threads=1)
        (finding,) = [finding for finding in target.findings if finding.rule == "target-fallback"]
    assert "No module named 'tensorrt'" in finding.text
    assert all("ran instead of tensorrt" in figure.note for figure in figures if figure.name.startswith("latency"))


class Cuda:
    """A stand-in that allocates nothing."""

    def stream(self):
        return 0


def test_a_cached_engine_of_another_version_is_built_again(tmp_path, monkeypatch):
    """Its name holds the exact version, so another one's is not even looked at; one that does not load goes."""
    built = []

    class Engine:
        num_io_tensors = 0

        def create_execution_context(self):
            return None

    class Runtime:
        def __init__(self, logger):
            pass

        def deserialize_cuda_engine(self, serialized):
            return Engine() if serialized == b"fresh" else None

    library = types.ModuleType("tensorrt")
    library.__version__ = "10.3.0"
    library.Runtime = Runtime
    library.Logger = type("Logger", (), {"WARNING": 1, "__init__": lambda self, level: None})
    monkeypatch.setitem(sys.modules, "tensorrt", library)
    monkeypatch.setattr(engine_trt, "Cuda", Cuda)
    monkeypatch.setattr(engine_trt, "build", lambda *_: built.append(1) or b"fresh")
    model = str(onnx_models.linear(tmp_path / "model.onnx"))
    here = Path(engine_key.engine_path(model, engine_key.engine_parts("10.3.0", "python", "Orin")))
    other = Path(engine_key.engine_path(model, engine_key.engine_parts("10.7.0", "python", "Orin")))
    other.write_bytes(b"of TensorRT 10.7")
    engine_trt.load(model, "Orin")
    engine_trt.load(model, "Orin")
    assert (len(built), here.read_bytes()) == (1, b"fresh")
    here.write_bytes(b"stale after an update of the driver")
    engine_trt.load(model, "Orin")
    assert (len(built), here.read_bytes()) == (2, b"fresh")
    assert other.read_bytes() == b"of TensorRT 10.7"


def test_a_full_disk_under_the_runner_is_no_wrong_input(tmp_path, monkeypatch):
    """A file size limit stands in for the disk: outputs do not fit, the result still does."""
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))
    (tmp_path / "bundle").mkdir()
    onnx_models.linear(tmp_path / "bundle" / "model.onnx")
    bundle = Bundle(folder=tmp_path / "bundle", facts={**FACTS, "runtime": "onnxruntime", "providers": []})
    with open_target("local", HOST) as target:
        target.probe()
        real = subprocess.Popen

        def small(argv, **options):
            def limit():
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

            return real(argv, preexec_fn=limit if "infer" in argv else None, **options)

        monkeypatch.setattr("edgekit.transports.process.subprocess.Popen", small)
        with pytest.raises(TargetError, match=r"no room on the machine: .*File too large") as caught:
            list(target.run(bundle, [{"x": np.zeros((20_000, 8), np.float32)}]))
        outputs = list((tmp_path / "home").rglob("job-*/out/*"))
    assert caught.value.exit_status == 5
    assert "Free space on the machine" in caught.value.remedy
    assert outputs == []


def test_the_cuda_runtime_that_comes_with_tensorrt_from_pip_is_found(tmp_path, monkeypatch):
    """`pip install tensorrt` brings it as a wheel of its own, where no loader looks."""
    import _ctypes

    def load(name):
        if str(tmp_path) not in name:  # this machine may have one
            raise OSError("not found")
        return real(name)

    real, library = engine_trt.ctypes.CDLL, tmp_path / "site[packages]" / "nvidia" / "cuda_runtime" / "lib"
    library.mkdir(parents=True)
    (library / "libcudart.so.12").write_bytes(Path(_ctypes.__file__).read_bytes())  # any library that loads
    monkeypatch.setattr(engine_trt.ctypes, "CDLL", load)
    with pytest.raises(ImportError, match="no CUDA runtime"):
        engine_trt.Cuda()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site[packages]")])
    assert engine_trt.Cuda()._library._name == str(library / "libcudart.so.12")
