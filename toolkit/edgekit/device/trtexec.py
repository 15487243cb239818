"""Engines through NVIDIA's command line tool, for devices without tensorrt's Python. Standard library, Python 3.8."""

import json
import os
import re
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

if __package__:
    from . import builds, endurance, engine_key, latency, power, progress, trtexec_run
else:
    import builds  # type: ignore[import-not-found,no-redef]
    import endurance  # type: ignore[import-not-found,no-redef]
    import engine_key  # type: ignore[import-not-found,no-redef]
    import latency  # type: ignore[import-not-found,no-redef]
    import power  # type: ignore[import-not-found,no-redef]
    import progress  # type: ignore[import-not-found,no-redef]
    import trtexec_run  # type: ignore[import-not-found,no-redef]

WARM_UP_MS = 500
STATE_AT = 0.9
"""The share of a window after which the machine is looked at: afterwards its clocks fall."""
LEAST_RUNS = 10
BUILD_SECONDS, PATIENCE = 3600, 600
"""Seconds that building an engine may take, and loading one before it is timed."""


def trtexec_build_argv(
    trtexec: str, model: str, engine: str, version: str, build: builds.Build = engine_key.PLAIN, cache: str = ""
) -> List[str]:
    """Return the command that builds an engine.

    Args:
        trtexec: the program.
        model: the ONNX file.
        engine: the file to write.
        version: the program's version.
        build: how it is built.
        cache: the file with the calibration, where there is one.
    """
    argv = [trtexec, "--onnx=" + model, "--saveEngine=" + engine, engine_key.build_only(version)]
    argv += engine_key.trtexec_typing(version, build, cache)
    for index, option in enumerate(("--minShapes=", "--optShapes=", "--maxShapes=")):
        if build.shapes:
            named = sorted(build.shapes.items())
            words = ["{}:{}".format(name, "x".join(map(str, triple[index]))) for name, triple in named]
            argv.append(option + ",".join(words))
    if build.dla_core is not None:
        argv += ["--useDLACore={}".format(build.dla_core), "--allowGPUFallback"]
    return argv


