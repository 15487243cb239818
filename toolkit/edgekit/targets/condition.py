"""The state that a phone was measured in: what is worth knowing of its battery, heat and clocks."""

from __future__ import annotations

from typing import Any

from edgekit.events import Finding, Severity

LOW = 20
"""Percent of the battery's charge under which phones begin to save power."""
_MILD = frozenset({"", "none"})
_ORDER = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")

State = dict[str, Any]
Told = tuple[Severity, str, str, str] | None
"""Severity, rule, text and remedy of a finding."""


def condition_findings(machine: dict[str, Any], where: str) -> list[Finding]:
    """Return what a measurement's state before and after it tells; nothing of a machine that is no phone.

    Args:
        machine: `before` and `after`, each as the runner's `machine.state` gives it.
        where: what people call the device.
    """
    before, after = machine.get("before", {}), machine.get("after", {})
    rows = [look(before, after) for look in (_battery, _heat, _saver, _capped)]
    return [
        Finding(severity=row[0], node=where, rule=row[1], text=row[2], remedy=row[3]) for row in rows if row is not None
    ]


def throttled(machine: dict[str, Any]) -> str:
    """Return why a latency is not the device's own; empty when nothing held it down."""
    before, after = machine.get("before", {}), machine.get("after", {})
    status = _worst(before, after)
    told = [] if status in _MILD else [f"thermal status {status}"]
    cooled = _cooled(before, after)
    told += [f"{', '.join(cooled)} held down by the cooling"] if cooled else []
    told += ["battery saver on"] if _is_saving(before, after) else []
    return f"measured while throttled: {', '.join(told)}" if told else ""


def _battery(before: State, after: State) -> Told:
    levels = [state["battery"]["level"] for state in (before, after) if "battery" in state]
    if any(state.get("battery", {}).get("faked") for state in (before, after)):
        text = "the battery's state was set by hand on the device: it says nothing"
        return "warning", "target-battery", text, "Undo it: adb shell dumpsys battery reset"
    powered = all(state.get("battery", {}).get("powered") for state in (before, after) if "battery" in state)
    if not levels or min(levels) >= LOW:
        return None
    fed = "on external power" if powered else "on battery"
    text = f"the battery is at {min(levels)} % ({fed}): phones save power below {LOW} %"
    return "warning", "target-battery", text, "Charge it, unplug it if charging heats it, and measure again."


def _heat(before: State, after: State) -> Told:
    status, cooled = _worst(before, after), _cooled(before, after)
    if status in _MILD and not cooled:
        return None
    hottest = max(((value, name) for name, value in _temperatures(before, after).items()), default=None)
    told = [f"thermal status {status}"] if status not in _MILD else []
    told += [f"{', '.join(cooled)} held down by the cooling"] if cooled else []
    told += [f"{hottest[1]} at {hottest[0]:.0f} degrees Celsius"] if hottest else []
    remedy = "Let it cool, take it out of its case, and measure again."
    return "warning", "target-throttles", f"the device throttles: {', '.join(told)}", remedy


def _saver(before: State, after: State) -> Told:
    if not _is_saving(before, after):
        return None
    return (
        "warning",
        "target-power-saver",
        "its battery saver is on: clocks are held down",
        "Switch it off, measure again.",
    )


def _capped(before: State, after: State) -> Told:
    """Say how clocks of the CPU were held down: many makers do so on cool devices too, so it is but a note."""
    rows = after.get("cpu_capped_mhz") or before.get("cpu_capped_mhz")
    if not rows:
        return None
    told = ", ".join(f"from CPU {row['cpu']:.0f} on {row['allowed']:.0f} of {row['most']:.0f} MHz" for row in rows)
    return "note", "target-clocks", f"the CPU may not run at its highest clock: {told}", ""


def _worst(before: State, after: State) -> str:
    told = [str(state.get("thermal", {}).get("status", "")) for state in (before, after)]
    known = [word for word in told if word in _ORDER]
    return max(known, key=_ORDER.index, default="")


def _cooled(before: State, after: State) -> list[str]:
    return sorted({name for state in (before, after) for name in state.get("thermal", {}).get("cooled", [])})


def _temperatures(before: State, after: State) -> dict[str, float]:
    return {**before.get("thermal", {}).get("temperatures", {}), **after.get("thermal", {}).get("temperatures", {})}


def _is_saving(before: State, after: State) -> bool:
    return bool(before.get("power_saver") or after.get("power_saver"))
