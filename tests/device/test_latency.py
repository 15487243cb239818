"""What a series of durations says: the recorded case, its kin, and the maths against brute force."""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.device import latency

CASE = Path(__file__).parents[1] / "cases" / "V01_latency_series"
SERIES = json.loads((CASE / "series.json").read_text())


def steady(count, seed=0, level=10.0):
    return level + np.random.default_rng(seed).gamma(2, 0.1, count)


# --- the recorded case ---


def test_warmup_is_not_counted():
    told = latency.summarize(SERIES["warmup"])
    assert told["p50"]["value"] == pytest.approx(10.2, abs=0.2)
    assert 3 <= told["warmup"] <= 6
    assert told["max"] < 12
    assert not told["unstable"]
    assert told["modes"] is None


def test_throttling_is_unstable():
    told = latency.summarize(SERIES["throttle"])
    assert told["unstable"]
    assert told["drift"] > 0.10


def test_two_modes_give_all_percentiles():
    told = latency.summarize(SERIES["bimodal"])
    assert told["p50"]["value"] == pytest.approx(10.2, abs=0.2)
    assert told["p95"]["value"] == pytest.approx(18.4, abs=0.3)
    assert told["p99"]["value"] == pytest.approx(18.6, abs=0.3)
    assert told["modes"]["low"] == pytest.approx(10.2, abs=0.1)
    assert told["modes"]["high"] == pytest.approx(18.2, abs=0.1)
    assert told["modes"]["share_high"] == pytest.approx(0.3, abs=0.06)
    assert not told["unstable"]


def test_broken_clock_is_refused():
    with pytest.raises(latency.RefusedError, match=r"run 2 took nan ms.*80 of 200"):
        latency.summarize(SERIES["broken"])


def test_few_runs_are_refused():
    with pytest.raises(latency.RefusedError, match="4 timed runs after 1 of warm-up; at least 100 are needed"):
        latency.summarize(SERIES["few"])


# --- kin ---


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1e-9, "x", None])
@pytest.mark.parametrize("place", [0, 150, 299])
def test_every_value_must_be_a_duration(value, place):
    series = list(steady(300))
    series[place] = value
    with pytest.raises(latency.RefusedError):
        latency.summarize(series)


@pytest.mark.parametrize("series", [[], [[1.0, 2.0]] * 200])
def test_no_series_is_refused(series):
    with pytest.raises(latency.RefusedError):
        latency.summarize(series)


def test_warmup_eats_into_the_minimum():
    series = np.concatenate([np.full(60, 30.0), steady(80)])
    with pytest.raises(latency.RefusedError, match="80 timed runs after 60 of warm-up"):
        latency.summarize(series)


def test_slow_ramp_down_is_cut_where_the_level_is_reached():
    ramp = 10 + 30 * np.exp(-np.arange(400) / 25) + np.random.default_rng(3).gamma(2, 0.1, 400)
    told = latency.summarize(ramp)
    assert 80 <= told["warmup"] <= 160
    assert told["p50"]["value"] == pytest.approx(10.2, abs=0.2)
    assert not told["unstable"]


def test_warmup_that_never_ends_is_unstable():
    told = latency.summarize(np.linspace(20, 10, 400))
    assert told["unstable"]
    assert told["drift"] < -0.10


def test_slow_start_with_fast_runs_between_is_warmup():
    series = np.concatenate([[900, 10.1, 120, 90, 10.2, 40, 60], steady(200)])
    assert latency.summarize(series)["warmup"] == 7


def test_single_outliers_are_neither_drift_nor_mode_nor_warmup():
    series = steady(300, seed=5)
    series[[160, 230, 290]] = [400, 90, 700]
    told = latency.summarize(series)
    assert not told["unstable"]
    assert told["modes"] is None
    assert told["warmup"] <= 3
    assert told["p50"]["value"] == pytest.approx(10.2, abs=0.2)
    assert told["mean"] > told["p50"]["value"] + 2  # which is why the mean decides nothing


def test_slow_middle_is_unstable_though_first_and_last_third_agree():
    told = latency.summarize(np.concatenate([steady(100), steady(100, level=13), steady(100)]))
    assert abs(told["drift"]) < 0.02
    assert told["unstable"]


def test_fast_start_is_drift_not_warmup():
    told = latency.summarize(np.concatenate([steady(150, level=7), steady(150)]))
    assert told["warmup"] <= 3
    assert told["unstable"]


def test_even_modes_are_not_drift():
    choice = np.random.default_rng(1).random(300) < 0.5
    told = latency.summarize(np.where(choice, 18, 10) + steady(300) - 10)
    assert told["modes"] is not None
    assert not told["unstable"]


def test_quantized_clock_shows_its_tick_and_no_modes():
    told = latency.summarize(np.round(steady(300) * 4) / 4)
    assert told["tick"] == pytest.approx(0.25)
    assert told["modes"] is None
    assert not told["coarse"]
    rough = latency.summarize(np.where(np.random.default_rng(0).random(300) < 0.4, 2.0, 1.0))
    assert rough["tick"] == 1.0
    assert rough["coarse"]
    assert rough["modes"] is None


