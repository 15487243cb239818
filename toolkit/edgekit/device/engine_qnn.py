"""The engine of Qualcomm's HTP: a context binary, loaded through the plugin onnxruntime-qnn after a check.

The plugin loads a binary of any SoC without a word, so what the binary says of itself is read first.
"""

import os
import platform
from typing import Any, Dict, Sequence

if __package__:  # imported by a test or read by a type checker
    from .engine_ort import OrtEngine
else:
    from engine_ort import OrtEngine  # type: ignore[import-not-found,no-redef]

QNN = "QNNExecutionProvider"
SIMULATES = ("x86_64", "AMD64")
"""Machines on which the plugin has no HTP to drive, but Qualcomm's simulator of it."""

_KEY = b"ep_compatibility_info." + QNN.encode()
_SOC_FIELD = 5
_MAX_CONTEXT = 1 << 30
_TAG, _LONGEST = 0x12, 0x7F


class MismatchError(Exception):
    """A context binary of another SoC, or none at all."""


class QnnEngine(OrtEngine):
    """A context binary on the HTP, or in the simulator; only what the compiler left to the CPU runs there."""

    def __init__(self, model: str, context: Dict[str, Any], modules: Sequence[str], threads: int) -> None:
        """Load a context.

        Args:
            model: path of the `.onnx` file that names the binary.
            context: `soc_model` (Qualcomm's number), `soc` (its names), `compatibility` (what the binary was made for)
                and `refused` (nodes that the compiler left to the CPU).
            modules: names of this machine's chip; looked at where a real HTP runs it.
            threads: threads of the CPU.

        Raises:
            ImportError: onnxruntime or the plugin is not there.
            MismatchError: the binary is not for this chip.
            Exception: onnxruntime's own when it cannot load it.
        """
        import onnxruntime
        import onnxruntime_qnn

        simulated = platform.machine() in SIMULATES
        if not os.path.isfile(model):
            raise MismatchError("there is no file {}".format(os.path.basename(model)))
        check(model, context, [] if simulated else modules, simulated=simulated)
        onnxruntime.set_default_logger_severity(3)
        options = {"backend_type": "htp", "offload_graph_io_quantization": "0"}
        if simulated:
            options["soc_model"] = str(context["soc_model"])
        alone = not context.get("refused")
        session = _session(onnxruntime, onnxruntime_qnn, model, options, threads, alone=alone)
        self._take(session, onnxruntime.__version__, threads)
        self.facts["plugin"] = getattr(onnxruntime_qnn, "__version__", "unknown")
        self.facts["simulated"] = simulated


def choose(context: Dict[str, Any], modules: Sequence[str]) -> Dict[str, Any]:
    """Return which of the contexts for several SoCs is for this chip; the first when none is, which `check` refuses."""
    every = [context, *context.get("others", ())]
    return next((one for one in every if _is_for(one, modules)), context)


def check(model: str, context: Dict[str, Any], modules: Sequence[str], *, simulated: bool) -> None:
    """Raise MismatchError unless the file is a context for the SoC that it is said to be for, and that is this one."""
    told = compatibility(model)
    fields = told.split(":")
    soc = str(context.get("soc_model"))
    if len(fields) <= _SOC_FIELD:
        raise MismatchError("{} does not say which SoC it is for".format(os.path.basename(model)))
    if told != context.get("compatibility"):
        raise MismatchError("the binary is of '{}', the package says '{}'".format(told, context.get("compatibility")))
    if fields[_SOC_FIELD] != soc:
        raise MismatchError("the binary is for SoC {}, not for {}".format(fields[_SOC_FIELD], soc))
    if not simulated and not _is_for(context, modules):
        names = [str(name) for one in (context, *context.get("others", ())) for name in one.get("soc", ())]
        text = "the binary is for {}; this chip calls itself {}"
        raise MismatchError(text.format(" or ".join(names) or "SoC " + soc, ", ".join(modules) or "nothing"))


def _is_for(context: Dict[str, Any], modules: Sequence[str]) -> bool:
    """Say whether one of a chip's own names is one of those that a context is for."""
    names = [str(name).lower() for name in context.get("soc", ())]
    return any(name in str(one).lower() for name in names for one in modules)


def compatibility(model: str) -> str:
    """Return what a context file says it is for; empty when it says nothing.

    It is an entry of the model's metadata: a protobuf string behind the key, found without a protobuf library.
    """
    if os.path.getsize(model) > _MAX_CONTEXT:
        return ""
    with open(model, "rb") as file:
        content = file.read()
    at = content.find(_KEY)
    start = at + len(_KEY)
    if at < 0 or len(content) < start + 2 or content[start] != _TAG or content[start + 1] > _LONGEST:
        return ""
    value = content[start + 2 : start + 2 + content[start + 1]]
    return value.decode("utf-8", "replace")


def _session(runtime: Any, plugin: Any, model: str, provider: Dict[str, str], threads: int, *, alone: bool) -> Any:
    """Open a session on the HTP; `alone`: nodes on the CPU are an error, not a silent fallback."""
    if not any(device.ep_name == QNN for device in runtime.get_ep_devices()):
        runtime.register_execution_provider_library(QNN, plugin.get_library_path())
    devices = [device for device in runtime.get_ep_devices() if device.ep_name == QNN]
    if not devices:
        raise RuntimeError("the plugin onnxruntime-qnn finds no HTP on this machine")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1" if alone else "0")
    options.add_provider_for_devices(devices[:1], provider)
    session = runtime.InferenceSession(model, options, enable_fallback=0)
    session.disable_fallback()  # run() would try again on the CPU by itself
    if session.get_providers()[0] != QNN:
        raise RuntimeError("{} is not in the session: {}".format(QNN, session.get_providers()))
    return session
