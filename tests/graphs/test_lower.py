"""Graphs of new opsets are written in older ones, with the same results, or a node is named."""

import platform

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from edgekit.errors import UnsupportedError
from edgekit.graphs.lower import expand, lower_opset
from graph_models import FLOAT, floats, model, node, rules, take_in, value


def graph(nodes, inputs, outputs, constants=(), *, opset):
    edges = ([value(name, shape) for name, shape in found.items()] for found in (inputs, outputs))
    return model(nodes, *edges, dict(constants), opset=opset, ir=10)


def one(op, inputs, output, constants=(), *, opset, **attributes):
    """Make a model of one operator: `inputs` name -> shape in the operator's order, constants behind them."""
    made = node(op, [*inputs, *dict(constants)], ["y"], name="only", **attributes)
    return graph([made], inputs, {"y": output}, constants, opset=opset)


def attention(opset, **attributes):
    return one("Attention", {name: ["n", 2, 6, 8] for name in "qkv"}, ["n", 2, 6, 8], opset=opset, **attributes)


def branches():
    def branch(op):
        inner = node(op, ["x"], [op], name=op)
        return helper.make_graph([inner], op, [], [value(op, ["n", 8])])

    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0, name="sum"),
        node("Greater", ["sum", "zero"], ["more"], name="more"),
        node("If", ["more"], ["y"], name="if", then_branch=branch("Gelu"), else_branch=branch("Relu")),
    ]
    return graph(nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, {"zero": np.float32(-1e9)}, opset=20)


def network():
    """Return layers whose newer versions only take more types, with attributes at their defaults."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="conv"),
        node(
            "AveragePool",
            ["a"],
            ["b"],
            kernel_shape=[3, 3],
            strides=[2, 2],
            ceil_mode=1,
            pads=[1, 1, 1, 1],
            name="pool",
        ),
        node("Cast", ["b"], ["c"], to=FLOAT, saturate=1, name="cast"),
        node("QuantizeLinear", ["c", "s", "z"], ["q"], block_size=0, output_dtype=0, name="q"),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], block_size=0, name="dq"),
    ]
    constants = {"w": floats(4, 3, 3, 3), "s": np.float32(0.05), "z": np.int8(3)}
    return graph(nodes, {"x": ["n", 3, 9, 9]}, {"y": ["n", 4, "h", "w"]}, constants, opset=22)


GRID = {"x": ["n", 2, 6, 8], "grid": ["n", 6, 4, 2]}
HEADS = {"q": ["n", 6, 32], "k": ["n", 6, 16], "v": ["n", 6, 16]}
WIDE = ["n", 8, 4, 4]
MODELS = {
    "gelu": lambda: one("Gelu", {"x": ["n", 8]}, ["n", 8], opset=20),
    "gelu tanh": lambda: one("Gelu", {"x": ["n", 8]}, ["n", 8], opset=20, approximate="tanh"),
    "gelu in a branch": branches,
    "group norm": lambda: one(
        "GroupNormalization", {"x": WIDE}, WIDE, {"s": floats(8), "b": floats(8)}, opset=21, num_groups=2
    ),
    "rms norm": lambda: one("RMSNormalization", {"x": ["n", 8]}, ["n", 8], {"s": floats(8)}, opset=23),
    "swish": lambda: one("Swish", {"x": ["n", 8]}, ["n", 8], opset=24),
    "swish alpha": lambda: one("Swish", {"x": ["n", 8]}, ["n", 8], opset=24, alpha=1.7),
    "attention": lambda: attention(23),
    "attention 24": lambda: attention(24),
    "causal attention": lambda: attention(23, is_causal=1),
    "grouped attention": lambda: one("Attention", HEADS, ["n", 6, 32], opset=23, q_num_heads=4, kv_num_heads=2),
    "rotary": lambda: one(
        "RotaryEmbedding", {"x": ["n", 2, 6, 8], "cos": ["n", 6, 4], "sin": ["n", 6, 4]}, ["n", 2, 6, 8], opset=23
    ),
    "grid": lambda: one("GridSample", GRID, ["n", 2, 6, 4], opset=20),
    "cubic grid": lambda: one("GridSample", GRID, ["n", 2, 6, 4], opset=20, mode="cubic"),
    "network": network,
    "layer norm": lambda: one("LayerNormalization", {"x": ["n", 8]}, ["n", 8], {"s": floats(8)}, opset=23),
}


def run(found, feed):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(found.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


NEWER = [
    (name, limit) for name, made in MODELS.items() for limit in (18, 19, 21) if made().opset_import[0].version > limit
]


@pytest.mark.parametrize(("name", "limit"), NEWER)
def test_results_stay(name, limit):
    given = MODELS[name]()
    before = given.SerializeToString(deterministic=True)
    made = lower_opset(given, limit)
    assert given.SerializeToString(deterministic=True) == before
    assert [entry.version for entry in made.opset_import if entry.domain in {"", "ai.onnx"}] == [limit]
    onnx.checker.check_model(made, full_check=True)
    rng = np.random.default_rng(1)
    feed = {
        entry.name: rng.normal(size=[d.dim_value or 2 for d in entry.type.tensor_type.shape.dim]).astype(np.float32)
        for entry in given.graph.input
    }
    expected, found = run(given, feed), run(made, feed)
    assert expected.shape == found.shape
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: one("DFT", {"x": ["n", 8, 4, 1]}, ["n", 8, 4, 2], opset=20), "there 'axis' is an attribute"),
        (
            lambda: one("CumProd", {"x": ["n", 8]}, ["n", 8], {"axis": np.int64(1)}, opset=26),
            "the operator is of opset 26",
        ),
        (
            lambda: graph(
                [
                    node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=TensorProto.INT8, name="only"),
                    node("DequantizeLinear", ["q", "s"], ["y"], name="dq"),
                ],
                {"x": ["n", 8]},
                {"y": ["n", 8]},
                {"s": np.float32(0.1)},
                opset=21,
            ),
            "no attribute 'output_dtype'",
        ),
    ],
)
def test_what_cannot_be_said_names_the_node(made, words):
    with pytest.raises(UnsupportedError, match=words) as caught:
        lower_opset(made(), 19)
    assert caught.value.where == "only"


def test_reductions_with_axes_as_an_input_need_opset_18():
    given = one("ReduceMean", {"x": ["n", 8]}, ["n", 1], {"axes": np.array([1])}, opset=20)
    assert lower_opset(given, 18).opset_import[0].version == 18
    with pytest.raises(UnsupportedError, match="2 inputs, there are at most 1"):
        lower_opset(given, 17)


@pytest.mark.parametrize("constant", [False, True])
def test_signed_integers_of_new_opsets_are_read_where_onnxruntime_loads_them(constant, tmp_path):
    """onnxruntime#25526: a QuantizeLinear that it has moved itself keeps it from loading the graph on x86."""
    given = signed_network()
    if constant:
        held = given.graph.initializer.pop()
        given.graph.node.insert(0, node("Constant", [], [held.name], value=held))
    if platform.machine() == "x86_64":
        with pytest.raises(Exception, match="output_dtype INT8 does not match"):
            run(given, {})
    facts, folder = take_in(given, tmp_path)
    assert "opset-lowered" in rules(facts)
    made = onnx.load(folder / "model.onnx")
    assert made.opset_import[0].version == 20
    assert run(made, {"x": floats(1, 3, 8, 8)}).shape == (1, 36, 4)


