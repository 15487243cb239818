"""The probe, on this machine and on stand-ins: files and tool output in the form that devices give."""

from __future__ import annotations

import json
import os
import platform

import numpy as np
import pytest

from edgekit.device import machine

ORIN = {
    "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n',
    "etc/nvpmodel.conf": "# < POWER_MODEL ID=id NAME=name >\n< POWER_MODEL ID=0 NAME=15W >\n"
    "< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n",
    "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n",
    "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd fphp asimdhp asimddp\nCPU part\t: 0xd42\n",
    "proc/meminfo": "MemTotal:        7802112 kB\nMemFree: 1 kB\n",
    "proc/device-tree/model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0",
    "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005-super\0nvidia,p3767-0005\0nvidia,tegra234\0",
    "usr/local/cuda/version.json": '{"cuda" : {"name": "CUDA SDK", "version" : "12.6.11"}}',
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "49875\n",
    "sys/class/thermal/thermal_zone1/type": "cv0-thermal\n",
    "sys/class/thermal/thermal_zone1/temp": "-256000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1728000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil\n",
    "sys/class/devfreq/17000000.gpu/cur_freq": "1020000000\n",
}
ORIN_TOOLS = {
    "lscpu": "Architecture: aarch64\nModel name:          Cortex-A78AE\n",
    "nvpmodel": "NV Power Mode: MAXN_SUPER\n2\n",
    "nvidia-smi": "Orin (nvgpu), 540.4.0, 8.7\n",
    "dpkg-query": "libnvinfer10 10.3.0.30-1+cuda12.5\nnvidia-jetpack 6.2+b77\n",
}


@pytest.fixture
def tree(tmp_path):
    def build(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path)

    return build


def test_what_the_machine_could_still_give(tree):
    assert machine.available_bytes(tree({"proc/meminfo": "MemTotal: 8 kB\nMemAvailable:   2048 kB\n"})) == 2 << 20
    assert machine.available_bytes(tree({"proc/meminfo": "MemTotal: 8 kB\n"})) is None
    assert machine.available_bytes() > 1e6


def test_this_machine():
    found = machine.probe()
    assert "errors" not in found
    assert found["machine"] == platform.machine()
    assert found["python"] == platform.python_version()
    assert found["cpu"]["cores"] == len(os.sched_getaffinity(0))
    assert found["memory_bytes"] > 1e8
    assert found["runtimes"]["numpy"]["version"] == np.__version__
    assert "CPUExecutionProvider" in found["runtimes"]["onnxruntime"]["providers"]
    json.dumps(found, allow_nan=False)


def test_stand_in_of_an_orin(tree):
    root = tree(ORIN)
    found = machine.probe(root, lambda argv: ORIN_TOOLS.get(argv[0], '{"numpy": {"version": "1.26.4"}}\n'))
    assert "errors" not in found
    assert found["os"] == "Ubuntu 22.04.5 LTS"
    assert found["cpu"]["model"] == "Cortex-A78AE"
    assert {"dotprod", "fp16"} <= set(found["cpu"]["features"])
    assert found["memory_bytes"] == 7802112 * 1024
    assert found["board"] == "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"
    assert {"p3767-0005", "nvidia,tegra234"} <= set(found["modules"])
    assert found["gpu"] == {"name": "Orin (nvgpu)", "driver": "540.4.0", "compute": "8.7"}
    assert found["jetson"] == {
        "l4t": "36.4.3",
        "packages": {"libnvinfer10": "10.3.0.30-1+cuda12.5", "nvidia-jetpack": "6.2+b77"},
        "power_mode": "MAXN_SUPER",
        "power_modes": {"15W": 0, "MAXN_SUPER": 2},
        "cuda": "12.6.11",
    }
    assert found["state"] == {
        "temperatures": {"cpu-thermal": 49.875},
        "cpu_mhz": [1728.0],
        "governor": "schedutil",
        "gpu_mhz": 1020.0,
    }
    assert found["runtimes"] == {"numpy": {"version": "1.26.4"}}


def test_nothing_readable_and_no_tool_leaves_fields_out(tmp_path):
    found = machine.probe(str(tmp_path), lambda argv: None)
    assert found["machine"] == platform.machine()
    assert not {"board", "modules", "gpu", "jetson", "state"} & set(found)


@pytest.mark.parametrize("name", sorted(ORIN))
def test_damaged_files_never_crash_it(tree, tmp_path, name):
    root = tree(ORIN)
    for content in (b"", b"\xff\xfe\x00" * 50, b"9" * 5000, b": : :\n\n="):
        (tmp_path / name).write_bytes(content)
        found = machine.probe(root, lambda argv: "\x00garbage,,,\n{")
        json.dumps(found, allow_nan=False)
        assert found["machine"] == platform.machine()


def test_a_runtime_that_crashes_takes_only_itself_along(tmp_path, runner):
    (tmp_path / "onnxruntime.py").write_text("import os; os.abort()")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert runner("probe", tmp_path / "probe.json", env=environment)[0] == 0
    found = json.loads((tmp_path / "probe.json").read_text())
    assert found["runtimes"] == {"numpy": {"version": np.__version__}}


def test_a_tool_that_fails_or_is_missing_tells_nothing():
    assert machine.run_tool(["false"]) is None
    assert machine.run_tool(["no-such-tool-anywhere"]) is None
    assert machine.run_tool(["sleep", "5"], timeout=0.1) is None
    assert machine.run_tool(["echo", "x"]) == "x\n"


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="this kernel has no clear_refs")
def test_peak_memory_counts_from_the_reset():
    block = np.ones(64 << 20, np.uint8)
    with_block = machine.peak_bytes()
    del block
    machine.reset_peak()
    assert machine.peak_bytes() < with_block - (32 << 20)
    assert machine.resident_bytes() <= machine.peak_bytes()