def test_constant_series():
    told = latency.summarize([5.0] * 100)
    assert [told[f"p{p}"]["value"] for p in latency.PERCENTILES] == [5.0] * 4
    assert (told["drift"], told["unstable"], told["modes"], told["tick"]) == (0.0, False, None, 0.0)


@pytest.mark.parametrize("draw", ["gamma", "lognormal", "exponential", "uniform"])
def test_skewed_is_not_bimodal(draw):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        noise = {
            "gamma": rng.gamma(2, 2, 400),
            "lognormal": rng.lognormal(0, 1, 400),
            "exponential": rng.exponential(5, 400),
            "uniform": rng.uniform(0, 20, 400),
        }[draw]
        assert latency.two_modes(10 + noise) is None, seed


# --- the maths ---


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 320), percent=st.sampled_from(latency.PERCENTILES))
def test_bounds_are_the_tightest_order_statistics(n, percent):
    low, high = latency.bounds(np.arange(1, n + 1), percent)
    share = percent / 100
    below = np.cumsum([math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(n)])  # P(B <= r - 1)
    assert high == next((r for r in range(1, n + 1) if below[r - 1] >= 0.95), None)
    assert low == next((r for r in range(n, 0, -1) if 1 - below[r - 1] >= 0.95), None)


def test_p99_needs_299_runs_for_an_upper_bound():
    assert latency.bounds(np.arange(298), 99)[1] is None
    assert latency.bounds(np.arange(299), 99)[1] == 298


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.floats(0.001, 1e4), min_size=1, max_size=200), percent=st.sampled_from(latency.PERCENTILES))
def test_percentile_is_the_smallest_value_that_enough_do_not_exceed(values, percent):
    found = latency.percentile(np.sort(values), percent)
    assert found in values
    assert np.mean(np.asarray(values) <= found) >= percent / 100 - 1e-12
    smaller = [value for value in values if value < found]
    assert not smaller or np.mean(np.asarray(values) <= max(smaller)) < percent / 100


def test_bounds_cover_as_often_as_they_promise():
    rng = np.random.default_rng(7)
    truth = {50: math.log(2), 95: math.log(20)}
    for percent, value in truth.items():
        found = [latency.bounds(np.sort(rng.exponential(1, 200)), percent) for _ in range(1500)]
        assert np.mean([low <= value for low, _ in found]) >= 0.935
        assert np.mean([high >= value for _, high in found]) >= 0.935


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), power=st.integers(-8, 8))
def test_summary_scales_with_the_unit(seed, power):
    series = np.concatenate([[300, 80], steady(150, seed)])
    one, other = latency.summarize(series), latency.summarize(series * 2.0**power)
    assert (one["n"], one["warmup"], one["unstable"]) == (other["n"], other["warmup"], other["unstable"])
    for name in ("p50", "p90", "p95", "p99"):
        assert other[name]["value"] == pytest.approx(one[name]["value"] * 2.0**power)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), warmup=st.integers(0, 90), height=st.floats(1.5, 100))
def test_any_warmup_up_to_a_third_is_found(seed, warmup, height):
    series = np.concatenate([steady(warmup, seed + 1, level=10 * height), steady(200, seed)])
    found = latency.warmup_end(series)
    assert warmup <= found <= warmup + 12


# --- collecting, on a clock of our own ---


class Clock:
    """A clock that a call moves on by the next duration of a list (ms), its last one over and over."""

    def __init__(self, durations):
        self.durations, self.now, self.calls = list(durations), 0, 0

    def __call__(self):
        return self.now

    def work(self):
        self.now += int(self.durations[min(self.calls, len(self.durations) - 1)] * 1e6)
        self.calls += 1


def test_collect_waits_until_the_level_is_reached():
    clock = Clock([500 - i for i in range(0, 490, 5)] + [10.0])
    warmup, timed = latency.collect(clock.work, runs=100, max_seconds=600, clock=clock)
    assert len(timed) >= 100
    assert set(timed) == {10.0}
    assert len(warmup) >= 98


def test_collect_warms_up_by_time_as_well_as_by_runs():
    clock = Clock([0.5])
    warmup, timed = latency.collect(clock.work, runs=100, max_seconds=600, clock=clock)
    assert sum(warmup) >= 300
    assert sum(timed) >= 1000


def test_collect_takes_more_runs_where_some_turn_out_to_be_warmup():
    clock = Clock([10.0] * 31 + [30.0] * 40 + [10.0])
    _, timed = latency.collect(clock.work, runs=100, max_seconds=600, min_seconds=0, clock=clock)
    assert latency.summarize(timed, minimum=100)["n"] >= 100


def test_collect_ends_in_time():
    clock = Clock([2000.0])
    warmup, timed = latency.collect(clock.work, runs=100, max_seconds=60, clock=clock)
    assert 60 <= clock.now / 1e9 <= 62
    assert len(warmup) <= 11
    assert 0 < len(timed) < 100
    with pytest.raises(latency.RefusedError):
        latency.summarize(timed, minimum=100)


def test_collect_turns_the_garbage_collector_back_on_after_an_error():
    def fail():
        assert not gc.isenabled()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        latency.collect(fail, runs=10, max_seconds=1)
    assert gc.isenabled()
