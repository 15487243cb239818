from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import kinds
import kinds_int4
from contract import run_stage
from edgekit.errors import UsageError
from edgekit.exporter import load_exporter
from edgekit.profile import load_profile
from edgekit.stages.quantize_int4 import QuantizeInt4
from house import calibration_data


def quantize(folder, model, feeds, **options):
    dialect = load_exporter("onnx").dialect(load_profile("host"))
    stage = QuantizeInt4(**{"method": "rtn", "bits": 8} | options)
    return run_stage(stage, model, folder, data=calibration_data(feeds) if feeds else None, dialect=dialect)


def ops(model):
    return [node.op_type for node in model.graph.node]


def levels(model):
    return {
        helper.get_node_attr_value(node, "accuracy_level") for node in model.graph.node if node.op_type == "MatMulNBits"
    }


def blocks(model):
    return {helper.get_node_attr_value(node, "block_size") for node in model.graph.node if "NBits" in node.op_type}


def stack(*, opset=17, leading=("b", "s"), scale=1.0):
    """Two products of one input, added; inputs with outliers in every block."""
    rng = np.random.default_rng(3)
    constants = {name: kinds_int4.heavy(rng, 128, 24) for name in ("u", "v")}
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["p"], name="left"),
        helper.make_node("MatMul", ["x", "v"], ["q"], name="right"),
        helper.make_node("Add", ["p", "q"], ["y"], name="sum"),
    ]
    model = kinds_int4.graph(
        nodes, [("x", TensorProto.FLOAT, [*leading, 128])], [("y", [*leading, 24])], constants, opset
    )
    shape = [2 + place for place in range(len(leading))]
    return model, [{"x": scale * rng.standard_t(2, (*shape, 128)).astype(np.float32)} for _ in range(8)]


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("leading", [("n",), ("b", "s"), ("b", "h", "s")])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_two_parts_of_8_bits_are_as_near_as_float_activations(opset, leading, scale, tmp_path):
    model, feeds = stack(opset=opset, leading=leading, scale=scale)
    told, exact = quantize(tmp_path / "float", model, feeds, accuracy_level=1)
    assert told["quantization"]["activations"] == "float"
    facts, made = quantize(tmp_path / "two", model, feeds)
    assert "two parts" in facts["quantization"]["activations"]
    _, coarse = quantize(tmp_path / "one", model, feeds, activation_bits=8)
    assert kinds.worst_db(exact, made, feeds) > 70
    assert kinds.worst_db(exact, coarse, feeds) < 50
    assert kinds.worst_db(model, made, feeds) > kinds.worst_db(model, coarse, feeds) + 1
    assert ops(made).count("Concat") == 1, "both products read the same parts"


def test_a_row_of_zeros_and_no_rows_at_all_stay_right(tmp_path):
    model, feeds = stack()
    _, made = quantize(tmp_path, model, feeds)
    empty = {"x": np.zeros((2, 3, 128), np.float32)}
    assert (kinds.run(made, empty)[0] == 0).all()
    assert kinds.run(made, {"x": np.zeros((0, 3, 128), np.float32)})[0].shape == (0, 3, 24)


def test_activations_that_8_bits_hold_are_not_taken_apart(tmp_path):
    model, feeds = stack()
    for feed in feeds:
        feed["x"] = np.clip(np.rint(feed["x"] * 8), -127, 127).astype(np.float32)
        feed["x"][..., ::32] = 127
    facts, made = quantize(tmp_path, model, feeds, block=32)
    assert facts["quantization"]["activations"].startswith("8 bits")
    assert "Concat" not in ops(made)
    kept, _ = quantize(tmp_path / "asked", model, feeds, block=32, activation_bits=16)
    assert "two parts" in kept["quantization"]["activations"]


def test_4_bit_weights_read_8_bit_activations_unless_asked(tmp_path):
    model, feeds = stack()
    facts, _ = quantize(tmp_path / "a", model, feeds, bits=4)
    assert facts["quantization"]["activations"].startswith("8 bits")
    facts, made = quantize(tmp_path / "b", model, feeds, bits=4, activation_bits=16)
    _, exact = quantize(tmp_path / "c", model, feeds, bits=4, accuracy_level=1)
    assert kinds.worst_db(exact, made, feeds) > 70


def test_a_depth_that_blocks_do_not_divide_is_multiplied_in_float(tmp_path):
    model, feeds = kinds_int4.product(70, 5)
    _, made = quantize(tmp_path / "a", model, feeds)
    assert levels(made) == {1}
    _, exact = quantize(tmp_path / "b", model, feeds, accuracy_level=1)
    assert kinds.worst_db(exact, made, feeds) > 100


@pytest.mark.parametrize(("depth", "block"), [(256, 128), (192, 64), (96, 32), (70, 32)])
def test_8_bit_blocks_divide_the_depth_unless_asked(depth, block, tmp_path):
    model, feeds = kinds_int4.product(depth, 5)
    _, made = quantize(tmp_path / "a", model, feeds)
    assert blocks(made) == {block}
    assert any("zero_points" in tensor.name for tensor in made.graph.initializer) == (block == 128)
    _, made = quantize(tmp_path / "b", model, feeds, block=16, symmetric=False)
    assert blocks(made) == {16}
    assert any("zero_points" in tensor.name for tensor in made.graph.initializer)


