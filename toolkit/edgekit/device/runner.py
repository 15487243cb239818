"""The device runner: says what a machine is, runs a model, times it, checks its golden outputs.

    python runner.py probe OUT.json
    python runner.py infer | measure | golden JOB.json

It and the files beside it are all that a device needs: Python 3.8 or later, numpy, and onnxruntime or tensorrt.
It imports nothing of edgekit. A job is a JSON object; paths in it are relative to the job's folder:

    schema     1
    id         any text, given back in the result
    model      the .onnx file
    runtime    "onnxruntime" or "tensorrt" (tensorrt's Python, else trtexec to time, else onnxruntime's TensorRT, CUDA
               and CPU providers: what is not as asked is told as `fallback`)
    providers  onnxruntime's execution providers in order of preference
    context    a compiled form of the model for Qualcomm's HTP: {"model", "soc_model", "soc", "compatibility"}, and
               "others" like it for further chips; it is loaded when QNNExecutionProvider is asked, else (told as
               `fallback`) the model, if the CPU is asked too
    threads    CPU threads per operator, 0: as the runtime likes; spinning: whether idle ones spin (false)
    shapes     input -> [min, opt, max] for TensorRT engines with dynamic inputs; dla_core: the DLA core to use
    inputs     .npz files: key "3:x" is tensor x of feed 3; with "layout": "plain" key "x", one feed a file
    outputs    infer: the folder that gets one .npz per input file, of the same name and layout ("3:y")
    deflate    infer: whether outputs are compressed (false): for a link that is slow
    expected   golden: the .npz files of expected outputs, one per input file, same layout
    tolerance  golden: {"absolute": a, "relative": r}: |found - expected| <= a + r * |expected| for floating point;
               integers, booleans and strings must be equal
    runs       measure: timed runs at least (100); max_seconds (600) and min_seconds (1) for all of them; then
               energy_seconds (0) of runs beside tegrastats, and sustained (0) seconds of runs without a pause
    result     where the result goes: a JSON object, written whole or not at all

Exit status: 0 done, 1 an error that the result tells ({"error": {"kind", "text", "remedy"}}), 2 no usable job.
"""

import importlib.util
import json
import os
import sys
import time
import traceback
import zipfile
from typing import Any, Dict

if __package__:  # imported by a test or read by a type checker
    from . import arrays, endurance, engine_ort, engine_qnn, engine_trt, latency, machine, power, trtexec
else:  # started as a program, its siblings beside it
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import arrays  # type: ignore[import-not-found,no-redef]
    import endurance  # type: ignore[import-not-found,no-redef]
    import engine_ort  # type: ignore[import-not-found,no-redef]
    import engine_qnn  # type: ignore[import-not-found,no-redef]
    import engine_trt  # type: ignore[import-not-found,no-redef]
    import latency  # type: ignore[import-not-found,no-redef]
    import machine  # type: ignore[import-not-found,no-redef]
    import power  # type: ignore[import-not-found,no-redef]
    import trtexec  # type: ignore[import-not-found,no-redef]

SCHEMA = 1
_EPS = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
_REMEDY = "Install it where the runner runs: {} -m pip install onnxruntime (on a Jetson, JetPack brings tensorrt)."


class LoadError(Exception):
    """The runtime does not take the model."""


def main(argv: Any) -> int:
    """Run one command; return the exit status."""
    if len(argv) != len(("COMMAND", "FILE")) or argv[0] not in ("probe", "infer", "measure", "golden"):
        sys.stderr.write((__doc__ or "").split("\n\n")[1] + "\n")
        return 2
    command, path = argv
    if command == "probe":
        write_json(path, machine.probe())
        return 0
    try:
        job = read_job(path)
    except (OSError, ValueError) as error:
        sys.stderr.write("{}: {}\n".format(path, error))
        return 2
    folder = os.path.dirname(os.path.abspath(path))
    target = os.path.join(folder, job["result"])
    if os.path.exists(target):  # an old result is none of this run, should it die
        os.unlink(target)
    result = {"schema": SCHEMA, "id": job.get("id"), "command": command}
    try:
        result.update({"infer": infer, "measure": measure, "golden": golden}[command](job, folder))
    except Exception as error:  # noqa: BLE001 - whatever happens is told in the result
        traceback.print_exc()
        result["error"] = describe(error)
    write_json(target, result)
    return 1 if "error" in result else 0


