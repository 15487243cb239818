"""Engines: the providers of onnxruntime, and what of TensorRT needs no GPU. Stand-ins are named so."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import stat
import subprocess
import sys
import types
from enum import Enum, IntEnum
from pathlib import Path

import numpy as np
import pytest

import onnx_models
from edgekit.device import builds, engine_key, engine_ort, engine_trt, machine, progress, trtexec

MARK = progress.MARK
CPU, CUDA, TRT = engine_ort.CPU, "CUDAExecutionProvider", "TensorrtExecutionProvider"


# --- onnxruntime's providers, on a stand-in that has some and loads some ---


class StandInRuntime:
    """Has `available` providers; a session with one of `broken` in it fails; `dropped` ones are left out silently."""

    class ExecutionMode:
        ORT_SEQUENTIAL = 0

    class SessionOptions:
        def __init__(self):
            self.entries = {}

        def add_session_config_entry(self, key, value):
            self.entries[key] = value

    def __init__(self, available, broken=(), dropped=()):
        self.available, self.broken, self.dropped, self.sessions = available, broken, dropped, []

    def get_available_providers(self):
        return self.available

    def InferenceSession(self, model, options, providers, provider_options, enable_fallback):  # noqa: N802 - their name
        assert enable_fallback == 0
        assert len(provider_options) == len(providers)
        self.sessions.append((providers, options.entries))
        for name in providers:
            if name in self.broken:
                raise RuntimeError(f"{name} is broken")
        ran = [name for name in providers if name not in self.dropped]
        return types.SimpleNamespace(get_providers=lambda: ran if CPU in ran else [*ran, CPU])


@pytest.mark.parametrize(
    ("asked", "runtime", "fallback"),
    [
        ([CPU], StandInRuntime([CPU]), None),
        ([CUDA], StandInRuntime([CUDA, CPU]), None),
        ([TRT, CUDA, CPU], StandInRuntime([TRT, CUDA, CPU]), None),
        ([CUDA, CPU], StandInRuntime([CPU]), ([CPU], f"{CUDA} is not in this onnxruntime")),
        ([TRT, CUDA, CPU], StandInRuntime([TRT, CUDA, CPU], broken=[TRT]), ([CUDA, CPU], f"{TRT}: {TRT} is broken")),
        ([CUDA], StandInRuntime([CUDA, CPU], broken=[CUDA]), ([CPU], f"{CUDA}: {CUDA} is broken")),
        ([CUDA, CPU], StandInRuntime([CUDA, CPU], dropped=[CUDA]), ([CPU], f"onnxruntime left {CUDA} out")),
    ],
)
def test_other_providers_than_asked_are_told(asked, runtime, fallback):
    session, told = engine_ort._open(runtime, "m.onnx", asked, 1, spinning=False)
    assert (told is None) == (fallback is None)
    if fallback:
        assert told == {"asked": asked, "ran": fallback[0], "reason": fallback[1]}
        assert session.get_providers() == fallback[0]


def test_a_model_that_no_provider_loads_is_an_error():
    with pytest.raises(RuntimeError, match="CPUExecutionProvider is broken"):
        engine_ort._open(StandInRuntime([CUDA, CPU], broken=[CUDA, CPU]), "m.onnx", [CUDA, CPU], 1, spinning=False)


def test_sessions_hold_no_provider_that_was_not_asked():
    runtime = StandInRuntime([CUDA, CPU])
    engine_ort._open(runtime, "m.onnx", [CUDA], 1, spinning=False)
    engine_ort._open(runtime, "m.onnx", [CUDA, CPU], 1, spinning=True)
    (one, strict), (two, loose) = runtime.sessions
    assert (one, two) == ([CUDA], [CUDA, CPU])
    assert strict["session.disable_cpu_ep_fallback"] == "1"
    assert "session.disable_cpu_ep_fallback" not in loose
    assert (strict["session.intra_op.allow_spinning"], loose["session.intra_op.allow_spinning"]) == ("0", "1")


# --- TensorRT: choices by version, cache keys, commands ---


@pytest.mark.parametrize(
    ("version", "network", "builder", "words"),
    [
        ("8.6.2.3", ["EXPLICIT_BATCH"], ["INT8", "FP16"], ["--int8", "--fp16"]),
        ("8.5.2.2", ["EXPLICIT_BATCH"], ["INT8", "FP16"], ["--int8", "--fp16"]),
        ("10.3.0", ["STRONGLY_TYPED"], [], ["--stronglyTyped"]),
        ("10.16.2.10", ["STRONGLY_TYPED"], [], ["--stronglyTyped"]),
        ("11.4.1", [], [], []),
    ],
)
def test_flags_by_version(version, network, builder, words):
    assert engine_key.typing_flags(version) == (network, builder)
    assert engine_key.trtexec_typing(version) == words


def test_build_command():
    assert trtexec.trtexec_build_argv("trtexec", "m.onnx", "m.engine", "10.3.0") == [
        "trtexec",
        "--onnx=m.onnx",
        "--saveEngine=m.engine",
        "--skipInference",
        "--stronglyTyped",
    ]
    shapes = {"x": [[1, 8], [4, 8], [16, 8]], "m": [[1], [4], [16]]}
    assert trtexec.trtexec_build_argv("trtexec", "m.onnx", "m.engine", "11.4.1", builds.Build(shapes))[4:] == [
        "--minShapes=m:1,x:1x8",
        "--optShapes=m:4,x:4x8",
        "--maxShapes=m:16,x:16x8",
    ]


def test_time_command():
    feed = {"x": np.zeros((1, 3, 8, 8)), "m": np.zeros((2,))}
    assert trtexec.trtexec_time_argv("trtexec", "m.engine", "t.json", feed, 300, 10) == [
        "trtexec",
        "--loadEngine=m.engine",
        "--shapes=m:2,x:1x3x8x8",
        "--exportTimes=t.json",
        "--iterations=300",
        "--duration=10",
        "--warmUp=500",
        "--useSpinWait",
    ]


@pytest.mark.parametrize(
    ("banner", "version"), [("v8601", "8.6.1"), ("v8502", "8.5.2"), ("v100300", "10.3.0"), ("v110401", "11.4.1")]
)
def test_trtexec_version(banner, version):
    assert trtexec.trtexec_version(f"&&&& RUNNING TensorRT.trtexec [TensorRT {banner}] # trtexec --help") == version


def test_trtexec_without_a_version_is_an_error():
    with pytest.raises(ValueError, match="does not tell its version"):
        trtexec.trtexec_version("usage: trtexec")


@pytest.mark.parametrize(("version", "fits"), [("8.5.2.2", True), ("8.4.1", False), ("7.1", False), ("11.4.1", True)])
def test_an_old_tensorrt_is_told_with_what_to_do(version, fits):
    if fits:
        engine_key.check_version(version)
        return
    with pytest.raises(RuntimeError, match=f"TensorRT {version} is older than 8.5: update JetPack"):
        engine_key.check_version(version)


def test_an_engine_for_the_dla_is_another_one():
    gpu = engine_key.engine_parts("10.3.0", "python", "Orin")
    dla = engine_key.engine_parts("10.3.0", "python", "Orin", builds.Build(dla_core=0))
    assert gpu["flags"] == ["STRONGLY_TYPED"]
    assert dla["flags"] == ["STRONGLY_TYPED", "DLA", "GPU_FALLBACK"]
    assert (gpu["dla_core"], dla["dla_core"]) == (None, 0)
    assert engine_key.engine_parts("8.6.1", "python", "Orin")["flags"] == ["EXPLICIT_BATCH", "INT8", "FP16"]


def test_the_power_mode_is_no_part_of_the_key(monkeypatch):
    from edgekit.device import engines as program

    told = {"l4t": "36.4.3", "power_mode": "15W", "cuda": "12.6"}
    monkeypatch.setattr(program.machine, "jetson", lambda *_: told)
    key = program.gpu_key()
    assert "15W" not in key
    assert "36.4.3" in key
    assert "12.6" in key


def test_engine_key_changes_with_all_that_an_engine_depends_on(tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(b"graph, weights in m.onnx.data and sub/more.bin")
    (tmp_path / "sub").mkdir()
    (tmp_path / "m.onnx.data").write_bytes(b"weights")
    (tmp_path / "sub" / "more.bin").write_bytes(b"more")
    parts = engine_key.engine_parts("10.3.0", "python", "Orin, sm_87, L4T 36.4", builds.Build({"x": [[1], [2], [4]]}))
    path = engine_key.engine_path(str(model), parts)
    assert Path(path).parent == tmp_path
    Path(path).write_bytes(b"engine")
    (tmp_path / "result.json").write_bytes(b"of another run")
    assert engine_key.engine_path(str(model), parts) == path
    others = {engine_key.engine_path(str(model), {**parts, key: "other"}) for key in parts}
    (tmp_path / "m.onnx.data").write_bytes(b"weightS")
    others.add(engine_key.engine_path(str(model), parts))
    (tmp_path / "sub" / "more.bin").write_bytes(b"morE")
    others.add(engine_key.engine_path(str(model), parts))
    model.write_bytes(b"grapH, weights in m.onnx.data and sub/more.bin")
    others.add(engine_key.engine_path(str(model), parts))
    assert len(others | {path}) == len(parts) + 4


# --- trtexec, a stand-in script in the documented formats ---

STAND_IN_TRTEXEC = """#!{python}
import json, sys
words = dict(word.partition("=")[::2] for word in sys.argv[1:])
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
if "--help" in words:
    print("&&&& RUNNING TensorRT.trtexec [TensorRT v100300] # trtexec --help")
