"""An array against the model's input: lossless or refused, with the axis and the dtype in the words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgekit.artifact import TensorSpec
from edgekit.data.conform import check_names, conform, numpy_dtype
from edgekit.data.faults import NonFiniteError
from edgekit.errors import InputError, UnsupportedError


def spec(dtype: str = "float32", shape=("b", 4)) -> TensorSpec:
    return TensorSpec(name="x", dtype=dtype, shape=shape)


def cast(array, dtype: str, shape=("b", 4)):
    notes = []
    return conform(np.asarray(array), spec(dtype, shape), where="s", notes=notes), [note.text for note in notes]


@pytest.mark.parametrize(
    ("given_dtype", "wanted"),
    [
        ("float64", "float32"), ("float16", "float32"), ("float32", "float16"), ("float64", "bfloat16"),
        ("int32", "int64"), ("int64", "int32"), ("uint8", "int64"), ("int64", "uint8"), ("bool", "int64"),
        ("int64", "bool"), ("float32", "int64"), ("float32", "uint8"), ("bool", "bool"), ("float32", "float32"),
    ],
)  # fmt: skip
def test_lossless_casts(given_dtype, wanted):
    values = np.array([[0, 1, 1, 0]]).astype(given_dtype)
    found, notes = cast(values, wanted)
    assert found.dtype == numpy_dtype(spec(wanted))
    np.testing.assert_array_equal(found.astype(np.float64), values.astype(np.float64))
    assert notes == ([] if given_dtype == wanted else [f"{given_dtype} cast to {wanted}, the dtype of the input"])


@pytest.mark.parametrize("given_dtype", ["uint8", "int8", "int64", "bool"])
@pytest.mark.parametrize("wanted", ["float32", "float16", "float64"])
def test_integers_never_become_floats_by_themselves(given_dtype, wanted):
    with pytest.raises(InputError, match=f"dtype {given_dtype}, model wants {wanted}; say which scaling"):
        cast(np.ones((1, 4), given_dtype), wanted)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
       ([[0.5, 1, 1, 1]], "int64"), ([[300, 0, 0, 0]], "uint8"), ([[-1, 0, 0, 0]], "uint8"),
        ([[2, 0, 0, 0]], "bool"),
        ([[2**40, 0, 0, 0]], "int32"), ([[1e39, 0, 0, 0]], "float32"), ([[70000.0, 0, 0, 0]], "float16"),
        ([[1j, 0, 0, 0]], "float32"), ([["a", "b", "c", "d"]], "float32"), ([[1.0, 2, 3, 4]], "string"),
        (np.zeros((1, 4), "M8[s]"), "int64"), (np.zeros((1, 4), object), "float32"),
    ],
)  # fmt: skip
def test_lossy_casts_are_refused(values, wanted):
    with pytest.raises(InputError, match="'x'"):
        cast(values, wanted)


@given(
    hnp.arrays(np.int64, 4, elements=st.integers(-(2**62), 2**62)),
    st.sampled_from(["int8", "uint8", "int16", "int32"]),
)
def test_integers_are_kept_or_refused(values, wanted):
    try:
        found, _ = cast(values, wanted)
    except InputError:
        limits = np.iinfo(wanted)
        assert values.min() < limits.min or values.max() > limits.max
    else:
        np.testing.assert_array_equal(found[0].astype(np.int64), values)


def test_strings_stay_strings():
    found, notes = cast([["a", "b", "c", "de"]], "string")
    assert found.tolist() == [["a", "b", "c", "de"]]
    assert notes == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_values_that_are_not_finite_are_refused(value, dtype):
    with pytest.raises(NonFiniteError, match="1 of 4 values"):
        cast(np.array([[0, value, 0, 0]], dtype), "float32")


def test_big_endian_becomes_native():
    found, notes = cast(np.arange(4, dtype=">f4")[None], "float32")
    assert found.dtype == np.dtype("=f4")
    assert found.tolist() == [[0, 1, 2, 3]]
    assert notes == []


def test_an_axis_that_the_model_declares_empty_is_empty():
    found, notes = cast(np.ones((1, 0), np.float32), "float32", ("b", 0))
    assert found.shape == (1, 0)
    assert notes == []


def test_an_axis_that_the_model_leaves_open_may_be_empty():
    """The past of a decoder at its first token."""
    found, notes = cast(np.ones((1, 0, 8), np.float32), "float32", ("b", "past", 8))
    assert found.shape == (1, 0, 8)
    assert notes == []


@pytest.mark.parametrize(
    ("shape", "wanted", "words"),
    [
        ((1, 5), ("b", 4), "axis 1 is 5, the model wants 4"),
        ((2, 4), (1, 4), "axis 0 is 2, the model wants 1"),
        ((1, 2, 4), ("b", 4), "3 axes, the model wants 2"),
        ((), ("b", 4), "0 axes, the model wants 2"),
        ((0, 4), ("b", 4), "axis 0 is empty"),
        ((1, 8, 8, 3), ("b", 3, 8, 8), r"NHWC and the model wants NCHW: declare transpose = \[2, 0, 1\]"),
        ((1, 3, 8, 8), ("b", 8, 8, 3), r"NCHW and the model wants NHWC: declare transpose = \[1, 2, 0\]"),
        ((1, 8, 3, 9), ("b", 3, 8, 9), r"transpose = \[1, 0, 2\]"),
        ((1, 50, 80), ("b", 80, 50), r"transpose = \[1, 0\]"),
    ],
)
def test_other_shapes_are_refused_with_the_axis(shape, wanted, words):
    with pytest.raises(InputError, match=words):
        cast(np.ones(shape, np.float32), "float32", wanted)


@pytest.mark.parametrize(
    ("shape", "wanted", "given_shape"),
    [((4,), ("b", 4), (1, 4)), ((4,), (1, 4), (1, 4)), ((4,), (4,), (4,)), ((), (), ()), ((3, 4), ("b", 4), (3, 4))],
)
def test_the_batch_axis_is_added_where_it_is_missing(shape, wanted, given_shape):
    assert cast(np.ones(shape, np.float32), "float32", wanted)[0].shape == given_shape


def test_a_missing_batch_axis_of_more_rows_is_not_guessed():
    with pytest.raises(InputError, match="1 axes, the model wants 2"):
        cast(np.ones(4, np.float32), "float32", (8, 4))


def test_unknown_dtypes_are_refused():
    with pytest.raises(UnsupportedError, match="float3"):
        numpy_dtype(spec("float3"))


def test_names_say_what_is_there():
    wanted = [spec(), TensorSpec(name="mask", dtype="float32", shape=("b",))]
    check_names({"x", "mask", "more"}, wanted, "s")
    with pytest.raises(InputError, match="'mask'; there are 'msk', 'x'") as caught:
        check_names({"x", "msk"}, wanted, "s")
    assert "Rename 'msk' to 'mask'" in caught.value.remedy
    with pytest.raises(InputError, match="inputs 'x', 'mask'; there are none"):
        check_names(set(), wanted, "s")
