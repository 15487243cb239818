import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from edgekit.numerics import statistics
from edgekit.numerics.statistics import (
    bounded_mean,
    clopper_pearson,
    paired_difference,
    quantile_bounds,
)

counts = st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
pairs = st.integers(1, 400).flatmap(
    lambda n: st.integers(0, n).flatmap(lambda b: st.tuples(st.just(b), st.integers(0, n - b), st.just(n)))
)


def test_no_error_in_50_samples_leaves_up_to_5_8_percent():
    assert clopper_pearson(0, 50).high == pytest.approx(0.058155, abs=5e-7)
    assert clopper_pearson(0, 50).low == 0
    assert clopper_pearson(50, 50) == pytest.approx((1 - 0.058155, 1), abs=5e-7)


@given(counts, st.sampled_from([0.9, 0.95, 0.975]))
def test_clopper_pearson_is_the_one_of_scipy(count, confidence):
    k, n = count
    low, high = clopper_pearson(k, n, confidence)
    # through the beta quantile: binomtest stops its root search at 1e-12 absolute
    assert high == (pytest.approx(stats.beta.ppf(confidence, k + 1, n - k), rel=1e-9) if k < n else 1)
    assert low == (pytest.approx(stats.beta.ppf(1 - confidence, k, n - k + 1), rel=1e-9) if k else 0)


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="3 successes of 2"):
        clopper_pearson(3, 2)
    with pytest.raises(ValueError, match="2 lost and 2 gained of 3"):
        paired_difference(2, 2, 3)
    with pytest.raises(ValueError, match="not within"):
        bounded_mean(np.array([0.5, 1.5]), 0, 1)
    with pytest.raises(ValueError, match="not within"):
        bounded_mean(np.array([0.5, math.nan]), 0, 1)


@pytest.mark.parametrize("n", [1, 2, 5, 50, 5000, 1_000_000])
def test_nothing_changed_is_as_wide_as_the_exact_binomial(n):
    bounds = paired_difference(0, 0, n)
    assert bounds.high >= -math.expm1(math.log(0.05) / n) * (1 - 1e-14)
    assert bounds.high == pytest.approx(1 - 0.05 ** (1 / n), rel=1e-9)
    assert bounds.low == -bounds.high


@given(counts)
def test_changes_in_one_direction_give_clopper_pearson(count):
    k, n = count
    exact = clopper_pearson(k, n)
    assert paired_difference(k, 0, n).high == pytest.approx(exact.high, rel=1e-8)
    assert paired_difference(0, k, n).low == pytest.approx(-exact.high, rel=1e-8)


@given(pairs)
@settings(max_examples=60)
def test_paired_bounds_are_ordered_mirrored_and_monotone(pair):
    lost, gained, n = pair
    low, high = paired_difference(lost, gained, n)
    assert -1 <= low <= (lost - gained) / n <= high <= 1
    assert paired_difference(gained, lost, n) == pytest.approx((-high, -low), rel=1e-6, abs=1e-9)
    if lost + gained < n:
        assert paired_difference(lost + 1, gained, n).high > high
        assert paired_difference(lost, gained + 1, n).high < high


def test_many_samples_are_not_judged_needlessly_wide():
    wald = 1.6449 * math.sqrt(60) / 5000
    assert paired_difference(30, 30, 5000).high < 1.09 * wald
    assert paired_difference(60, 30, 5000).high < 30 / 5000 + 1.09 * 1.6449 * math.sqrt(90) / 5000
    assert paired_difference(30, 30, 5000).high < 0.01  # a budget of 1 % passes
    assert paired_difference(150, 20, 5000).low > 0.01  # and here it fails


def coverage(n, grid, limit):
    """Exact coverage of the upper bound on a grid, over all outcomes with up to `limit` changes a side."""
    lost, gained = (side.ravel() for side in np.meshgrid(np.arange(limit + 1), np.arange(limit + 1)))
    possible = lost + gained <= n
    lost, gained = lost[possible], gained[possible]
    highs = np.array([paired_difference(int(b), int(c), n).high for b, c in zip(lost, gained, strict=True)])
    same = n - lost - gained
    ways = special.gammaln(n + 1) - special.gammaln(lost + 1) - special.gammaln(gained + 1) - special.gammaln(same + 1)
    for p in grid:
        for q in grid:
            if p + q < 1 - 1e-9:
                logs = ways + special.xlogy(lost, p) + special.xlogy(gained, q) + special.xlogy(same, 1 - p - q)
                chances = np.exp(logs)
                # what lies beyond the limit is next to nothing and counts as covered
                assert chances.sum() > 1 - 1e-4
                yield float(chances[highs >= p - q - 1e-9].sum()) + 1 - chances.sum(), p, q


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 20, 30])
def test_coverage_of_the_paired_bound_is_exact_for_few_samples(n):
    grid = np.unique(np.concatenate([np.linspace(0, 1, 41), np.geomspace(1e-3, 0.5, 20)]))
    assert min(coverage(n, grid, n))[0] >= 0.95 - 1e-6


def test_coverage_of_the_paired_bound_holds_where_changes_are_rare():
    grid = [0, 1e-4, 1e-3, 0.002, 0.005, 0.01, 0.02, 0.03]
    assert min(coverage(300, grid, 28))[0] >= 0.95 - 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("n", "scale"), [(100, 0.3), (1000, 0.02), (5000, 0.006)])
