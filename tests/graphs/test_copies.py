from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edgekit.graphs.copies import copy_without


def model():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Add", ["h", "b"], ["y"], name="sum"),
    ]
    sides = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 64), ("y", 9))
    ]
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.random((64, 9), np.float32), "w"),
        helper.make_tensor("b", TensorProto.FLOAT, [9], rng.random(9)),
    ]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], constants, doc_string="what it is")
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests")
    helper.set_model_props(made, {"license": "none"})
    return made


def test_everything_but_the_values_comes_along():
    source = model()
    made = copy_without(source, {"w"})
    assert made.ByteSize() < source.ByteSize() - 64 * 9 * 4
    left = made.graph.initializer[0]
    assert (left.name, list(left.dims), left.data_type) == ("w", [64, 9], TensorProto.FLOAT)
    assert not left.HasField("raw_data")
    left.CopyFrom(source.graph.initializer[0])
    assert made == source
    assert copy_without(source, set()) == source