if "--saveEngine" in words:
    open(words["--saveEngine"], "w").write("engine")
if "--exportTimes" in words:
    runs = int(words["--iterations"])
    json.dump([{{"h2dMs": 0.1, "computeMs": 5.0, "latencyMs": 5.2 + i % 7 / 100}} for i in range(runs)],
              open(words["--exportTimes"], "w"))
"""


def test_trtexec_builds_once_and_times(tmp_path, runner, job, result):
    onnx_models.linear(tmp_path / "model.onnx")
    np.savez(tmp_path / "in.npz", **{"0:x": np.zeros((2, 8), np.float32)})
    tools, log = tmp_path / "tools", tmp_path / "log"
    tools.mkdir()
    script = tools / "trtexec"
    script.write_text(STAND_IN_TRTEXEC.format(python=sys.executable, log=str(log)))
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    for _ in range(2):
        assert runner("measure", job(runtime="tensorrt", runs=150), env=environment)[0] == 0
        told = result()
        assert told["engine"] == {"runtime": "trtexec", "version": "10.3.0", "providers": ["tensorrt"]}
        assert told["fallback"] is None
        assert told["latency"]["n"] == 150
        assert told["latency"]["p50"]["value"] == pytest.approx(5.23, abs=0.01)
        assert told["memory"]["peak"] > 0
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    builds = [call for call in calls if any(word.startswith("--saveEngine") for word in call)]
    assert len(builds) == 1
    (about,) = tmp_path.glob("*.engine.json")
    about = json.loads(about.read_text())
    assert (about["tensorrt"], about["api"], about["timing_cache"]) == ("10.3.0", "trtexec", None)
    assert about["build_seconds"] >= 0
    assert runner("measure", job(runtime="tensorrt", runs=150, dla_core=1), env=environment)[0] == 0
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum("--useDLACore=1" in call for call in calls) == 2, "built and timed there"
    assert "--stronglyTyped" in builds[0]
    assert any("--shapes=x:2x8" in call for call in calls)


# --- tensorrt's Python: the plumbing on a stand-in, the parser and builder on TensorRT-RTX ---


class StandInCuda:
    """GPU memory that is host memory."""

    def __init__(self):
        self.blocks = {}

    def malloc(self, size):
        block = ctypes.create_string_buffer(max(size, 1))
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free(self, address):
        del self.blocks[address]

    def stream(self):
        return 0

    def wait(self, stream):
        pass

    def copy(self, target, source, size, kind, stream):
        device = target if kind == engine_trt.H2D else source
        assert device in self.blocks
        assert size <= len(self.blocks[device])
        ctypes.memmove(target, source, size)


class StandInContext:
    """`y = 2 x`, through addresses; x is (n, 4) with n <= 8."""

    def __init__(self):
        self.address, self.shape = {}, None

    def set_input_shape(self, name, shape):
        self.shape = shape
        return name == "x" and shape[1:] == (4,) and shape[0] <= 8

    def get_tensor_shape(self, name):
        return self.shape

    def set_tensor_address(self, name, address):
        self.address[name] = address

    def execute_async_v3(self, stream):
        count = self.shape[0] * 4
        x = np.ctypeslib.as_array(ctypes.cast(self.address["x"], ctypes.POINTER(ctypes.c_int32)), (count,))
        y = np.ctypeslib.as_array(ctypes.cast(self.address["y"], ctypes.POINTER(ctypes.c_int32)), (count,))
        y[:] = 2 * x
        return True


class StandInEngine:
    num_io_tensors = 2

    def get_tensor_name(self, index):
        return "xy"[index]

    def get_tensor_dtype(self, name):
        return "INT32"

    def get_tensor_mode(self, name):
        return StandInTensorRt.TensorIOMode.INPUT if name == "x" else StandInTensorRt.TensorIOMode.OUTPUT

    def create_execution_context(self):
        return StandInContext()


class StandInTensorRt:
    __version__ = "10.3.0"

    class Logger:
        WARNING = 1

        def __init__(self, level):
            pass

    class TensorIOMode(Enum):
        INPUT, OUTPUT = 1, 2

    class Runtime:
        def __init__(self, logger):
            pass

        def deserialize_cuda_engine(self, serialized):
            return StandInEngine() if serialized == b"engine" else None


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="needs the extra trt-check")
def test_types_are_told_by_the_names_that_nvidia_gives_them():
    """In a child: the library ends some processes that load it without a driver."""
    code = "import tensorrt_rtx as t; print(*(str(x.name) for x in t.DataType.__members__.values()))"
    argv = [sys.executable, "-c", code]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert set(engine_trt.NUMPY_TYPES) <= set(told)
    assert engine_trt.numpy_type(types.SimpleNamespace(name="HALF")) == np.float16
    with pytest.raises(RuntimeError, match="is BF16"):
        engine_trt.numpy_type("BF16")


def test_engine_moves_bytes_and_reuses_buffers():
    cuda = StandInCuda()
    engine = engine_trt.TrtEngine(StandInTensorRt, cuda, b"engine", "gpu")
    for rows in (2, 8, 3, 8):
        x = np.arange(rows * 4, dtype=np.int64).reshape(4, rows).T  # int64 that fits, and not contiguous
        found = engine.run(engine.prepare({"x": x}))
        np.testing.assert_array_equal(found["y"], 2 * x)
        assert found["y"].dtype == np.int32
    assert len(cuda.blocks) == 2


def test_engine_refuses_what_it_cannot_take():
    engine = engine_trt.TrtEngine(StandInTensorRt, StandInCuda(), b"engine", "gpu")
    with pytest.raises(ValueError, match="the model takes"):
        engine.prepare({"z": np.zeros(1)})
    with pytest.raises(ValueError, match="input 'x' is int64, the engine takes int32"):
        engine.prepare({"x": np.array([[2**40, 0, 0, 0]])})
    with pytest.raises(ValueError, match="input 'x' is float32"):
        engine.prepare({"x": np.zeros((1, 4), np.float32)})
    with pytest.raises(ValueError, match=r"takes no shape \(9, 4\)"):
        engine.run(engine.prepare({"x": np.zeros((9, 4), np.int32)}))
    with pytest.raises(RuntimeError, match="cannot load the engine"):
        engine_trt.TrtEngine(StandInTensorRt, StandInCuda(), b"of another version", "gpu")


class OutOfMemory:
    """A stand-in of a builder that gives no engine and says why, as TensorRT does."""

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING = "internal", "error", "warning"

    class NetworkDefinitionCreationFlag(IntEnum):
        STRONGLY_TYPED = 1

    __version__ = "10.3.0"

    def __init__(self, words):
        self.words = words

    def Builder(self, logger):  # noqa: N802 - their name
        def build(network, config):
            logger.log("warning", "this is slow")
            logger.log("error", self.words)

        return types.SimpleNamespace(
            create_network=lambda bits: None,
            create_builder_config=lambda: None,
            build_serialized_network=build,
        )

    def OnnxParser(self, network, logger):  # noqa: N802 - their name
        return types.SimpleNamespace(parse_from_file=lambda path: True)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("[virtualMemoryBuffer.cpp] Error Code 2: OutOfMemory (Requested size was 1342177280 bytes.)", MemoryError),
        ("Cuda Runtime (out of memory)", MemoryError),
        ("Error Code 10: Could not find any implementation for node x", RuntimeError),
    ],
)
def test_an_engine_that_cannot_be_built_is_told_in_tensorrt_s_words(words, kind):
    with pytest.raises(kind, match="cannot build the engine") as caught:
        engine_trt.build(OutOfMemory(words), "m.onnx")
    assert words in str(caught.value)
    assert "slow" not in str(caught.value)


def test_a_tool_that_fails_leaves_nothing_half(tmp_path, runner, job, result):
    onnx_models.linear(tmp_path / "model.onnx")
    np.savez(tmp_path / "in.npz", **{"0:x": np.zeros((2, 8), np.float32)})
    tools = tmp_path / "tools"
    tools.mkdir()
    script = tools / "trtexec"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *--help*) echo "[TensorRT v100300]"; exit 0;; esac\n'
        'for word; do case $word in --saveEngine=*) echo half > "${word#--saveEngine=}";; esac; done\nexit 9\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    assert runner("measure", job(runtime="tensorrt"), env=environment)[0] == 1
    assert "ended with status 9" in result()["error"]["text"]
    assert not list(tmp_path.glob("*.part*"))
    assert not list(tmp_path.glob("*.engine*"))


RTX = """
import sys
import tensorrt_rtx as trt
from edgekit.device import builds, engine_trt

