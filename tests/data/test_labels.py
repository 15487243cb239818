"""Labels: by name wherever there are names, never guessed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.data.labels import Given, Names, encode
from edgekit.errors import InputError


def encoded(values, *, data=(), ordered=False, model=(), folders=False, rows=1):
    ids = [f"s{index}" for index in range(len(values))]
    names = Names(data=tuple(data), ordered=ordered, model=tuple(model), where="data")
    given_ = Given(values=values, ids=ids, folders=folders, rows=rows)
    arrays, classes, findings = encode({"evaluation": given_}, names)
    return arrays["evaluation"], classes, {finding.rule for finding in findings}


@pytest.mark.parametrize(
    "values", [[0, 2, 1], np.array([0, 2, 1], np.uint8), ["0", "2", "1"], [np.int32(0), 2, np.array(1)]]
)
def test_integers_are_the_models_indices(values):
    array, classes, _ = encoded(values, model=("a", "b", "c"))
    assert array.tolist() == [0, 2, 1]
    assert array.dtype == np.int64
    assert classes == ("a", "b", "c")


@pytest.mark.parametrize("values", [[0.5, 2, 1], np.array([0.5, 2, 1], np.float32), ["0.5", "2", "1e0"]])
def test_fractions_are_targets(values):
    array, classes, _ = encoded(values, model=("score",))
    assert array.tolist() == [0.5, 2, 1]
    assert array.dtype == np.float64
    assert classes == ()


def test_names_are_sorted_where_no_order_is_known():
    array, classes, _ = encoded(["dog", " cat", "dog"])
    assert array.tolist() == [1, 0, 1]
    assert classes == ("cat", "dog")


@given(st.permutations(["ape", "bee", "cat", "dog"]), st.permutations(["ape", "bee", "cat", "dog"]))
def test_the_label_order_of_data_and_model_may_differ(data, model):
    array, classes, rules = encoded([0, 1, 2, 3], data=data, model=model)
    assert [classes[index] for index in array] == data
    assert classes == tuple(model)
    assert ("data-labels-by-name" in rules) == (data != model)
    array, classes, _ = encoded(data, model=model)
    assert [classes[index] for index in array] == data


def test_class_counts_that_differ_are_refused():
    names = [f"c{index}" for index in range(1000)]
    with pytest.raises(InputError, match="the data has 1000 classes, the model 10"):
        encoded([0, 999], data=names, model=[*names[:9], "other"])
    with pytest.raises(InputError, match="the data has 2 classes, the model 3"):
        encoded(["cat", "dog"], model=("LABEL_0", "LABEL_1", "LABEL_2"))


def test_placeholder_names_of_the_model_give_way_to_the_datas():
    array, classes, _ = encoded(["dog", "cat"], model=("LABEL_0", "LABEL_1"))
    assert (array.tolist(), classes) == ([1, 0], ("cat", "dog"))


def test_names_that_the_model_does_not_know_are_refused():
    with pytest.raises(InputError, match="does not name: n01, n02") as caught:
        encoded(["n01", "n02"], model=("tench", "goldfish"))
    assert "labels.txt" in caught.value.remedy


def test_a_declared_order_maps_other_names_with_a_warning():
    array, classes, rules = encoded(["n02", "n01"], data=("n01", "n02"), ordered=True, model=("tench", "goldfish"))
    assert (array.tolist(), classes) == ([1, 0], ("n01", "n02"))
    assert "data-label-names" in rules
    with pytest.raises(InputError, match="does not name: n01"):
        encoded(["n01"], data=("n01", "tench"), ordered=True, model=("tench", "goldfish"))


@pytest.mark.parametrize(
    ("values", "model", "words"),
    [
        ([0, 3], ("a", "b", "c"), r"label 3, there are 3 classes \(0 .. 2\)"),
        ([0, -1], ("a", "b"), "label -1"),
        ([0, -1], (), "label -1 is negative"),
        ([0, None], (), "1 of 2 samples have no label: s1"),
        (["a", " "], (), "1 of 2 samples have no label: s1"),
        ([0.5, float("nan")], (), "not a finite number"),
        (np.array([1j, 0]), (), "complex"),
    ],
)
def test_wrong_labels_name_the_sample(values, model, words):
    with pytest.raises(InputError, match=words) as caught:
        encoded(values, model=model)
    assert caught.value.where in {"s0", "s1"}


def test_one_hot_rows_become_indices():
    array, _, rules = encoded(np.eye(3, dtype=np.float32)[[2, 0]])
    assert array.tolist() == [2, 0]
    assert "data-labels-one-hot" in rules
    array, _, rules = encoded(np.array([[0, 1], [1, 0]]), rows=2)
    assert array.tolist() == [[0, 1], [1, 0]]
    assert rules == set()


def test_dense_and_ragged_targets_stay_what_they_are():
    masks = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(encoded(masks)[0], masks)
    assert encoded(masks)[0].dtype == np.uint8
    boxes = [np.zeros((2, 4), np.float32), np.ones((1, 4), np.float32)]
    found = encoded(boxes)[0]
    assert found.dtype == object
    assert [box.shape for box in found] == [(2, 4), (1, 4)]


def test_positions_without_a_label_are_kept_in_token_labels():
    tokens = np.array([[-100, 0, 1], [1, 1, -100]])
    assert encoded(tokens, model=("b", "a"))[0].tolist() == tokens.tolist()
    assert encoded(tokens, data=("a", "b"), model=("b", "a"))[0].tolist() == [[-100, 1, 0], [0, 0, -100]]
    with pytest.raises(InputError, match="label 2"):
        encoded(np.array([[-100, 0, 2]]), model=("b", "a"))


def test_a_column_is_flattened():
    assert encoded(np.array([[1], [0]]))[0].tolist() == [1, 0]


def test_folders_that_are_numbers_keep_their_number():
    array, classes, rules = encoded(["10", "2", "0"], folders=True)
    assert (array.tolist(), classes) == ([2, 1, 0], ("0", "2", "10"))
    assert "data-label-order" in rules
    array, classes, rules = encoded(["1", "0"], folders=True)
    assert (array.tolist(), classes, rules) == ([1, 0], ("0", "1"), set())
    array, classes, _ = encoded(["1", "0"], folders=True, model=("1", "0"))
    assert (array.tolist(), classes) == ([0, 1], ("1", "0"))
