from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgekit.numerics.affine import dequantize_weight, quantize_weight, weight_scales
from edgekit.numerics.equalize import Precision, Reader, Seen, at_run_time, equalize, factors_of

PER_TOKEN = Precision()


def inputs(seed, channels=24, rows=40, outliers=3):
    r = np.random.default_rng(seed)
    x = r.normal(size=(rows, channels)).astype(np.float32)
    x[:, :outliers] *= 60
    return x, r.normal(size=(channels, 16)).astype(np.float32)


def matrix(w):
    """A MatMul's weight `[K, N]` as a reader."""
    return Reader(weights=np.ascontiguousarray(w.T)[None], channels=np.arange(len(w))[None])


def seen(x, rows=slice(None), readers=1):
    columns = np.ascontiguousarray(x[rows].T)[None]
    return Seen(low=x.min(axis=0), high=x.max(axis=0), columns=(columns,) * readers)


@given(st.integers(0, 500), st.floats(0, 1))
def test_factors_follow_the_formula_and_change_nothing_in_float(seed, alpha):
    x, w = inputs(seed)
    peaks = np.abs(x).max(axis=0)
    found = factors_of(peaks, [matrix(w)], alpha)
    wanted = peaks**alpha / np.abs(w).max(axis=1) ** (1 - alpha)
    wanted /= np.exp(np.log(wanted).mean())
    assert np.allclose(found, np.clip(wanted, 1 / 256, 256), rtol=1e-3)
    assert np.allclose((x / found) @ (w * found[:, None]), x @ w, rtol=1e-2, atol=1e-2)


def test_factors_of_a_convolution_are_those_of_channels_over_all_places():
    w = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)  # 2 groups of 2 channels, kernel 2
    reader = Reader(weights=w, channels=np.array([[0, 0, 1, 1], [2, 2, 3, 3]]))
    found = factors_of(np.ones(4, np.float32), [reader], 0.0)
    peaks = np.abs(w).max(axis=1).reshape(4, 2).max(axis=1)
    assert np.allclose(found * peaks, (found * peaks)[0], rtol=1e-5), "with alpha 0 all channels' weights reach as far"


def test_channels_or_rows_without_values_keep_factor_one():
    x, w = inputs(0)
    peaks = np.abs(x).max(axis=0)
    peaks[4], w[5] = 0, 0
    found = factors_of(peaks, [matrix(w)], 0.5)
    assert found[4] == found[5] == 1
    assert np.isfinite(found).all()


def relative(x, w, factors, rows):
    scaled = w * factors[:, None]
    scales = weight_scales(scaled, 1)
    q = dequantize_weight(quantize_weight(scaled, scales, 1), scales, 1)
    gaps = np.square(at_run_time(x / factors) @ q - x @ w).sum(axis=1) / np.square(x @ w).sum(axis=1)
    return gaps[rows].sum()


@given(st.integers(0, 500))
def test_what_is_found_has_the_error_it_tells_and_is_never_worse_on_held_out_samples(seed):
    (first, w), second = inputs(seed), inputs(seed + 1)[0]
    readers = [matrix(w[:, :10]), matrix(w[:, 10:])]
    found = equalize([seen(first, readers=2)], [seen(second, readers=2)], readers, PER_TOKEN)
    ones = np.ones(24, np.float32)
    assert np.isclose(found.plain, relative(second, w, ones, slice(None)), rtol=1e-2)
    assert np.isclose(found.error, relative(second, w, found.factors, slice(None)), rtol=1e-2)
    assert found.error <= found.plain
    assert found.kept != bool((found.factors == 1).all())


def test_channels_with_outliers_gain_several_fold():
    x, w = inputs(3)
    w *= np.where(np.arange(24) < 3, 0.02, 1)[:, None].astype(np.float32)
    for fixed in (False, True):
        found = equalize([seen(x)], [seen(inputs(4)[0])], [matrix(w)], Precision(fixed=fixed))
        assert found.kept
        assert found.error < found.plain / 4


def test_what_held_out_samples_do_not_confirm_is_left():
    """The samples that factors are fitted on have outliers in three channels, those to come in others."""
    x, w = inputs(3)
    w *= np.where(np.arange(24) < 3, 0.02, 1)[:, None].astype(np.float32)
    other = np.ascontiguousarray(inputs(4)[0][:, ::-1])
    assert equalize([seen(x)], [seen(x)], [matrix(w)], PER_TOKEN).kept
    found = equalize([seen(x)], [seen(other)], [matrix(w)], PER_TOKEN)
    assert not found.kept
    assert (found.factors == 1).all()
    assert found.error == found.plain


def test_weights_of_four_bits_gain_where_their_columns_differ():
    r = np.random.default_rng(0)
    x = r.normal(size=(60, 24)).astype(np.float32)
    w = (r.normal(size=(24, 16)) * np.exp(r.normal(size=24))[:, None]).astype(np.float32)
    found = equalize([seen(x[:40])], [seen(x[40:])], [matrix(w)], Precision(bits=4, levels=65535, each=False))
    assert found.error < found.plain / 1.5
    assert found.alpha < 0.5, "activations have 16 bits: the weights decide"


def test_only_judged_rows_count_but_the_grid_is_that_of_all():
    x, w = inputs(7)
    x[0] *= 50
    rows = np.arange(1, 40)
    found = equalize([seen(x, rows)], [seen(x, rows)], [matrix(w)], PER_TOKEN)
    assert np.isclose(found.error, relative(x, w, found.factors, rows), rtol=1e-2)
    assert found.plain > 10 * equalize([seen(x[1:])], [seen(x[1:])], [matrix(w)], PER_TOKEN).plain
