"""What Android tells of itself, read from text in the form that phones give it: stand-ins, no phone was asked."""

from __future__ import annotations

import pytest

from edgekit.device import android
from edgekit.targets.condition import condition_findings, throttled

BATTERY = """Current Battery Service state:
  AC powered: false
  USB powered: true
  Wireless powered: false
  Dock powered: false
  Max charging current: 500000
  Max charging voltage: 5000000
  Charge counter: 2987000
  status: 2
  health: 2
  present: true
  level: 87
  scale: 100
  voltage: 4251
  temperature: 298
  technology: Li-ion
"""
THERMAL = """IsStatusOverride: false
ThermalEventListeners:
\tcallbacks: 1
\tkilled: false
\tbroadcasts count: -1
ThermalStatusListeners:
\tcallbacks: 4
\tkilled: false
\tbroadcasts count: -1
Thermal Status: 0
Cached temperatures:
\tTemperature{mValue=80.0, mType=0, mName=OLD, mStatus=0}
HAL Ready: true
HAL connection:
\tThermalHAL 2.0 connected: yes
Current temperatures from HAL:
\tTemperature{mValue=25.6, mType=0, mName=AP, mStatus=0}
\tTemperature{mValue=23.8, mType=2, mName=BAT, mStatus=0}
\tTemperature{mValue=0.0, mType=2, mName=SUBBAT, mStatus=0}
\tTemperature{mValue=-99.9, mType=5, mName=PA, mStatus=0}
\tTemperature{mValue=NaN, mType=3, mName=skin, mStatus=0}
Current cooling devices from HAL:
\tCoolingDevice{mValue=0, mType=2, mName=TYPE_CPU}
\tCoolingDevice{mValue=1, mType=4, mName=TYPE_MODEM}
Temperature static thresholds from HAL:
"""
HOT = (
    THERMAL.replace("Thermal Status: 0", "Thermal Status: 3")
    .replace("mValue=25.6", "mValue=88.4")
    .replace("CoolingDevice{mValue=0, mType=2", "CoolingDevice{mValue=4, mType=2")
)


def test_a_battery():
    told = {"level": 87, "status": "charging", "powered": ["USB"], "celsius": 29.8}
    assert android.battery(BATTERY) == told


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("level: 87\n  scale: 100", "level: 120\n  scale: 200", {"level": 60}),
        ("  AC powered", "  (UPDATES STOPPED -- use 'reset' to restart)\n  AC powered", {"faked": True}),
        ("USB powered: true", "USB powered: false", {"powered": []}),
        ("temperature: 298", "temperature: -52", {"celsius": -5.2}),
    ],
)
def test_batteries_of_other_kinds(old, new, changed):
    assert changed.items() <= android.battery(BATTERY.replace(old, new)).items()


@pytest.mark.parametrize(
    "text", ["", "Can't find service: battery\n", BATTERY.replace("present: true", "present: false")]
)
def test_no_battery(text):
    assert android.battery(text) == {}


def test_a_cool_phone():
    assert android.thermal(THERMAL) == {"status": "none", "temperatures": {"AP": 25.6, "BAT": 23.8}}


def test_a_hot_one():
    found = android.thermal(HOT)
    assert found["status"] == "severe"
    assert found["temperatures"]["AP"] == 88.4
    assert found["cooled"] == ["TYPE_CPU"], "a modem that is held down slows no network"


@pytest.mark.parametrize("text", ["", "Can't find service: thermalservice\n", "Thermal Status: 99\n"])
def test_no_thermal_service(text):
    assert android.thermal(text) == {}


def test_clusters_that_are_held_down(tmp_path):
    for name, allowed, most in (
        ("policy0", "2265600", "2265600"),
        ("policy7", "1804800", "3302400"),
        ("policy5", "", "1"),
    ):
        folder = tmp_path / "sys/devices/system/cpu/cpufreq" / name
        folder.mkdir(parents=True)
        (folder / "scaling_max_freq").write_text(allowed + "\n")
        (folder / "cpuinfo_max_freq").write_text(most + "\n")
    assert android.capped(str(tmp_path)) == [{"cpu": 7, "allowed": 1804.8, "most": 3302.4}]


def test_off_android_nothing_is_asked(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert android.state(lambda argv: pytest.fail("asked")) == {}


def state(battery=BATTERY, thermal=THERMAL, **more):
    return {"battery": android.battery(battery), "thermal": android.thermal(thermal), **more}


def rules(before, after):
    return [finding.rule for finding in condition_findings({"before": before, "after": after}, "phone")]


def test_a_phone_in_order_is_not_talked_about():
    assert rules(state(), state()) == []
    assert throttled({"before": state(), "after": state()}) == ""
    assert rules({"temperatures": {"cpu": 50}}, {}) == [], "a board that is no phone"


def test_a_low_battery_is_a_finding():
    low = state(BATTERY.replace("level: 87", "level: 14").replace("USB powered: true", "USB powered: false"))
    (finding,) = condition_findings({"before": state(), "after": low}, "phone")
    assert (finding.rule, finding.severity) == ("target-battery", "warning")
    assert "14 % (on battery)" in finding.text
    faked = state(BATTERY.replace("  AC powered", "  (UPDATES STOPPED -- use 'reset' to restart)\n  AC powered"))
    (finding,) = condition_findings({"before": faked, "after": faked}, "phone")
    assert "set by hand" in finding.text
    assert "dumpsys battery reset" in finding.remedy


def test_heat_is_a_finding_and_a_reason_that_latency_decides_nothing():
    machine = {"before": state(), "after": state(thermal=HOT)}
    (finding,) = condition_findings(machine, "phone")
    assert finding.rule == "target-throttles"
    assert finding.text == (
        "the device throttles: thermal status severe, TYPE_CPU held down by the cooling, AP at 88 degrees Celsius"
    )
    assert throttled(machine) == ("measured while throttled: thermal status severe, TYPE_CPU held down by the cooling")


def test_a_battery_saver_and_a_capped_clock():
    assert rules(state(power_saver=True), state(power_saver=True)) == ["target-power-saver"]
    capped = state(cpu_capped_mhz=[{"cpu": 7.0, "allowed": 1804.8, "most": 3302.4}])
    (finding,) = condition_findings({"before": capped, "after": capped}, "phone")
    assert (finding.rule, finding.severity) == ("target-clocks", "note")
    assert "from CPU 7 on 1805 of 3302 MHz" in finding.text
    assert throttled({"before": capped, "after": capped}) == ""
