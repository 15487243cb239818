"""Engines through NVIDIA's command line tool, for devices without tensorrt's Python. Standard library, Python 3.8."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

if __package__:
    from . import engine_key
else:
    import engine_key  # type: ignore[import-not-found,no-redef]

Shapes = Dict[str, Sequence[Sequence[int]]]
"""Input -> (min, opt, max)."""


def trtexec_build_argv(
    trtexec: str,
    model: str,
    engine: str,
    version: str,
    shapes: Optional[Shapes] = None,
    dla_core: Optional[int] = None,
) -> List[str]:
    """Return the command that builds an engine.

    Args:
        trtexec: the program.
        model: the ONNX file.
        engine: the file to write.
        version: the program's version.
        shapes: input -> (min, opt, max) for dynamic inputs.
        dla_core: the DLA core to build for; layers that it does not take run on the GPU.
    """
    argv = [trtexec, "--onnx=" + model, "--saveEngine=" + engine, "--skipInference"]
    argv += engine_key.trtexec_typing(version)
    for index, option in enumerate(("--minShapes=", "--optShapes=", "--maxShapes=")):
        if shapes:
            words = ["{}:{}".format(name, "x".join(map(str, triple[index]))) for name, triple in sorted(shapes.items())]
            argv.append(option + ",".join(words))
    if dla_core is not None:
        argv += ["--useDLACore={}".format(dla_core), "--allowGPUFallback"]
    return argv


def trtexec_time_argv(
    trtexec: str,
    engine: str,
    times: str,
    feed: Dict[str, Any],
    runs: int,
    seconds: float,
    dla_core: Optional[int] = None,
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
        *([] if dla_core is None else ["--useDLACore={}".format(dla_core)]),
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
    shapes: Optional[Shapes] = None,
    dla_core: Optional[int] = None,
) -> Tuple[str, List[float]]:
    """Build the engine (cached) and time it with trtexec: (TensorRT version, durations in ms without its warm-up)."""
    told = subprocess.run([trtexec, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    version = trtexec_version(told.stdout.decode("utf-8", "replace"))
    engine_key.check_version(version)
    parts = engine_key.engine_parts(version, "trtexec", gpu, shapes, dla_core)
    engine = engine_key.engine_path(model, parts)
    if not os.path.isfile(engine):
        begun = time.monotonic()
        try:
            _run(trtexec_build_argv(trtexec, model, engine + ".part", version, shapes, dla_core), 3600)
            os.replace(engine + ".part", engine)
        except BaseException:
            engine_key.remove(engine + ".part")
            raise
        engine_key.write_about(engine, parts, time.monotonic() - begun)
    with tempfile.TemporaryDirectory() as scratch:
        times = os.path.join(scratch, "times.json")
        _run(trtexec_time_argv(trtexec, engine, times, feed, runs, min(seconds, 10), dla_core), seconds + 600)
        with open(times, encoding="utf-8") as file:
            return version, read_times(file.read())


def _run(argv: List[str], timeout: float) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError("{} ended with status {}: its log says why".format(argv[0], done.returncode))


def read_times(text: str) -> List[float]:
    """Return the durations (ms) of trtexec's `--exportTimes` JSON: `latencyMs` of each run."""
    return [float(entry["latencyMs"]) for entry in json.loads(text)]
