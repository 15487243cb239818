from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgekit.numerics.affine import dequantize_weight, quantize_weight, weight_scales
from edgekit.numerics.equalize import at_run_time, equalize, factors_of


def inputs(seed, channels=24, rows=40, outliers=3):
    r = np.random.default_rng(seed)
    x = r.normal(size=(rows, channels)).astype(np.float32)
    x[:, :outliers] *= 60
    return x, r.normal(size=(channels, 16)).astype(np.float32)


@given(st.integers(0, 500), st.floats(0, 1))
def test_factors_follow_the_formula_and_change_nothing_in_float(seed, alpha):
    x, w = inputs(seed)
    peaks = np.abs(x).max(axis=0)
    found = factors_of(peaks, [w], alpha)
    wanted = peaks**alpha / np.abs(w).max(axis=1) ** (1 - alpha)
    wanted /= np.exp(np.log(wanted).mean())
    assert np.allclose(found, np.clip(wanted, 1 / 256, 256), rtol=1e-3)
    assert np.allclose((x / found) @ (w * found[:, None]), x @ w, rtol=1e-2, atol=1e-2)


def test_channels_or_rows_without_values_keep_factor_one():
    x, w = inputs(0)
    peaks = np.abs(x).max(axis=0)
    peaks[4], w[5] = 0, 0
    found = factors_of(peaks, [w], 0.5)
    assert found[4] == found[5] == 1
    assert np.isfinite(found).all()


def relative(x, w, factors, rows):
    scaled = w * factors[:, None]
    scales = weight_scales(scaled, 1)
    q = dequantize_weight(quantize_weight(scaled, scales, 1), scales, 1)
    gaps = np.square(at_run_time(x / factors) @ q - x @ w).sum(axis=1) / np.square(x @ w).sum(axis=1)
    return gaps[rows].sum()


@given(st.integers(0, 500))
def test_what_is_found_has_the_error_it_tells_and_is_never_worse(seed):
    samples, w = [inputs(seed)[0], inputs(seed + 1)[0]], inputs(seed)[1]
    found = equalize(samples, [w[:, :10], w[:, 10:]])
    ones = np.ones(24, np.float32)
    assert np.isclose(found.plain, sum(relative(x, w, ones, slice(None)) for x in samples), rtol=1e-2)
    assert np.isclose(found.error, sum(relative(x, w, found.factors, slice(None)) for x in samples), rtol=1e-2)
    assert found.error <= found.plain
    assert (found.alpha == 0) == bool((found.factors == 1).all())


def test_channels_with_outliers_gain_several_fold():
    found = equalize([inputs(3)[0]], [inputs(3)[1] * np.where(np.arange(24) < 3, 0.02, 1)[:, None].astype(np.float32)])
    assert found.alpha > 0
    assert found.error < found.plain / 4


def test_only_judged_rows_count_but_the_grid_is_that_of_all():
    x, w = inputs(7)
    x[0] *= 50
    rows = np.arange(1, 40)
    found = equalize([x], [w], judged=[rows])
    assert np.isclose(found.error, relative(x, w, found.factors, rows), rtol=1e-2)
    assert found.plain > 10 * equalize([x[1:]], [w]).plain
