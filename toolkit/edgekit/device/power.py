"""Power: what tegrastats tells, and from it the energy of an inference. Standard library and numpy, Python 3.8."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

TOTALS = ("VDD_IN", "VIN", "POM_5V_IN")
"""Rails that carry all that a module takes: Orin NX and Nano, Thor, first Nano."""
PARTS = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
"""Rails of AGX Orin that do so together; what its other rails carry comes out of these."""
INTERVAL_MS = 100
SETTLE = 0.5
"""Seconds at the start of a phase whose samples do not count: the sensor averages."""
BATCHES = 10
LEAST_SAMPLES = 2 * BATCHES
T_95 = 1.833
"""One-sided 95 % quantile of Student's t with BATCHES - 1 degrees of freedom."""
COLDEST = -40
NO_TOOL = "the machine tells no power: it has no tegrastats"

Sample = Tuple[float, Dict[str, Any]]
"""The moment in which a line came, by `time.monotonic`, and what it says."""

_RAIL = re.compile(r"\b((?:V|POM_)[A-Z0-9_]+) (\d+)(?:mW)?/(\d+)(?:mW)?")
_RAM = re.compile(r"\bRAM (\d+)/(\d+)MB")
_SWAP = re.compile(r"\bSWAP (\d+)/(\d+)MB")
_CPU = re.compile(r"\bCPU \[([^\]]*)\]")
_CORE = re.compile(r"(\d+)%@(\d+)$")
_UNIT = re.compile(r"\b(EMC_FREQ|GR3D_FREQ) (?:off|(\d+)?%?(?:@(?:\[([\d,]*)\]|(\d+)))?)")
_TEMPERATURE = re.compile(r"\b([A-Za-z][A-Za-z0-9_.-]*)@(-?\d+(?:\.\d+)?)C\b")


def parse_line(line: str) -> Dict[str, Any]:
    """Read one line of tegrastats, of any JetPack.

    Lines differ: engines are `off` or have a load, loads have a percent sign or none, clocks are a number or a list in
    brackets, there is SWAP or not, a time stamp or not; several lines bear the same second.

    Returns:
        What the line holds of `ram_mb`, `ram_total_mb`, `swap_mb`, `cpu` (per core {"load", "mhz"} or None when it is
        off), `emc` and `gpu` ({"load", "mhz"}), `temperatures` (degrees Celsius), `power_mw` (rail -> mW now).
    """
    found = {}  # type: Dict[str, Any]
    ram, swap, cpu = _RAM.search(line), _SWAP.search(line), _CPU.search(line)
    if ram:
        found["ram_mb"], found["ram_total_mb"] = int(ram.group(1)), int(ram.group(2))
    if swap:
        found["swap_mb"] = int(swap.group(1))
    if cpu:
        cores = [_CORE.match(core.strip()) for core in cpu.group(1).split(",")]
        found["cpu"] = [{"load": int(core.group(1)), "mhz": int(core.group(2))} if core else None for core in cores]
    for name, load, several, one in _UNIT.findall(line):
        clocks = [int(word) for word in (several or one).split(",") if word]
        unit = {}
        if load:
            unit["load"] = int(load)
        if clocks:
            unit["mhz"] = max(clocks)
        if unit:
            found["emc" if name == "EMC_FREQ" else "gpu"] = unit
    temperatures = {name: float(text) for name, text in _TEMPERATURE.findall(line) if float(text) > COLDEST}
    if temperatures:
        found["temperatures"] = temperatures
    rails = {name: int(now) for name, now, _ in _RAIL.findall(line)}
    if rails:
        found["power_mw"] = rails
    return found


def total_mw(rails: Dict[str, int]) -> Optional[int]:
    """Return what the module takes in mW; None when its rails are not known."""
    for name in TOTALS:
        if name in rails:
            return rails[name]
    return sum(rails[name] for name in PARTS) if all(name in rails for name in PARTS) else None


def tegrastats_argv(tool: str) -> List[str]:
    """Return the command that samples."""
    return [tool, "--interval", str(INTERVAL_MS)]


def find_tegrastats() -> Optional[List[str]]:
    """Return the command that samples on this machine; None where there is none."""
    tool = shutil.which("tegrastats")
    return tegrastats_argv(tool) if tool else None