def signed_network():
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "s"], ["wd"]),
        node("Conv", ["xd", "wd"], ["c"]),
        node("QuantizeLinear", ["c", "s", "z"], ["cq"]),
        node("DequantizeLinear", ["cq", "s", "z"], ["cd"]),
        node("Reshape", ["cd", "shape"], ["r"]),
        node("Transpose", ["r"], ["y"], perm=[0, 2, 1]),
    ]
    weights = np.random.default_rng(0).integers(-127, 127, (4, 3, 3, 3)).astype(np.int8)
    constants = {"w": weights, "s": np.float32(0.05), "shape": np.array([1, 4, 36]), "z": np.int8(0)}
    return graph(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 36, 4]}, constants, opset=21)


def test_functions_are_written_out_where_the_opset_has_them():
    found, nodes = expand(one("Softsign", {"x": ["n", 8]}, ["n", 8], opset=18), ["Softsign", "Relu"])
    assert nodes == ["only"]
    assert "Softsign" not in {made.op_type for made in found.graph.node}
    x = floats(2, 8)
    np.testing.assert_allclose(run(found, {"x": x}), x / (1 + np.abs(x)), rtol=1e-6)
    found, nodes = expand(one("Softsign", {"x": ["n", 8]}, ["n", 8], opset=13), ["Softsign"])
    assert nodes == []
    assert [made.op_type for made in found.graph.node] == ["Softsign"]


def test_a_definition_that_cannot_be_written_names_the_node():
    """Of a value that an operator of another domain makes no type is known, and the definition asks for one."""
    nodes = [
        node("Unknown", ["x"], ["h"], domain="of.nobody", name="foreign"),
        node("RMSNormalization", ["h", "s"], ["y"], name="only"),
    ]
    found = graph(nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, {"s": floats(8)}, opset=23)
    found.opset_import.append(helper.make_opsetid("of.nobody", 1))
    with pytest.raises(UnsupportedError, match="RMSNormalization cannot be written out") as caught:
        lower_opset(found, 19)
    assert caught.value.where == "only"
