"""Memory plans against ones worked out by hand, and the arena against what must hold for any."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.graphs.cost import cost_of
from edgekit.graphs.memory import ALIGNMENT, _arena, _Block, plan_memory
from graph_models import LIGHT, floats, model, node, value

PLANE = 4 * 4 * 8 * 8
"""Bytes of [1, 4, 8, 8] float32."""


def plan(made, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return plan_memory(cost_of(path))


def conv(source, made, weight="w"):
    return node("Conv", [source, weight], [made], pads=[1, 1, 1, 1])


def chain(nodes, tmp_path, last="y"):
    weights = {"w": floats(4, 4, 3, 3)}
    return plan(model(nodes, [value("x", [1, 4, 8, 8])], [value(last, None)], weights), tmp_path)


def test_two_tensors_of_a_chain_live_at_once(tmp_path):
    found = chain([conv("x", "a"), conv("a", "b"), conv("b", "c"), conv("c", "y")], tmp_path)
    assert found.live_bytes == found.arena_bytes == 2 * PLANE


def test_a_residual_branch_lives_on(tmp_path):
    found = chain([conv("x", "a"), conv("a", "b"), conv("b", "c"), node("Add", ["c", "a"], ["y"])], tmp_path)
    assert found.live_bytes == 3 * PLANE
    assert {name for name, _ in found.tensors} <= {"a", "b", "c", "y"}


def test_what_a_kernel_makes_for_itself_takes_nothing(tmp_path):
    found = chain([conv("x", "a"), node("Sigmoid", ["a"], ["s"]), node("Mul", ["a", "s"], ["y"])], tmp_path)
    assert found.live_bytes == 2 * PLANE


def test_views_take_nothing(tmp_path):
    made = [conv("x", "a"), node("Flatten", ["a"], ["f"]), node("Softmax", ["f"], ["y"])]
    assert chain(made, tmp_path).live_bytes == 2 * PLANE


def test_a_pointwise_kernel_writes_over_its_input(tmp_path):
    made = [conv("x", "a"), node("Softmax", ["a"], ["s"]), node("Relu", ["s"], ["r"]), node("Softmax", ["r"], ["y"])]
    assert chain(made, tmp_path).live_bytes == 2 * PLANE
    alone = chain([node("Relu", ["x"], ["y"])], tmp_path)
    assert alone.live_bytes == 2 * PLANE, "the caller's input is not written over"


def test_an_input_that_is_read_again_is_not_written_over(tmp_path):
    made = [
        node("Softmax", ["x"], ["s"]),
        node("Relu", ["s"], ["r"]),
        node("Softmax", ["r"], ["t"]),
        node("Add", ["t", "s"], ["y"]),
    ]
    assert chain(made, tmp_path).live_bytes == 3 * PLANE


def test_a_concat_copies(tmp_path):
    made = [conv("x", "a"), conv("a", "b"), node("Concat", ["a", "b"], ["k"], axis=1), node("Softmax", ["k"], ["y"])]
    found = chain(made, tmp_path)
    assert found.live_bytes == 4 * PLANE
    assert found.tensors[0] == ("k", 2 * PLANE)


def test_outputs_live_to_the_end(tmp_path):
    weights = {"w": floats(4, 4, 3, 3)}
    made = model(
        [conv("x", "a"), conv("a", "b"), conv("b", "c"), conv("c", "y")],
        [value("x", [1, 4, 8, 8])],
        [value("a", None), value("y", None)],
        weights,
    )
    assert plan(made, tmp_path).live_bytes == 3 * PLANE


def test_a_model_without_kernels(tmp_path):
    made = model([node("Identity", ["x"], ["y"])], [value("x", [1, 4, 8, 8])], [value("y", [1, 4, 8, 8])])
    assert plan(made, tmp_path).live_bytes in {0, PLANE}


@pytest.mark.parametrize("name", ["squeezenet", "resnet50", "densenet121"])
def test_real_networks(name):
    cost = cost_of(LIGHT / f"light_{name}.onnx")
    found = plan_memory(cost)
    largest = max(row.input_bytes + row.output_bytes for row in cost.rows)
    assert largest / 2 < found.live_bytes <= found.arena_bytes <= 1.2 * found.live_bytes
    assert found.arena_bytes < cost.activation_bytes
    assert any(row.node == found.node for row in cost.rows)


blocks = st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=25)


@given(blocks)
def test_an_arena_holds_what_lives(drawn):
    made = [_Block(str(at), size * ALIGNMENT, start, start + life) for at, (size, start, life) in enumerate(drawn)]
    live = max(sum(b.size for b in made if b.start <= step <= b.stop) for step in range(20))
    assert live <= _arena(made) <= sum(block.size for block in made)


def test_the_arena_of_disjoint_lives_is_the_largest_of_them():
    made = [_Block(str(at), size, at, at) for at, size in enumerate([64, 640, 128])]
    assert _arena(made) == 640
    assert np.sum([block.size for block in made]) > 640
