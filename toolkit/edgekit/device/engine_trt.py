"""The TensorRT engine: built from the ONNX once, where it runs, through tensorrt's Python or trtexec.

Untested on hardware: no machine with an NVIDIA GPU has run this file yet. What does not need one (the choice of flags
by version, cache keys, argv lists, shapes and bytes against a stand-in) is tested. TensorRT 8.6 to 11 share the calls
by tensor name (`set_tensor_address`, `execute_async_v3`), which is why nothing older is used.
Standard library and numpy, Python 3.8.
"""

import ctypes
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

H2D, D2H = 1, 2  # cudaMemcpyKind


def major(version: str) -> int:
    """Return the major version; ValueError when it is none."""
    return int(version.split(".", 1)[0])


STRONG, ALWAYS_STRONG = 9, 11
"""The major versions from which strong typing can be asked for, and from which there is nothing else."""


def typing_flags(version: str) -> Tuple[List[str], List[str]]:
    """Return (network creation flags, builder flags) by name for an ONNX whose precisions are explicit (Q/DQ, Cast).

    8.x knows no strong typing: explicit batch must be said, and INT8 and FP16 kernels must be allowed for Q/DQ and
    half tensors. 9 and 10 take the types from the graph when they are told to. 11 always does, without the old flags.
    """
    if major(version) < STRONG:
        return ["EXPLICIT_BATCH"], ["INT8", "FP16"]
    return (["STRONGLY_TYPED"], []) if major(version) < ALWAYS_STRONG else ([], [])


def trtexec_typing(version: str) -> List[str]:
    """Return the same choice in trtexec's words."""
    if major(version) < STRONG:
        return ["--int8", "--fp16"]
    return ["--stronglyTyped"] if major(version) < ALWAYS_STRONG else []


def engine_path(model: str, parts: Dict[str, Any]) -> str:
    """Return where the engine of a model is cached: beside it, keyed by its bytes and by `parts`.

    Its bytes are those of the graph and of every file below its folder that the graph names (external data), so that
    nothing else that lies there matters. `parts`: the exact TensorRT version, the GPU, and everything else that an
    engine is not portable across.
    """
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    folder = os.path.dirname(os.path.abspath(model))
    with open(model, "rb") as file:
        graph = file.read()
    key.update(graph)
    paths = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    for path in sorted(paths):
        name = os.path.relpath(path, folder).encode("utf-8", "surrogateescape")
        if name not in graph or os.path.samefile(path, model):
            continue
        key.update(b"\0" + name + b"\0")
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                key.update(block)
    return "{}.{}.engine".format(model, key.hexdigest()[:24])


def trtexec_build_argv(
    trtexec: str,
    model: str,
    engine: str,
    version: str,
    shapes: Optional[Dict[str, Sequence[Sequence[int]]]] = None,
) -> List[str]:
    """Return the command that builds an engine; `shapes`: input -> (min, opt, max) for dynamic inputs."""
    argv = [trtexec, "--onnx=" + model, "--saveEngine=" + engine, "--skipInference", *trtexec_typing(version)]
    for index, option in enumerate(("--minShapes=", "--optShapes=", "--maxShapes=")):
        if shapes:
            words = ["{}:{}".format(name, "x".join(map(str, triple[index]))) for name, triple in sorted(shapes.items())]
            argv.append(option + ",".join(words))
    return argv


def trtexec_time_argv(
    trtexec: str, engine: str, times: str, feed: Dict[str, Any], runs: int, seconds: float
) -> List[str]:
    """Return the command that times an engine, copies to and from the GPU included, one raw duration per run."""
    shapes = ",".join("{}:{}".format(name, "x".join(map(str, array.shape))) for name, array in sorted(feed.items()))
    return [
        trtexec,
        "--loadEngine=" + engine,
        "--shapes=" + shapes,
        "--exportTimes=" + times,
        "--iterations={}".format(runs),
        "--duration={:g}".format(seconds),
        "--warmUp=500",
        "--useSpinWait",
    ]


_SIX_DIGITS = 100000  # since 10.0: two digits each for minor and patch; before: one for minor


