"""Inferred shapes and folded constants against what onnxruntime really makes."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from edgekit.errors import InputError
from edgekit.graphs.edit import drop_inputs_of_constants, load_model, name_nodes
from edgekit.graphs.saving import save_model
from edgekit.graphs.sessions import open_session, run
from edgekit.graphs.shapes import analyze
from graph_models import FLOAT, INT64, LIGHT, floats, model, node, value


def arithmetic():
    """Shape arithmetic as exporters write it: half the width, twice the channels, an `If` on a shape."""
    branches = [
        helper.make_graph([node(op, ["r"], [f"{op}_o"])], op, [], [value(f"{op}_o", None)])
        for op in ("Relu", "Flatten")
    ]
    ints = {"one": [1], "two": [2], "three": [3], "minus": [-1], "zero": [0]}
    return model(
        [
            node("Shape", ["x"], ["shape"]),
            node("Slice", ["shape", "zero", "one", "zero"], ["batch"]),
            node("Shape", ["x"], ["tail"], start=2),
            node("Mul", ["tail", "two"], ["doubled"]),
            node("Gather", ["shape", "three"], ["width"]),
            node("Div", ["width", "two"], ["half"]),
            node("Concat", ["batch", "minus", "half"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["r"]),
            node("Size", ["r"], ["size"]),
            node("Greater", ["size", "two"], ["large"]),
            helper.make_node("If", ["large"], ["y"], then_branch=branches[0], else_branch=branches[1], name="if"),
            node("ConstantOfShape", ["doubled"], ["zeros"]),
            node("Shape", ["zeros"], ["z"]),
        ],
        [value("x", ["b", 6, "h", "w"])],
        [value("y", None), value("z", [2], INT64)],
        {name: np.array(number, np.int64) for name, number in ints.items()},
    )


def test_shape_arithmetic_is_folded():
    scope = analyze(arithmetic(), shapes={"x": (2, 6, 4, 8)})
    assert scope.static("y") == (2, 48, 4)
    np.testing.assert_array_equal(scope.values["z"], [8, 16])
    assert "z" in scope.constants
    assert "y" not in scope.constants
    assert [graph.name for graph, _ in scope.inner["if"]] == ["Relu"], "only the branch that is taken"
    assert not scope.lost


def test_dynamic_axes_stay_dynamic():
    scope = analyze(arithmetic())
    assert scope.shape("x") == ("b", 6, "h", "w")
    assert scope.static("y") is None
    assert scope.static("z") == (2,)


def test_shapes_that_do_not_go_together_name_the_node():
    wrong = model(
        [node("MatMul", ["x", "W"], ["y"], name="mm")],
        [value("x", ["b", "k"])],
        [value("y", ["b", 3])],
        {"W": floats(4, 3)},
    )
    with pytest.raises(InputError, match="do not go together") as error:
        analyze(wrong, shapes={"x": (1, 5)})
    assert "node 'mm'" in error.value.where


def test_huge_constants_are_not_made():
    bomb = model(
        [
            node("ConstantOfShape", ["s"], ["big"]),
            node("Range", ["zero", "limit", "step"], ["long"]),
            node("Add", ["x", "x"], ["y"]),
        ],
        [value("x", [1])],
        [value("y", [1]), value("big", None), value("long", None)],
        {
            "s": np.array([1 << 20, 1 << 20], np.int64),
            "zero": np.float32(0),
            "limit": np.float32(1e12),
            "step": np.float32(1),
        },
    )
    scope = analyze(bomb)
    assert scope.static("big") == (1 << 20, 1 << 20)
    assert "big" not in scope.values
    assert "long" not in scope.values


def test_shapes_that_depend_on_values_are_lost_from_there_on():
    scope = analyze(
        model(
            [node("NonZero", ["x"], ["at"], name="nz"), node("Cast", ["at"], ["y"], to=FLOAT)],
            [value("x", [4])],
            [value("y", None)],
        )
    )
    assert scope.shape("y") == (1, None)
    assert scope.lost["y"].name == "nz"


def test_random_numbers_are_not_constants():
    scope = analyze(
        model(
            [node("RandomNormal", [], ["r"], shape=[3]), node("Add", ["x", "r"], ["y"])],
            [value("x", [3])],
            [value("y", [3])],
        )
    )
    assert "r" not in scope.constants


def test_an_unknown_condition_keeps_what_both_branches_agree_on():
    branches = [
        helper.make_graph([node(op, ["x"], [f"{op}_o"])], op, [], [value(f"{op}_o", None)]) for op in ("Relu", "Neg")
    ]
    scope = analyze(
        model(
            [helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1], name="if")],
            [value("c", [], TensorProto.BOOL), value("x", [2, 3])],
            [value("y", None)],
        )
    )
    assert scope.static("y") == (2, 3)
    assert len(scope.inner["if"]) == 2


@pytest.mark.parametrize("name", ["light_shufflenet.onnx", "light_inception_v2.onnx", "light_densenet121.onnx"])
def test_every_shape_is_what_onnxruntime_makes(tmp_path, name):
    graph = load_model(LIGHT / name)
    drop_inputs_of_constants(graph.graph)
    graph.ir_version = 8
    name_nodes(graph)
    scope = analyze(graph)
    made = [out for item in graph.graph.node for out in item.output if out and scope.static(out) is not None]
    assert len(made) > 0.95 * sum(len(item.output) for item in graph.graph.node if item.op_type != "Dropout")
    save_model(graph, tmp_path / "m.onnx")
    session = open_session(tmp_path / "m.onnx", extra_outputs=made)
    found = run(session, {item.name: floats(*item.shape) for item in session.get_inputs()})
    for out in made:
        assert scope.static(out) == found[out].shape, out
        if out in scope.values:
            np.testing.assert_allclose(scope.values[out], found[out], rtol=1e-5)
