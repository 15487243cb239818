"""Axes that stay together are merged around a Transpose; the order of all numbers stays."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from edgekit.graphs.rank import merge_axes, merged
from edgekit.graphs.shapes import analyze
from graph_models import model, node, value


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=7), data=st.data())
def test_merged_axes_move_the_same_numbers(sizes, data):
    order = data.draw(st.permutations(range(len(sizes))))
    fewer, moved = merged(sizes, order)
    numbers = np.arange(math.prod(sizes))
    expected = numbers.reshape(sizes).transpose(order)
    np.testing.assert_array_equal(numbers.reshape(fewer).transpose(moved).ravel(), expected.ravel())
    assert len(fewer) <= max(len([size for size in sizes if size > 1]), 1)
    assert not any(first + 1 == second for first, second in itertools.pairwise(moved))


def shuffled(start, *steps):
    """Make a graph of Reshapes (lists of sizes) and Transposes (tuples of axes) of one input."""
    nodes, constants, last = [], {}, "x"
    for number, step in enumerate(steps):
        name = "y" if number == len(steps) - 1 else f"t{number}"
        if isinstance(step, tuple):
            nodes.append(node("Transpose", [last], [name], perm=list(step)))
        else:
            constants[f"s{number}"] = np.array(step)
            nodes.append(node("Reshape", [last, f"s{number}"], [name]))
        last = name
    shape = np.zeros(start)
    for step in steps:
        sizes = [size or shape.shape[axis] for axis, size in enumerate(step)]
        shape = shape.transpose(step) if isinstance(step, tuple) else shape.reshape(sizes)
    return model(nodes, [value("x", start)], [value("y", list(shape.shape))], constants)


WINDOWS = ([1, 2, 4, 2, 4, 6], (0, 1, 3, 2, 4, 5), [-1, 16, 6])
MADE = {
    "windows of attention": ([1, 64, 6], [1, 8, 8, 6], *WINDOWS),
    "windows and back": ([1, 8, 8, 6], *WINDOWS, [1, 2, 2, 4, 4, 6], (0, 1, 3, 2, 4, 5), [1, 8, 8, 6]),
    "windows to windows": ([1, 8, 8, 6], *WINDOWS[:2], [1, 2, 2, 4, 4, 6], (0, 1, 3, 2, 4, 5), [1, 64, 6]),
    "pixels unshuffled": ([1, 3, 8, 8], [1, 3, 4, 2, 4, 2], (0, 1, 3, 5, 2, 4), [1, 12, 4, 4]),
    "a zero means the size before": ([2, 3, 8, 8], [2, 3, 4, 2, 4, 2], (0, 1, 3, 5, 2, 4), [0, 12, 4, 4]),
}


@pytest.mark.parametrize("name", MADE)
def test_a_transpose_of_six_axes_becomes_one_of_five(name, tmp_path):
    given_model = shuffled(*MADE[name])
    x = np.random.default_rng(0).normal(size=MADE[name][0]).astype(np.float32)
    (expected,) = ReferenceEvaluator(given_model).run(None, {"x": x})
    count = sum(len(step) > 5 for step in MADE[name][1:] if isinstance(step, tuple))
    assert merge_axes(given_model, tmp_path, analyze(given_model), 5) == count
    assert max(len(one.attribute[0].ints) for one in given_model.graph.node if one.op_type == "Transpose") <= 5
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in given_model.graph.initializer}
    assert all(len(shapes[one.input[1]]) <= 5 for one in given_model.graph.node if one.op_type == "Reshape")
    (found,) = ReferenceEvaluator(given_model).run(None, {"x": x})
    np.testing.assert_array_equal(found, expected)


def test_what_is_read_with_its_axes_stays(tmp_path):
    six = ([1, 3, 4, 2, 4, 2], (0, 1, 3, 5, 2, 4))
    seen = shuffled([1, 3, 8, 8], *six)
    assert merge_axes(seen, tmp_path, analyze(seen), 5) == 0
    apart = shuffled([2, 3, 2, 2, 2, 2], (5, 4, 3, 2, 1, 0), [-1])
    assert merge_axes(apart, tmp_path, analyze(apart), 5) == 0
    plain = shuffled([2, 3, 4], [6, 4], (1, 0), [-1])
    assert merge_axes(plain, tmp_path, analyze(plain), 5) == 0
