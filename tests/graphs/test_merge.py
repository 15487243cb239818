"""Merging linear layers: the arithmetic against numpy and onnxruntime, and when it must not happen."""

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import house
from edgekit.graphs.cost import cost_of
from edgekit.graphs.edit import GraphIndex
from edgekit.graphs.linear import find_linear
from edgekit.graphs.merge import fold_batch_norm, merge_consecutive, merge_parallel
from edgekit.graphs.shapes import analyze
from edgekit.profile import Memory
from graph_models import floats, model, node, value


def outputs(made, feed):
    made.graph.ByteSize()
    return onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)


def ops(made):
    return [item.op_type for item in made.graph.node]


def chain(depth, middle, width, *, first="matmul", second="matmul", rank=2):
    """Two linear layers in a row; `first` and `second` are `matmul`, `bias` or a Gemm's attributes."""
    nodes, weights = [], {}
    source = "x"
    for number, (kind, rows, columns) in enumerate(((first, depth, middle), (second, middle, width))):
        target, weight, bias = ("h", "y")[number], f"w{number}", f"b{number}"
        weights[weight] = floats(rows, columns, seed=number, scale=0.3)
        if kind == "matmul":
            nodes.append(node("MatMul", [source, weight], [target]))
        elif kind == "bias":
            weights[bias] = floats(columns, seed=number + 5)
            nodes.append(node("MatMul", [source, weight], [f"p{number}"]))
            nodes.append(node("Add", [bias, f"p{number}"], [target]))
        else:
            weights[bias] = floats(columns, seed=number + 5)
            weights[weight] = weights[weight].T.copy() if kind.get("transB") else weights[weight]
            nodes.append(node("Gemm", [source, weight, bias], [target], **kind))
        source = target
    shape = ["b", depth] if rank == 2 else ["b", 5, depth]
    return model(nodes, [value("x", shape)], [value("y", [*shape[:-1], width])], weights)


GEMM = {"transB": 1, "alpha": 0.5, "beta": 2.0}
kinds = st.sampled_from(["matmul", "bias", GEMM])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 6), kinds, kinds)
def test_the_merged_layer_gives_the_same(depth, middle, width, first, second):
    made = chain(depth, middle, width, first=first, second=second)
    feed = {"x": floats(3, depth, seed=9)}
    before = outputs(made, feed)[0]
    merged = merge_consecutive(made, ".")
    assert merged == (depth * width <= depth * middle + middle * width)
    np.testing.assert_allclose(outputs(made, feed)[0], before, rtol=1e-4, atol=1e-4)
    if merged:
        assert ops(made) in (["MatMul"], ["MatMul", "Add"], ["Gemm"])
        assert sum(len(tensor.dims) == 2 for tensor in made.graph.initializer) == 1


def test_layers_over_more_axes_merge_without_gemm():
    made = chain(4, 16, 4, first="bias", second="bias", rank=3)
    feed = {"x": floats(2, 5, 4)}
    before = outputs(made, feed)[0]
    assert merge_consecutive(made, ".") == 1
    assert ops(made) == ["MatMul", "Add"]
    np.testing.assert_allclose(outputs(made, feed)[0], before, rtol=1e-4, atol=1e-5)


def test_a_low_rank_pair_stays():
    made = chain(64, 8, 64)
    assert merge_consecutive(made, ".") == 0
    assert ops(made) == ["MatMul", "MatMul"]


def test_three_in_a_row_become_one():
    made = chain(4, 16, 4)
    made.graph.node.append(node("MatMul", ["y", "w2"], ["z"]))
    made.graph.initializer.append(model([], [], [], {"w2": floats(4, 4, seed=7)}).graph.initializer[0])
    made.graph.output[0].name = "z"
    feed = {"x": floats(3, 4)}
    before = outputs(made, feed)[0]
    assert merge_consecutive(made, ".") == 2
    np.testing.assert_allclose(outputs(made, feed)[0], before, rtol=1e-4, atol=1e-5)


def test_a_middle_that_others_see_stays():
    as_output = chain(4, 16, 4)
    as_output.graph.output.append(value("h", ["b", 16]))
    twice = chain(4, 16, 4)
    twice.graph.node.append(node("Relu", ["h"], ["r"]))
    twice.graph.output.append(value("r", ["b", 16]))
    shared = chain(4, 16, 4)
    shared.graph.node.append(node("MatMul", ["x", "w0"], ["other"]))
    shared.graph.output.append(value("other", ["b", 16]))
    for made in (as_output, twice, shared):
        assert merge_consecutive(made, ".") == 0


