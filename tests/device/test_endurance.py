"""Sustained load: windows of time, the first against the last, and why the last is slower."""

from __future__ import annotations

import numpy as np
import pytest

import onnx_models
from edgekit.device.endurance import sustain, throttling
from edgekit.targets.figures import latency_figures, settled_latency


class Board:
    """Time that passes only while it works; slower once it is hot."""

    def __init__(self, *, cool=10.0, hot=10.0, after=200.0):
        self.now, self.cool, self.hot, self.after = 0, cool, hot, after
        self.rng = np.random.default_rng(0)

    def clock(self):
        return int(self.now)

    def call(self):
        level = self.cool if self.now / 1e9 < self.after else self.hot
        self.now += level * 1e6 * self.rng.uniform(0.98, 1.02)

    def state(self):
        warm = self.now / 1e9 >= self.after
        return {
            "gpu_mhz": 714.0 if warm and self.hot > self.cool else 1020.0,
            "temperatures": {"tj": 87.0 if warm else 55.0},
        }


def run(board, seconds):
    return sustain(board.call, seconds, board.state, board.clock)


def test_ten_minutes_have_ten_windows_of_a_minute():
    board = Board()
    found = run(board, 600)
    assert found["window_seconds"] == 60
    assert len(found["windows"]) == 10
    assert 599 < board.now / 1e9 < 602
    assert all(5900 < window["n"] < 6100 for window in found["windows"])
    assert found["throttled"] is None
    assert abs(found["slowdown"]) < 0.01


def test_throttling_is_told_with_clocks_and_temperature():
    found = run(Board(hot=14), 600)
    assert found["slowdown"] == pytest.approx(0.4, abs=0.02)
    assert found["throttled"] == (
        "p50 rose by 40%, GPU clock fell from 1020 to 714 MHz, hottest sensor at 87 degrees Celsius"
    )
    assert found["last"]["p50"]["value"] == pytest.approx(14, rel=0.02)
    assert "state" not in found["last"]


def test_noise_is_no_throttling():
    for hot in (10.3, 9):
        assert run(Board(hot=hot), 600)["throttled"] is None


def test_a_short_run_has_three_windows_and_a_slow_model_one_run_in_each():
    assert len(run(Board(), 30)["windows"]) == 3
    slow = run(Board(cool=100_000, hot=100_000), 300)
    assert [window["n"] for window in slow["windows"]] == [1, 1, 1]
    assert slow["throttled"] is None, "one run a window tells nothing"


def test_unknown_clocks_are_left_out():
    window = {"p50": {"value": 10, "low": 9.9, "high": 10.1}, "state": {}}
    slower = {"p50": {"value": 12, "low": 11.9, "high": 12.1}, "state": {"cpu_mhz": [1000.0]}}
    assert throttling(window, slower, 0.2) == "p50 rose by 20%"


def test_the_last_window_is_what_counts():
    details = {"latency": {"n": 1}, "engine": {}, "sustained": run(Board(hot=14), 600)}
    summary, finding = settled_latency(details, 600, "ssh orin")
    assert finding.rule == "target-throttles"
    assert finding.severity == "warning"
    assert "10 ms in the first of 10 windows and 14 ms in the last" in finding.text
    p50 = latency_figures(summary, "orin", [])[0]
    assert p50.value == pytest.approx(14, rel=0.02)
    assert not p50.note
    assert settled_latency(details, 0, "ssh orin") == ({"n": 1}, None)
    cool = {**details, "sustained": run(Board(), 600)}
    assert settled_latency(cool, 600, "ssh orin")[1].rule == "target-sustained"


def test_what_cannot_be_sustained_has_no_latency():
    details = {"latency": {"n": 1}, "engine": {"runtime": "trtexec"}}
    summary, _ = settled_latency(details, 600, "ssh orin")
    assert latency_figures(summary, "orin", [])[0].value is None


def test_the_runner_does_it(tmp_path, runner, job, result):
    onnx_models.linear(tmp_path / "model.onnx")
    np.savez(tmp_path / "in.npz", **{"0:x": np.zeros((1, 8), np.float32)})
    assert runner("measure", job(sustained=1.5, min_seconds=0))[0] == 0
    told = result()["sustained"]
    assert len(told["windows"]) == 3
    assert told["last"]["n"] > 100
