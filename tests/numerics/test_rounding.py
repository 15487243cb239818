from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgekit.numerics.moments import Moments
from edgekit.numerics.rounding import Steps, refitted, round_layer, round_with_feedback


def layer(seed, groups=2, outputs=3, inputs=5, columns=60):
    """Correlated inputs with means, a float layer, and inputs as a quantized network would give them."""
    r = np.random.default_rng(seed)
    mix = r.normal(size=(groups, inputs, inputs)) * 0.4 + np.eye(inputs)
    x = (mix @ r.normal(size=(groups, inputs, columns)) + 0.5).astype(np.float32)
    w = r.normal(size=(groups, outputs, inputs)).astype(np.float32)
    return np.rint(x * 8).astype(np.float32) / 8, w, (w @ x + 0.3).astype(np.float32)


def moments(x, y):
    found = Moments.empty(x.shape[0], y.shape[1], x.shape[1])
    half = x.shape[2] // 3
    found.add(x[:, :, :half], y[:, :, :half])
    found.add(x[:, :, half:], y[:, :, half:])
    return found


@given(st.integers(0, 1000))
def test_the_error_of_any_weight_is_that_of_the_outputs(seed):
    x, w, y = layer(seed)
    q = np.rint(w * 3) / 3
    bias = np.random.default_rng(seed).normal(size=y.shape[:2])
    wanted = np.square(y - q @ x - bias[:, :, None]).sum(axis=2)
    rounding = 1e-6 * float(np.square(y).sum())  # products are summed in float32, and large ones cancel
    assert np.allclose(moments(x, y).error(q, bias), wanted, rtol=1e-4, atol=rounding)


@given(st.integers(0, 1000))
def test_centered_moments_count_the_error_with_the_best_bias(seed):
    x, w, y = layer(seed)
    q, found = np.rint(w * 3) / 3, moments(x, y)
    best = found.best_bias(q)
    assert np.allclose(best, (y - q @ x).mean(axis=2), atol=1e-4)
    assert np.allclose(found.centered().error(q), found.error(q, best), rtol=1e-3, atol=1e-4)
    assert (found.error(q, best) <= found.error(q, best + 0.01) + 1e-6).all()


def test_a_refit_without_ridge_is_least_squares_and_with_infinite_ridge_nothing():
    x, w, y = layer(1, groups=1)
    wanted = np.linalg.lstsq(x[0].T.astype(np.float64), y[0].T.astype(np.float64), rcond=None)[0].T
    assert np.allclose(refitted(w, moments(x, y), 1e-12)[0], wanted, atol=1e-4)
    assert np.array_equal(refitted(w, moments(x, y), np.inf), w.astype(np.float64))
    close, far = (np.abs(refitted(w, moments(x, y), s) - w).sum() for s in (10.0, 0.01))
    assert close < far


def test_feedback_comes_near_the_best_of_all_roundings():
    costs = []
    for seed in range(12):
        x, w, y = layer(seed, groups=1, outputs=1)
        found, scales = moments(x, y).centered(), np.full((1, 1), 0.25)
        low = np.floor(w[0, 0] / 0.25)
        tried = [low + np.array(up) for up in itertools.product((0, 1), repeat=5)]
        tried += [np.rint(w[0, 0] / 0.25), round_with_feedback(w, scales, found.xx)[0, 0].astype(float)]
        gaps = np.array(tried) * 0.25 - w[0, 0]
        errors = ((gaps @ found.xx[0]) * gaps).sum(axis=1)
        costs.append((errors[:-2].min(), errors[-2], errors[-1]))
    best, nearest, learned = np.array(costs).T
    assert learned.sum() < 1.25 * best.sum(), "five columns: nearly the best of all 32"
    assert learned.sum() < 0.7 * nearest.sum()


