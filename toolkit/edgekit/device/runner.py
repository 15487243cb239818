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
    explicit   whether the model has Q/DQ; calibration {"model", "scales"}: files beside the model for a DLA that takes
               none: the float graph, and {"scales": tensor -> scale, "half": [node]}; sparse: weights are 2:4 (false)
    inputs     .npz files: key "3:x" is tensor x of feed 3; with "layout": "plain" key "x", one feed a file
    outputs    infer: the folder that gets one .npz per input file, of the same name and layout ("3:y")
    deflate    infer: whether outputs are compressed (false): for a link that is slow
    expected   golden: the .npz files of expected outputs, one per input file, same layout
    tolerance  golden: {"absolute": a, "relative": r}: |found - expected| <= a + r * |expected| for floating point;
               integers, booleans and strings must be equal
    runs       measure: timed runs at least (100); max_seconds (600) and min_seconds (1) for all of them; then
               energy_seconds (0) of runs beside tegrastats, and sustained (0) seconds of runs without a pause
    result     where the result goes: a JSON object, written whole or not at all

Long work tells how far it is on standard error, in lines that begin with `edgekit-progress: `.

Exit status: 0 done, 1 an error that the result tells ({"error": {"kind", "text", "remedy"}}), 2 no usable job.
"""

import errno
import json
import os
import signal
import sys
import time
import traceback
import zipfile
from typing import Any, Dict

if __package__:  # imported by a test or read by a type checker
    from . import arrays, engines, latency, machine, timing
else:  # started as a program, its siblings beside it
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import arrays  # type: ignore[import-not-found,no-redef]
    import engines  # type: ignore[import-not-found,no-redef]
    import latency  # type: ignore[import-not-found,no-redef]
    import machine  # type: ignore[import-not-found,no-redef]
    import timing  # type: ignore[import-not-found,no-redef]

SCHEMA = 1
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_REMEDY = "Install it where the runner runs: {} -m pip install onnxruntime (on a Jetson, JetPack brings tensorrt)."


def main(argv: Any) -> int:
    """Run one command; return the exit status."""
    if len(argv) != len(("COMMAND", "FILE")) or argv[0] not in ("probe", "infer", "measure", "golden"):
        sys.stderr.write((__doc__ or "").split("\n\n")[1] + "\n")
        return 2
    command, path = argv
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing half stays
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
        result.update({"infer": infer, "measure": timing.measure, "golden": golden}[command](job, folder))
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
    """Return an error as {"kind", "text", "remedy"}; kinds: missing, refused, input, memory, space, model, run."""
    text = "{}".format(error) or type(error).__name__
    if isinstance(error, ImportError):
        return {"kind": "missing", "text": text, "remedy": _REMEDY.format(sys.executable)}
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return {"kind": "space", "text": text, "remedy": ""}
    kinds = (
        (latency.RefusedError, "refused"),
        (engines.LoadError, "model"),
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


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def infer(job: Dict[str, Any], folder: str) -> Dict[str, Any]:
    """Run every feed of every input file; outputs go to files of the same names in the output folder."""
    engine = engines.open_engine(job, folder)
    out = os.path.join(folder, job["outputs"])
    os.makedirs(out, exist_ok=True)
    method = zipfile.ZIP_DEFLATED if job.get("deflate") else zipfile.ZIP_STORED
    begun, worked, count, written = time.perf_counter(), time.process_time(), 0, []
    for name in job["inputs"]:
        target = os.path.join(out, os.path.basename(name))
        try:
            with zipfile.ZipFile(target + ".part", "w", method) as archive:
                for index, feed in enumerate(arrays.read_feeds(os.path.join(folder, name), job.get("layout", "feeds"))):
                    arrays.write_feed(archive, index, engine.run(engine.prepare(feed)))
                    count += 1
            os.replace(target + ".part", target)
        except BaseException:
            _remove(target + ".part")
            raise
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
    engine = engines.open_engine(job, folder)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
