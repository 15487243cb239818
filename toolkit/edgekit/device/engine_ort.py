"""The onnxruntime engine: a session made with exactly the providers that were asked, or a told fallback."""

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

CPU = "CPUExecutionProvider"
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    "tensor(string)": "str",
}
"""onnxruntime's names that are not `tensor(` + numpy's name + `)`."""


class OrtEngine:
    """A loaded model.

    Attributes:
        facts: `runtime`, `version`, `providers` that really run it, `threads`, `spinning`.
        fallback: None, or {"asked", "ran", "reason"} when it does not run as asked.
        accelerated: whether anything but the CPU runs it.
    """

    def __init__(self, model: str, providers: Sequence[str], threads: int, *, spinning: bool = False) -> None:
        """Load a model.

        Threads of the pool sleep between operators unless `spinning`. onnxruntime's default keeps the cores busy
        while it waits: that costs energy, heats small devices and falls apart where cores are shared. Sleeping is
        the slower of the two, so the latency told is none that a loaded device breaks.

        Args:
            model: path of the `.onnx` file.
            providers: execution providers in order of preference; the first one is what is asked.
            threads: threads of one operator (0: as onnxruntime likes).
            spinning: whether idle threads of the pool spin.

        Raises:
            ImportError: onnxruntime is not there.
            Exception: onnxruntime's own when it cannot load the model.
        """
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)
        session, fallback = _open(onnxruntime, model, list(providers), threads, spinning=spinning)
        self._take(session, onnxruntime.__version__, threads, fallback=fallback, spinning=spinning)

    def _take(
        self,
        session: Any,
        version: str,
        threads: int,
        *,
        fallback: Optional[Dict[str, Any]] = None,
        spinning: bool = False,
    ) -> None:
        """Keep a session and what is worth knowing of it."""
        self._session, self.fallback = session, fallback
        ran = list(session.get_providers())
        entries = session.get_inputs()
        self.inputs = {entry.name: _dtype(entry.type) for entry in entries}
        self._required = [entry.name for entry in entries if not entry.type.startswith("optional")]
        self.outputs = [entry.name for entry in session.get_outputs()]
        self.accelerated = ran[0] != CPU
        self.facts = {
            "runtime": "onnxruntime",
            "version": version,
            "providers": ran,
            "threads": threads,
            "spinning": spinning,
        }  # type: Dict[str, Any]

    def prepare(self, feed: Dict[str, Any]) -> Dict[str, Any]:
        """Check names and dtypes of a feed; ValueError names the tensor."""
        for name in self._required:
            if name not in feed:
                raise ValueError("input '{}' is missing; the model takes {}".format(name, sorted(self.inputs)))
        ready = {}
        for name, array in feed.items():
            if name not in self.inputs:
                raise ValueError("the model has no input '{}'; it takes {}".format(name, sorted(self.inputs)))
            wanted = self.inputs[name]
            found = "str" if array.dtype.kind == "U" else array.dtype.name
            if wanted is not None and found != wanted:
                raise ValueError("input '{}' is {}, the model takes {}".format(name, found, wanted))
            ready[name] = array.astype(object) if found == "str" else np.ascontiguousarray(array)
        return ready

    def run(self, ready: Dict[str, Any]) -> Dict[str, Any]:
        """Run a prepared feed from host memory to host memory; ValueError when the model refuses its shapes."""
        try:
            values = self._session.run(self.outputs, ready)
        except Exception as error:
            if type(error).__name__ == "InvalidArgument":
                raise ValueError(str(error)) from None
            raise
        return {name: values[index] for index, name in enumerate(self.outputs)}


def _dtype(ort_type: str) -> Optional[str]:
    if ort_type in _DTYPES:
        return _DTYPES[ort_type]
    name = ort_type[len("tensor(") : -1]
    try:
        return np.dtype(name).name if ort_type.startswith("tensor(") else None
    except TypeError:  # bfloat16, int4 ...: numpy alone has no such type, onnxruntime judges
        return None


def _open(
    runtime: Any, model: str, asked: List[str], threads: int, *, spinning: bool
) -> Tuple[Any, Optional[Dict[str, Any]]]:
    """Return (session, fallback): with exactly the providers asked, else with the longest rest of them that loads."""
    available = runtime.get_available_providers()
    reasons = ["{} is not in this onnxruntime".format(name) for name in asked if name not in available]
    usable = [name for name in asked if name in available]
    attempts = [usable[start:] for start in range(len(usable))]
    if CPU not in usable:
        attempts.append([CPU])
    for providers in attempts:
        try:
            session = _session(runtime, model, providers, threads, spinning=spinning)
        except Exception as error:
            if providers is attempts[-1]:
                raise
            reasons.append("{}: {}".format(providers[0], str(error).strip()[:500]))
            continue
        ran = list(session.get_providers())
        if ran[: len(asked)] == asked:
            return session, None
        reasons += ["onnxruntime left {} out".format(name) for name in providers if name not in ran]
        return session, {"asked": asked, "ran": ran, "reason": "; ".join(reasons)}
    raise AssertionError("the last attempt returns or raises")


def _session(runtime: Any, model: str, providers: List[str], threads: int, *, spinning: bool) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    if CPU not in providers:  # nodes that a provider would leave to the CPU unasked fail to load instead
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings = [_options(name, model) for name in providers]
    # without enable_fallback=0 it changes providers on its own and tells so on stdout only
    return runtime.InferenceSession(model, options, providers=providers, provider_options=settings, enable_fallback=0)


def _options(provider: str, model: str) -> Dict[str, str]:
    if provider != "TensorrtExecutionProvider":
        return {}
    return {
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": os.path.dirname(os.path.abspath(model)),
    }