def read_job(path: str) -> Dict[str, Any]:
    """Return a job; ValueError names the key that is missing or of another schema."""
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    if not isinstance(job, dict) or job.get("schema") != SCHEMA:
        raise ValueError("no job of schema {}".format(SCHEMA))
    for key in ("model", "runtime", "inputs", "result"):
        if key not in job:
            raise ValueError("the job has no '{}'".format(key))
    if job["runtime"] not in ("onnxruntime", "tensorrt"):
        raise ValueError("unknown runtime '{}'".format(job["runtime"]))
    return dict(job)


def describe(error: BaseException) -> Dict[str, str]:
    """Return an error as {"kind", "text", "remedy"}; kinds: missing, refused, input, memory, model, run."""
    text = "{}".format(error) or type(error).__name__
    if isinstance(error, ImportError):
        return {"kind": "missing", "text": text, "remedy": _REMEDY.format(sys.executable)}
    kinds = (
        (latency.RefusedError, "refused"),
        (LoadError, "model"),
        (MemoryError, "memory"),
        ((ValueError, OSError, zipfile.BadZipFile), "input"),
    )
    for classes, kind in kinds:
        if isinstance(error, classes):
            return {"kind": kind, "text": text, "remedy": ""}
    return {"kind": "run", "text": "{}: {}".format(type(error).__name__, text), "remedy": ""}


