"""tegrastats as boards print it, and the energy of an inference. ORIN_NANO is a line of a real board; the others are
stand-ins in the form that NVIDIA documents, for what that line does not show."""

from __future__ import annotations

import json
import stat
import time

import numpy as np
import pytest

import onnx_models
from edgekit.device import power
from edgekit.targets.figures import energy_figure

ORIN_NANO = (
    "04-19-2026 01:32:22 RAM 1474/7607MB (lfb 41x4MB) CPU [0%@1728,3%@1728,off,off,0%@1344,0%@1344] EMC_FREQ 22%@3199 "
    "GR3D_FREQ 0%@[1016] NVDEC off NVJPG off NVJPG1 off VIC off OFA off APE 200 cpu@55.843C soc2@54.562C soc0@55C "
    "gpu@57.031C tj@57.031C soc1@54.312C VDD_IN 6130mW/12128mW VDD_CPU_GPU_CV 1748mW/4728mW VDD_SOC 2388mW/3708mW"
)
AGX_STAND_IN = (
    "RAM 5120/62841MB (lfb 2x4MB) SWAP 12/31420MB (cached 0MB) CPU [12%@2201,off] EMC_FREQ 1%@3199 "
    "GR3D_FREQ 97%@[1300,1298] GR3D2_FREQ 1%@[1300] NVDEC 998 NVDLA0 off CV0@-256C CPU@50.5C "
    "VDD_GPU_SOC 9000mW/8000mW VDD_CPU_CV 1500mW/1400mW VIN_SYS_5V0 4500mW/4400mW VDDQ_VDD2_1V8AO 700mW/690mW"
)
OLD_STAND_IN = (
    "RAM 2448/3964MB (lfb 64x4MB) SWAP 0/1982MB (cached 0MB) IRAM 0/252kB(lfb 252kB) CPU [5%@921,off,off,2%@921] "
    "EMC_FREQ 0% GR3D_FREQ 33 PLL@32C CPU@36.5C PMIC@50C GPU@35C AO@42C thermal@35.75C POM_5V_IN 2363/2400 "
    "POM_5V_GPU 40/40 POM_5V_CPU 483/500"
)
CUT_STAND_IN = "04-19-2026 01:32:22 RAM 1474/7607MB (lfb 41x4MB) CPU [0%@17"


def test_a_line_of_a_real_board():
    assert power.parse_line(ORIN_NANO) == {
        "ram_mb": 1474,
        "ram_total_mb": 7607,
        "cpu": [
            {"load": 0, "mhz": 1728},
            {"load": 3, "mhz": 1728},
            None,
            None,
            {"load": 0, "mhz": 1344},
            {"load": 0, "mhz": 1344},
        ],
        "emc": {"load": 22, "mhz": 3199},
        "gpu": {"load": 0, "mhz": 1016},
        "temperatures": {
            "cpu": 55.843,
            "soc2": 54.562,
            "soc0": 55.0,
            "gpu": 57.031,
            "tj": 57.031,
            "soc1": 54.312,
        },
        "power_mw": {"VDD_IN": 6130, "VDD_CPU_GPU_CV": 1748, "VDD_SOC": 2388},
    }


def test_clocks_in_a_list_swap_and_sensors_that_are_off():
    found = power.parse_line(AGX_STAND_IN)
    assert found["swap_mb"] == 12
    assert found["gpu"] == {"load": 97, "mhz": 1300}
    assert found["cpu"] == [{"load": 12, "mhz": 2201}, None]
    assert found["temperatures"] == {"CPU": 50.5}
    assert power.total_mw(found["power_mw"]) == 9000 + 1500 + 4500, "what VDDQ carries comes out of VIN_SYS_5V0"


def test_lines_without_percent_signs_clocks_and_units():
    found = power.parse_line(OLD_STAND_IN)
    assert found["gpu"] == {"load": 33}
    assert found["emc"] == {"load": 0}
    assert power.total_mw(found["power_mw"]) == 2363
    assert "IRAM" not in str(found)


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        ("GR3D_FREQ off", None),
        ("GR3D_FREQ 5%", {"load": 5}),
        ("GR3D_FREQ 5%@918", {"load": 5, "mhz": 918}),
        ("GR3D_FREQ @[918]", {"mhz": 918}),
        ("GR3D_FREQ 0%@[0]", {"load": 0, "mhz": 0}),
        ("GR3D_FREQ 0%@[]", {"load": 0}),
        ("", None),
        ("no tegrastats at all", None),
    ],
)
def test_a_gpu_in_every_form(line, gpu):
    assert power.parse_line(line).get("gpu") == gpu


