import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgekit.errors import InputError
from edgekit.numerics.distance import ColumnDistance, Distance

floats = st.floats(-1e6, 1e6, width=32)
pairs = hnp.array_shapes(min_dims=1, max_dims=3, max_side=6).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.float32, shape, elements=floats), hnp.arrays(np.float32, shape, elements=floats)
    )
)


def measure(a, b):
    found = Distance("y")
    found.add(a, b)
    return found


@given(pairs)
def test_distances_are_their_definitions(pair):
    a, b = (side.astype(np.float64) for side in pair)
    found = measure(*pair)
    noise, signal = ((a - b) ** 2).sum(), (a**2).sum()
    assert found.max_abs_error == np.abs(a - b).max()
    assert found.elements == a.size
    if noise == 0:
        assert found.sqnr_db == math.inf
    elif signal == 0:
        assert found.sqnr_db == -math.inf
    else:
        assert found.sqnr_db == pytest.approx(10 * np.log10(signal / noise), abs=1e-6)
    if signal and (b**2).sum():
        expected = float((a * b).sum() / np.sqrt(signal) / np.sqrt((b**2).sum()))
        assert found.cosine == pytest.approx(expected, abs=1e-9)


@given(pairs, st.integers(1, 5))
def test_batches_add_up(pair, size):
    whole, parts = measure(*pair), Distance("y")
    for start in range(0, len(pair[0]), size):
        parts.add(pair[0][start : start + size], pair[1][start : start + size])
    assert parts.max_abs_error == whole.max_abs_error
    assert parts.sqnr_db == pytest.approx(whole.sqnr_db, abs=1e-6)
    assert parts.cosine == pytest.approx(whole.cosine, abs=1e-9)


def test_long_tensors_are_summed_in_pieces():
    a = np.random.default_rng(0).normal(size=3_000_001).astype(np.float32)
    assert measure(a, a * np.float32(1.1)).sqnr_db == pytest.approx(20, abs=1e-4)
    assert measure(a, -a).cosine == -1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_infinitely_far(bad):
    clean = np.ones(3, np.float32)
    broken = np.array([1, bad, 1], np.float32)
    for found in (measure(clean, broken), measure(broken, clean)):
        assert found.sqnr_db == -math.inf
        assert found.max_abs_error == math.inf
        assert math.isnan(found.cosine)
        assert found.broken == 1
    # a mask of minus infinity, or a NaN that was there before, is no error of the candidate
    assert measure(broken, broken).sqnr_db == math.inf
    assert measure(broken, broken).broken == 0


def test_special_values():
    assert math.isnan(Distance().sqnr_db)
    assert math.isnan(measure(np.zeros(0), np.zeros(0)).cosine)
    assert measure(np.zeros(2), np.zeros(2)).cosine == 1
    assert measure(np.zeros(2), np.ones(2)).cosine == 0
    assert measure(np.array([True, False]), np.array([False, False])).max_abs_error == 1
    assert measure(np.array([2**40], np.int64), np.array([2**40 - 3], np.int64)).max_abs_error == 3


@pytest.mark.parametrize("make", [Distance, lambda name: ColumnDistance(-1, 3, name)])
def test_what_cannot_be_compared_is_refused_by_name(make):
    with pytest.raises(InputError, match=r"y: the original's shape is \[2, 3\], the candidate's \[3, 2\]"):
        make("y").add(np.ones((2, 3)), np.ones((3, 2)))
    with pytest.raises(InputError, match="y: a distance needs real numbers"):
        make("y").add(np.array(["a", "b", "c"]), np.array(["a", "b", "c"]))
    with pytest.raises(InputError, match="y: a distance needs real numbers"):
        make("y").add(np.ones(3, np.complex64), np.ones(3, np.complex64))


def test_columns_keep_their_length():
    with pytest.raises(InputError, match="y: axis -1 has 4 entries where there were 3"):
        ColumnDistance(-1, 3, "y").add(np.ones((2, 4)), np.ones((2, 4)))


@given(pairs, st.integers(0, 2), st.integers(1, 4))
def test_columns_are_their_definitions(pair, axis, size):
    axis = min(axis, pair[0].ndim - 1)
    found = ColumnDistance(axis, pair[0].shape[axis], "y")
    step_axis = 0 if axis else pair[0].ndim - 1
    whole = [np.moveaxis(side.astype(np.float64), axis, -1).reshape(-1, side.shape[axis]) for side in pair]
    if step_axis == axis:
        found.add(*pair)
    else:
        for start in range(0, pair[0].shape[step_axis], size):
            part = [np.take(side, range(start, min(start + size, side.shape[step_axis])), step_axis) for side in pair]
            found.add(*part)
    assert found.spans[0] == pytest.approx(np.ptp(whole[0], axis=0))
    assert found.spans[1] == pytest.approx(np.ptp(whole[1], axis=0))
    assert found.limits[1] == pytest.approx(whole[0].max(axis=0))
    variation = ((whole[0] - whole[0].mean(axis=0)) ** 2).sum(axis=0)
    noise = ((whole[0] - whole[1]) ** 2).sum(axis=0)
    for column, measured in enumerate(found.varied_sqnr_db):
        if noise[column] == 0:
            assert measured == math.inf
        elif variation[column] > 1e-9 * (whole[0][:, column] ** 2).sum():
            assert measured == pytest.approx(10 * np.log10(variation[column] / noise[column]), abs=1e-3)


def test_a_lost_column_hides_in_the_whole_but_not_in_its_own_figure():
    rng = np.random.default_rng(0)
    original = np.concatenate([rng.uniform(0, 640, (50, 4)), rng.random((50, 3))], axis=1)
    candidate = np.round(original / 5) * 5
    assert measure(original, candidate).sqnr_db > 45
    columns = ColumnDistance(-1, 7)
    columns.add(original, candidate)
    assert (columns.varied_sqnr_db[:4] > 40).all()
    assert (columns.varied_sqnr_db[4:] <= 0).all()
    assert (columns.spans[1, 4:] == 0).all()


def test_columns_leave_out_what_is_not_finite():
    columns = ColumnDistance(1, 2)
    columns.add(np.array([[1, 2], [math.nan, 4]]), np.array([[1, math.inf], [1, 4]]))
    assert (columns.spans == 0).all()
    assert (columns.varied_sqnr_db == math.inf).all()
