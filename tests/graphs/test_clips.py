"""Clips as Max and Min: the same values, and only where a compiler would get them wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import kinds
from edgekit.graphs.clips import split_clips

INF = np.float32(np.inf)


def chain(*steps, extra=""):
    """Operators in a row, each with its further inputs: numbers are constants, None is left out."""
    nodes, constants, read = [], {}, "x"
    for number, (op, *given) in enumerate(steps):
        names = [read]
        for place, number_given in enumerate(given):
            names.append("" if number_given is None else f"c{number}_{place}")
            if number_given is not None:
                constants[names[-1]] = np.float32(number_given)
        out = "y" if number == len(steps) - 1 else f"t{number}"
        nodes.append(kinds.node(op, names, [out], name=f"{op}_{number}"))
        read = out
    outputs = [kinds.value(name, [2, 5]) for name in ("y", extra) if name]
    return kinds.build(nodes, [kinds.value("x", [2, 5])], outputs, constants)


@pytest.mark.parametrize(
    ("steps", "written"),
    [
        ([("Clip", -1.0, 2.0)], ["Max", "Min"]),
        ([("Clip", 0.5, 2.0)], ["Max", "Min"]),
        ([("Clip", -2.0, -0.5)], ["Max", "Min"]),
        ([("Clip", None, 1.0)], ["Min"]),
        ([("Clip", -1.0)], ["Max"]),
        ([("Clip", -INF, 1.0)], ["Min"]),
        ([("Clip", -1.0, INF)], ["Max"]),
        ([("Min", 2.0), ("Max", -1.0)], ["Max", "Min"]),
        ([("Relu",), ("Clip", 0.1, 0.4), ("Tanh",), ("Clip", -0.2, 3.0)], ["Relu", "Max", "Min", "Tanh", "Max", "Min"]),
    ],
)
def test_the_same_values_without_the_clip(steps, written):
    model = chain(*steps)
    feed = {"x": kinds.normal(0, 2, 5) * np.float32(3)}
    before = kinds.run(model, feed)[0]
    assert split_clips(model)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == written
    np.testing.assert_array_equal(kinds.run(model, feed)[0], before)


@pytest.mark.parametrize(
    "steps",
    [
        [("Clip", 0.0, 6.0)],
        [("Clip", 0.0)],
        [("Clip",)],
        [("Clip", -INF, INF)],
        [("Max", -1.0), ("Min", 2.0)],
        [("Min", 2.0), ("Max", 0.0)],
        [("Min", -1.0), ("Max", 2.0)],
    ],
)
def test_others_stay(steps):
    model = chain(*steps)
    before = model.SerializeToString()
    assert split_clips(model) == []
    assert model.SerializeToString() == before


def test_a_min_that_others_read_stays_before_its_max():
    assert split_clips(chain(("Min", 2.0), ("Max", -1.0), extra="t0")) == []


def test_clips_of_integers_stay():
    nodes = [kinds.node("Clip", ["x", "lo", "hi"], ["y"], name="clip")]
    kind = onnx.TensorProto.INT64
    ends = [onnx.helper.make_tensor_value_info(name, kind, [2, 5]) for name in "xy"]
    model = kinds.build(nodes, ends[:1], ends[1:], {"lo": np.int64(1), "hi": np.int64(7)})
    assert split_clips(model) == []


def test_bounds_that_are_no_constants_stay():
    model = chain(("Clip", -1.0, 2.0))
    del model.graph.initializer[:]
    model.graph.input.extend([kinds.value("c0_0", []), kinds.value("c0_1", [])])
    assert split_clips(model) == []
