"""A probe against profiles, and measurements as figures."""

from __future__ import annotations

import msgspec
import pytest

from edgekit.profile import Cpu, list_profiles, load_profile
from edgekit.targets import machines
from edgekit.targets.figures import latency_figures, memory_figure
from house import profile

X86 = {
    "machine": "x86_64",
    "os": "Debian GNU/Linux 12",
    "python": "3.11.2",
    "cpu": {"model": "AMD EPYC", "cores": 2, "features": ["avx2", "avx512_vnni"]},
    "memory_bytes": 8 << 30,
    "runtimes": {"numpy": {"version": "2.0"}, "onnxruntime": {"version": "1.32.0", "providers": ["CPU"]}},
    "state": {"temperatures": {"cpu": 50.0}, "cpu_mhz": [2000.0]},
}
ORIN = {
    "machine": "aarch64",
    "board": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
    "cpu": {"model": "Cortex-A78AE", "cores": 6, "features": ["dotprod", "fp16"]},
    "modules": ["nvidia,p3768-0000+p3767-0005-super", "nvidia,tegra234", "p3767-0005", "p3768-0000"],
    "gpu": {"name": "Orin (nvgpu)", "driver": "540.4.0", "compute": "8.7"},
    "runtimes": {"numpy": {"version": "1.26"}, "tensorrt": {"version": "10.3.0"}, "trtexec": {"path": "/usr/t"}},
    "jetson": {"l4t": "36.4.3", "power_mode": "15W", "cuda": "12.6", "packages": {"libnvinfer10": "10.3.0"}},
}
PI5 = {"machine": "aarch64", "board": "Raspberry Pi 5 Model B Rev 1.0", "cpu": {"features": ["dotprod", "fp16"]}}
PHONE = {"machine": "aarch64", "modules": ["qcom,sm8650-mtp", "qcom,sm8650"], "cpu": {}}
PROFILES = [row.name for row in list_profiles() if not row.abstract]


def rules(probe, device):
    return [finding.rule for finding in machines.compare(probe, device, "local")]


@pytest.mark.parametrize(
    ("probe", "kinds"),
    [
        (ORIN, {"jetson", "jetson-orin-nano", "jetson-orin-nano-8gb", "jetson-orin-nano-8gb-super"}),
        (PI5, {"raspberry-pi-5"}),
        (PHONE, {"snapdragon", "snapdragon-8-gen3", "snapdragon-8-phones"}),
        (X86, set()),
        ({}, set()),
    ],
)
def test_boards_are_recognized_by_their_modules(probe, kinds):
    found = {name for name in PROFILES if name != "host" and machines.is_of_kind(probe, load_profile(name))}
    assert found == kinds


def test_this_kind_has_nothing_to_tell():
    assert rules(X86, profile()) == []
    assert rules(ORIN, load_profile("jetson-orin-nano-8gb")) == []


def test_another_device_is_told():
    (finding,) = machines.compare(X86, load_profile("jetson"), "local")
    assert finding.rule == "target-other-device"
    assert finding.severity == "warning"
    assert f"AMD EPYC (x86_64) is no {load_profile('jetson').title}" in finding.text
    assert rules(PI5, profile()) == ["target-other-device"]


def test_missing_features_are_told_when_features_are_known():
    device = msgspec.structs.replace(
        profile(), cpu=Cpu(arch="x86_64", cores=profile().cpu.cores, features=("avx2", "amx_int8"))
    )
    (finding,) = machines.compare(X86, device, "local")
    assert finding.rule == "target-cpu-features"
    assert "amx_int8" in finding.text
    assert "avx2" not in finding.text
    assert rules({"machine": "AMD64"}, device) == []


def test_another_power_mode_is_told():
    assert rules(ORIN, load_profile("jetson-orin-nano-8gb-super")) == ["target-power-mode"]


@pytest.mark.parametrize("jetson", [{}, {"l4t": "36.4.3"}, {"l4t": "36.4.3", "power_mode": ""}])
def test_an_unknown_power_mode_is_told_and_decides_nothing(jetson):
    """nvpmodel did not answer: what is measured may be that of another mode."""
    device, probe = load_profile("jetson-orin-nano-8gb-super"), {**ORIN, "jetson": jetson}
    (finding,) = machines.compare(probe, device, "ssh://orin")
    assert finding.rule == "target-power-mode"
    assert "unknown power mode" in finding.text
    assert "nvpmodel -q" in finding.remedy
    assert "unknown" in machines.other_power_mode(probe, device)
    assert machines.other_power_mode(probe, load_profile("raspberry-pi-5")) == ""


