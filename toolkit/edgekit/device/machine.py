"""What the machine is: the probe. Every field is optional, nothing raises. Standard library, Python 3.8."""

import glob
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence

if __package__:  # imported by a test or read by a type checker
    from . import android
else:
    import android  # type: ignore[import-not-found,no-redef]

Tool = Callable[[Sequence[str]], Optional[str]]

_RUNTIMES = """
import importlib.util, json
found = {}
def version(name):
    return getattr(__import__(name), "__version__", "unknown")
for name in ("numpy", "onnxruntime", "tensorrt"):
    try:
        if importlib.util.find_spec(name) is not None:
            found[name] = {"version": version(name)}
            if name == "onnxruntime":
                found[name]["providers"] = __import__(name).get_available_providers()
    except Exception as error:
        found[name] = {"error": "%s: %s" % (type(error).__name__, str(error)[:300])}
    print(json.dumps(found), flush=True)
"""
_PACKAGES = (
    "nvidia-jetpack",
    "nvidia-l4t-core",
    "libnvinfer-bin",
    "libnvinfer8",
    "libnvinfer10",
    "libnvinfer11",
)
_TRTEXEC = ("usr/src/tensorrt/bin/trtexec", "usr/bin/trtexec", "usr/local/tensorrt/bin/trtexec")


COLDEST, HOTTEST = -40, 200
"""Degrees Celsius that a sensor may tell; those that are off tell -256 and the like."""


def probe(root: str = "/", tool: Optional[Tool] = None) -> Dict[str, Any]:
    """Describe the machine.

    Args:
        root: where the file system begins (another folder to read a recorded one).
        tool: runs an argv list and returns its standard output, or None when it cannot.

    Returns:
        `machine`, `identity` (of this one machine), `emulator` (what pretends to be it), `system`, `release`, `os`,
        `python`, `cpu` {model, features, cores}, `memory_bytes`, `modules` (ids by which a profile recognizes a board),
        `board`, `runtimes` {numpy, onnxruntime, tensorrt, trtexec}, `gpu`, `jetson` {l4t, packages, power_mode, cuda}
        and `state` (see `state`). What is unknown is left out.
    """
    ask = tool or run_tool
    fields = {
        "machine": platform.machine,
        "identity": lambda: identity(root),
        "emulator": lambda: emulator(root),
        "system": platform.system,
        "release": platform.release,
        "python": platform.python_version,
        "os": lambda: os_name(read(root, "etc/os-release")),
        "cpu": lambda: cpu(read(root, "proc/cpuinfo"), (lambda _: None) if emulator(root) else ask),
        "memory_bytes": lambda: memory_bytes(read(root, "proc/meminfo")),
        "board": lambda: read(root, "proc/device-tree/model").strip("\0 \n"),
        "modules": lambda: modules(root),
        "runtimes": lambda: runtimes(root, ask),
        "gpu": lambda: gpu(ask),
        "jetson": lambda: jetson(root, ask),
        "state": lambda: state(root),
    }  # type: Dict[str, Callable[[], Any]]
    found = {"schema": 1}  # type: Dict[str, Any]
    for name, look in fields.items():
        try:
            value = look()
        except Exception as error:  # noqa: BLE001 - a probe tells what it can, whatever a machine comes up with
            found.setdefault("errors", {})[name] = "{}: {}".format(type(error).__name__, error)
            continue
        if value not in (None, "", {}, []):
            found[name] = value
    return found


def identity(root: str = "/") -> str:
    """Return what tells this machine from all others of its kind: a digest of its ids; empty when it has none."""
    places = ("etc/machine-id", "proc/device-tree/serial-number", "sys/class/dmi/id/product_uuid")
    told = [read(root, place).strip("\0 \n") for place in places]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16] if any(told) else ""