class Namespace:  # TensorRT-RTX builds ahead of time for a named GPU: the one thing that an Orin build does not say
    def __getattr__(self, name):
        return getattr(trt, name)
    class Builder(trt.Builder):
        def create_builder_config(self):
            config = super().create_builder_config()
            config.num_compute_capabilities = 1
            config.set_compute_capability(trt.ComputeCapability.SM86, 0)
            return config

namespace = Namespace()
namespace.__version__ = sys.argv[2]
shapes = {"x": [[1, 8], [2, 8], [4, 8]]}
try:
    engine = engine_trt.build(namespace, sys.argv[1], builds.Build(shapes))
except RuntimeError as error:
    print("refused:", error)
else:
    print("built", len(bytes(memoryview(engine))))
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="needs the extra trt-check")
@pytest.mark.parametrize("version", ["10.3.0", "11.4.1"])
def test_build_calls_are_those_of_nvidia(tmp_path, version):
    """NVIDIA's own parser and builder take our calls (TensorRT-RTX, sm_86 ahead of time: not an Orin build)."""
    model = onnx_models.linear(tmp_path / "m.onnx")
    environment = {**os.environ, "PYTHONPATH": str(Path(machine.__file__).parents[2])}

    def build(path):
        argv = [sys.executable, "-c", RTX, str(path), version]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True, env=environment)

    done = build(model)
    assert done.stdout.startswith("built")
    told = [json.loads(line[len(MARK) :]) for line in done.stderr.splitlines() if line.startswith(MARK)]
    assert told, "its builder tells our monitor how far it is"
    assert all(what.startswith("build the engine: ") and 0 <= at <= total for what, at, total in told)
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    assert "cannot parse the model" in build(tmp_path / "bad.onnx").stdout