def test_what_is_no_linear_layer_is_left_alone():
    broadcast = chain(4, 16, 4, first="bias")
    wide = model([], [], [], {"b0": floats(3, 1)}).graph.initializer[0]
    broadcast.graph.initializer[[t.name for t in broadcast.graph.initializer].index("b0")].CopyFrom(wide)
    index = GraphIndex(broadcast.graph)
    assert find_linear(index, broadcast.graph.node[0]).bias is None, "a column is no bias"
    transposed = chain(4, 16, 4, first={"transA": 1})
    assert find_linear(GraphIndex(transposed.graph), transposed.graph.node[0]) is None
    swapped = model(
        [node("MatMul", ["w", "x"], ["y"])], [value("x", [4, 2])], [value("y", [3, 2])], {"w": floats(3, 4)}
    )
    assert find_linear(GraphIndex(swapped.graph), swapped.graph.node[0]) is None


def qkv(bias, widths=(8, 8, 8)):
    nodes, weights = [], {}
    for name, width in zip("qkv", widths, strict=True):
        weights[f"w{name}"] = floats(8, width, seed=ord(name))
        target = name if not bias else f"p{name}"
        nodes.append(node("MatMul", ["h", f"w{name}"], [target], name=f"mm_{name}"))
        if bias:
            weights[f"b{name}"] = floats(width, seed=ord(name) + 1)
            nodes.append(node("Add", [target, f"b{name}"], [name]))
    return model(
        [node("Relu", ["x"], ["h"]), *nodes, node("Add", ["q", "k"], ["qk"])],
        [value("x", [1, 4, 8])],
        [value("qk", [1, 4, 8]), value("v", [1, 4, widths[2]])],
        weights,
    )


def device(launch):
    import msgspec

    base = house.profile()
    return house.profile(roofline=msgspec.structs.replace(base.roofline, launch_us=house.sourced(launch)))


@pytest.mark.parametrize("bias", [False, True])
def test_layers_that_read_the_same_merge_where_launches_are_dear(tmp_path, bias):
    made = qkv(bias, widths=(8, 8, 16))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    feed = {"x": floats(1, 4, 8)}
    before = outputs(made, feed)
    assert merge_parallel(made, tmp_path, cost_of(tmp_path / "m.onnx"), device(50)) == 2
    assert ops(made) == ["Relu", "MatMul", *["Add"] * bias, "Split", "Add"]
    for a, b in zip(before, outputs(made, feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_they_stay_apart_where_moving_the_results_costs_more(tmp_path):
    made = qkv(bias=False)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    slow = house.profile(
        memory=Memory(ram_mb=house.sourced(1), bandwidth_gbs=house.sourced(1e-3)), roofline=device(1e-6).roofline
    )
    assert merge_parallel(made, tmp_path, cost_of(tmp_path / "m.onnx"), slow) == 0


def test_batch_norm_after_a_linear_layer_folds(tmp_path):
    statistics = {"g": floats(6), "s": floats(6, seed=1), "m": floats(6, seed=2), "v": np.abs(floats(6, seed=3)) + 0.1}
    for layer in ([node("MatMul", ["x", "w"], ["h"])], [node("Gemm", ["x", "w", "s"], ["h"])]):
        made = model(
            [*layer, node("BatchNormalization", ["h", "g", "s", "m", "v"], ["y"], epsilon=1e-3)],
            [value("x", ["b", 4])],
            [value("y", ["b", 6])],
            {"w": floats(4, 6), **statistics},
        )
        feed = {"x": floats(3, 4)}
        before = outputs(made, feed)[0]
        assert fold_batch_norm(made, tmp_path, analyze(made)) == 1
        assert "BatchNormalization" not in ops(made)
        np.testing.assert_allclose(outputs(made, feed)[0], before, rtol=1e-4, atol=1e-5)


def test_batch_norm_over_another_axis_stays(tmp_path):
    made = model(
        [node("MatMul", ["x", "w"], ["h"]), node("BatchNormalization", ["h", "g", "g", "g", "g"], ["y"])],
        [value("x", ["b", 6, 4])],
        [value("y", ["b", 6, 6])],
        {"w": floats(4, 6), "g": np.ones(6, np.float32)},
    )
    assert fold_batch_norm(made, tmp_path, analyze(made)) == 0
