"""The regularized incomplete beta function and its inverse: what exact binomial bounds are made of."""

from __future__ import annotations

import math

_TINY = 1e-300
_EPSILON = 1e-16
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)


def regularized_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b), the distribution function of Beta(a, b), to about 1e-12 relative (DLMF 8.17.22).

    Args:
        x: between 0 and 1.
        a: above 0.
        b: above 0.
    """
    if not (a > 0 and b > 0 and 0 <= x <= 1):
        raise ValueError(f"I_x(a, b) needs 0 <= x <= 1 and a, b > 0, got x={x}, a={a}, b={b}")
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _lower_tail(1 - x, b, a)
    return _lower_tail(x, a, b)


def inverse_regularized_beta(p: float, a: float, b: float) -> float:
    """Return the x with I_x(a, b) = p, to about 1e-12 relative: Newton steps kept inside a shrinking bracket.

    Args:
        p: between 0 and 1.
        a: above 0.
        b: above 0.
    """
    if not (a > 0 and b > 0 and 0 <= p <= 1):
        raise ValueError(f"the inverse of I_x(a, b) needs 0 <= p <= 1 and a, b > 0, got p={p}, a={a}, b={b}")
    if p in (0.0, 1.0):
        return p
    if a == 1:
        return -math.expm1(math.log1p(-p) / b)
    if b == 1:
        return math.exp(math.log(p) / a)
    low, high, x = 0.0, 1.0, a / (a + b)
    for _ in range(200):
        error = regularized_beta(x, a, b) - p
        low, high = (low, x) if error > 0 else (x, high)
        density = math.exp(_log_density(x, a, b))
        step = x - error / density if density > 0 else low
        following = step if low < step < high else (low + high) / 2
        if abs(following - x) <= 2 * _EPSILON * x:
            return following
        x = following
    return x


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return P(X <= k) for X ~ Binomial(n, p)."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return regularized_beta(1 - p, n - k, k + 1)


def _lower_tail(x: float, a: float, b: float) -> float:
    """I_x(a, b) where the continued fraction converges fast: x below about the mean; modified Lentz."""
    value, numerator, denominator = 1.0, 1.0, 0.0
    for step in range(1, 1_000_000):
        half = step // 2
        if step % 2:
            coefficient = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            coefficient = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        denominator = 1 / (1 + coefficient * denominator or _TINY)
        numerator = 1 + coefficient / numerator or _TINY
        change = numerator * denominator
        value *= change
        if abs(change - 1) < _EPSILON:
            break
    return math.exp(_log_density(x, a, b)) * x * (1 - x) / (a * value)


def _log_density(x: float, a: float, b: float) -> float:
    """Log of the density of Beta(a, b) at x.

    Written around the mode (C. Loader's saddle-point form) so that nothing large cancels when a and b are
    millions.
    """
    shift = x * b - a * (1 - x)
    exponent = a * _log_ratio(shift / a, x * (a + b) / a) + b * _log_ratio(-shift / b, (1 - x) * (a + b) / b)
    correction = _stirling_error(a + b) - _stirling_error(a) - _stirling_error(b)
    scale = 0.5 * math.log(a / (a + b) * b / (2 * math.pi))
    return exponent + correction + scale - math.log(x) - math.log1p(-x)


def _log_ratio(excess: float, ratio: float) -> float:
    """Log of a ratio that is also known as 1 + excess: from whichever of the two is the more precise."""
    return math.log1p(excess) if excess > -0.5 else math.log(ratio)  # noqa: PLR2004 -- half is exact in both


def _stirling_error(z: float) -> float:
    """Error of Stirling: ln Gamma(z) less (z - 1/2) ln z - z + ln(2 pi) / 2; DLMF 5.11.1."""
    if z < 15:  # noqa: PLR2004 -- from here the eight terms of the series are exact in double precision
        return math.lgamma(z) - (z - 0.5) * math.log(z) + z - 0.5 * math.log(2 * math.pi)
    return sum(term / z ** (2 * power + 1) for power, term in enumerate(_STIRLING))