def test_a_line_that_was_cut_says_what_it_holds():
    assert power.parse_line(CUT_STAND_IN) == {"ram_mb": 1474, "ram_total_mb": 7607}


def test_unknown_rails_give_no_total():
    assert power.total_mw({"VDD_NEW": 5}) is None
    assert power.total_mw({"VDD_GPU_SOC": 5, "VDD_CPU_CV": 1}) is None


def samples(*watts, ram=1000):
    return [{"power_mw": {"VDD_IN": int(1000 * one)}, "ram_mb": ram + i} for i, one in enumerate(watts)]


def test_energy_is_power_times_time_with_bounds():
    found = power.energy_of(samples(4, 4), samples(*[9, 11] * 30), runs=600, seconds=6)
    assert found["mj"] == pytest.approx(10_000 * 6 / 600)
    assert found["low"] <= found["mj"] <= found["high"]
    assert (found["idle_mw"], found["mean_mw"], found["samples"]) == (4000, 10_000, 60)
    assert found["ram_peak_bytes"] == 1059 << 20
    assert found["ram_idle_bytes"] == 1000 << 20


def test_bounds_hold_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(1000):
        watts = rng.normal(10, 2, 60)
        found = power.energy_of([], samples(*watts), runs=10, seconds=10)
        outside += found["low"] > 10_000 or found["high"] < 10_000
    assert 60 < outside < 140, "two one-sided bounds of 95 %"


@pytest.mark.parametrize(
    ("busy", "words"),
    [
        ([{"power_mw": {"VDD_NEW": 5}}] * 50, "unknown power rails: VDD_NEW"),
        (samples(*[5] * 5), "5 power samples, at least 20"),
        ([{"ram_mb": 5}] * 50, "0 power samples"),
    ],
)
def test_no_energy_says_why(busy, words):
    assert words in power.energy_of([], busy, runs=5, seconds=1)["reason"]


def tool(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def tegrastats(tmp_path):
    """A stand-in for the program: the real board's line every 20 ms, several a second with one stamp."""
    (tmp_path / "bin").mkdir()
    return tool(tmp_path / "bin/tegrastats", f'while :; do echo "{ORIN_NANO}"; sleep 0.02; done')


def test_it_is_sampled_while_the_work_runs_and_ended(tegrastats):
    calls = []
    found = power.measure_energy(lambda: (calls.append(1), time.sleep(0.01)), 1.5, [str(tegrastats)])
    assert found["runs"] == len(calls)
    assert found["mean_mw"] == found["idle_mw"] == 6130
    assert found["mj"] == pytest.approx(6130 * found["seconds"] / len(calls))
    assert found["low"] == found["high"] == pytest.approx(found["mj"])


@pytest.mark.parametrize("body", ["exit 1", "echo nothing known; sleep 60"])
def test_a_tegrastats_that_tells_nothing_is_told(tmp_path, body):
    found = power.measure_energy(lambda: time.sleep(0.01), 0.3, [str(tool(tmp_path / "t", body))])
    assert "0 power samples" in found["reason"]


def test_a_machine_without_it_says_so(monkeypatch):
    monkeypatch.setattr(power.shutil, "which", lambda name: None)
    assert "no tegrastats" in power.measure_energy(lambda: None, 0.1)["reason"]
    assert power.tegrastats_argv("/usr/bin/tegrastats") == ["/usr/bin/tegrastats", "--interval", "100"]


def test_the_runner_measures_it_when_it_is_asked_to(tmp_path, runner, job, result, tegrastats):
    onnx_models.linear(tmp_path / "model.onnx")
    np.savez(tmp_path / "in.npz", **{"0:x": np.zeros((1, 8), np.float32)})
    environment = {"PATH": f"{tegrastats.parent}:/usr/bin:/bin"}
    assert runner("measure", job(energy_seconds=1.5, min_seconds=0), env=environment)[0] == 0
    energy = result()["energy"]
    assert energy["mean_mw"] == 6130
    figure = energy_figure(energy, "a board", [])
    assert (figure.name, figure.unit, figure.provenance) == ("energy", "mJ", "measured")
    assert figure.value == energy["mj"]
    assert runner("measure", job(min_seconds=0), env=environment)[0] == 0
    assert "energy" not in result()
    json.dumps(energy)


def test_energy_without_power_has_no_value_and_the_reason():
    figure = energy_figure({"reason": "no tegrastats"}, "a board", ["measured in 15W"])
    assert figure.value is None
    assert figure.note == "measured in 15W; no tegrastats"
