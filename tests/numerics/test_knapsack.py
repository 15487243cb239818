from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.numerics.knapsack import least_cost, least_loss

WHOLE = st.integers(0, 12).map(float)
REAL = st.floats(0, 1e6, allow_nan=False, allow_subnormal=False)


def problems(number):
    option = st.tuples(number, number)
    return st.tuples(st.lists(st.lists(option, min_size=1, max_size=4), min_size=0, max_size=6), st.floats(0, 1))


def brute(items, budget):
    """The least loss, and the least cost that has it; None when nothing fits."""
    best = None
    for choice in itertools.product(*(range(len(options)) for options in items)):
        cost = sum(items[i][j][0] for i, j in enumerate(choice))
        loss = sum(items[i][j][1] for i, j in enumerate(choice))
        if cost <= budget and (best is None or (loss, cost) < best):
            best = loss, cost
    return best


def budget_of(items, share):
    least, most = (sum(pick(c for c, _ in options) for options in items) for pick in (min, max))
    return least + share * (most - least)


@settings(max_examples=300, deadline=None)
@given(problems(WHOLE))
def test_it_is_never_worse_than_trying_everything(problem):
    items, share = problem
    budget = float(int(budget_of(items, share)))
    found = least_loss(items, budget)
    assert found is not None
    assert (found.loss, found.cost) == brute(items, budget)
    assert found.exact
    assert found.bound == found.loss
    assert found.cost == sum(items[i][j][0] for i, j in enumerate(found.options))


@settings(max_examples=200, deadline=None)
@given(problems(REAL))
def test_it_is_never_worse_with_numbers_of_all_sizes(problem):
    items, share = problem
    budget = budget_of(items, share)
    found = least_loss(items, budget)
    assert found.cost <= budget * (1 + 1e-9) + 1e-9
    assert found.loss <= brute(items, budget)[0] * (1 + 1e-9) + 1e-9


@settings(max_examples=200, deadline=None)
@given(problems(WHOLE))
def test_the_least_cost_within_a_bound_of_the_loss(problem):
    items, share = problem
    turned = [[(loss, cost) for cost, loss in options] for options in items]
    bound = float(int(budget_of(turned, share)))
    found = least_cost(items, bound)
    assert (found.cost, found.loss) == brute(turned, bound)


def large(seed, count=300, options=6):
    rng = np.random.default_rng(seed)
    bits = np.array([3, 4, 5, 6, 8, 16][:options], np.float64)
    sizes = rng.lognormal(10, 1.5, count)
    return [[(float(size * b), float(rng.lognormal(0, 2) * 4.0**-b)) for b in bits] for size in sizes]


@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_layers_are_solved_exactly(seed):
    items = large(seed)
    budget = budget_of(items, 0.2)
    found = least_loss(items, budget)
    assert found.exact
    assert found.cost <= budget
    again = least_cost(items, found.loss)
    assert again.cost == pytest.approx(found.cost, rel=1e-9)
    assert least_loss(items, budget) == found


def test_with_few_states_the_gap_is_told():
    rng = np.random.default_rng(0)
    items = [[(0.0, float(w + v)), (float(w), float(v))] for w, v in rng.integers(500, 1000, (60, 2))]
    budget = budget_of(items, 0.5)
    rough, fine = least_loss(items, budget, most_states=4), least_loss(items, budget)
    assert fine.exact
    assert not rough.exact
    assert rough.bound <= fine.loss <= rough.loss
    assert rough.loss <= fine.loss * 1.01
    assert rough.cost <= budget


def test_what_cannot_fit_is_none_and_bad_numbers_are_refused():
    assert least_loss([[(2.0, 1.0)], [(2.0, 0.0)]], 3.9) is None
    assert least_loss([[(2.0, 1.0)], [(2.0, 0.0)]], 4.0).options == (0, 0)
    assert least_loss([], 0.0).options == ()
    for bad in ([], [(-1.0, 0.0)], [(0.0, float("nan"))], [(float("inf"), 0.0)]):
        with pytest.raises(ValueError, match="needs options"):
            least_loss([bad], 1.0)
