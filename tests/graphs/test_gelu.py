"""GELUs that are written out, in every order of their factors."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

import kinds
from edgekit.graphs.gelu import fuse_gelu

HALF, ONE, TWO, ROOT = (np.float32(v) for v in (0.5, 1, 2, np.sqrt(2)))
SHAPES = ["half first", "half last", "halved at the end", "half of the bell"]


def written(shape, *, divide=True, swap=False, opset=17, extra_output=""):
    constants = {"half": HALF, "one": ONE, "two": TWO, "root": ROOT, "inverse": np.float32(1 / ROOT)}
    pair = (lambda a, b: [b, a]) if swap else (lambda a, b: [a, b])
    scaled = kinds.node("Div", ["x", "root"], ["s"]) if divide else kinds.node("Mul", pair("x", "inverse"), ["s"])
    nodes = [scaled, kinds.node("Erf", ["s"], ["e"]), kinds.node("Add", pair("e", "one"), ["bell"])]
    nodes += {
        "half first": [kinds.node("Mul", pair("x", "half"), ["h"]), kinds.node("Mul", pair("h", "bell"), ["y"])],
        "half last": [kinds.node("Mul", pair("x", "bell"), ["p"]), kinds.node("Mul", pair("p", "half"), ["y"])],
        "halved at the end": [kinds.node("Mul", pair("x", "bell"), ["p"]), kinds.node("Div", ["p", "two"], ["y"])],
        "half of the bell": [kinds.node("Mul", pair("bell", "half"), ["p"]), kinds.node("Mul", pair("p", "x"), ["y"])],
    }[shape]
    outputs = [kinds.value("y", [2, 5])] + ([kinds.value(extra_output, [2, 5])] if extra_output else [])
    return kinds.build(nodes, [kinds.value("x", [2, 5])], outputs, constants, opset=opset, ir=9)


@pytest.mark.parametrize(("shape", "divide", "swap"), itertools.product(SHAPES, (True, False), (True, False)))
def test_it_is_one_operator_with_the_same_values(shape, divide, swap):
    model = written(shape, divide=divide, swap=swap)
    feed = {"x": kinds.normal(0, 2, 5) * np.float32(3)}
    before = kinds.run(model, feed)[0]
    assert len(fuse_gelu(model)) == 1
    onnx.checker.check_model(model)
    assert [(node.op_type, node.domain) for node in model.graph.node] == [("Gelu", "com.microsoft")]
    np.testing.assert_allclose(kinds.run(model, feed)[0], before, rtol=1e-5, atol=1e-6)


def test_from_opset_20_it_is_the_standard_operator():
    model = written("half first", opset=20)
    fuse_gelu(model)
    assert [(node.op_type, node.domain) for node in model.graph.node] == [("Gelu", "")]


@pytest.mark.parametrize("inside", ["e", "bell", "p"])
def test_what_others_read_stays(inside):
    model = written("half last", extra_output=inside)
    assert fuse_gelu(model) == []
    assert "Erf" in [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("name", ["half", "one", "root"])
def test_other_constants_are_no_gelu(name):
    model = written("half first")
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(0.7), name))
    assert fuse_gelu(model) == []
