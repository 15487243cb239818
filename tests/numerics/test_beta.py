import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from edgekit.numerics.beta import binomial_cdf, inverse_regularized_beta, regularized_beta

shapes = st.floats(-1, 6).map(lambda power: 10**power)


@given(shapes, shapes, st.floats(1e-6, 1 - 1e-6))
def test_both_directions_agree_with_scipy(a, b, p):
    x = special.betaincinv(a, b, p)
    if 1e-280 < x < 1:
        assert regularized_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-12)
        assert inverse_regularized_beta(p, a, b) == pytest.approx(x, rel=1e-9)


@given(shapes, shapes, st.floats(1e-4, 1 - 1e-4))
def test_the_inverse_inverts(a, b, p):
    x = inverse_regularized_beta(p, a, b)
    if 1e-280 < x < 0.999:  # closer to 1 a float has too few digits left to carry p
        assert regularized_beta(x, a, b) == pytest.approx(p, rel=1e-8)


@given(st.integers(0, 60), st.integers(1, 60), st.floats(0, 1))
def test_the_binomial_is_its_sum(k, n, p):
    expected = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(min(k, n) + 1))
    assert binomial_cdf(k, n, p) == pytest.approx(expected, abs=1e-12)


def test_ends_are_exact():
    assert regularized_beta(0, 2, 3) == 0
    assert regularized_beta(1, 2, 3) == 1
    assert inverse_regularized_beta(0, 2, 3) == 0
    assert inverse_regularized_beta(1, 2, 3) == 1
    assert binomial_cdf(-1, 5, 0.5) == 0
    assert inverse_regularized_beta(0.95, 1, 50) == pytest.approx(1 - 0.05 ** (1 / 50), rel=1e-15)


@pytest.mark.parametrize("arguments", [(-0.1, 1, 1), (0.5, 0, 1), (0.5, 1, -2), (math.nan, 1, 1)])
def test_what_is_undefined_is_refused(arguments):
    with pytest.raises(ValueError, match="needs 0 <="):
        regularized_beta(*arguments)
    with pytest.raises(ValueError, match="needs 0 <="):
        inverse_regularized_beta(*arguments)
