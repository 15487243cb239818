"""What a probe says about a machine: its name, its fingerprint, and whether it is of a profile's kind."""

from __future__ import annotations

from typing import Any

from edgekit.events import Finding
from edgekit.profile import Profile

Probe = dict[str, Any]
"""What the runner's `probe` command wrote; every field may be missing."""

_ARCHES = {"amd64": "x86_64", "arm64": "aarch64"}


def name_of(probe: Probe) -> str:
    """Return what people call the machine: its emulator, board, processor, or architecture."""
    return str(
        probe.get("emulator")
        or probe.get("board")
        or probe.get("cpu", {}).get("model")
        or probe.get("machine")
        or "unknown machine"
    )


def engine_of(facts: dict[str, Any]) -> str:
    """Return what people call the engine that ran a model: `onnxruntime 1.32.0 CPU`, `TensorRT 10.3.0`."""
    runtime, version = str(facts.get("runtime", "")), str(facts.get("version", ""))
    if runtime == "onnxruntime":
        providers = [str(name).removesuffix("ExecutionProvider") for name in facts.get("providers", [])]
        return f"onnxruntime {version} {providers[0] if providers else ''}".strip()
    return f"{'TensorRT' if runtime == 'tensorrt' else runtime} {version}".strip()


def fingerprint_of(probe: Probe) -> dict[str, str]:
    """Return what the machine is, without what changes while it works."""
    cpu, jetson, runtimes = (probe.get(key, {}) for key in ("cpu", "jetson", "runtimes"))
    found = {
        "machine": _arch(probe),
        "emulator": probe.get("emulator"),
        "os": probe.get("os"),
        "board": probe.get("board"),
        "modules": " ".join(probe.get("modules", ())),
        "cpu": cpu.get("model"),
        "features": " ".join(cpu.get("features", ())),
        "cores": cpu.get("cores"),
        "memory": probe.get("memory_bytes"),
        "gpu": " ".join(str(probe.get("gpu", {}).get(key, "")) for key in ("name", "driver", "compute")).strip(),
        "python": probe.get("python"),
        "l4t": jetson.get("l4t"),
        "cuda": jetson.get("cuda"),
        "power_mode": jetson.get("power_mode"),
        "packages": " ".join(f"{name}={version}" for name, version in sorted(jetson.get("packages", {}).items())),
        "providers": " ".join(runtimes.get("onnxruntime", {}).get("providers", ())),
        **{name: facts.get("version", facts.get("path")) for name, facts in runtimes.items()},
    }
    return {key: str(value) for key, value in found.items() if value}


def is_of_kind(probe: Probe, profile: Profile) -> bool:
    """Say whether a machine is what a profile describes: by its modules, else by its architecture; emulated: never."""
    if probe.get("emulator"):
        return False
    if profile.modules:
        told = [*probe.get("modules", ()), str(probe.get("board", "")), str(probe.get("gpu", {}).get("name", ""))]
        return any(module.lower() in one.lower() for module in profile.modules for one in told)
    return _arch(probe) == profile.cpu.arch


def other_power_mode(probe: Probe, profile: Profile) -> str:
    """Return how the machine's power mode differs from the profile's, which it also does when it is not known."""
    found = probe.get("jetson", {}).get("power_mode")
    wanted = profile.settings.get(profile.runtime, {}).get("power_mode")
    if not wanted or found == wanted:
        return ""
    return f"power mode {found} instead of {wanted}" if found else f"an unknown power mode, maybe not {wanted}"


def compare(probe: Probe, profile: Profile, where: str) -> list[Finding]:
    """Return what sets a machine apart from a profile."""
    name, found = name_of(probe), []
    if probe.get("emulator"):
        text = f"{name} is no {profile.title}: it computes as its processor does, but its time and memory say nothing"
        remedy = "Measure latency on a device of the profile's kind."
        return [Finding(severity="warning", node=where, rule="target-emulated", text=text, remedy=remedy)]
    if not is_of_kind(probe, profile):
        text = f"{name} ({_arch(probe)}) is no {profile.title}: its latency and memory are its own"
        remedy = "Measure on a device of the profile's kind, or choose the profile of this one."
        return [Finding(severity="warning", node=where, rule="target-other-device", text=text, remedy=remedy)]
    missing = [word for word in profile.cpu.features if word not in probe.get("cpu", {}).get("features", ())]
    if missing and probe.get("cpu", {}).get("features"):
        text = f"{name} lacks what the profile counts on: {', '.join(missing)}"
        remedy = "Choose a profile without them: models may run slower or differ."
        found.append(Finding(severity="warning", node=where, rule="target-cpu-features", text=text, remedy=remedy))
    if mode := other_power_mode(probe, profile):
        text, remedy = f"{name} runs in {mode}", power_mode_remedy(probe, profile)
        found.append(Finding(severity="warning", node=where, rule="target-power-mode", text=text, remedy=remedy))
    return found


def power_mode_remedy(probe: Probe, profile: Profile) -> str:
    """Say how the profile's power mode is set: its number differs from module to module, so it is looked up there."""
    wanted = profile.settings.get(profile.runtime, {}).get("power_mode")
    modes = probe.get("jetson", {}).get("power_modes", {})
    if wanted in modes:
        return f"Set it there: sudo nvpmodel -m {modes[wanted]} && sudo jetson_clocks"
    if not probe.get("jetson", {}).get("power_mode"):
        return f"Let nvpmodel answer there (nvpmodel -q, maybe with sudo), and set {wanted}."
    if modes:
        return f"This board has no mode {wanted}, only {', '.join(modes)}: choose the profile of one of them."
    return "Set it with nvpmodel, or choose the profile of that mode."


def _arch(probe: Probe) -> str:
    name = str(probe.get("machine", "")).lower()
    return _ARCHES.get(name, name)
