"""Fits whose answer is known, and intervals whose coverage can be counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.numerics.fitting import fit_constants, leave_out, spread_factor

RNG = np.random.default_rng(3)
WORK = np.exp(RNG.normal(size=(30, 2)) * 2)
FREE = np.full(2, np.inf)


def roof(values):
    return np.maximum(WORK[:, 0] / values[0], WORK[:, 1] / values[1])


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 20), st.floats(0.05, 20))
def test_constants_are_found_again(one, two):
    true = np.array([one, two])
    found = fit_constants(roof, roof(true), np.ones(2), upper=FREE, prior=1e-4)
    assert found == pytest.approx(true, rel=0.02)


def test_an_outlier_pulls_little():
    true = np.array([2.0, 0.5])
    observed = roof(true)
    observed[4] *= 50
    found = fit_constants(roof, observed, np.ones(2), upper=FREE, prior=1e-4)
    assert found == pytest.approx(true, rel=0.05)


def test_what_the_points_do_not_tell_stays_where_it_was():
    found = fit_constants(lambda v: WORK[:, 0] / v[0], WORK[:, 0] / 3, np.array([1.0, 0.7]), upper=FREE, prior=1e-3)
    assert found == pytest.approx([3, 0.7], rel=1e-3)


def test_a_limit_is_kept():
    found = fit_constants(roof, roof(np.array([2.0, 0.5])), np.full(2, 0.5), upper=np.array([1.0, 9.0]), prior=1e-3)
    assert found[0] <= 1.0


def test_a_group_is_predicted_by_the_others():
    groups = ["a", "a", "b", "c"]
    seen = []

    def run(mask):
        seen.append(mask.tolist())
        return np.full(4, float(mask.sum()))

    assert leave_out(groups, run).tolist() == [2, 2, 3, 3]
    assert seen == [[False, False, True, True], [True, True, False, True], [True, True, True, False]]


def test_the_spread_is_the_quantile_of_the_errors():
    ratios = np.exp(np.linspace(-1, 1, 201))
    assert spread_factor(ratios, list(range(201)), 0.9) == pytest.approx(np.exp(0.91), abs=0.02)
    assert spread_factor(np.array([1.2, 1 / 1.5]), ["a", "b"]) == pytest.approx(1.5), "of two points the larger"


def test_groups_weigh_the_same():
    ratios = np.array([1.01] * 18 + [2.0, 2.0])
    many = ["a"] * 18 + ["b", "c"]
    assert spread_factor(ratios, list(range(20)), 0.6) == pytest.approx(1.01)
    assert spread_factor(ratios, many, 0.6) == pytest.approx(2.0)


def test_coverage():
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        errors = np.exp(rng.normal(0, 0.1, 20))
        covered.append(abs(np.log(np.exp(rng.normal(0, 0.1)))) <= np.log(spread_factor(errors, list(range(20)))))
    assert 0.86 <= np.mean(covered) <= 0.96