@pytest.mark.parametrize(
    ("modes", "remedy"),
    [
        ({"15W": 0, "25W": 1, "MAXN_SUPER": 2}, "sudo nvpmodel -m 2 && sudo jetson_clocks"),
        ({"MAXN_SUPER": 7, "15W": 0}, "sudo nvpmodel -m 7 && sudo jetson_clocks"),
        ({"15W": 0, "7W": 3}, "no mode MAXN_SUPER, only 15W, 7W"),
        ({}, "Set it with nvpmodel"),
    ],
)
def test_the_number_of_a_power_mode_is_the_board_s_own(modes, remedy):
    probe = {**ORIN, "jetson": {**ORIN["jetson"], "power_modes": modes}}
    (finding,) = machines.compare(probe, load_profile("jetson-orin-nano-8gb-super"), "ssh://orin")
    assert remedy in finding.remedy


def test_fingerprint_has_what_stays_and_nothing_that_changes():
    found = machines.fingerprint_of(X86)
    assert found == machines.fingerprint_of({**X86, "state": {"cpu_mhz": [1.0]}})
    assert found["onnxruntime"] == "1.32.0"
    assert found["cores"] == "2"
    orin = machines.fingerprint_of(ORIN)
    assert (orin["tensorrt"], orin["l4t"], orin["power_mode"]) == ("10.3.0", "36.4.3", "15W")
    assert orin["packages"] == "libnvinfer10=10.3.0"
    assert machines.fingerprint_of({}) == {}
    for probe in (X86, ORIN, PI5, PHONE):
        assert all(isinstance(value, str) and value for value in machines.fingerprint_of(probe).values())


def test_names_for_people():
    assert machines.name_of(ORIN).startswith("NVIDIA Jetson")
    assert machines.name_of(X86) == "AMD EPYC"
    assert machines.name_of({}) == "unknown machine"
    cpu = {"runtime": "onnxruntime", "version": "1.32.0", "providers": ["CPUExecutionProvider"]}
    assert machines.engine_of(cpu) == "onnxruntime 1.32.0 CPU"
    assert machines.engine_of({"runtime": "tensorrt", "version": "10.3.0"}) == "TensorRT 10.3.0"
    assert machines.engine_of({"runtime": "trtexec", "version": "10.3.0"}) == "trtexec 10.3.0"


# --- figures ---


def summary(**changes):
    point = {"value": 10.0, "low": 9.5, "high": 10.5}
    told = {"n": 320, "drift": 0.0, "unstable": False, "coarse": False, "tick": 0.0}
    return {**told, **dict.fromkeys(("p50", "p90", "p95", "p99"), point), **changes}


def test_a_sound_series_decides():
    figures = latency_figures(summary(), "orin", [])
    assert [figure.name for figure in figures] == ["latency-p50", "latency-p90", "latency-p95", "latency-p99"]
    for figure in figures:
        assert (figure.value, figure.low, figure.high, figure.unit, figure.n) == (10.0, 9.5, 10.5, "ms", 320)
        assert (figure.provenance, figure.on, figure.note) == ("measured", "orin", "")


def test_what_must_not_decide_says_why():
    few = latency_figures(summary(n=120), "orin", [])
    assert [figure.note for figure in few] == ["", "", "", "p99 takes 300 runs, not 120"]
    unstable = latency_figures(summary(unstable=True, drift=0.36), "orin", ["slow bus"])
    assert all(figure.note.startswith("slow bus; unstable: ") and "+36%" in figure.note for figure in unstable)
    assert all("clock steps by 1 ms" in f.note for f in latency_figures(summary(coarse=True, tick=1.0), "orin", []))
    for figure in latency_figures({"refused": "5 timed runs"}, "orin", []):
        assert (figure.value, figure.n) == (None, 0)
        assert "could not be told: 5 timed runs" in figure.note


def test_memory():
    figure = memory_figure({"peak": 5 << 20, "baseline": 1, "growth": 1, "host_only": False}, "orin", [])
    assert (figure.name, figure.value, figure.unit, figure.note) == ("memory", float(5 << 20), "B", "")
    gpu = memory_figure({"peak": 5 << 20, "baseline": 1, "growth": 1, "host_only": True}, "orin", [])
    assert "accelerator's own memory is not counted" in gpu.note
    jetson = {"peak": 5 << 20, "baseline": 3 << 20, "growth": 2 << 20, "taken": 40 << 20, "host_only": True}
    unified = memory_figure(jetson, "orin", [], unified=True)
    assert (unified.value, unified.note) == (float(43 << 20), "")
    assert memory_figure({**jetson, "taken": 0}, "orin", [], unified=True).value == float(5 << 20)
    assert memory_figure({**jetson, "taken": None}, "orin", [], unified=True).note
    for unknown in (None, {"peak": None, "baseline": None, "growth": None, "host_only": False}):
        assert memory_figure(unknown, "orin", []).value is None
        assert "does not tell" in memory_figure(unknown, "orin", []).note
