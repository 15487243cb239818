"""How long a model takes, what it needs, and the machine before and after. Standard library and numpy, Python 3.8."""

import importlib.util
import os
import time
from typing import Any, Dict

if __package__:
    from . import arrays, builds, endurance, engines, latency, machine, power, progress, trtexec
else:
    import arrays  # type: ignore[import-not-found,no-redef]
    import builds  # type: ignore[import-not-found,no-redef]
    import endurance  # type: ignore[import-not-found,no-redef]
    import engines  # type: ignore[import-not-found,no-redef]
    import latency  # type: ignore[import-not-found,no-redef]
    import machine  # type: ignore[import-not-found,no-redef]
    import power  # type: ignore[import-not-found,no-redef]
    import progress  # type: ignore[import-not-found,no-redef]
    import trtexec  # type: ignore[import-not-found,no-redef]


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
    engine = engines.open_engine(job, folder)
    load_ms = (time.perf_counter() - begun) * 1e3
    ready = engine.prepare(feed)
    before = machine.state()
    progress.tell("warm up and time")
    warmup, timed = latency.collect(
        lambda: engine.run(ready), runs, float(job.get("max_seconds", 600)), float(job.get("min_seconds", 1))
    )
    more = {}  # type: Dict[str, Any]
    if job.get("energy_seconds"):
        progress.tell("measure energy")
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
    """Do the same through trtexec: a run of it each for latency, energy, and every window of sustained load."""
    before = machine.state()
    free = machine.available_bytes()
    model = os.path.join(folder, job["model"])
    engine = trtexec.TrtexecEngine(tool, model, engines.gpu_key(), builds.build_of(job, model))
    progress.tell("warm up and time")
    timed = engine.time(feed, runs, float(job.get("max_seconds", 600)))
    more = {}  # type: Dict[str, Any]
    if job.get("energy_seconds"):
        progress.tell("measure energy")
        more["energy"] = engine.energy(feed, float(job["energy_seconds"]))
    if job.get("sustained"):
        more["sustained"] = engine.sustain(feed, float(job["sustained"]), machine.state)
    taken = None if free is None or timed.free is None else max(free - timed.free, 0)
    return {
        "engine": {"runtime": "trtexec", "version": engine.version, "providers": ["tensorrt"]},
        "fallback": None,
        "warmup_ms": [],
        "series_ms": timed.series,
        "machine": {"before": before, "after": machine.state()},
        "memory": {"peak": timed.peak, "baseline": 0, "growth": timed.peak, "taken": taken, "host_only": True},
        **more,
    }