def emulator(root: str = "/", arch: Optional[str] = None) -> str:
    """Return the name of the emulator that this process runs in; empty on a real machine.

    QEMU in user mode leaves the host's /proc as it is: an Arm processor with the words of an x86 one is emulated.
    """
    named = os.environ.get("EDGEKIT_EMULATOR_NAME", "") if root == "/" else ""
    foreign = (arch or platform.machine()) in ("aarch64", "armv7l") and re.search(
        r"^(?:vendor_id|cpu family)\s*:", read(root, "proc/cpuinfo"), re.MULTILINE
    )
    return named or ("emulated-{}".format(arch or platform.machine()) if foreign else "")


def read(root: str, path: str, limit: int = 1 << 20) -> str:
    """Return the text of a file under `root`, at most `limit` bytes; empty when it cannot be read."""
    try:
        with open(os.path.join(root, path), "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def run_tool(argv: Sequence[str], timeout: float = 30) -> Optional[str]:
    """Run a command and return its standard output; None when it is missing, fails or hangs."""
    environment = dict(os.environ, LC_ALL="C")
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 or done.stdout else None


def os_name(os_release: str) -> Optional[str]:
    """Return PRETTY_NAME of /etc/os-release, else the platform's own words."""
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)"?', os_release, re.MULTILINE)
    return match.group(1) if match else platform.platform(terse=True)


