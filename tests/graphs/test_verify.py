import numpy as np
import pytest

from edgekit.artifact import TensorSpec
from edgekit.errors import UnsupportedError
from edgekit.graphs.feeds import index_bounds, load_feeds, random_feed, save_feeds
from edgekit.graphs.sessions import compare_files, difference
from edgekit.graphs.verify import Agreement, compare, make_feeds, tolerance_of
from graph_models import INT64, floats, model, node, value
from house import MemorySamples


def test_differences_are_relative_to_the_largest_value():
    a = np.array([0.0, 10.0], np.float32)
    assert difference(a, a) == 0
    assert difference(a, np.array([0.01, 10.0], np.float32)) == pytest.approx(1e-3)
    assert difference(np.zeros(2), np.zeros(2)) == 0
    assert difference(np.zeros(2), np.full(2, 1e-9)) == np.inf


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0, np.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, np.nan]),
        ([1.0, np.inf], [1.0, -np.inf]),
        ([1.0, np.inf], [1.0, 3.0]),
        ([1.0, 2.0], [1.0, 2.0, 3.0]),
    ],
)
def test_other_shapes_and_other_places_of_nan_are_infinitely_far(a, b):
    assert difference(np.array(a), np.array(b)) == np.inf


def test_equal_places_of_nan_are_no_difference_and_integers_must_be_equal():
    assert difference(np.array([1.0, np.nan, np.inf]), np.array([1.0, np.nan, np.inf])) == 0
    assert difference(np.array([np.nan]), np.array([np.nan])) == 0
    assert difference(np.array([1, 2]), np.array([1, 2])) == 0
    assert difference(np.array([1, 2]), np.array([1, 3])) == np.inf
    assert difference(np.array([1], np.int32), np.array([1], np.int64)) == np.inf


def scaled(factor, **options):
    return model(
        [node("Mul", ["x", "k"], ["y"], name="mul")],
        [value("x", ["b", 4])],
        [value("y", ["b", 4])],
        {"k": np.float32(factor)},
        **options,
    )


def write(tmp_path, *models):
    paths = []
    for number, made in enumerate(models):
        (tmp_path / str(number)).mkdir()
        paths.append(tmp_path / str(number) / "model.onnx")
        paths[-1].write_bytes(made.SerializeToString())
    return paths


def test_two_files_are_compared_in_a_child(tmp_path):
    one, near, far, broken = write(tmp_path, scaled(1), scaled(1 + 1e-6), scaled(1.01), scaled(1, opset=99))
    feeds = [{"x": floats(2, 4)}, {"x": floats(2, 7)}]
    same = compare(one, near, feeds)
    assert same.same
    assert same.fits == (0,), "a feed that the first model does not run is left out"
    assert same.difference == pytest.approx(1e-6, rel=0.2)
    assert not compare(one, far, feeds).same
    assert compare(one, far, feeds, tolerance=0.1).same
    assert compare(one, broken, feeds).difference is None
    nothing = compare(one, near, feeds[1:])
    assert not nothing.same
    assert "does not run" in nothing.reason
    assert not compare(broken, one, feeds).same


def test_rounding_of_the_runtime_itself_is_allowed_but_not_much():
    def agreement(difference, noise):
        return Agreement(fits=(0,), difference=difference, tolerance=1e-4, noise=noise)

    assert agreement(1.5e-3, 1e-3).same
    assert not agreement(3e-3, 1e-3).same
    assert not agreement(0.5, 0.5).same, "a runtime that is wrong itself excuses nothing"


def test_outputs_that_nearly_vanish_for_one_sample_are_judged_by_all(tmp_path):
    def square(factor):
        return model(
            [node("Mul", ["x", "x"], ["s"]), node("Add", ["s", "k"], ["y"])],
            [value("x", [1])],
            [value("y", [1])],
            {"k": np.float32(factor)},
        )

    one, two = write(tmp_path, square(0), square(1e-9))
    tiny, usual = {"x": np.array([1e-4], np.float32)}, {"x": np.array([3], np.float32)}
    assert not compare(one, two, [tiny]).same
    assert compare(one, two, [tiny, usual]).same


def test_random_nodes_draw_the_same_in_both(tmp_path):
    made = model(
        [node("RandomNormalLike", ["x"], ["n"]), node("Add", ["x", "n"], ["y"])],
        [value("x", [2, 4])],
        [value("y", [2, 4])],
    )
    one, two = write(tmp_path, made, made)
    np.savez(tmp_path / "f.npz", **{"0.0": floats(2, 4)})
    answer = compare_files(str(one), str(two), str(tmp_path / "f.npz"), [["x"]], 1e-4)
    assert answer["difference"] == 0


