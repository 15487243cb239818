"""The TensorRT engine: built from the ONNX once, where it runs, through tensorrt's Python.

Untested on hardware: no machine with an NVIDIA GPU has run this file yet. What does not need one (the choice of flags
by version, cache keys, argv lists, shapes and bytes against a stand-in) is tested. TensorRT 8.6 to 11 share the calls
by tensor name (`set_tensor_address`, `execute_async_v3`), which is why nothing older is used.
Standard library and numpy, Python 3.8.
"""

import ctypes
import glob
import os
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

if __package__:
    from . import builds, engine_key, progress
else:
    import builds  # type: ignore[import-not-found,no-redef]
    import engine_key  # type: ignore[import-not-found,no-redef]
    import progress  # type: ignore[import-not-found,no-redef]

Words = List[str]
Buffers = Dict[str, Tuple[int, int]]
"""Tensor -> (address on the GPU, bytes)."""

NUMPY_TYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}

H2D, D2H = 1, 2  # cudaMemcpyKind


class Cuda:
    """The five calls of the CUDA runtime that are needed, through ctypes: Jetsons ship no Python binding of it."""

    def __init__(self) -> None:
        names = sorted(glob.glob("/usr/local/cuda*/lib64/libcudart.so*"), key=len)
        for folder in filter(None, sys.path):  # beside tensorrt from pip: nvidia/cuda_runtime/lib, nvidia/cu13/lib
            names += sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia", "*", "lib", "libcudart.so*")))
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


def build(trt: Any, model: str, asked: builds.Build = engine_key.PLAIN) -> Any:
    """Return the serialized engine of an ONNX file (any object with the buffer interface).

    Args:
        trt: the module `tensorrt`.
        model: the ONNX file.
        asked: how it is built.

    Raises:
        RuntimeError: the parser or the builder refuses it, with their words.
        MemoryError: there was too little memory to build it.
    """
    said = []  # type: Words
    logger = collecting_logger(trt, said)
    builder = trt.Builder(logger)
    network_flags = engine_key.typing_flags(trt.__version__, asked)[0]
    bits = sum(1 << int(getattr(trt.NetworkDefinitionCreationFlag, name)) for name in network_flags)
    network = builder.create_network(bits)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(asked.source(model)):
        told = [str(parser.get_error(index)) for index in range(parser.num_errors)]
        raise RuntimeError("TensorRT {} cannot parse the model: {}".format(trt.__version__, "; ".join(told)[:2000]))
    config, _kept = configure(trt, builder, network, asked)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        words = "; ".join(said[-3:])[-1000:] or "it does not say why"
        text = "TensorRT {} cannot build the engine: {}".format(trt.__version__, words)
        raise MemoryError(text) if engine_key.NO_MEMORY.search(" ".join(said)) else RuntimeError(text)
    return engine


def configure(trt: Any, builder: Any, network: Any, asked: builds.Build) -> Tuple[Any, List[Any]]:
    """Return the builder's configuration, and what must live as long: TensorRT does not keep it alive."""
    config = builder.create_builder_config()
    for name in engine_key.typing_flags(trt.__version__, asked)[1]:
        config.set_flag(getattr(trt.BuilderFlag, name))
    monitor, calibrator = progress.monitor(trt), None
    if monitor is not None:
        config.progress_monitor = monitor
    if asked.dla_core is not None:
        config.default_device_type = trt.DeviceType.DLA
        config.DLA_core = asked.dla_core
        config.set_flag(trt.BuilderFlag.GPU_FALLBACK)
    if asked.calibration is not None:
        calibrator = builds.calibrator(trt, builds.cache_text(trt.__version__, asked.calibration.scales))
        config.int8_calibrator = calibrator
        for layer in (network.get_layer(index) for index in range(network.num_layers)):
            if layer.name in asked.calibration.half:
                layer.precision = trt.float16
    if asked.shapes:
        profile = builder.create_optimization_profile()
        for name, (low, best, high) in asked.shapes.items():
            profile.set_shape(name, tuple(low), tuple(best), tuple(high))
        config.add_optimization_profile(profile)
    return config, [monitor, calibrator]


def collecting_logger(trt: Any, said: "Words") -> Any:
    """Return a logger for TensorRT that keeps its errors in `said` and writes warnings and errors to stderr."""
    if not hasattr(trt, "ILogger"):
        return trt.Logger(trt.Logger.WARNING)
    errors = (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR)

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in errors:
                said.append(message)
            if severity in (*errors, trt.ILogger.WARNING):
                sys.stderr.write(message + "\n")

    return Log()


def numpy_type(dtype: Any) -> Any:
    """Return the numpy type of a `trt.DataType`; RuntimeError when numpy has none (bfloat16, fp8).

    `trt.nptype` would do, but that of 8.5 fails with numpy 1.24 and later.
    """
    name = str(getattr(dtype, "name", dtype))
    if name not in NUMPY_TYPES:
        raise RuntimeError("an input or output of the engine is {}, which numpy does not have".format(name))
    return np.dtype(NUMPY_TYPES[name])


class TrtEngine:
    """A loaded engine; the same face as `OrtEngine`.

    Buffers live as long as shapes stay the same; every run copies inputs to the GPU and outputs back.
    """

    fallback = None
    accelerated = True

    def __init__(self, trt: Any, cuda: Any, serialized: Any, gpu: str, dla_core: Optional[int] = None) -> None:
        """Load a serialized engine; RuntimeError when it is of another TensorRT version or GPU."""
        self._cuda = cuda
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
        if dla_core is not None:
            self._runtime.DLA_core = dla_core
        self._engine = self._runtime.deserialize_cuda_engine(serialized)
        if self._engine is None:
            raise RuntimeError("TensorRT {} cannot load the engine".format(trt.__version__))
        self._context = self._engine.create_execution_context()
        self._stream = cuda.stream()
        self._buffers = {}  # type: Buffers
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        dtypes = {name: numpy_type(self._engine.get_tensor_dtype(name)) for name in names}
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


def load(model: str, gpu: str, asked: builds.Build = engine_key.PLAIN) -> TrtEngine:
    """Return the engine of an ONNX file, from the cache beside it or built now.

    Raises:
        ImportError: tensorrt or the CUDA runtime is not there.
        RuntimeError: TensorRT is too old, cannot do what is asked, or the model cannot be parsed, built or loaded.
    """
    import tensorrt as trt

    engine_key.check_version(trt.__version__, asked)
    cuda = Cuda()
    parts = engine_key.engine_parts(trt.__version__, "python", gpu, asked)
    path = engine_key.engine_path(asked.source(model), parts)
    if os.path.isfile(path):
        try:
            with open(path, "rb") as file:
                return TrtEngine(trt, cuda, file.read(), gpu, asked.dla_core)
        except RuntimeError:  # a driver update can make a cached engine stale: build it again
            os.unlink(path)
    begun = time.monotonic()
    progress.tell("build the engine")
    serialized = build(trt, model, asked)
    try:
        with open(path + ".part", "wb") as file:
            file.write(serialized)
        os.replace(path + ".part", path)
        engine_key.write_about(path, parts, time.monotonic() - begun)
    except OSError:  # a read-only folder or a full disk: no cache, the engine runs all the same
        engine_key.remove(path + ".part")
    return TrtEngine(trt, cuda, serialized, gpu, asked.dla_core)
