"""What Android tells of a device at work: battery, thermal state, clocks held down. Standard library, Python 3.8.

`dumpsys` answers the user `shell`, as which adb runs things; elsewhere there is none, and nothing is told.
"""

import glob
import math
import os
import re
import shutil
from typing import Any, Callable, Dict, List, Optional, Sequence

Tool = Callable[[Sequence[str]], Optional[str]]

STATUSES = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
"""Android's throttling statuses (android.os.Temperature), by number."""
_CHARGING = {1: "unknown", 2: "charging", 3: "discharging", 4: "not charging", 5: "full"}
_COOLED = {2: "CPU", 3: "GPU", 5: "NPU"}
"""Kinds of cooling devices (android.os.CoolingDevice) that hold a processor's clock down."""
_COLDEST, _HOTTEST = -40, 200
_CURRENT, _COOLING = "Current temperatures from HAL", "Current cooling devices from HAL"


def state(ask: Tool, root: str = "/") -> Dict[str, Any]:
    """Return `battery`, `thermal`, `power_saver` and `cpu_capped_mhz`, as far as they are told; {} off Android."""
    if shutil.which("dumpsys") is None:
        return {}
    found = {
        "battery": battery(ask(["dumpsys", "battery"]) or ""),
        "thermal": thermal(ask(["dumpsys", "thermalservice"]) or ""),
        "power_saver": {"0": False, "1": True}.get((ask(["settings", "get", "global", "low_power"]) or "").strip()),
        "cpu_capped_mhz": capped(root),
    }
    return {name: value for name, value in found.items() if value not in (None, {}, [])}


def battery(text: str) -> Dict[str, Any]:
    """Read `dumpsys battery`: `level` (percent), `status`, `powered` (by what), `celsius`; `faked` when it was set."""
    values = dict(re.findall(r"^\s+([\w ]+): (\S+)\s*$", text, re.MULTILINE))
    found = {}  # type: Dict[str, Any]
    level, scale = _number(values.get("level")), _number(values.get("scale")) or 100
    if level is None or values.get("present") == "false":
        return {}
    found["level"] = round(100 * level / scale)
    status = _number(values.get("status"))
    if status in _CHARGING:
        found["status"] = _CHARGING[int(status or 0)]
    found["powered"] = [name[: -len(" powered")] for name, told in values.items() if _is_power(name, told)]
    tenths = _number(values.get("temperature"))
    if tenths is not None:
        found["celsius"] = tenths / 10
    if "UPDATES STOPPED" in text:
        found["faked"] = True
    return found


def thermal(text: str) -> Dict[str, Any]:
    """Read `dumpsys thermalservice`: `status`, `temperatures` (name -> Celsius), `cooled` (what is held down).

    Cached temperatures are left out: they may be old. Sensors that are off tell 0 or less, or no number.
    """
    found = {}  # type: Dict[str, Any]
    status = re.search(r"^\s*Thermal Status: (\d+)", text, re.MULTILINE)
    if status and int(status.group(1)) < len(STATUSES):
        found["status"] = STATUSES[int(status.group(1))]
    live = text.partition(_CURRENT)[2].partition(_COOLING)[0]
    rows = re.findall(r"Temperature\{mValue=([^,]+), mType=-?\d+, mName=([^,]+),", live)
    temperatures = {name.strip(): _celsius(value) for value, name in rows}
    found["temperatures"] = {name: value for name, value in temperatures.items() if value is not None}
    cooling = re.findall(r"CoolingDevice\{mValue=(\d+), mType=(\d+), mName=([^},]+)", text.partition(_COOLING)[2])
    found["cooled"] = [name.strip() for value, kind, name in cooling if int(value) and int(kind) in _COOLED]
    return {name: value for name, value in found.items() if value}


def capped(root: str = "/") -> List[Dict[str, float]]:
    """Return the clusters of the CPU whose highest allowed clock is below the hardware's: `cpu`, `allowed`, `most`."""
    found = []
    for policy in sorted(glob.glob(os.path.join(root, "sys/devices/system/cpu/cpufreq/policy*"))):
        allowed, most = (_read(policy, name) for name in ("scaling_max_freq", "cpuinfo_max_freq"))
        if allowed and most and allowed < most:
            number = float(os.path.basename(policy)[len("policy") :] or 0)
            found.append({"cpu": number, "allowed": allowed / 1000, "most": most / 1000})
    return found


def _is_power(name: str, told: str) -> bool:
    return name.endswith(" powered") and told == "true"


def _number(text: Optional[str]) -> Optional[float]:
    return float(text) if text and re.match(r"^-?\d+$", text) else None


def _celsius(text: str) -> Optional[float]:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value and _COLDEST < value < _HOTTEST else None


def _read(folder: str, name: str) -> float:
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            text = file.read(64).strip()
    except (OSError, ValueError):
        return 0.0
    return float(text) if text.isdigit() else 0.0