def write_json(path: str, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(value, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)


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
            return engine_trt.load(model, gpu_key(), job.get("shapes"), job.get("dla_core"))
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


def infer(job: Dict[str, Any], folder: str) -> Dict[str, Any]:
    """Run every feed of every input file; outputs go to files of the same names in the output folder."""
    engine = open_engine(job, folder)
    out = os.path.join(folder, job["outputs"])
    os.makedirs(out, exist_ok=True)
    method = zipfile.ZIP_DEFLATED if job.get("deflate") else zipfile.ZIP_STORED
    begun, worked, count, written = time.perf_counter(), time.process_time(), 0, []
    for name in job["inputs"]:
        target = os.path.join(out, os.path.basename(name))
        with zipfile.ZipFile(target + ".part", "w", method) as archive:
            for index, feed in enumerate(arrays.read_feeds(os.path.join(folder, name), job.get("layout", "feeds"))):
                arrays.write_feed(archive, index, engine.run(engine.prepare(feed)))
                count += 1
        os.replace(target + ".part", target)
        written.append(os.path.join(job["outputs"], os.path.basename(name)))
    return {
        "engine": engine.facts,
        "fallback": engine.fallback,
        "outputs": written,
        "count": count,
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - worked,
    }


def golden(job: Dict[str, Any], folder: str) -> Dict[str, Any]:
    """Run the golden inputs and compare with the golden outputs: `matches`, and the worst error per output."""
    engine = open_engine(job, folder)
    layout, tolerance = job.get("layout", "feeds"), job["tolerance"]
    worst, count = {}, 0  # type: Dict[str, Dict[str, Any]], int
    for inputs, expected in arrays.pairs(iter(job["inputs"]), iter(job["expected"])):
        feeds = arrays.read_feeds(os.path.join(folder, inputs), layout)
        for feed, wanted in arrays.pairs(feeds, arrays.read_feeds(os.path.join(folder, expected), layout)):
            found = engine.run(engine.prepare(feed))
            count += 1
            for name, values in wanted.items():
                if name not in found:
                    raise ValueError("the model has no output '{}'; it gives {}".format(name, sorted(found)))
                told = arrays.compare(found[name], values, tolerance["absolute"], tolerance["relative"])
                worst[name] = arrays.worse(worst.get(name), told)
    if not worst:
        raise ValueError("there is nothing to compare")
    return {
        "engine": engine.facts,
        "fallback": engine.fallback,
        "matches": all(told["matches"] for told in worst.values()),
        "outputs": worst,
        "count": count,
    }


def measure(job: Dict[str, Any], folder: str) -> Dict[str, Any]:
    """Time the first feed: latency summary and raw series, peak memory, load time, the machine before and after."""
    feed = next(arrays.read_feeds(os.path.join(folder, job["inputs"][0]), job.get("layout", "feeds")), None)
    if feed is None:
        raise ValueError("{} holds no feed".format(job["inputs"][0]))
    runs = int(job.get("runs", 100))
    tool = machine.find_trtexec()
    if job["runtime"] == "tensorrt" and tool and importlib.util.find_spec("tensorrt") is None:
        result = _time_with_trtexec(job, folder, feed, runs, tool)
    else:
        result = _time(job, folder, feed, runs)
    try:
        result["latency"] = latency.summarize(result["series_ms"], minimum=runs)
    except latency.RefusedError as error:
        result["latency"] = {"refused": str(error)}
    return result


def _time(job: Dict[str, Any], folder: str, feed: Dict[str, Any], runs: int) -> Dict[str, Any]:
    for name in ("tensorrt", "onnxruntime"):  # their own memory is no part of the model's
        if name in (job["runtime"], "onnxruntime") and importlib.util.find_spec(name) is not None:
            __import__(name)
            break
    baseline = machine.resident_bytes()
    machine.reset_peak()
    free = machine.available_bytes()
    begun = time.perf_counter()
    engine = open_engine(job, folder)
    load_ms = (time.perf_counter() - begun) * 1e3
    ready = engine.prepare(feed)
    before = machine.state()
    warmup, timed = latency.collect(
        lambda: engine.run(ready), runs, float(job.get("max_seconds", 600)), float(job.get("min_seconds", 1))
    )
    more = {}  # type: Dict[str, Any]
    if job.get("energy_seconds"):
        more["energy"] = power.measure_energy(lambda: engine.run(ready), float(job["energy_seconds"]))
    if job.get("sustained"):
        more["sustained"] = endurance.sustain(lambda: engine.run(ready), float(job["sustained"]), machine.state)
    left, peak = machine.available_bytes(), machine.peak_bytes()
    taken = None if free is None or left is None else max(free - left, 0)
    growth = None if peak is None or baseline is None else max(peak - baseline, 0)
    return {
        "engine": engine.facts,
        "fallback": engine.fallback,
        "load_ms": load_ms,
        "warmup_ms": [round(value, 6) for value in warmup],
        "series_ms": [round(value, 6) for value in timed],
        "machine": {"before": before, "after": machine.state()},
        "memory": {
            "peak": peak,
            "baseline": baseline,
            "growth": growth,
            "taken": taken,
            "host_only": engine.accelerated,
        },
        **more,
    }


def _time_with_trtexec(job: Dict[str, Any], folder: str, feed: Any, runs: int, tool: str) -> Dict[str, Any]:
    model, seconds = os.path.join(folder, job["model"]), float(job.get("max_seconds", 600))
    before = machine.state()
    version, timed = trtexec.time_with_trtexec(
        tool, model, feed, runs, seconds, gpu_key(), job.get("shapes"), job.get("dla_core")
    )
    return {
        "engine": {"runtime": "trtexec", "version": version, "providers": ["tensorrt"]},
        "fallback": None,
        "warmup_ms": [],
        "series_ms": timed,
        "machine": {"before": before, "after": machine.state()},
        "memory": None,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