def test_feedback_halves_the_error_of_nearest_rounding_where_inputs_are_correlated():
    x, w, y = layer(3, groups=1, outputs=32, inputs=130, columns=4000)
    scales = np.abs(w).max(axis=2) / 7
    found = moments(x, y).centered()
    nearest = np.clip(np.rint(w / scales[:, :, None]), -7, 7)
    learned = round_with_feedback(w, scales, found.xx, (-7, 7))
    assert np.abs(learned).max() <= 7

    def cost(q):
        gap = q * scales[:, :, None] - w
        return ((gap @ found.xx) * gap).sum()

    assert cost(learned) < 0.5 * cost(nearest)


@given(st.integers(0, 200), st.booleans())
def test_a_chosen_rounding_is_never_worse_on_held_out_columns(seed, free_bias):
    x, w, y = layer(seed, columns=90)
    scales = np.abs(w).max(axis=2) / 7
    nearest = np.clip(np.rint(w / scales[:, :, None]), -7, 7).astype(np.int8)
    fit, held = moments(x[:, :, :60], y[:, :, :60]), moments(x[:, :, 60:], y[:, :, 60:])
    factors, least = (1.0, 0.8, 0.6), np.array([[0.7, 0.0, 1.0]])
    steps = Steps(scales=scales, bounds=(-8, 7), factors=factors, least=least)
    found = round_layer(w, nearest, steps, fit, held, free_bias=free_bias)
    judged = held.centered() if free_bias else held
    assert np.isclose(found.after, judged.error(found.values * found.scales[:, :, None]).sum(), rtol=1e-6)
    assert found.after <= found.before
    assert found.values.min() >= -8
    assert found.values.max() <= 7
    tried = found.scales / scales
    assert np.isclose(tried[..., None], [1.0, 0.8, 0.7, 0.6], rtol=1e-6).any(axis=2).all()
    assert (tried >= least - 1e-6).all(), "a bias that is counted in steps of the scale must still fit"


def test_with_four_bits_a_searched_scale_loses_less():
    """On columns that neither fit nor choice has seen."""
    plain, searched = 0.0, 0.0
    for seed in range(8):
        x, w, y = layer(seed, groups=1, outputs=16, inputs=40, columns=1500)
        scales = (np.abs(w).max(axis=2) / 7).astype(np.float32)
        nearest = np.clip(np.rint(w / scales[:, :, None]), -7, 7).astype(np.int8)
        fit, held, new = (moments(x[:, :, part], y[:, :, part]) for part in np.split(np.arange(1500), [800, 1100]))
        for factors in ((1.0,), (1.0, 0.9, 0.8, 0.7)):
            steps = Steps(scales=scales, bounds=(-8, 7), factors=factors)
            found = round_layer(w, nearest, steps, fit, held, free_bias=True)
            error = new.centered().error(found.values * found.scales[:, :, None]).sum()
            plain, searched = (plain + error, searched) if len(factors) == 1 else (plain, searched + error)
    assert searched < 0.85 * plain


def test_rows_of_zeros_and_inputs_that_are_always_zero_stay():
    x, w, y = layer(5)
    w[:, 0], x[:, 2] = 0, 0
    scales = np.maximum(np.abs(w).max(axis=2) / 127, np.finfo(np.float32).tiny)
    nearest = np.rint(w / scales[:, :, None]).astype(np.int8)
    found = round_layer(w, nearest, Steps(scales=scales), moments(x, y), moments(x, y), free_bias=True)
    assert not found.values[:, 0].any()
    assert np.isfinite(found.after)


def test_joined_moments_are_those_of_all_columns():
    x, _, y = layer(7)
    whole, parts = moments(x, y), moments(x[:, :, :20], y[:, :, :20]).plus(moments(x[:, :, 20:], y[:, :, 20:]))
    assert whole.count == parts.count
    assert np.allclose(whole.xx, parts.xx, rtol=1e-5)
    assert np.allclose(whole.yx, parts.yx, rtol=1e-5)
