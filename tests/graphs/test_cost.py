"""Costs against numbers worked out by hand and against published totals."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from edgekit.errors import InputError, UsageError
from edgekit.graphs.cost import cost_of
from graph_models import FLOAT, INT64, LIGHT, floats, model, node, value

MACS = {
    # published multiply-accumulates (fvcore, torchvision, the papers) and parameters with running statistics
    "bvlc_alexnet": (654_560_384, 60_965_224),
    "vgg19": (19_632_062_464, 143_667_240),
    "resnet50": (4_089_184_256, 25_557_032 + 53_120),
    "squeezenet": (349_151_936, 1_235_496),
    "densenet121": (2_834_161_664, 7_978_856 + 2 * 83_648),
}


def cost(made, tmp_path, shapes=None):
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return cost_of(path, shapes)


def only(made, tmp_path, shapes=None):
    (row,) = cost(made, tmp_path, shapes).rows
    return row


@pytest.mark.parametrize("name", MACS)
def test_published_totals(name):
    found = cost_of(LIGHT / f"light_{name}.onnx")
    assert (found.macs, found.parameters) == MACS[name]
    assert not found.uncounted
    assert not found.unshaped


def conv(x, w, y, tmp_path, op="Conv", bias=0, **attributes):
    names = ["x", "w"] + ["b"] * bool(bias)
    weights = {"w": floats(*w)} | ({"b": floats(bias)} if bias else {})
    return only(model([node(op, names, ["y"], **attributes)], [value("x", x)], [value("y", y)], weights), tmp_path)


def test_convolution(tmp_path):
    row = conv([2, 3, 8, 8], [16, 3, 3, 3], [2, 16, 8, 8], tmp_path, bias=16, pads=[1, 1, 1, 1])
    assert row.macs == 2 * 16 * 8 * 8 * 3 * 3 * 3
    assert row.flops == 2 * row.macs
    assert row.parameters == 16 * 27 + 16
    assert row.weight_bytes == row.weight_reads == 4 * (16 * 27 + 16)
    assert row.input_bytes == 4 * 2 * 3 * 64
    assert row.output_bytes == 4 * 2 * 16 * 64
    assert (row.kind, row.dtype, row.op) == ("compute", "float32", "Conv")
    assert row.input_shapes == ((2, 3, 8, 8),)
    assert row.output_shapes == ((2, 16, 8, 8),)


def test_strided_dilated_one_dimensional_convolution(tmp_path):
    row = conv([1, 4, 20], [6, 4, 3], [1, 6, 8], tmp_path, strides=[2], dilations=[2])
    assert row.macs == 6 * 8 * 4 * 3


def test_depthwise_and_grouped_convolutions(tmp_path):
    depthwise = conv([1, 8, 6, 6], [8, 1, 3, 3], [1, 8, 4, 4], tmp_path, group=8)
    assert (depthwise.macs, depthwise.kind) == (8 * 16 * 9, "depthwise")
    grouped = conv([1, 8, 6, 6], [12, 2, 1, 1], [1, 12, 6, 6], tmp_path, group=4)
    assert (grouped.macs, grouped.kind) == (12 * 36 * 2, "grouped")


def test_transposed_convolution_counts_every_input_pixel(tmp_path):
    row = conv([1, 4, 5, 5], [4, 3, 2, 2], [1, 6, 10, 10], tmp_path, op="ConvTranspose", strides=[2, 2], group=2)
    assert row.macs == 5 * 5 * 4 * 3 * 2 * 2


def test_matmul_of_every_rank(tmp_path):
    def macs(a, b, y):
        inputs = [value("a", a), value("b", b)]
        return only(model([node("MatMul", ["a", "b"], ["y"])], inputs, [value("y", y)]), tmp_path).macs

    assert macs([2, 5, 7], [7, 3], [2, 5, 3]) == 2 * 5 * 7 * 3
    assert macs([4, 1, 5, 7], [6, 7, 3], [4, 6, 5, 3]) == 4 * 6 * 5 * 7 * 3
    assert macs([7], [7, 3], [3]) == 21
    assert macs([5, 7], [7], [5]) == 35


@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(tmp_path, trans_a, trans_b):
    a, b = ([7, 5] if trans_a else [5, 7]), ([3, 7] if trans_b else [7, 3])
    gemm = model(
        [node("Gemm", ["a", "b", "c"], ["y"], transA=trans_a, transB=trans_b)],
        [value("a", a)],
        [value("y", [5, 3])],
        {"b": floats(*b), "c": floats(3)},
    )
    row = only(gemm, tmp_path)
    assert (row.macs, row.parameters) == (105, 24)


@pytest.mark.parametrize(
    ("equation", "a", "b", "y", "macs"),
    [
        ("bij,bjk->bik", [2, 3, 4], [2, 4, 5], [2, 3, 5], 2 * 3 * 4 * 5),
        ("...ij,jk->...ik", [2, 3, 4], [4, 5], [2, 3, 5], 2 * 3 * 4 * 5),
        ("i,j->ij", [3], [4], [3, 4], 12),
        ("bhqd, bhkd -> bhqk", [1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 3, 5], 2 * 3 * 4 * 5),
    ],
)
def test_einsum(tmp_path, equation, a, b, y, macs):
    made = model(
        [node("Einsum", ["a", "b"], ["y"], equation=equation)], [value("a", a), value("b", b)], [value("y", y)]
    )
    assert only(made, tmp_path).macs == macs


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_networks(tmp_path, op, gates):
    steps, batch, inputs, hidden, directions = 5, 2, 3, 4, 2
    made = model(
        [node(op, ["x", "w", "r"], ["y"], hidden_size=hidden, direction="bidirectional")],
        [value("x", [steps, batch, inputs])],
        [value("y", [steps, directions, batch, hidden])],
        {"w": floats(directions, gates * hidden, inputs), "r": floats(directions, gates * hidden, hidden)},
    )
    row = only(made, tmp_path)
    assert row.macs == steps * batch * directions * gates * hidden * (inputs + hidden)
    assert row.parameters == directions * gates * hidden * (inputs + hidden)


def test_attention(tmp_path):
    q, kv = [2, 8, 5, 16], [2, 4, 7, 16]
    made = model(
        [node("Attention", ["q", "k", "v"], ["y"])],
        [value("q", q), value("k", kv), value("v", kv)],
        [value("y", q)],
        opset=23,
        ir=11,
    )
    assert only(made, tmp_path).macs == 2 * (2 * 8 * 5 * 7 * 16)


def quantized(tmp_path, kind=TensorProto.INT8, activation=np.int8):
    weight = np.random.default_rng(0).integers(-100, 100, (16, 3, 3, 3)).astype(np.int8)
    made = model(
        [
            node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
            node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
            node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], axis=0),
            node("DequantizeLinear", ["bq", "bs"], ["bd"], axis=0),
            node("Conv", ["xd", "wd", "bd"], ["c"], pads=[1, 1, 1, 1], name="conv"),
            node("QuantizeLinear", ["c", "xs", "xz"], ["cq"]),
            node("DequantizeLinear", ["cq", "xs", "xz"], ["y"]),
        ],
        [value("x", [1, 3, 8, 8])],
        [value("y", [1, 16, 8, 8])],
        {
            "xs": np.float32(0.1),
            "xz": activation(0),
            "wq": weight,
            "ws": np.ones(16, np.float32),
            "wz": np.zeros(16, np.int8),
            "bq": np.zeros(16, np.int32),
            "bs": np.ones(16, np.float32),
        },
        opset=21,
        ir=10,
    )
    return cost(made, tmp_path)


def test_int8_in_qdq_form_is_counted_as_it_is_stored(tmp_path):
    found = quantized(tmp_path)
    conv_row = next(row for row in found.rows if row.node == "conv")
    assert conv_row.dtype == "int8"
    assert conv_row.macs == 16 * 64 * 27
    assert conv_row.parameters == found.parameters == 16 * 27 + 16
    assert conv_row.weight_bytes == 16 * 27 + 16 + 16 * 4 + 2 * 16 * 4, "weights, zero points, int32 bias, scales"
    assert conv_row.input_bytes == 3 * 64, "the integers behind the DequantizeLinear"
    assert conv_row.reads == ("xq",)


def test_activations_of_16_bits_are_not_int8(tmp_path):
    found = quantized(tmp_path, activation=np.int16)
    assert next(row for row in found.rows if row.node == "conv").dtype == "int16"


def test_qlinear_and_integer_operators(tmp_path):
    qlinear = model(
        [node("QLinearConv", ["x", "s", "z", "w", "s", "wz", "s", "z", "b"], ["y"])],
        [value("x", [1, 3, 8, 8], TensorProto.UINT8)],
        [value("y", [1, 4, 6, 6], TensorProto.UINT8)],
        {
            "s": np.float32(0.1),
            "z": np.uint8(128),
            "wz": np.int8(0),
            "w": np.ones((4, 3, 3, 3), np.int8),
            "b": np.zeros(4, np.int32),
        },
    )
    row = only(qlinear, tmp_path)
    assert (row.macs, row.dtype, row.parameters, row.weight_bytes) == (4 * 36 * 27, "int8", 112, 4 * 27 + 16)
    integer = model(
        [node("MatMulInteger", ["x", "w"], ["y"])],
        [value("x", [5, 7], TensorProto.UINT8)],
        [value("y", [5, 3], TensorProto.INT32)],
        {"w": np.ones((7, 3), np.int8)},
    )
    row = only(integer, tmp_path)
    assert (row.macs, row.dtype, row.weight_bytes, row.output_bytes) == (105, "int8", 21, 60)


def test_four_bit_weights(tmp_path):
    blocks = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", name="nb", K=64, N=32, bits=4, block_size=32
    )
    made = model(
        [blocks],
        [value("x", [5, 64])],
        [value("y", [5, 32])],
        {"w": np.zeros((32, 2, 16), np.uint8), "s": floats(64)},
        domains=[("com.microsoft", 1)],
    )
    row = only(made, tmp_path)
    assert (row.macs, row.parameters, row.weight_bytes, row.dtype) == (5 * 64 * 32, 64 * 32, 1024, "float32")
    packed = helper.make_tensor("q", TensorProto.INT4, [64, 32], np.zeros(64 * 32, np.int8))
    dequantized = model(
        [node("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=32), node("MatMul", ["x", "w"], ["y"])],
        [value("x", [5, 64])],
        [value("y", [5, 32])],
        {"s": floats(2, 32)},
        opset=21,
        ir=10,
    )
    dequantized.graph.initializer.append(packed)
    row = only(dequantized, tmp_path)
    assert (row.parameters, row.weight_bytes, row.dtype) == (64 * 32, 1024 + 256, "float32")


def test_integer_weights_behind_casts_are_stored_small_and_read_large(tmp_path):
    made = model(
        [
            node("Cast", ["w8"], ["wf"], to=FLOAT),
            node("Mul", ["wf", "s"], ["w"]),
            node("MatMul", ["x", "w"], ["y"]),
        ],
        [value("x", [5, 8])],
        [value("y", [5, 4])],
        {"w8": np.ones((8, 4), np.int8), "s": np.float32(0.1)},
    )
    row = only(made, tmp_path)
    assert (row.parameters, row.weight_bytes, row.weight_reads) == (32, 32, 128)


def test_lookups_read_what_they_look_up(tmp_path):
    made = model(
        [node("Gather", ["E", "ids"], ["y"])],
        [value("ids", [1, 3], INT64)],
        [value("y", [1, 3, 8])],
        {"E": floats(1000, 8)},
    )
    row = only(made, tmp_path)
    assert (row.parameters, row.weight_bytes, row.weight_reads) == (8000, 32000, 96)


def test_shared_weights_count_once(tmp_path):
    made = model(
        [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "w"], ["y"])],
        [value("x", ["b", 4])],
        [value("y", ["b", 4])],
        {"w": floats(4, 4)},
    )
    found = cost(made, tmp_path, {"x": [3, 4]})
    assert (found.macs, found.parameters, found.weight_bytes) == (2 * 48, 16, 64)
    assert [row.parameters for row in found.rows] == [16, 0]
    assert found.shapes == {"x": (3, 4)}


def test_branches_and_loops(tmp_path):
    def branch(name, width):
        weight = helper.make_tensor(f"w{width}", FLOAT, [4, width], np.zeros(4 * width))
        nodes = [node("MatMul", ["x", f"w{width}"], [f"h{width}"]), node("ReduceSum", [f"h{width}"], [f"o{width}"])]
        return helper.make_graph(nodes, name, [], [value(f"o{width}", None)], [weight])

    both = model(
        [helper.make_node("If", ["c"], ["y"], then_branch=branch("t", 2), else_branch=branch("e", 8), name="if")],
        [value("c", [], TensorProto.BOOL), value("x", [3, 4])],
        [value("y", None)],
    )
    assert cost(both, tmp_path).macs == 3 * 4 * 8, "the costlier branch, when the condition is not known"

    body = helper.make_graph(
        [node("Identity", ["go_in"], ["go"]), node("MatMul", ["state_in", "w"], ["state"])],
        "body",
        [value("i", [], INT64), value("go_in", [], TensorProto.BOOL), value("state_in", [3, 4])],
        [value("go", [], TensorProto.BOOL), value("state", [3, 4])],
    )
    loop = model(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body, name="loop")],
        [value("x", [3, 4])],
        [value("y", [3, 4])],
        {"n": np.int64(5), "w": floats(4, 4)},
    )
    assert cost(loop, tmp_path).macs == 5 * 3 * 4 * 4
    del loop.graph.initializer[0]
    loop.graph.input.append(value("n", [], INT64))
    assert cost(loop, tmp_path).uncounted == ("loop",)


def test_operators_of_onnxruntime_get_their_shapes_by_running(tmp_path):
    made = model(
        [
            helper.make_node("FusedConv", ["x", "w"], ["c"], domain="com.microsoft", name="fused", activation="Relu"),
            node("Conv", ["c", "v"], ["y"], name="conv"),
        ],
        [value("x", ["b", 3, 8, 8])],
        [value("y", None)],
        {"w": floats(4, 3, 3, 3), "v": floats(2, 4, 3, 3)},
        domains=[("com.microsoft", 1)],
    )
    found = cost(made, tmp_path, {"x": [2, 3, 8, 8]})
    assert [row.macs for row in found.rows] == [2 * 4 * 36 * 27, 2 * 2 * 16 * 36]


def test_a_node_without_static_shape_is_refused_by_name_and_origin(tmp_path):
    made = model(
        [
            node("NonZero", ["x"], ["at"], name="nz"),
            node("Cast", ["at"], ["f"], to=FLOAT),
            node("MatMul", ["w", "f"], ["y"], name="mm"),
        ],
        [value("x", [4])],
        [value("y", None)],
        {"w": floats(2, 1)},
    )
    with pytest.raises(InputError, match=r"lost at node 'nz' \(NonZero\)") as error:
        cost(made, tmp_path)
    assert "node 'mm'" in error.value.where
    del made.graph.node[2]
    made.graph.output[0].CopyFrom(value("f", None))
    assert cost(made, tmp_path).unshaped == ("nz", "Cast_f")


def test_an_axis_without_size_is_refused_by_name(tmp_path):
    made = model([node("Relu", ["x"], ["y"])], [value("x", ["b", 3, "h", "w"])], [value("y", ["b", 3, "h", "w"])])
    with pytest.raises(InputError, match="axis 2 \\('h'\\) has no size") as error:
        cost(made, tmp_path)
    assert "--shape x=1x3xNxN" in error.value.remedy
    assert cost(made, tmp_path, {"x": [2, 3, 4, 5]}).rows[0].output_bytes == 480
    with pytest.raises(UsageError, match="rank 4"):
        cost(made, tmp_path, {"x": [2, 3, 4]})
    with pytest.raises(UsageError, match="no input 'z'"):
        cost(made, tmp_path, {"z": [2, 3, 4]})


def test_pooling_and_pointwise_work(tmp_path):
    made = model(
        [
            node("Sigmoid", ["x"], ["s"]),
            node("MaxPool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Flatten", ["p"], ["y"]),
        ],
        [value("x", [1, 2, 4, 4])],
        [value("y", [1, 8])],
    )
    sigmoid, pool, flatten = cost(made, tmp_path).rows
    assert (sigmoid.kind, sigmoid.flops) == ("elementwise", 4 * 32)
    assert (pool.kind, pool.flops) == ("other", 8 * 4)
    assert (flatten.kind, flatten.flops) == ("view", 0)