def test_half_precision_may_move_more(tmp_path):
    single, half = write(tmp_path, scaled(1), scaled(1))
    made = model([], [], [], {"h": np.zeros(3, np.float16)})
    half.write_bytes(made.SerializeToString())
    assert tolerance_of(single) == 1e-4
    assert tolerance_of(half) == pytest.approx(4e-3, rel=0.1)


def specs(*rows):
    return [TensorSpec(name=name, dtype=dtype, shape=shape) for name, dtype, shape in rows]


def lookup():
    return model(
        [
            node("Unsqueeze", ["ids", "axis"], ["u"]),
            node("Gather", ["E", "u"], ["e"]),
            node("Mul", ["e", "mask"], ["y"]),
        ],
        [value("ids", ["b"], INT64), value("mask", ["b", 1, 3])],
        [value("y", ["b", 1, 3])],
        {"E": floats(7, 3), "axis": np.array([1], np.int64)},
    )


def test_random_feeds_fit_the_model(tmp_path):
    made = lookup()
    inputs = specs(
        ("ids", "int64", ("b",)), ("mask", "float32", ("b", 1, 3)), ("flag", "bool", ()), ("n", "int32", (9,))
    )
    bounds = index_bounds(made, inputs)
    assert bounds == {"ids": 7}
    feed = random_feed(inputs, {"b": 50}, bounds, seed=0)
    assert {name: (array.dtype.name, array.shape) for name, array in feed.items()} == {
        "ids": ("int64", (50,)),
        "mask": ("float32", (50, 1, 3)),
        "flag": ("bool", ()),
        "n": ("int32", (9,)),
    }
    assert set(feed["ids"]) == set(range(7))
    assert set(feed["n"]) <= {0, 1}
    assert feed["n"][0] == 1
    assert feed["mask"].min() < 0 <= random_feed(inputs, {"b": 50}, bounds, seed=1)["mask"].min()
    again = random_feed(inputs, {"b": 50}, bounds, seed=0)
    assert all(np.array_equal(feed[name], again[name]) for name in feed)
    with pytest.raises(UnsupportedError, match="float8"):
        random_feed(specs(("x", "float8_e9m9", (1,))), {}, {}, seed=0)


def test_feeds_survive_the_way_to_the_child(tmp_path):
    feeds = [{"file": floats(2), "a/b:0": np.array([[1]], np.int64)}, {"file": floats(3)}]
    names = save_feeds(tmp_path / "f.npz", feeds)
    back = load_feeds(tmp_path / "f.npz", names)
    assert [list(feed) for feed in back] == [["file", "a/b:0"], ["file"]]
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(feeds, back, strict=True) for name in a)


def test_real_samples_are_preferred_and_come_in_two_batch_sizes(tmp_path):
    samples = MemorySamples([{"x": floats(1, 4, seed=i), "label": np.zeros(1)} for i in range(5)])
    inputs = specs(("x", "float32", ("b", 4)))
    feeds = make_feeds(scaled(1), tmp_path, inputs, samples, seed=0)
    assert [feed["x"].shape for feed in feeds] == [(1, 4)] * 3 + [(3, 4)]
    assert all(list(feed) == ["x"] for feed in feeds)
    np.testing.assert_array_equal(feeds[0]["x"], samples.arrays[0]["x"])


def test_without_fitting_samples_there_are_random_ones(tmp_path):
    other = MemorySamples([{"z": floats(1, 4)}] * 5)
    dynamic = specs(("x", "float32", ("b", 4)))
    for samples in (None, other):
        feeds = make_feeds(scaled(1), tmp_path, dynamic, samples, seed=0)
        assert [feed["x"].shape for feed in feeds] == [(1, 4), (3, 4)]
    fixed = make_feeds(scaled(1), tmp_path, specs(("x", "float32", (2, 4))), None, seed=0)
    assert [feed["x"].shape for feed in fixed] == [(2, 4)] * 2
    wide = make_feeds(scaled(1), tmp_path, specs(("x", "float32", ("b", "w"))), None, seed=0)
    assert [feed["x"].shape for feed in wide] == [(b, w) for w in (16, 64, 224) for b in (1, 3)]