def test_flag_names_exist_where_they_can_be_looked_up():
    """A stand-in of 8.6's and 10's enums: the flags are set by name, at the bits that the library says."""

    class Flags(IntEnum):
        EXPLICIT_BATCH = 0
        STRONGLY_TYPED = 1

    seen = []
    library = types.SimpleNamespace(
        Logger=StandInTensorRt.Logger,
        NetworkDefinitionCreationFlag=Flags,
        Builder=lambda logger: types.SimpleNamespace(create_network=seen.append),
        OnnxParser=lambda network, logger: types.SimpleNamespace(
            parse_from_file=lambda path: False, num_errors=1, get_error=lambda index: "node 3: no"
        ),
    )
    for version, bits in (("8.6.1", 1), ("10.3.0", 2), ("11.4.0", 0)):
        library.__version__ = version
        with pytest.raises(RuntimeError, match=f"TensorRT {version} cannot parse the model: node 3: no"):
            engine_trt.build(library, "m.onnx")
        assert seen.pop() == bits


# --- the DLA, and sparse weights


@pytest.mark.parametrize(
    ("version", "build", "words"),
    [
        ("10.16.2", builds.Build(dla_core=0), "drives no DLA"),
        ("10.8.0", builds.Build(dla_core=0), "drives no DLA"),
        ("11.4.0", builds.Build(dla_core=0), "drives no DLA"),
        ("10.3.0", builds.Build(dla_core=0, explicit=True), "dla_calibration = true"),
        ("8.5.2", builds.Build(dla_core=0, explicit=True), "dla_calibration = true"),
        ("8.5.2", builds.Build(None, 0, True, builds.Calibration("m", {}, [])), "does not complete scales"),
        ("11.4.1", builds.Build(None, 0, True, builds.Calibration("m", {}, [])), "has no calibration any more"),
        ("11.4.1", builds.Build(dla_core=0, explicit=True), ""),
        ("10.7.0", builds.Build(dla_core=0), ""),
        ("10.3.0", builds.Build(None, 0, True, builds.Calibration("m", {}, [])), ""),
        ("8.6.2", builds.Build(None, 0, True, builds.Calibration("m", {}, [])), ""),
        ("10.16.2", builds.Build(explicit=True), ""),
    ],
)
def test_a_tensorrt_that_cannot_build_for_the_dla_is_told_why(version, build, words):
    if not words:
        engine_key.check_version(version, build)
        return
    with pytest.raises(RuntimeError, match=words):
        engine_key.check_version(version, build)