def trtexec_version(banner: str) -> str:
    """Return `10.3.0` for trtexec's `TensorRT v100300`, `8.6.1` for `v8601`; ValueError when there is none."""
    match = re.search(r"TensorRT v(\d{4,6})\b", banner)
    if match is None:
        raise ValueError("trtexec does not tell its version")
    number, base = int(match.group(1)), 100 if int(match.group(1)) >= _SIX_DIGITS else 10
    return "{}.{}.{}".format(number // base // 100, number // 100 % base, number % 100)


def time_with_trtexec(
    trtexec: str,
    model: str,
    feed: Dict[str, Any],
    runs: int,
    seconds: float,
    gpu: str,
    shapes: Optional[Dict[str, Sequence[Sequence[int]]]] = None,
) -> Tuple[str, List[float]]:
    """Build the engine (cached) and time it with trtexec: (TensorRT version, durations in ms without its warm-up)."""
    told = subprocess.run([trtexec, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    version = trtexec_version(told.stdout.decode("utf-8", "replace"))
    engine = engine_path(model, {"trtexec": version, "gpu": gpu, "shapes": shapes or {}})
    if not os.path.isfile(engine):
        _run(trtexec_build_argv(trtexec, model, engine + ".part", version, shapes), 3600)
        os.replace(engine + ".part", engine)
    with tempfile.TemporaryDirectory() as scratch:
        times = os.path.join(scratch, "times.json")
        _run(trtexec_time_argv(trtexec, engine, times, feed, runs, min(seconds, 10)), seconds + 600)
        with open(times, encoding="utf-8") as file:
            return version, read_times(file.read())


def _run(argv: List[str], timeout: float) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError("{} ended with status {}: its log says why".format(argv[0], done.returncode))


def read_times(text: str) -> List[float]:
    """Return the durations (ms) of trtexec's `--exportTimes` JSON: `latencyMs` of each run."""
    return [float(entry["latencyMs"]) for entry in json.loads(text)]


class Cuda:
    """The five calls of the CUDA runtime that are needed, through ctypes: Jetsons ship no Python binding of it."""

    def __init__(self) -> None:
        names = sorted(glob.glob("/usr/local/cuda*/lib64/libcudart.so*"), key=len)
        for name in ["libcudart.so"] + ["libcudart.so." + v for v in ("13", "12", "11.0")] + names:
            try:
                self._library = ctypes.CDLL(name)
                return
            except OSError:
                continue
        raise ImportError("no CUDA runtime (libcudart.so) on this machine")

    def _check(self, code: int, what: str) -> None:
        if code:
            raise RuntimeError("{} failed with CUDA error {}".format(what, code))

    def malloc(self, size: int) -> int:
        """Return the address of `size` bytes on the GPU."""
        pointer = ctypes.c_void_p()
        self._check(self._library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(max(size, 1))), "cudaMalloc")
        return int(pointer.value or 0)

    def free(self, address: int) -> None:
        """Give memory back."""
        self._check(self._library.cudaFree(ctypes.c_void_p(address)), "cudaFree")

    def stream(self) -> int:
        """Return a new stream."""
        pointer = ctypes.c_void_p()
        self._check(self._library.cudaStreamCreate(ctypes.byref(pointer)), "cudaStreamCreate")
        return int(pointer.value or 0)

    def copy(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        """Queue a copy on a stream."""
        code = self._library.cudaMemcpyAsync(
            ctypes.c_void_p(target),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size),
            kind,
            ctypes.c_void_p(stream),
        )
        self._check(code, "cudaMemcpyAsync")

    def wait(self, stream: int) -> None:
        """Wait until a stream is empty."""
        self._check(self._library.cudaStreamSynchronize(ctypes.c_void_p(stream)), "cudaStreamSynchronize")


def build(trt: Any, model: str, shapes: Optional[Dict[str, Sequence[Sequence[int]]]] = None) -> Any:
    """Return the serialized engine of an ONNX file (any object with the buffer interface).

    Raises:
        RuntimeError: the parser or the builder refuses it, with their words.
    """
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network_flags, builder_flags = typing_flags(trt.__version__)
    bits = sum(1 << int(getattr(trt.NetworkDefinitionCreationFlag, name)) for name in network_flags)
    network = builder.create_network(bits)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(model):
        told = [str(parser.get_error(index)) for index in range(parser.num_errors)]
        raise RuntimeError("TensorRT {} cannot parse the model: {}".format(trt.__version__, "; ".join(told)[:2000]))
    config = builder.create_builder_config()
    for name in builder_flags:
        config.set_flag(getattr(trt.BuilderFlag, name))
    if shapes:
        profile = builder.create_optimization_profile()
        for name, (low, best, high) in shapes.items():
            profile.set_shape(name, tuple(low), tuple(best), tuple(high))
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError("TensorRT {} cannot build the engine: its log says why".format(trt.__version__))
    return engine


class TrtEngine:
    """A loaded engine; the same face as `OrtEngine`.

    Buffers live as long as shapes stay the same; every run copies inputs to the GPU and outputs back.
    """

    fallback = None
    accelerated = True

    def __init__(self, trt: Any, cuda: Any, serialized: Any, gpu: str) -> None:
        """Load a serialized engine; RuntimeError when it is of another TensorRT version or GPU."""
        self._cuda = cuda
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
        self._engine = self._runtime.deserialize_cuda_engine(serialized)
        if self._engine is None:
            raise RuntimeError("TensorRT {} cannot load the engine".format(trt.__version__))
        self._context = self._engine.create_execution_context()
        self._stream = cuda.stream()
        self._buffers = {}  # type: Dict[str, Tuple[int, int]]
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        dtypes = {name: np.dtype(trt.nptype(self._engine.get_tensor_dtype(name))) for name in names}
        is_input = {name: self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names}
        self.inputs = {name: dtypes[name] for name in names if is_input[name]}
        self._outputs = {name: dtypes[name] for name in names if not is_input[name]}
        self.outputs = list(self._outputs)
        self.facts = {
            "runtime": "tensorrt",
            "version": trt.__version__,
            "providers": ["tensorrt"],
            "gpu": gpu,
        }

    def prepare(self, feed: Dict[str, Any]) -> Dict[str, Any]:
        """Check names and dtypes of a feed; int64 goes where TensorRT made it int32 only when its values fit."""
        if set(feed) != set(self.inputs):
            raise ValueError("the model takes {}, the feed has {}".format(sorted(self.inputs), sorted(feed)))
        ready = {}
        for name, wanted in self.inputs.items():
            array = feed[name]
            if array.dtype != wanted:
                cast = array.astype(wanted)
                if array.dtype.kind not in "iu" or wanted.kind not in "iu" or not np.array_equal(cast, array):
                    raise ValueError("input '{}' is {}, the engine takes {}".format(name, array.dtype, wanted))
                array = cast
            ready[name] = np.ascontiguousarray(array)
        return ready

    def run(self, ready: Dict[str, Any]) -> Dict[str, Any]:
        """Run a prepared feed from host memory to host memory; ValueError when a shape is outside the engine's."""
        for name, array in ready.items():
            if not self._context.set_input_shape(name, tuple(array.shape)):
                raise ValueError("input '{}': the engine takes no shape {}".format(name, tuple(array.shape)))
            address = self._buffer(name, array.nbytes)
            self._cuda.copy(address, array.ctypes.data, array.nbytes, H2D, self._stream)
        results = {}
        for name, dtype in self._outputs.items():
            shape = tuple(self._context.get_tensor_shape(name))
            if any(axis < 0 for axis in shape):
                raise ValueError("output '{}' has a shape that depends on the data, {}".format(name, shape))
            results[name] = np.empty(shape, dtype)
            self._buffer(name, results[name].nbytes)
        if not self._context.execute_async_v3(self._stream):
            raise RuntimeError("TensorRT could not run the engine: its log says why")
        for name, array in results.items():
            self._cuda.copy(array.ctypes.data, self._buffers[name][0], array.nbytes, D2H, self._stream)
        self._cuda.wait(self._stream)
        return results

    def _buffer(self, name: str, size: int) -> int:
        address, room = self._buffers.get(name, (0, -1))
        if room < size:
            if address:
                self._cuda.wait(self._stream)
                self._cuda.free(address)
            address = self._cuda.malloc(size)
            self._buffers[name] = (address, size)
            self._context.set_tensor_address(name, address)
        return address


def load(model: str, gpu: str, shapes: Optional[Dict[str, Sequence[Sequence[int]]]] = None) -> TrtEngine:
    """Return the engine of an ONNX file, from the cache beside it or built now.

    Raises:
        ImportError: tensorrt or the CUDA runtime is not there.
        RuntimeError: the model cannot be parsed, built or loaded.
    """
    import tensorrt as trt

    cuda = Cuda()
    path = engine_path(model, {"tensorrt": trt.__version__, "gpu": gpu, "shapes": shapes or {}, "runner": 1})
    if os.path.isfile(path):
        try:
            with open(path, "rb") as file:
                return TrtEngine(trt, cuda, file.read(), gpu)
        except RuntimeError:  # a driver update can make a cached engine stale: build it again
            os.unlink(path)
    serialized = build(trt, model, shapes)
    try:
        with open(path + ".part", "wb") as file:
            file.write(serialized)
        os.replace(path + ".part", path)
    except OSError:  # a read-only folder: no cache, the engine runs all the same
        pass
    return TrtEngine(trt, cuda, serialized, gpu)
