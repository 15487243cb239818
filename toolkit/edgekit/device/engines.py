"""The engine that a job asks for, or what else the machine has, and why. Standard library and numpy, Python 3.8."""

import json
import os
from typing import Any, Dict

if __package__:
    from . import builds, engine_ort, engine_qnn, engine_trt, machine
else:
    import builds  # type: ignore[import-not-found,no-redef]
    import engine_ort  # type: ignore[import-not-found,no-redef]
    import engine_qnn  # type: ignore[import-not-found,no-redef]
    import engine_trt  # type: ignore[import-not-found,no-redef]
    import machine  # type: ignore[import-not-found,no-redef]

_EPS = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


class LoadError(Exception):
    """The runtime does not take the model."""


def open_engine(job: Dict[str, Any], folder: str) -> Any:
    """Return the loaded model: as asked, or on what is there with `fallback` saying why."""
    model = os.path.join(folder, job["model"])
    if not os.path.isfile(model):
        raise ValueError("no model at {}".format(job["model"]))
    threads, spinning = int(job.get("threads", 0)), bool(job.get("spinning", False))
    reason = ""
    try:
        providers = job.get("providers") or [engine_ort.CPU]
        if job.get("context") and engine_qnn.QNN in providers:
            return open_context(job, model, threads, spinning=spinning)
        if job["runtime"] == "onnxruntime":
            return engine_ort.OrtEngine(model, providers, threads, spinning=spinning)
        try:
            return engine_trt.load(model, gpu_key(), builds.build_of(job, model))
        except (ImportError, RuntimeError) as error:
            reason = str(error)
        engine = engine_ort.OrtEngine(model, _EPS, threads, spinning=spinning)
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        raise LoadError("{}: {}".format(type(error).__name__, str(error).strip())) from error
    told = [reason] + ([engine.fallback["reason"]] if engine.fallback else [])
    engine.fallback = {"asked": ["tensorrt"], "ran": engine.facts["providers"], "reason": "; ".join(told)}
    return engine


def open_context(job: Dict[str, Any], model: str, threads: int, *, spinning: bool) -> Any:
    """Return the model's compiled form on the HTP; where that cannot be the model on the CPU, if that is asked."""
    context = engine_qnn.choose(job["context"], machine.modules("/"))
    path = os.path.join(os.path.dirname(model), os.path.basename(str(context["model"])))
    try:
        return engine_qnn.QnnEngine(path, context, machine.modules("/"), threads)
    except Exception as error:
        if engine_ort.CPU not in job["providers"]:
            raise
        engine = engine_ort.OrtEngine(model, [engine_ort.CPU], threads, spinning=spinning)
        reason = "{}: {}".format(type(error).__name__, str(error).strip()[:500])
        engine.fallback = {"asked": job["providers"], "ran": engine.facts["providers"], "reason": reason}
        return engine


def gpu_key() -> str:
    """Return what an engine is not portable across: GPU, board, board support, CUDA; not the power mode."""
    found = {"gpu": machine.gpu(machine.run_tool), "modules": machine.modules("/")}
    board = machine.jetson("/", machine.run_tool)
    found["jetson"] = {name: value for name, value in board.items() if not name.startswith("power_mode")}
    return json.dumps(found, sort_keys=True)