def settle(seconds: float) -> float:
    """Return the seconds at the start of a phase of `seconds` whose samples do not count."""
    return min(SETTLE, seconds / 10)


class Sampler:
    """Runs tegrastats and keeps what it tells, each line with the moment in which it came: its own stamps are seconds.

    Attributes:
        samples: what came, in order.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        """Take the command."""
        self.samples = []  # type: List[Sample]
        self._argv = list(argv)
        self._child = None  # type: Optional[subprocess.Popen[bytes]]
        self._thread = None  # type: Optional[threading.Thread]

    def __enter__(self) -> "Sampler":  # noqa: PYI034 - Self is younger than Python 3.8
        """Start it; OSError when it cannot be."""
        self._child = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        if self._child is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, signal.SIGKILL)  # with its children; it keeps nothing that wants an end
            self._child.wait()
        if self._thread is not None:
            self._thread.join(5)
        if self._child is not None and self._child.stdout is not None:
            self._child.stdout.close()

    def between(self, begin: float, end: float) -> List[Dict[str, Any]]:
        """Return the samples of a span of time."""
        return [sample for moment, sample in list(self.samples) if begin <= moment <= end]

    def _read(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        for line in self._child.stdout:
            sample = parse_line(line.decode("utf-8", "replace"))
            if sample:
                self.samples.append((time.monotonic(), sample))


def measure_energy(call: Callable[[], Any], seconds: float, argv: Optional[Sequence[str]] = None) -> Dict[str, Any]:
    """Run a call over and over beside tegrastats: what one costs.

    Args:
        call: one inference.
        seconds: how long it is repeated; an idle phase of a third of that goes before.
        argv: the sampling command; default: tegrastats, where it is.

    Returns:
        `mj` per inference (all that the module takes), `low` and `high` (one-sided 95 % bounds from batch means),
        `idle_mw`, `mean_mw`, `runs`, `seconds`, `samples`, `ram_peak_bytes` and `ram_idle_bytes` of the whole module;
        or `reason` when there is none.
    """
    argv = argv or find_tegrastats()
    if argv is None:
        return {"reason": NO_TOOL}
    try:
        with Sampler(argv) as sampler:
            rested = time.monotonic()
            time.sleep(seconds / 3)
            begun = time.monotonic()
            runs = 0
            while time.monotonic() - begun < seconds:
                call()
                runs += 1
            ended = time.monotonic()
    except OSError as error:
        return {"reason": "tegrastats cannot be run: {}".format(error)}
    idle, busy = sampler.between(rested, begun), sampler.between(begun + settle(seconds), ended)
    return energy_of(idle, busy, runs, ended - begun)


def energy_of(idle: List[Dict[str, Any]], busy: List[Dict[str, Any]], runs: int, seconds: float) -> Dict[str, Any]:
    """Return what `measure_energy` does, from the samples of both phases."""
    rails = [sample["power_mw"] for sample in busy if "power_mw" in sample]
    totals = [total for total in map(total_mw, rails) if total is not None]
    if rails and not totals:
        return {"reason": "unknown power rails: {}".format(", ".join(sorted(rails[0])))}
    if len(totals) < LEAST_SAMPLES:
        return {"reason": "{} power samples, at least {} are needed".format(len(totals), LEAST_SAMPLES)}
    means = np.array([np.mean(batch) for batch in np.array_split(np.asarray(totals, dtype=np.float64), BATCHES)])
    mean = float(np.mean(totals))
    error = T_95 * float(means.std(ddof=1)) / BATCHES**0.5
    per_run = seconds / runs
    found = {
        "mj": mean * per_run,
        "low": max(mean - error, 0.0) * per_run,
        "high": (mean + error) * per_run,
        "mean_mw": mean,
        "runs": runs,
        "seconds": seconds,
        "samples": len(totals),
    }  # type: Dict[str, Any]
    rest = [total for total in (total_mw(s["power_mw"]) for s in idle if "power_mw" in s) if total is not None]
    if rest:
        found["idle_mw"] = float(np.mean(rest))
    for name, samples, choose in (("ram_peak_bytes", busy, max), ("ram_idle_bytes", idle, min)):
        used = [sample["ram_mb"] for sample in samples if "ram_mb" in sample]
        if used:
            found[name] = choose(used) << 20  # tegrastats counts MiB
    return found