def test_calibration_and_sparsity_are_part_of_the_key():
    plain = builds.Build(dla_core=0)
    some = [
        plain,
        plain._replace(sparse=True),
        plain._replace(calibration=builds.Calibration("m", {"x": 0.5}, [])),
        plain._replace(calibration=builds.Calibration("m", {"x": 0.25}, [])),
        plain._replace(calibration=builds.Calibration("m", {"x": 0.5}, ["c"])),
    ]
    keys = {json.dumps(engine_key.engine_parts("10.3.0", "python", "Orin", build), sort_keys=True) for build in some}
    assert len(keys) == len(some)
    assert engine_key.typing_flags("10.3.0", some[2]) == ([], ["INT8", "FP16", "PREFER_PRECISION_CONSTRAINTS"])
    assert engine_key.typing_flags("8.6.2", some[2])[0] == ["EXPLICIT_BATCH"]
    assert engine_key.typing_flags("11.4.1", some[1]) == ([], ["SPARSE_WEIGHTS"])


def test_a_calibration_reaches_the_builder_as_a_cache_and_half_layers_by_name():
    """A stand-in with 10.3's calls: the calibrator gives the cache of exactly this version, and no data."""

    class IInt8EntropyCalibrator2:
        pass

    class Flags(IntEnum):
        INT8 = 0
        FP16 = 1
        PREFER_PRECISION_CONSTRAINTS = 2
        GPU_FALLBACK = 3
        SPARSE_WEIGHTS = 4

    flags, parsed = [], []
    config = types.SimpleNamespace(set_flag=flags.append)
    layers = [types.SimpleNamespace(name=name, precision=None) for name in ("c1", "c2")]
    network = types.SimpleNamespace(num_layers=2, get_layer=layers.__getitem__)
    library = types.SimpleNamespace(
        __version__="10.3.0",
        Logger=StandInTensorRt.Logger,
        BuilderFlag=Flags,
        IInt8EntropyCalibrator2=IInt8EntropyCalibrator2,
        DeviceType=types.SimpleNamespace(DLA="dla"),
        float16="half",
        Builder=lambda logger: types.SimpleNamespace(
            create_network=lambda bits: network,
            create_builder_config=lambda: config,
            build_serialized_network=lambda network, config: b"engine",
        ),
        OnnxParser=lambda network, logger: types.SimpleNamespace(
            parse_from_file=lambda path: parsed.append(path) or True
        ),
    )
    asked = builds.Build(None, 1, True, builds.Calibration("dla.onnx", {"x": 0.5}, ["c2"]), True)
    assert engine_trt.build(library, "model.onnx", asked) == b"engine"
    assert parsed == ["dla.onnx"]
    assert set(flags) == set(Flags)
    assert (config.default_device_type, config.DLA_core) == ("dla", 1)
    assert [layer.precision for layer in layers] == [None, "half"]
    calibrator = config.int8_calibrator
    assert calibrator.read_calibration_cache() == b"TRT-100300-EntropyCalibration2\nx: 3f000000\n"
    assert calibrator.get_batch(["x"]) is None
    assert calibrator.get_batch_size() == 1
    assert isinstance(calibrator, IInt8EntropyCalibrator2)


