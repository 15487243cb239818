import numpy as np
import onnx
import onnxruntime
import pytest

import house
from contract import onnx_artifact, run_stage
from edgekit.errors import InputError, UsageError
from edgekit.graphs import verify
from edgekit.stage import Context, Inputs
from edgekit.stages.freeze_shapes import FreezeShapes
from graph_models import INT64, floats, model, node, run_here, value


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    """Do the children's work in this process; the contract suite uses real ones."""
    monkeypatch.setattr(verify, "run_task", run_here)


def outputs(made, feed):
    return onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)


def shapes_of(values):
    return [[dim.dim_param or dim.dim_value for dim in item.type.tensor_type.shape.dim] for item in values]


def dynamic():
    """Flatten by shape arithmetic; a mask shares the batch axis."""
    return model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["b"], axis=0),
            node("Unsqueeze", ["b", "axes"], ["b1"]),
            node("Concat", ["b1", "minus"], ["target"], axis=0),
            node("Conv", ["x", "w"], ["c"]),
            node("Reshape", ["c", "target"], ["f"]),
            node("Mul", ["f", "m"], ["y"]),
        ],
        [value("x", ["batch", 3, "h", "w"]), value("m", ["batch", 1])],
        [value("y", ["batch", "features"])],
        {
            "zero": np.array(0, np.int64),
            "axes": np.array([0], np.int64),
            "minus": np.array([-1], np.int64),
            "w": floats(4, 3, 3, 3),
        },
    )


def test_fixed_shapes_are_everywhere_and_shape_arithmetic_is_gone(tmp_path):
    made = dynamic()
    facts, after = run_stage(FreezeShapes(shapes=("x=2x3x8x8",)), made, tmp_path)
    assert shapes_of(after.graph.input) == [[2, 3, 8, 8], [2, 1]], "the mask's batch has the same name"
    assert shapes_of(after.graph.output) == [[2, 144]]
    assert [item.op_type for item in after.graph.node] == ["Conv", "Reshape", "Mul"]
    assert shapes_of(after.graph.value_info) == [[2, 4, 6, 6], [2, 144]]
    assert facts["graphs"]["model.onnx"]["outputs"] == [{"name": "y", "dtype": "float32", "shape": [2, 144]}]
    assert facts["frozen_axes"] == {"batch": 2, "h": 8, "w": 8}
    assert "shape_ranges" not in facts
    feed = {"x": floats(2, 3, 8, 8), "m": floats(2, 1)}
    np.testing.assert_array_equal(outputs(after, feed)[0], outputs(made, feed)[0])


def test_a_range_stays_dynamic_and_is_recorded(tmp_path):
    facts, after = run_stage(FreezeShapes(shapes=("x=1x3x8x8/4x3x8x8/8x3x8x8",)), dynamic(), tmp_path)
    assert shapes_of(after.graph.input) == [["batch", 3, 8, 8], ["batch", 1]]
    assert facts["frozen_axes"] == {"h": 8, "w": 8}
    assert facts["shape_ranges"] == {"x": {"min": [1, 3, 8, 8], "opt": [4, 3, 8, 8], "max": [8, 3, 8, 8]}}
    for rows in (1, 5):
        feed = {"x": floats(rows, 3, 8, 8), "m": floats(rows, 1)}
        np.testing.assert_array_equal(outputs(after, feed)[0], outputs(dynamic(), feed)[0])


def test_no_shapes_change_nothing_but_what_is_known(tmp_path):
    _, after = run_stage(FreezeShapes(), dynamic(), tmp_path)
    assert shapes_of(after.graph.input) == [["batch", 3, "h", "w"], ["batch", 1]]


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (("z=1x3x8x8",), "no input 'z'"),
        (("x=1x3x8",), "has rank 4"),
        (("x=1x4x8x8",), "axis 1 is fixed at 3"),
        (("x=1x3x8x8", "m=2x1"), "'batch'.*two sizes: 1 and 2"),
        (("x",), "no '='"),
    ],
)
def test_shapes_that_do_not_fit_are_usage_errors(tmp_path, shapes, words):
    artifact = onnx_artifact(dynamic(), tmp_path / "in")
    inputs = Inputs(artifact=artifact, folder=tmp_path / "in", profile=house.profile())
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match=words) as error:
        FreezeShapes(shapes=shapes).run(inputs, tmp_path / "out", Context(scratch=tmp_path))
    assert error.value.remedy


def test_sizes_that_the_graph_does_not_take_are_refused(tmp_path):
    artifact = onnx_artifact(dynamic(), tmp_path / "in")
    inputs = Inputs(artifact=artifact, folder=tmp_path / "in", profile=house.profile())
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="does not run with the shapes asked for") as error:
        FreezeShapes(shapes=("x=1x3x2x2",)).run(inputs, tmp_path / "out", Context(scratch=tmp_path))
    assert "x=1x3x2x2" in error.value.where


def test_a_condition_on_the_shape_is_decided(tmp_path):
    branches = [
        onnx.helper.make_graph([node(op, ["x"], [f"{op}_o"])], op, [], [value(f"{op}_o", None)])
        for op in ("Relu", "Neg")
    ]
    made = model(
        [
            node("Size", ["x"], ["n"]),
            node("Greater", ["n", "ten"], ["c"]),
            onnx.helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1], name="if"),
            node("Identity", ["n"], ["count"]),
        ],
        [value("x", ["b", 4])],
        [value("y", ["b", 4]), value("count", [], INT64)],
        {"ten": np.array(10, np.int64)},
    )
    _, after = run_stage(FreezeShapes(shapes=("x=2x4",)), made, tmp_path)
    feed = {"x": floats(2, 4)}
    for a, b in zip(outputs(after, feed), outputs(made, feed), strict=True):
        np.testing.assert_array_equal(a, b)
