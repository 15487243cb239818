import numpy as np
import pytest

from edgekit.numerics.output_distance import EXACT_DB, OutputDistance, decibels


def distance(*pairs):
    found = OutputDistance()
    for a, b in pairs:
        found.add(np.asarray(a), np.asarray(b))
    return found


def test_ratio_cosine_and_worst_sample():
    found = distance(([[1.0, 0.0]], [[1.0, 0.1]]), ([[1.0, 0.0]], [[1.0, 0.0]]))
    assert found.sqnr == pytest.approx(10 * np.log10(2 / 0.01))
    assert found.worst == pytest.approx(20)
    assert found.cosine == pytest.approx(2 / np.sqrt(2 * 2.01))
    assert found.largest == pytest.approx(0.1)


def test_nothing_lost_and_nothing_there():
    assert distance(([0.0], [0.0])).sqnr == EXACT_DB
    assert distance(([0.0], [1.0])).sqnr == -EXACT_DB
    assert decibels(1, 0) == EXACT_DB


def test_integers_are_counted():
    found = distance((np.array([1, 2, 3, 4]), np.array([1, 2, 0, 4])))
    assert found.equal == 0.75
    assert found.sqnr == EXACT_DB


def test_other_shapes_and_new_infinities_are_incomparable_and_old_ones_are_not():
    assert "shape is [3]" in distance((np.zeros(2, np.float32), np.zeros(3, np.float32))).incomparable
    assert "NaN or infinite" in distance(([1.0], [np.nan])).incomparable
    both = distance(([1.0, -np.inf], [1.0, -np.inf]))
    assert not both.incomparable
    assert both.sqnr == EXACT_DB


def test_a_lost_column_is_named_though_the_whole_is_fine():
    generator = np.random.default_rng(0)
    boxes, scores = generator.uniform(0, 640, (1, 50, 4)), generator.uniform(0, 1, (1, 50, 2))
    a = np.concatenate([boxes, scores], axis=2)
    b = a.copy()
    b[..., 4] = 0
    found = distance((a, b))
    assert found.sqnr > 40
    assert found.lost_columns(3.0) == ["column 4 of axis 2 is constant"]


def test_negligible_and_ragged_columns_do_not_count():
    a = np.array([[1000.0, 1e-4]])
    assert not distance((a, a * [1, 0])).lost_columns(3.0)
    ragged = distance((np.ones((1, 2)), np.ones((1, 2))), (np.ones((1, 3)), np.zeros((1, 3))))
    assert not ragged.lost_columns(3.0)


def test_columns_of_few_values_say_nothing():
    """One sample of a classifier has one value in each column: a small one has a large relative error."""
    reference, wrong = np.array([[5.0, 0.01, -3.0]]), np.array([[5.0, 0.03, -3.0]])
    few, enough = OutputDistance(), OutputDistance()
    few.add(reference, wrong)
    for _ in range(8):
        enough.add(reference, wrong)
    assert not few.lost_columns(3.0)
    assert len(enough.lost_columns(3.0)) == 1