def test_8_bit_blocks_are_chosen_matrix_by_matrix_for_the_bytes_there_are(tmp_path):
    model, feeds = stack()
    plain, uniform = quantize(tmp_path / "a", model, feeds, method="gptq")
    facts, made = quantize(tmp_path / "b", model, feeds, method="gptq", mean_bits=8.6)
    told = facts["quantization"]["mixed"]
    assert told["kept"]
    assert told["bits_after"] <= 8.6
    assert kinds.worst_db(model, made, feeds) > kinds.worst_db(model, uniform, feeds) + 1
    assert facts["quantization"]["activations"] == plain["quantization"]["activations"]


@pytest.mark.parametrize("kind", ["cast", "transpose", "constant", "gemm"])
def test_weights_in_every_spelling(kind, tmp_path):
    model, feeds = kinds_int4.spelled(kind)
    _, made = quantize(tmp_path, model, feeds)
    onnx.checker.check_model(made)
    assert "Concat" in ops(made)
    assert kinds.worst_db(model, made, feeds) > 40


def test_products_of_inner_graphs_make_their_own_parts(tmp_path):
    model, feeds = kinds_int4.branch()
    _, made = quantize(tmp_path / "a", model, feeds)
    _, exact = quantize(tmp_path / "b", model, feeds, accuracy_level=1)
    onnx.checker.check_model(made)
    assert kinds.worst_db(exact, made, feeds) > 60


def test_a_tied_table_is_stored_once_beside_its_parts(tmp_path):
    model, feeds = kinds_int4.tied(vocabulary=64, width=32)
    _, made = quantize(tmp_path, model, feeds)
    packed = [tensor.name for tensor in made.graph.initializer if tensor.data_type == TensorProto.UINT8]
    assert sorted(name for name in packed if "table" in name) in (
        ["table_8bit"],
        ["table_8bit", "table_8bit_zero_points"],
    )
    assert kinds.worst_db(model, made, feeds) > 36


def rows_of_the_table(model, depth):
    """The rows of a table in blocks of 8 bits, as floats."""
    packed = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    codes = packed["table_8bit"].astype(np.float32)
    zeros = packed.get("table_8bit_zero_points", np.full(codes.shape[:2], 128)).astype(np.float32)
    scales = packed["table_8bit_scales_half"].astype(np.float32).reshape(codes.shape[:2])
    return ((codes - zeros.reshape(codes.shape[:2])[..., None]) * scales[..., None]).reshape(len(codes), -1)[:, :depth]


def test_a_tied_table_is_learned_for_the_last_layer_and_its_rows_stay_near(tmp_path):
    model, feeds = kinds_int4.tied(vocabulary=256, width=64, squeezed=True)
    table = next(numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name == "table")
    probe = onnx.ModelProto.FromString(model.SerializeToString())
    probe.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    hidden = np.concatenate([session.run(["r"], feed)[0].reshape(-1, 64) for feed in feeds])

    def lost(method):
        _, made = quantize(tmp_path / method, model, feeds, method=method)
        wrong = rows_of_the_table(made, 64) - table
        return np.square(hidden @ wrong.T).mean(), np.square(wrong).mean()

    nearest, learned = lost("rtn"), lost("gptq")
    assert learned[0] < nearest[0] / 2
    assert learned[1] < nearest[1] * 2.5


@pytest.mark.parametrize("tie", [False, True])
def test_only_a_shared_table_gets_zero_points_in_8_bits(tie, tmp_path):
    model, feeds = kinds_int4.tied(vocabulary=64, width=64, tie=tie)
    _, made = quantize(tmp_path, model, feeds, method="rtn")
    assert ("table_8bit_zero_points" in {tensor.name for tensor in made.graph.initializer}) == tie
    assert kinds.worst_db(model, made, feeds) > 32


def test_factors_go_into_the_gain_of_a_normalization(tmp_path):
    rng = np.random.default_rng(5)
    gain = np.exp(rng.standard_normal(128)).astype(np.float32)
    weight = (kinds_int4.heavy(rng, 128, 32) * np.exp(rng.standard_normal((128, 1)))).astype(np.float32)
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="squash"),
        helper.make_node("Mul", ["t", "g"], ["m"], name="gain"),
        helper.make_node("MatMul", ["m", "w"], ["y"], name="mm"),
    ]
    inputs, outputs = [("x", TensorProto.FLOAT, ["n", 128])], [("y", ["n", 32])]
    model = kinds_int4.graph(nodes, inputs, outputs, {"g": gain, "w": weight})
    feeds = [{"x": rng.standard_normal((40, 128)).astype(np.float32)} for _ in range(8)]
    _, made = quantize(tmp_path / "a", model, feeds, bits=4, method="gptq", accuracy_level=1)
    assert ops(made).count("Mul") == 1
    _, plain = quantize(tmp_path / "b", model, feeds, bits=4, method="rtn", accuracy_level=1)
    assert kinds.worst_db(model, made, feeds) > kinds.worst_db(model, plain, feeds) + 3


def test_other_numbers_of_bits_are_refused():
    with pytest.raises(UsageError, match="activation_bits 12"):
        QuantizeInt4(activation_bits=12)
