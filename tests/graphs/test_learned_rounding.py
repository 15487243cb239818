from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import house
import kinds
from edgekit.graphs.products import as_rows, from_rows, input_columns, output_columns
from edgekit.graphs.stepping import Stepper
from edgekit.numerics.equalize import at_run_time
from edgekit.numerics.rounding import round_with_feedback


def evaluate(model, feed, names=None):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(names, feed)


def single(node, x, weight):
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


PRODUCTS = {
    "depthwise": ("Conv", (2, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    "grouped, strided, uneven pads": (
        "Conv", (1, 4, 10, 9), (6, 2, 3, 2), {"group": 2, "strides": [2, 1], "pads": [0, 1, 2, 0]},
    ),
    "dilated": ("Conv", (1, 3, 12, 12), (5, 3, 3, 3), {"dilations": [2, 3]}),
    "one axis": ("Conv", (2, 3, 20), (4, 3, 5), {"pads": [2, 2], "strides": [3]}),
    "three axes": ("Conv", (1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {}),
    "MatMul": ("MatMul", (2, 7, 5), (5, 4), {}),
    "Gemm": ("Gemm", (7, 5), (5, 4), {}),
    "Gemm, transposed": ("Gemm", (7, 5), (4, 5), {"transB": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_rows_times_columns_is_the_product(name):
    op, shape, weight_shape, attributes = PRODUCTS[name]
    r = np.random.default_rng(0)
    x, w = (r.normal(size=s).astype(np.float32) for s in (shape, weight_shape))
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    wanted = output_columns(evaluate(single(node, x, w), {"x": x})[0], node)
    kernel = weight_shape[2:] if op == "Conv" else ()
    assert np.allclose(as_rows(w, node) @ input_columns(x, node, kernel), wanted, atol=1e-4)
    assert np.array_equal(from_rows(as_rows(w, node), node, w.shape), w)


def test_run_time_grids_are_those_of_onnxruntime():
    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32) * 3 - 1
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert np.allclose(at_run_time(x), evaluate(model, {"x": x})[0], atol=1e-6)
    assert np.array_equal(at_run_time(np.zeros((2, 2), np.float32)), np.zeros((2, 2), np.float32))


@pytest.mark.parametrize("name", ["residual CNN", "small transformer"])
@pytest.mark.parametrize("room", [0, 96 << 20])
def test_a_stepper_gives_what_a_whole_run_gives(name, room, tmp_path, monkeypatch):
    monkeypatch.setattr("edgekit.graphs.stepping.MOST_KEPT", room)
    model, feeds = kinds.BOUNDED[name][0]()
    stepper = Stepper(model, tmp_path, house.MemorySamples(feeds), [1, 0], threads=1)
    wanted = [node.output[0] for node in model.graph.node if node.op_type in {"Conv", "MatMul", "Gemm"}]
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    whole.graph.output.extend(
        helper.make_empty_tensor_value_info(n) for n in wanted if n not in {o.name for o in model.graph.output}
    )
    for tensor in wanted:
        for index, value in stepper.values(tensor):
            assert np.allclose(value, evaluate(whole, feeds[index], [tensor])[0], atol=1e-4)
        stepper.keep(tensor)
    index, value = next(iter(stepper.values(wanted[0])))
    assert index == 1
    assert np.allclose(value, evaluate(whole, feeds[1], [wanted[0]])[0], atol=1e-4), "a tensor from before"


def test_sizes_that_all_samples_share_are_told_to_a_part_of_a_graph(tmp_path):
    """Shape inference of Attention takes unknown sizes for 0, and a factor behind it does not fit then."""
    weights = {name: kinds.normal(seed, 16, 16) for seed, name in enumerate(("wq", "wk", "wv", "wo"))}
    nodes = [
        *(kinds.node("MatMul", ["x", f"w{name}"], [name], name=name) for name in "qkv"),
        kinds.node("Attention", ["q", "k", "v"], ["a"], name="a", q_num_heads=4, kv_num_heads=4),
        kinds.node("Mul", ["a", "factors"], ["m"], name="m"),
        kinds.node("MatMul", ["m", "wo"], ["y"], name="y"),
    ]
    constants = {**weights, "factors": np.full(16, 0.5, np.float32)}
    shape = ["b", "n", 16]
    model = kinds.build(nodes, [kinds.value("x", shape)], [kinds.value("y", shape)], constants)
    model.opset_import[0].version, model.ir_version = 23, 11
    feeds = [{"x": kinds.normal(9 + length, 1, length, 16)} for length in (3, 5)]
    stepper = Stepper(model, tmp_path, house.MemorySamples(feeds), [0, 1], threads=1)
    stepper.keep("v")
    assert [value.shape for _, value in stepper.values("y")] == [(1, 3, 16), (1, 5, 16)]


def test_moments_that_are_not_positive_definite_round_all_the_same():
    """Differences of large sums may be so: they are damped more, and at worst errors are not passed on."""
    weights = np.clip(kinds.normal(0, 1, 3, 4), -3, 3)
    scales = np.full((1, 3), 0.1)
    for xx in (np.diag([1.0, 1.0, 1.0, -0.02])[None], np.diag([1.0, 1.0, 1.0, -5.0])[None]):
        found = round_with_feedback(weights, scales, xx)
        assert np.abs(found).max() <= 127
    assert np.abs(found * 0.1 - weights).max() <= 0.1