def trtexec_time_argv(
    trtexec: str,
    engine: str,
    times: str,
    feed: Dict[str, Any],
    runs: int,
    seconds: float,
    dla_core: Optional[int] = None,
    *,
    spin: bool = True,
) -> List[str]:
    """Return the command that times an engine, copies to and from the GPU included, one raw duration per run.

    Args:
        trtexec: the program.
        engine: the engine file.
        times: the file that gets the durations.
        feed: gives the shapes; the values are trtexec's own.
        runs: at least so many.
        seconds: at least for so long, after the warm-up.
        dla_core: the DLA core that it was built for.
        spin: wait busily for the GPU, which is steadier and costs power.
    """
    shapes = ",".join("{}:{}".format(name, "x".join(map(str, array.shape))) for name, array in sorted(feed.items()))
    return [
        trtexec,
        "--loadEngine=" + engine,
        "--shapes=" + shapes,
        "--exportTimes=" + times,
        "--iterations={}".format(runs),
        "--duration={:g}".format(seconds),
        "--warmUp={}".format(WARM_UP_MS),
        *(["--useSpinWait"] if spin else []),
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


class Timed:
    """One run of trtexec over an engine.

    Attributes:
        runs: (begin, end) of every run after the warm-up, in seconds of `time.monotonic`; empty when trtexec did not
            tell when it began.
        series: their latencies in ms.
        peak: the most memory that trtexec held (bytes).
        free: the least that the machine could still give meanwhile (bytes); None when unknown.
        state: the machine near the end, when that was asked for.
    """

    def __init__(self) -> None:
        self.runs = []  # type: List[Tuple[float, float]]
        self.series = []  # type: List[float]
        self.peak = 0
        self.free = None  # type: Optional[int]
        self.state = {}  # type: Dict[str, Any]


class TrtexecEngine:
    """An engine that trtexec builds, or finds in the cache, and times.

    Attributes:
        version: TensorRT's.
    """

    def __init__(self, tool: str, model: str, gpu: str, build: builds.Build = engine_key.PLAIN) -> None:
        """Build it; RuntimeError when TensorRT is too old, cannot do what is asked, or trtexec fails."""
        told = subprocess.run([tool, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.version = trtexec_version(told.stdout.decode("utf-8", "replace"))
        engine_key.check_version(self.version, build)
        self._tool, self._dla_core = tool, build.dla_core
        parts = engine_key.engine_parts(self.version, "trtexec", gpu, build)
        self._path = engine_key.engine_path(build.source(model), parts)
        if os.path.isfile(self._path):
            return
        progress.tell("build the engine")
        begun, half, cache = time.monotonic(), self._path + ".part", self._path + ".cache"
        try:
            if build.calibration is not None:
                with open(cache, "w", encoding="utf-8") as file:
                    file.write(builds.cache_text(self.version, build.calibration.scales))
            argv = trtexec_build_argv(tool, build.source(model), half, self.version, build, cache)
            trtexec_run.run_trtexec(argv, BUILD_SECONDS)
            os.replace(half, self._path)
        finally:
            engine_key.remove(half)
            engine_key.remove(cache)
        engine_key.write_about(self._path, parts, time.monotonic() - begun)

    def time(self, feed: Dict[str, Any], runs: int, seconds: float) -> Timed:
        """Time at least `runs` runs, for at most about `seconds`."""
        return self._run(feed, runs, min(seconds, 10), seconds + PATIENCE)

    def energy(self, feed: Dict[str, Any], seconds: float, argv: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """Return what a run costs, one after the other without a pause, as `power.measure_energy` tells it."""
        argv = argv or power.find_tegrastats()
        if argv is None:
            return {"reason": power.NO_TOOL}
        try:
            with power.Sampler(argv) as sampler:
                rested = time.monotonic()
                time.sleep(seconds / 3)
                begun = time.monotonic()
                timed = self._run(feed, LEAST_RUNS, seconds, seconds + PATIENCE, spin=False)
        except OSError as error:
            return {"reason": "tegrastats cannot be run: {}".format(error)}
        if not timed.runs:
            return {"reason": "trtexec {} does not tell when its runs begin".format(self.version)}
        first, last = timed.runs[0][0], timed.runs[-1][1]
        busy = sampler.between(first + power.settle(seconds), last)
        return power.energy_of(sampler.between(rested, begun), busy, len(timed.runs), last - first)

    def sustain(self, feed: Dict[str, Any], seconds: float, state: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        """Keep the machine at work for `seconds`, window by window, as `endurance.sustain` tells it.

        Every window is a run of trtexec: between two it loads the engine anew. `load` is the share of the time in
        which the engine ran.
        """
        window = endurance.window_of(seconds)
        windows, begun, busy = [], time.monotonic(), 0.0  # type: List[Dict[str, Any]], float, float
        total = int(seconds / window + 0.5)
        while not windows or time.monotonic() - begun < seconds - window / 2:
            progress.tell("sustained load", min(len(windows), total), total)
            timed = self._run(feed, LEAST_RUNS, window, window + PATIENCE, state=state)
            told = latency.describe(latency.check(timed.series))
            windows.append(dict(told, state=timed.state))
            busy += WARM_UP_MS / 1e3 + (timed.runs[-1][1] - timed.runs[0][0] if timed.runs else sum(timed.series) / 1e3)
        told = endurance.compare_windows(windows, window)
        return dict(told, load=min(busy / (time.monotonic() - begun), 1.0))

    def _run(
        self,
        feed: Dict[str, Any],
        runs: int,
        seconds: float,
        timeout: float,
        *,
        spin: bool = True,
        state: Optional[Callable[[], Dict[str, Any]]] = None,
    ) -> Timed:
        with tempfile.TemporaryDirectory() as scratch:
            times = os.path.join(scratch, "times.json")
            argv = trtexec_time_argv(self._tool, self._path, times, feed, runs, seconds, self._dla_core, spin=spin)
            watch = trtexec_run.Watch(state, WARM_UP_MS / 1e3 + STATE_AT * seconds)
            trtexec_run.run_trtexec(argv, timeout, watch)
            with open(times, encoding="utf-8") as file:
                spans, series = read_times(file.read())
        timed = Timed()
        timed.series, timed.peak, timed.free, timed.state = series, watch.peak, watch.free, watch.told
        if watch.begun is not None:
            timed.runs = [(watch.begun + begin / 1e3, watch.begun + end / 1e3) for begin, end in spans]
        return timed


def read_times(text: str) -> Tuple[List[Tuple[float, float]], List[float]]:
    """Return (begin, end) in ms and the latency in ms of each run in trtexec's `--exportTimes` JSON.

    Times count from when it says `trtexec_run.BEGINS`. Of some versions the file also holds the warm-up: left out.
    """
    rows = json.loads(text, object_hook=_row)  # a row is a tuple at once: the file of a minute is long
    if not isinstance(rows, list) or not all(isinstance(row, tuple) for row in rows):
        raise ValueError("what trtexec exported are no times")
    kept = [row for row in rows if row[3] is None or row[3] >= WARM_UP_MS]
    spans = [(begin, end) for begin, end, _, _ in kept if begin is not None and end is not None]
    return (spans if len(spans) == len(kept) else []), [taken for _, _, taken, _ in kept]


def _row(entry: Dict[str, Any]) -> Tuple[Any, Any, float, Any]:
    return entry.get("startH2dMs"), entry.get("endD2hMs"), float(entry["latencyMs"]), entry.get("startComputeMs")
