import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from edgekit.numerics import bootstrap as module
from edgekit.numerics.bootstrap import bootstrap, bootstrap_means


def first(means):
    return means[:, 0]


def test_a_mean_agrees_with_scipys_bca():
    values = np.random.default_rng(3).gamma(1.0, 1.0, 120)
    low, high = bootstrap_means(values[:, None], first, seed=1, resamples=20_000)
    peer = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=0.9,
        n_resamples=20_000,
        method="BCa",
        rng=np.random.default_rng(2),
    ).confidence_interval
    error = values.std() / math.sqrt(len(values))
    assert low == pytest.approx(peer.low, abs=0.05 * error)
    assert high == pytest.approx(peer.high, abs=0.05 * error)


def test_a_correlation_agrees_with_scipys_bca():
    rng = np.random.default_rng(4)
    x = rng.normal(size=60)
    y = 0.8 * x + rng.normal(size=60)
    low, high = bootstrap(lambda i: float(np.corrcoef(x[i], y[i])[0, 1]), 60, seed=1, resamples=4000)
    peer = stats.bootstrap(
        (x, y),
        lambda a, b: float(np.corrcoef(a, b)[0, 1]),
        paired=True,
        vectorized=False,
        confidence_level=0.9,
        n_resamples=4000,
        method="BCa",
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert (low, high) == pytest.approx((peer.low, peer.high), abs=0.02)
    assert -1 < low < high < 1


def test_both_forms_give_the_same_bounds():
    columns = np.random.default_rng(0).gamma(2, 1, (50, 2))
    ratio = bootstrap_means(columns, lambda means: means[:, 0] / means[:, 1], seed=7)
    same = bootstrap(lambda i: float(columns[i, 0].mean() / columns[i, 1].mean()), 50, seed=7)
    assert ratio == pytest.approx(same, rel=0.02)


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda rng: rng.gamma(1, 1, 60), 1.0),
        (lambda rng: rng.normal(size=60), 0.0),
    ],
    ids=["skewed", "normal"],
)
def test_coverage(draw, truth):
    rng = np.random.default_rng(8)
    bounds = [bootstrap_means(draw(rng)[:, None], first, seed=s, resamples=999) for s in range(500)]
    # a skewed mean of 60 samples loses a point or two, the plain percentile would lose five
    assert np.mean([bound.high >= truth for bound in bounds]) >= 0.915
    assert np.mean([bound.low <= truth for bound in bounds]) >= 0.915


def test_equal_seeds_give_equal_bounds_whatever_fits_in_memory(monkeypatch):
    columns = np.random.default_rng(0).normal(size=(40, 1))
    once = bootstrap_means(columns, first, seed=3)
    assert bootstrap_means(columns, first, seed=3) == once
    assert bootstrap_means(columns, first, seed=4) != once
    monkeypatch.setattr(module, "_CHUNK", 80)
    assert bootstrap_means(columns, first, seed=3) == pytest.approx(once, rel=1e-12)


@given(st.floats(-10, 10), st.integers(1, 30))
@settings(max_examples=25)
def test_what_no_resample_changes_has_no_width(value, n):
    columns = np.full((n, 1), value)
    assert bootstrap_means(columns, first, seed=0, resamples=50) == pytest.approx((value, value))
    assert bootstrap(lambda i: float(columns[i].mean()), n, seed=0, resamples=50) == pytest.approx((value, value))


def test_resamples_without_a_figure_count_as_the_worst():
    values = np.arange(20.0)

    def sometimes(i):
        return math.nan if 0 not in i[:3] and 7 not in i else float(values[i].mean())

    assert bootstrap(sometimes, 20, seed=0, resamples=400) == (-math.inf, math.inf)
    assert bootstrap(lambda _: math.nan, 20, seed=0, resamples=20) == (-math.inf, math.inf)


@pytest.mark.parametrize("n", [1, 5, 200, 1000])
def test_the_number_of_calls_is_bounded(n):
    calls = []
    bootstrap(lambda i: float(calls.append(len(i)) or i.mean()), n, seed=0, resamples=100)
    assert len(calls) == 100 + min(n, 200) + 1
    assert min(calls) >= n - max(1, math.ceil(n / 200))
