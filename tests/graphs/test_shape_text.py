import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import UsageError
from edgekit.graphs.shape_text import ShapeRange, parse_shape

dims = st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=6)
names = st.text(min_size=1, max_size=20)


@given(names, dims)
def test_one_shape_is_all_three(name, shape):
    text = "x".join(map(str, shape))
    assert parse_shape(f"{name}={text}") == ShapeRange(name, tuple(shape), tuple(shape), tuple(shape))


@given(names, st.lists(st.tuples(*[st.integers(1, 10**6)] * 3).map(sorted), min_size=1, max_size=5))
def test_a_range_is_three_shapes(name, rows):
    low, usual, high = (tuple(row[i] for row in rows) for i in range(3))
    text = "/".join("x".join(map(str, shape)) for shape in (low, usual, high))
    assert parse_shape(f"{name}={text}") == ShapeRange(name, low, usual, high)


def test_the_examples_of_the_remedy_are_right():
    assert parse_shape("x=1x3x224x224").opt == (1, 3, 224, 224)
    assert parse_shape("serving:0=a=4X8").name == "serving:0=a"
    assert parse_shape("x=1x3x96x96/4x3x96x96/8x3x96x96").max == (8, 3, 96, 96)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1x3x224x224", "no '='"),
        ("=1x3", "no '='"),
        ("x=", "not a shape"),
        ("x=1,3,224", "not a shape"),
        ("x=1x-3", "not a shape"),
        ("x=0x3", "not a shape"),
        ("x=1x²", "not a shape"),
        ("x=99999999999999999999999", "not a shape"),
        ("x=1x3/2x3", "2 shapes"),
        ("x=1x3/2x3/2x3x4", "different ranks"),
        ("x=4x3/2x3/8x3", "ascending"),
    ],
)
def test_what_is_wrong_is_said_with_an_example(text, words):
    with pytest.raises(UsageError, match=words) as error:
        parse_shape(text)
    assert "--shape x=1x3x224x224" in error.value.remedy


@given(st.text(max_size=40))
def test_any_text_is_a_shape_or_a_usage_error(text):
    try:
        found = parse_shape(text)
    except UsageError:
        return
    assert found.name
    assert len(found.min) == len(found.max) > 0