def test_trtexec_gets_the_calibration_as_a_file_that_goes(tmp_path, runner, job, result):
    onnx_models.linear(tmp_path / "model.onnx")
    onnx_models.linear(tmp_path / "dla.onnx")
    (tmp_path / "dla.json").write_text(json.dumps({"scales": {"x": 0.5}, "half": ["a", "b"]}))
    np.savez(tmp_path / "in.npz", **{"0:x": np.zeros((2, 8), np.float32)})
    tools, log = tmp_path / "tools", tmp_path / "log"
    tools.mkdir()
    script = tools / "trtexec"
    keep = 'if "--calib" in words:\n    open({cache!r}, "w").write(open(words["--calib"]).read())\n'
    text = STAND_IN_TRTEXEC + keep.format(cache=str(tmp_path / "seen"))
    script.write_text(text.format(python=sys.executable, log=str(log)))
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    asked = {"dla_core": 0, "explicit": True, "calibration": {"model": "dla.onnx", "scales": "dla.json"}}
    status, told = runner("measure", job(runtime="tensorrt", runs=100, **asked), env=environment)
    assert status == 0, told
    assert (tmp_path / "seen").read_text() == "TRT-100300-EntropyCalibration2\nx: 3f000000\n"
    (build,) = [call for call in map(json.loads, log.read_text().splitlines()) if "--int8" in call]
    assert build[0] == f"--onnx={tmp_path / 'dla.onnx'}"
    assert "--layerPrecisions=a:fp16,b:fp16" in build
    assert "--stronglyTyped" not in build
    assert not list(tmp_path.glob("*.cache"))
    status, _ = runner("measure", job(runtime="tensorrt", runs=100, dla_core=0, explicit=True), env=environment)
    assert status == 1
    assert "runs no Q/DQ on the DLA" in result()["error"]["text"]
