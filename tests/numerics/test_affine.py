import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgekit.numerics import affine

FINITE = st.floats(-1e6, 1e6, allow_nan=False, width=32)
ARRAYS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=4, max_side=5), elements=FINITE)


@given(FINITE, FINITE, st.sampled_from(["int8", "uint8", "int16", "uint16"]), st.booleans())
def test_a_value_in_range_comes_back_within_a_step_and_zero_exactly(a, b, dtype, symmetric):
    low, high = min(a, b), max(a, b)
    if affine.is_dead(low, high):
        with pytest.raises(ValueError, match="no grid"):
            affine.activation_grid(low, high, dtype, symmetric=symmetric)
        return
    grid = affine.activation_grid(low, high, dtype, symmetric=symmetric)
    values = np.linspace(min(low, 0), max(high, 0), 17).astype(np.float32)
    back = affine.dequantize(affine.quantize(values, grid), grid)
    assert np.abs(back - values).max() <= grid.scale * 1.01
    assert affine.dequantize(affine.quantize(np.zeros(1, np.float32), grid), grid)[0] == 0
    if symmetric and dtype.startswith("int"):
        assert grid.zero_point == 0


@pytest.mark.parametrize(("low", "high"), [(np.nan, 1), (0, np.inf), (1, 0), (0, 0)])
def test_no_grid_for_a_range_that_is_none(low, high):
    with pytest.raises(ValueError, match="no grid"):
        affine.activation_grid(low, high, "uint8", symmetric=False)


@given(st.floats(2.0**-7, 2.0**14, width=32))
def test_within_keeps_the_top_of_the_grid_under_the_clip(high):
    grid = affine.within(affine.activation_grid(0.0, high, "uint8", symmetric=False), 0.0, high)
    assert np.float32(grid.scale) * np.float32(255) <= np.float32(high)
    assert grid.high == pytest.approx(high, rel=1e-5)


@given(
    st.floats(-(2.0**10), 0, width=32), st.floats(0, 2.0**10, width=32), st.sampled_from(["uint8", "int8", "uint16"])
)
def test_within_keeps_both_ends_inside_and_most_of_the_range(low, high, dtype):
    if affine.is_dead(low, high):
        return
    given_grid = affine.activation_grid(low, high, dtype, symmetric=False)
    grid = affine.within(given_grid, low, high)
    assert np.float32(low) <= np.float32(grid.low)
    assert np.float32(grid.high) <= np.float32(high)
    least, most = affine.BOUNDS[dtype]
    assert (most - least) * grid.scale >= (high - low) - 1.51 * given_grid.scale
    assert grid.scale <= given_grid.scale


def test_bounds_without_zero_leave_a_grid_as_it_is():
    grid = affine.activation_grid(1.0, 6.0, "uint8", symmetric=False)
    assert affine.within(grid, 1.0, 6.0) == grid


@given(ARRAYS, st.data())
def test_weights_come_back_within_half_a_step_of_their_slice(weights, data):
    axis = data.draw(st.none() | st.integers(0, weights.ndim - 1))
    scales = affine.weight_scales(weights, axis)
    values = affine.quantize_weight(weights, scales, axis)
    assert values.dtype == np.int8
    assert values.min() >= -127
    error = np.abs(affine.dequantize_weight(values, scales, axis) - weights)
    steps = scales if axis is None else scales.reshape([-1 if i == axis else 1 for i in range(weights.ndim)])
    alive = np.abs(weights) > np.finfo(np.float32).tiny * 127  # below, a slice counts as zeros
    assert (error[alive] <= np.broadcast_to(steps * 0.51, weights.shape)[alive]).all()


def test_fewer_bits_use_fewer_levels():
    weights = np.linspace(-1, 1, 30, dtype=np.float32).reshape(3, 10)
    values = affine.quantize_weight(weights, affine.weight_scales(weights, 0, bits=7), 0, bits=7)
    assert (values.min(), values.max()) == (-63, 63)


@given(ARRAYS, FINITE, st.floats(2.0**-20, 2.0**10, width=32), st.booleans())
def test_a_bias_survives_whatever_the_weights_are(weights, bias, input_scale, per_channel):
    axis = 0 if per_channel else None
    biases = np.full(weights.shape[0], bias, np.float32)
    tiny = np.where(affine.empty_slices(weights, axis), 1e-38, affine.weight_scales(weights, axis)).astype(np.float32)
    scales = affine.scales_for_bias(tiny, weights, axis, biases, input_scale)
    steps = np.maximum(scales * np.float32(input_scale), 1e-38).astype(np.float32)
    back = affine.quantize_bias(biases, steps).astype(np.float64) * steps
    assert (np.abs(back - biases) <= steps * 0.51 + np.abs(biases) * 1e-6).all()
    if per_channel:
        dead = ~weights.any(axis=tuple(range(1, weights.ndim)))
        assert np.allclose(back[dead], biases[dead], rtol=1e-5)


def test_a_channel_of_zeros_keeps_its_bias():
    weights = np.ones((2, 3, 1, 1), np.float32)
    weights[1] = 0
    bias = np.array([0.1, 0.37], np.float32)
    scales = affine.scales_for_bias(np.array([1 / 127, 1e-38], np.float32), weights, 0, bias, 0.94)
    steps = scales * np.float32(0.94)
    assert affine.quantize_bias(bias, steps)[1] * steps[1] == pytest.approx(0.37, rel=1e-5)
