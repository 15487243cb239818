import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgekit.numerics.ranges import BINS, METHODS, RangeMeter

ARRAYS = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32))


def meter_of(*arrays):
    meter = RangeMeter()
    for array in arrays:
        meter.add(array)
    return meter


@given(st.lists(ARRAYS, min_size=1, max_size=4))
def test_every_method_stays_inside_what_was_seen(arrays):
    meter = meter_of(*arrays)
    for method in METHODS:
        low, high = meter.range(method)
        assert meter.low <= low <= high <= meter.high
    assert meter.range("minmax") == (min(map(np.min, arrays)), max(map(np.max, arrays)))


@given(st.lists(ARRAYS, min_size=2, max_size=5), st.data())
@settings(max_examples=50)
def test_merging_is_the_same_as_adding_all(arrays, data):
    cut = data.draw(st.integers(1, len(arrays) - 1))
    merged, whole = meter_of(*arrays[:cut]).merge(meter_of(*arrays[cut:])), meter_of(*arrays)
    assert (merged.low, merged.high, merged.count) == (whole.low, whole.high, whole.count)
    assert (merged._counts == whole._counts).all()


def test_the_histogram_counts_every_element_in_its_bin():
    values = np.linspace(-0.9, 0.9, 4001, dtype=np.float32)
    meter = meter_of(values)
    expected = np.histogram(values.astype(np.float64), BINS, (-1, 1))[0]
    assert meter._counts.sum() == values.size
    assert np.abs(np.cumsum(meter._counts) - np.cumsum(expected)).max() <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_not_finite_is_told_and_not_counted(bad):
    meter = meter_of(np.ones(3, np.float32))
    assert not meter.add(np.array([0, bad, 5], np.float32))
    assert not meter.finite
    assert meter.range("minmax") == (1, 1)


@pytest.mark.parametrize("method", ["percentile", "entropy"])  # to `mse` one huge error may be worth it
def test_one_outlier_of_a_million_does_not_set_the_range(method):
    generator = np.random.default_rng(0)
    meter = RangeMeter()
    for _ in range(20):
        meter.add(generator.standard_normal(50_000).astype(np.float32))
    meter.add(np.array([300.0], np.float32))
    low, high = meter.range(method)
    assert high < 100 < meter.high
    assert low < -2


def test_mse_is_the_best_of_a_scan():
    generator = np.random.default_rng(1)
    values = generator.laplace(size=40_000).astype(np.float32)
    meter = meter_of(values)

    def error(limit):
        step = 2 * limit / 255
        return float(((np.clip(np.rint(values / step), -127, 127) * step - values) ** 2).mean())

    chosen = max(np.abs(meter.range("mse", symmetric=True)))
    best = min(error(limit) for limit in np.linspace(0.1, 1, 60) * np.abs(values).max())
    assert error(chosen) <= best * 1.05


def test_memory_does_not_grow_with_samples():
    meter = RangeMeter()
    meter.add(np.ones(10, np.float32))
    before = meter._counts.nbytes
    for scale in range(100):
        meter.add(np.full(10, 2.0**scale, np.float32))
    assert meter._counts.nbytes == before


def test_asking_an_empty_meter_or_one_without_histogram():
    with pytest.raises(ValueError, match="no values"):
        RangeMeter().range("minmax")
    meter = RangeMeter(histogram=False)
    meter.add(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="histogram"):
        meter.range("mse")