def test_coverage_of_the_paired_bound_in_simulation(n, scale):
    rng = np.random.default_rng(n)
    upper = functools.cache(lambda b, c: paired_difference(b, c, n).high)
    for p, q in rng.uniform(0, scale, (20, 2)):
        draws = rng.multinomial(n, [p, q, 1 - p - q], 4000)
        covered = np.mean([upper(int(b), int(c)) >= p - q for b, c, _ in draws])
        assert covered >= 0.945 - 3 * math.sqrt(0.05 * 0.95 / 4000)


@given(counts.filter(lambda count: count[1] <= 300))
def test_a_bounded_mean_of_zeros_and_ones_is_clopper_pearson(count):
    k, n = count
    values = np.concatenate([np.ones(k), np.zeros(n - k)])
    assert bounded_mean(values, 0, 1) == pytest.approx(clopper_pearson(k, n), rel=1e-8, abs=1e-12)


def test_a_bounded_mean_of_nothing_is_the_range():
    assert bounded_mean(np.array([]), -1, 3) == (-1, 3)
    assert bounded_mean(np.full(4, 3.0), -1, 3).high == 3


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.5, 20), st.floats(-5, 5))
@settings(max_examples=60)
def test_a_bounded_mean_moves_with_its_units(values, scale, shift):
    plain = bounded_mean(np.array(values), 0, 1)
    assert plain.low - 1e-9 <= np.mean(values) <= plain.high + 1e-9
    moved = bounded_mean(np.array(values) * scale + shift, shift - 1e-12, scale + shift + 1e-12)
    assert moved == pytest.approx([bound * scale + shift for bound in plain], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, size: rng.beta(0.1, 5, size),
        lambda rng, size: rng.beta(5, 0.1, size),
        lambda rng, size: (rng.random(size) < 0.03) * rng.random(size),
        lambda rng, size: np.where(rng.random(size) < 0.02, 1.0, 1e-3 * rng.random(size)),
    ],
    ids=["skewed", "mirrored", "mostly-zero", "rare-failure"],
)
def test_coverage_of_a_bounded_mean(draw):
    rng = np.random.default_rng(5)
    truth = draw(rng, 1_000_000).mean()
    bounds = [bounded_mean(draw(rng, 25), 0, 1) for _ in range(400)]
    allowed = 0.95 - 3 * math.sqrt(0.05 * 0.95 / 400)
    assert np.mean([bound.high >= truth for bound in bounds]) >= allowed
    assert np.mean([bound.low <= truth for bound in bounds]) >= allowed


def test_joining_thousands_of_values_does_not_move_the_bounds(monkeypatch):
    values = np.random.default_rng(2).standard_t(4, 3000).clip(-8, 8)
    joined = bounded_mean(values, -8, 8)
    monkeypatch.setattr(statistics, "_MAX_ATOMS", 10_000)
    exact = bounded_mean(values, -8, 8)
    assert joined == pytest.approx(exact, abs=1e-3 * (exact.high - exact.low))


@given(st.lists(st.tuples(st.floats(-5, 0), st.sampled_from([-1, 1]), st.integers(1, 2000)), min_size=2, max_size=8))
@settings(max_examples=40, deadline=None)
def test_the_weighted_sum_of_gammas_agrees_with_a_simulation(terms):
    factors = np.array([sign * 10.0**power for power, sign, _ in terms])
    shapes = np.array([float(shape) for *_, shape in terms])
    found = statistics._exceedance(factors, shapes)
    simulated = np.mean(np.random.default_rng(0).standard_gamma(shapes, (20_000, len(shapes))) @ factors > 0)
    assert found == pytest.approx(simulated, abs=5 * math.sqrt(found * (1 - found) / 20_000) + 1e-3)


def test_quantiles_need_as_many_runs_as_the_design_says():
    runs = np.random.default_rng(1).gamma(2, 1, 300)
    assert math.isinf(quantile_bounds(runs[:298], 0.99).high)
    assert quantile_bounds(runs[:299], 0.99).high == runs[:299].max()
    assert math.isinf(quantile_bounds(runs[:58], 0.95).high)
    assert quantile_bounds(runs[:59], 0.95).high == runs[:59].max()
    assert quantile_bounds(np.array([3.0]), 0.5) == (3, -math.inf, math.inf)


@given(st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_quantile_bounds_are_the_tightest_order_statistics(n, q):
    value, low, high = quantile_bounds(np.random.default_rng(n).permutation(n) + 1.0, q)
    assert value == max(1, math.ceil(n * q - 1e-9))
    assert low <= value <= high
    if math.isfinite(high):
        assert stats.binom.cdf(high - 1, n, q) >= 0.95
        assert stats.binom.cdf(high - 2, n, q) < 0.95
    else:
        assert stats.binom.cdf(n - 1, n, q) < 0.95
    if math.isfinite(low):
        assert stats.binom.sf(low - 1, n, q) >= 0.95
    assert stats.binom.sf(max(low, 0), n, q) < 0.95


@pytest.mark.parametrize(("values", "q"), [([], 0.5), ([1, math.nan], 0.5), ([1.0], 0), ([1.0], 1)])
def test_a_quantile_that_is_not_defined_is_refused(values, q):
    with pytest.raises(ValueError, match="not defined"):
        quantile_bounds(np.array(values), q)
