import math

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgekit.errors import InputError
from edgekit.networks.parity import Reference, _difference, _rounded_up, compare, weak
from onnx_models import save, tensor


def doubled(path, kind=TensorProto.FLOAT):
    """A graph that doubles its input."""
    two = helper.make_tensor("two", kind, [1], [2])
    node = helper.make_node("Mul", ["x", "two"], ["y"], name="mul")
    return save(path, [node], [tensor("x", ["b"], kind)], [tensor("y", ["b"], kind)], [two])


def reference(x, y):
    return Reference(sizes={"batch": len(x)}, feed={"x": x}, outputs={"y": y})


X = np.array([1.0, -2.0, 100.0], np.float32)


def test_a_right_graph_passes_and_says_how_close(tmp_path):
    assert compare(doubled(tmp_path / "m.onnx"), [reference(X, 2 * X)], 1e-4) == {"y": 0.0}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (2 * X + np.array([0, 0, 0.1], np.float32), "0.0005"),
        (np.append(2 * X, X), "inf"),
        ((2 * X).astype(np.float64), "inf"),
        (2 * X * np.array([1, np.nan, 1], np.float32), "inf"),
        (2 * X * np.array([1, np.inf, 1], np.float32), "inf"),
    ],
)
def test_a_wrong_graph_is_named(tmp_path, wrong, said):
    path = doubled(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=f"differs from torch by {said}") as caught:
        compare(path, [reference(X, 2 * X), reference(X, wrong)], 1e-4)
    assert caught.value.where == "y"
    assert "batch 3" in caught.value.text


def test_integers_must_be_equal(tmp_path):
    x = np.array([1, 2, 3], np.int64)
    path = doubled(tmp_path / "m.onnx", TensorProto.INT64)
    assert compare(path, [reference(x, 2 * x)], 1e-4) == {"y": 0.0}
    with pytest.raises(InputError):
        compare(path, [reference(x, 2 * x + [0, 0, 1])], 0.5)


def test_values_that_are_not_finite_may_agree():
    wanted = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert _difference(wanted.copy(), wanted) == 0
    assert _difference(np.full(2, np.nan), np.full(2, np.nan)) == 0
    assert _difference(np.zeros(0, np.float32), np.zeros(0, np.float32)) == 0
    assert _difference(-wanted, wanted) == math.inf


def test_small_outputs_are_compared_absolutely():
    tiny = np.array([1e-9], np.float32)
    assert _difference(tiny * 2, tiny) == pytest.approx(1e-6, rel=1e-3)
    assert weak([reference(X, tiny), reference(X, tiny * 5)]) == ["y"]
    assert weak([reference(X, tiny), reference(X, X)]) == []


@given(st.floats(1e-12, 1e6))
def test_figures_are_rounded_up_to_one_digit(value):
    found = _rounded_up(value)
    assert value * (1 - 1e-6) <= found <= value * 2.5 * (1 + 1e-6)
    assert f"{found:.0e}"[0] in "125"
    assert _rounded_up(found) == found


def test_figures_without_a_size_stay():
    assert _rounded_up(0.0) == 0.0
    assert _rounded_up(math.inf) == math.inf


def test_a_graph_that_onnxruntime_refuses_is_no_success(tmp_path):
    node = helper.make_node("NoSuchOp", ["x"], ["y"])
    path = save(tmp_path / "m.onnx", [node], [tensor("x", ["b"])], [tensor("y", ["b"])])
    with pytest.raises(Exception, match="NoSuchOp"):
        compare(path, [reference(X, X)], 1.0)
    assert onnx.load(path).graph.node