def cpu(cpuinfo: str, ask: Tool) -> Dict[str, Any]:
    """Return model, instruction set features (also by their common names: `dotprod`, `fp16`) and usable cores."""
    found = {"cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()}  # type: Dict[str, Any]
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    if model is None:  # ARM kernels give numbers only: lscpu knows their names
        model = re.search(r"^Model name:\s*(.+)$", ask(["lscpu"]) or "", re.MULTILINE)
    found["model"] = model.group(1).strip() if model else platform.processor()
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    features = set(flags.group(1).split()) if flags else set()
    if "asimddp" in features:
        features.add("dotprod")
    if "asimdhp" in features:
        features.add("fp16")
    found["features"] = sorted(features)
    return found


def memory_bytes(meminfo: str) -> Optional[int]:
    """Return MemTotal of /proc/meminfo in bytes, else what sysconf says."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", meminfo, re.MULTILINE)
    if match:
        return int(match.group(1)) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def modules(root: str) -> List[str]:
    """Return the ids that name the board or chip: device-tree `compatible`, NVIDIA module numbers, Qualcomm soc0."""
    compatible = read(root, "proc/device-tree/compatible")
    found = [entry for entry in compatible.split("\0") if entry.strip()]
    found += re.findall(r"p\d{4}-\d{4}", compatible)
    found += [read(root, "sys/devices/soc0/" + name).strip() for name in ("machine", "soc_id", "family")]
    return sorted({entry for entry in found if entry})


def runtimes(root: str, ask: Tool) -> Dict[str, Any]:
    """Return the versions of numpy, onnxruntime (with its providers), tensorrt and trtexec that are there.

    They are imported in a child process: a broken one that crashes takes nothing else along.
    """
    lines = (ask([sys.executable, "-c", _RUNTIMES]) or "").strip().splitlines()
    found = json.loads([line for line in lines if line.startswith("{")][-1])
    trtexec = find_trtexec(root)
    if trtexec:
        found["trtexec"] = {"path": trtexec}
    return dict(found)


def find_trtexec(root: str = "/") -> Optional[str]:
    """Return the path of trtexec on PATH or where NVIDIA's packages put it."""
    on_path = shutil.which("trtexec") if root == "/" else None
    places = [os.path.join(root, place) for place in _TRTEXEC]
    return on_path or next((place for place in places if os.access(place, os.X_OK)), None)


def gpu(ask: Tool) -> Dict[str, str]:
    """Return name, driver and compute capability of the first NVIDIA GPU that nvidia-smi tells of."""
    told = ask(["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]) or ""
    match = re.match(r"([^,\n]+), *([\d.]+), *([\d.]+) *$", told, re.MULTILINE)
    return {"name": match.group(1), "driver": match.group(2), "compute": match.group(3)} if match else {}


def jetson(root: str, ask: Tool) -> Dict[str, Any]:
    """Return what NVIDIA's board support says of itself: L4T, packages, power mode(s), CUDA; empty elsewhere."""
    release = read(root, "etc/nv_tegra_release")
    match = re.search(r"# R(\d+) \(release\), REVISION: ([\d.]+)", release)
    if not release:
        return {}
    found = {"l4t": "{}.{}".format(match.group(1), match.group(2)) if match else release.strip()[:80]}  # type: Dict[str, Any]
    listed = ask(["dpkg-query", "-W", "-f", "${Package} ${Version}\\n", *_PACKAGES]) or ""
    packages = dict(re.findall(r"^(\S+) (\S+)$", listed, re.MULTILINE))
    if packages:
        found["packages"] = packages
    mode = re.search(r"NV Power Mode:\s*(\S+)", ask(["nvpmodel", "-q"]) or "")
    if mode:
        found["power_mode"] = mode.group(1)
    modes = dict(
        re.findall(r"^\s*<\s*POWER_MODEL ID=(\d+) NAME=(\S+)\s*>", read(root, "etc/nvpmodel.conf"), re.MULTILINE)
    )
    if modes:
        found["power_modes"] = {name: int(number) for number, name in modes.items()}
    cuda = re.search(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([\d.]+)"', read(root, "usr/local/cuda/version.json"))
    if cuda:
        found["cuda"] = cuda.group(1)
    return found


def state(root: str = "/") -> Dict[str, Any]:
    """Return what changes while a machine works: temperatures (degrees Celsius), clocks (MHz), governor.

    On Android also battery, thermal state and clocks that are held down (`android.state`).
    """
    found = android.state(run_tool, root) if root == "/" else {}  # type: Dict[str, Any]
    temperatures = {}
    for zone in sorted(glob.glob(os.path.join(root, "sys/class/thermal/thermal_zone*"))):
        text = read(zone, "temp").strip()
        if re.match(r"^-?\d+$", text) and COLDEST < int(text) / 1000 < HOTTEST:
            temperatures[read(zone, "type").strip() or os.path.basename(zone)] = int(text) / 1000
    if temperatures:
        found["temperatures"] = temperatures
    cores = sorted(glob.glob(os.path.join(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq")))
    clocks = [int(text) / 1000 for text in (read(core, "scaling_cur_freq").strip() for core in cores) if text.isdigit()]
    if not clocks:
        clocks = [
            float(text) for text in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", read(root, "proc/cpuinfo"), re.MULTILINE)
        ]
    if clocks:
        found["cpu_mhz"] = clocks
    if cores and read(cores[0], "scaling_governor").strip():
        found["governor"] = read(cores[0], "scaling_governor").strip()
    for device in sorted(glob.glob(os.path.join(root, "sys/class/devfreq/*"))):
        clock = read(device, "cur_freq").strip()
        if re.search(r"gpu|gv11b|ga10b|gb10b", os.path.basename(device)) and clock.isdigit():
            found["gpu_mhz"] = int(clock) / 1e6
    return found


def available_bytes(root: str = "/") -> Optional[int]:
    """Return the memory that the machine could still give (MemAvailable), None when unknown.

    Where GPU and CPU share the memory, what the GPU takes is missing from it.
    """
    match = re.search(r"^MemAvailable:\s*(\d+) kB", read(root, "proc/meminfo"), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def resident_bytes(root: str = "/") -> Optional[int]:
    """Return the memory that this process holds now (VmRSS), None when unknown."""
    return _status(root, "VmRSS")


def peak_bytes(root: str = "/") -> Optional[int]:
    """Return the most memory that this process has held (VmHWM), None when unknown."""
    peak = _status(root, "VmHWM")
    if peak is not None:
        return peak
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def reset_peak() -> None:
    """Let `peak_bytes` count from now on, where the kernel can (Linux: clear_refs)."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def _status(root: str, key: str) -> Optional[int]:
    match = re.search(r"^{}:\s*(\d+) kB".format(key), read(root, "proc/self/status"), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None
