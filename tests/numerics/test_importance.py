"""Importance of channels and the choice among them: against definitions written out, and as properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.numerics.importance import (
    Candidates,
    choose,
    combined,
    gathered,
    largest_of_block,
    loss_without,
    norms,
    smallest,
    step_of,
    taylor,
)

floats = st.floats(-8, 8, width=32)


def weights(shape=(6, 5, 3)):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_norms_are_those_of_slices(axis):
    weight = weights()
    slices = [np.take(weight, index, axis).astype(np.float64).ravel() for index in range(weight.shape[axis])]
    np.testing.assert_allclose(norms(weight, axis, "l1"), [np.linalg.norm(row, 1) for row in slices])
    np.testing.assert_allclose(norms(weight, axis, "l2"), [np.linalg.norm(row, 2) for row in slices])


def test_taylor_is_the_change_of_a_linear_loss():
    weight, gradient = weights(), weights((6, 5, 3)) ** 3
    loss = float((weight.astype(np.float64) * gradient).sum())
    for index in range(5):
        without = weight.copy()
        without[:, index] = 0
        lost = loss - float((without.astype(np.float64) * gradient).sum())
        assert taylor(weight, gradient, 1)[index] == pytest.approx(lost)


def test_what_is_read_in_two_places_adds_up_before_the_magnitude():
    one, two = np.array([[1.0, -2.0, 3.0], [0.0, 2.0, -3.0]]), np.array([[-1.0, 1.0], [4.0, 0.0]])
    found = loss_without([(one, np.array([[0, 1], [1, 2]])), (two, np.array([[0], [1]]))])
    np.testing.assert_allclose(found, [(abs(1 - 2 - 1) + abs(0 + 2 + 4)) / 2, (abs(-2 + 3 + 1) + abs(2 - 3)) / 2])


def test_a_channel_of_several_indices_scores_their_mean():
    np.testing.assert_array_equal(gathered(np.arange(6.0), np.array([[0, 3], [1, 4], [2, 5]])), [1.5, 2.5, 3.5])


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_scores_do_not_depend_on_the_scale_of_a_layer(values, scale):
    one = np.array(values)
    other = one[::-1].copy()
    np.testing.assert_allclose(combined([one, other]), combined([one * scale, other]))
    assert combined([one]).mean() == pytest.approx(1)


def test_scores_of_nothing_are_alike():
    np.testing.assert_array_equal(combined([np.zeros(3), np.zeros(3)]), np.ones(3))


kinds = st.builds(
    lambda scores, weight, step, least: Candidates(scores=np.array(scores), weight=weight, step=step, least=least),
    st.lists(st.floats(0, 10), min_size=1, max_size=20),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 4),
)


@given(st.lists(kinds, min_size=1, max_size=5), st.floats(0, 1))
def test_what_stays_is_a_multiple_and_enough(candidates, share):
    target = share * sum(kind.weight * kind.scores.size for kind in candidates)
    found = choose(candidates, target)
    heaviest = max(kind.weight * kind.step for kind in candidates)
    removed = sum(kind.weight * gone.size for kind, gone in zip(candidates, found, strict=True))
    assert removed <= target + heaviest
    for kind, gone in zip(candidates, found, strict=True):
        left = kind.scores.size - gone.size
        assert len(set(gone.tolist())) == gone.size
        if gone.size:
            assert left >= kind.least
            assert left % kind.step == 0
            stays = np.delete(kind.scores, gone)
            assert kind.scores[gone].max() <= stays.min()


@given(st.lists(kinds, min_size=1, max_size=4))
def test_everything_goes_down_to_the_least(candidates):
    found = choose(candidates, float("inf"))
    for kind, gone in zip(candidates, found, strict=True):
        left = kind.scores.size - gone.size
        assert left >= 1
        assert gone.size == 0 or left - kind.step < max(kind.least, 1)


def test_the_least_important_go_first_across_layers():
    candidates = [
        Candidates(scores=np.array([5.0, 1.0, 4.0]), weight=1, step=1, least=1),
        Candidates(scores=np.array([2.0, 9.0, 8.0]), weight=1, step=1, least=1),
    ]
    assert [gone.tolist() for gone in choose(candidates, 2)] == [[1], [0]]
    assert [gone.tolist() for gone in choose(candidates, 3)] == [[1, 2], [0]]


def test_a_layer_gets_dearer_the_more_it_lost():
    cheap, other = np.linspace(1.0, 1.1, 10), np.linspace(2.0, 2.1, 10)
    kinds = [Candidates(scores=scores, weight=1, step=1, least=1) for scores in (cheap, other)]
    one, two = (gone.size for gone in choose(kinds, 9))
    assert (one, two) == (6, 3)
    assert [gone.size for gone in choose(kinds, 8, even=True)] == [4, 4]


def test_layers_that_go_together_lose_equally_many():
    scores = np.array([[1.0, 2.0, 3.0, 4.0], [9.0, 8.0, 7.0, 6.0]])
    (gone,) = choose([Candidates(scores=scores, weight=2, step=2, least=1)], 3)
    np.testing.assert_array_equal(gone, [[0, 1], [2, 3]])


@given(st.integers(1, 64), st.lists(st.integers(1, 96), min_size=1, max_size=4))
def test_a_step_is_the_smallest_that_keeps_widths_multiples(multiple, counts):
    step = step_of(multiple, counts)
    assert all(step * count % multiple == 0 for count in counts)
    assert not any(all(less * count % multiple == 0 for count in counts) for less in range(1, step))


@given(st.lists(floats, min_size=1, max_size=40), st.floats(0, 1))
def test_the_smallest_go(values, share):
    array = np.array(values, np.float32)
    kept = smallest(array, share)
    assert (~kept).sum() == int(share * len(values))
    if kept.any() and not kept.all():
        assert np.abs(array[~kept]).max() <= np.abs(array[kept]).min()


@given(st.integers(1, 4), st.integers(1, 20), st.integers(0, 4))
def test_of_every_block_the_largest_stay(rows, columns, keep):
    values = np.random.default_rng(columns).normal(size=(rows, columns))
    kept = largest_of_block(values, keep, 4)
    whole = columns // 4 * 4
    assert kept[:, whole:].all()
    for row, held in zip(values, kept, strict=True):
        for start in range(0, whole, 4):
            block, mask = np.abs(row[start : start + 4]), held[start : start + 4]
            assert mask.sum() == keep
            assert keep in (0, 4) or block[mask].min() >= block[~mask].max()
