"""What this machine says of itself: processor, cores, instruction set, memory."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

FEATURES = {
    "x86_64": (
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512_bf16",
        "avx512_fp16",
        "avx512_vnni",
        "avx_vnni",
        "amx_int8",
        "amx_bf16",
    ),
    "aarch64": ("dotprod", "fp16", "i8mm", "bf16", "sve"),
}
"""Architecture -> the instruction set extensions that decide how fast a model runs, as profiles name them."""

_KERNEL_NAMES = {"asimddp": "dotprod", "asimdhp": "fp16"}
"""Names that the Linux kernel gives to what profiles call otherwise."""

_ARCHES = {"amd64": "x86_64", "arm64": "aarch64"}

_NOMINAL_GHZ = 2.5
"""Assumed when the machine does not tell its clock: a figure that moves with load would move every plan."""

_FLOPS_PER_CYCLE = (("avx512f", 32), ("avx2", 16), ("fp16", 16), ("dotprod", 16))
"""Feature -> fp32 operations per cycle and core: one 512-bit or two narrower multiply-add pipes."""


def probe() -> dict[str, Any]:
    """Return the tables `cpu`, `memory` and `compute` of a profile for this machine, as JSON values."""
    arch, cores, features = machine(), os.cpu_count() or 1, cpu_features()
    ram = ram_mb()
    size = cache_mb()
    cache = {"cache_mb": _figure(size, "this machine")} if size else {}
    memory = _figure(ram, "this machine") if ram else _figure(4000, "estimated: the system does not tell")
    return {
        "cpu": {"arch": arch, "cores": _figure(cores, "this machine"), "features": list(features)},
        "memory": {"ram_mb": memory, **cache},
        "compute": _peaks(cores, features),
    }


def training_threads() -> int:
    """Return the CPU threads of a training: OMP_NUM_THREADS where set, else the cores that this process may use."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> str:
    """Return the architecture by its Linux name: `x86_64`, `aarch64`, ..."""
    name = platform.machine().lower()
    return _ARCHES.get(name, name)


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Return which of `FEATURES` this machine has; none where the kernel does not list them."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    line = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    words = {_KERNEL_NAMES.get(word, word) for word in (line[1].split() if line else ())}
    return tuple(name for name in FEATURES.get(machine(), ()) if name in words)


def ram_mb() -> float | None:
    """Return the physical memory in MB (10^6 bytes), to 100 MB; None where the system does not tell."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    return float(round(total / 1e8) * 100)


def cache_mb(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> float | None:
    """Return the size of the last cache in MB (10^6 bytes); None where the kernel does not tell."""
    sizes = []
    for path in folder.glob("index*/size"):
        try:
            sizes.append(int(path.read_text(encoding="ascii").strip().removesuffix("K")) * 1024)
        except (OSError, ValueError):
            continue
    return max(sizes) / 1e6 if sizes else None


def _clock_ghz() -> float:
    """Return the highest clock that the kernel tells, else the nominal one."""
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    try:
        return int(path.read_text(encoding="ascii")) / 1e6
    except (OSError, ValueError):
        return _NOMINAL_GHZ


def _peaks(cores: int, features: tuple[str, ...]) -> dict[str, Any]:
    """Estimate peaks from cores, clock and vector width; int8 is 2 x fp32, with dot products 4 x."""
    ghz = _clock_ghz()
    per_cycle = next((flops for name, flops in _FLOPS_PER_CYCLE if name in features), 8)
    fp32 = cores * ghz * per_cycle / 1000
    dot = next((name for name in ("avx512_vnni", "avx_vnni", "dotprod") if name in features), "")
    source = f"estimated: {cores} cores x {ghz:g} GHz x {per_cycle} operations a cycle"
    factor = 4 if dot else 2
    peaks = {
        "fp32_tops": _figure(fp32, source),
        "int8_tops": _figure(fp32 * factor, f"{source} x {factor}" + (f" with {dot}" if dot else "")),
    }
    if "fp16" in features or "avx512_fp16" in features:
        peaks["fp16_tops"] = _figure(fp32 * 2, f"{source} x 2")
    return peaks


def _figure(value: float, source: str) -> dict[str, Any]:
    """Return a sourced number as profiles write it."""
    return {"value": round(value, 4), "source": source}
