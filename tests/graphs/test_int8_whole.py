"""Graphs whose every float tensor lies on a grid: what is completed, and that values stay what they were."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

import house
import kinds
from contract import ORT_CPU, run_stage
from edgekit.graphs.edit import GraphIndex
from edgekit.graphs.gelu import fuse_gelu
from edgekit.graphs.int8_whole import is_q
from edgekit.plan import make_stage
from htp_networks import ARCHITECTURES, Net, pictures

HTP = dataclasses.replace(
    ORT_CPU,
    name="qnn",
    dynamic_transformers=False,
    ops=("Conv", "ConvTranspose", "MatMul", "Gemm"),
    stored_per_channel=False,
    whole="must",
    precisions=("w8a8", "w8a16", "w4a16"),
)


def quantized(name, precision, tmp_path, dialect=HTP):
    model, feeds = ARCHITECTURES[name]()
    fuse_gelu(model)
    options = {"precision": precision}
    facts, made = run_stage(
        make_stage("quantize-int8", options, "test"), model, tmp_path, data=house.dataset(feeds), dialect=dialect
    )
    return model, feeds, facts, made


def left(model):
    """Name the nodes that read or make a float tensor which lies on no grid."""
    index = GraphIndex(model.graph)
    found = []
    for node in model.graph.node:
        if is_q(node) or node.op_type in {"Cast", "Unsqueeze", "Sub"}:
            continue
        for position, name in enumerate(node.input):
            if node.op_type in {"Clip", "Resize", "ReduceSum", "ReduceMean", "Reshape"} and position:
                continue
            values = index.value(name) if name else None
            maker = index.producers.get(name)
            constant = values is not None and values.dtype == np.float32
            float_made = (
                maker is not None and not is_q(maker) and maker.op_type not in {"Conv", "MatMul", "Gemm", "Cast"}
            )
            if name and (constant or float_made) and node.op_type != "Conv":
                found.append((node.name, name))
    return found


@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
@pytest.mark.parametrize("name", ["residual_cnn", "vision_transformer", "squeeze_excite", "modern_cnn"])
def test_nothing_is_left_in_float_and_little_is_lost(name, precision, tmp_path):
    model, feeds, facts, made = quantized(name, precision, tmp_path)
    assert left(made) == []
    assert facts["quantization"]["whole"]["kept"] is True
    assert kinds.worst_db(model, made, feeds[:4]) > (15 if precision == "w8a8" else 30)


def test_masks_leave_the_scores_their_steps(tmp_path):
    model, feeds, _, made = quantized("language_encoder", "w8a16", tmp_path)
    assert kinds.worst_db(model, made, feeds[:6]) > 28


def masked(how, layers=3):
    """Layers of attention that share one mask of the padded places."""
    net = Net(0)
    keep = "seen"
    mask = {
        "where": lambda: net.op(
            "Where",
            net.op("Cast", keep, to=onnx.TensorProto.BOOL),
            net.constant(np.float32(0)),
            net.constant(np.finfo(np.float32).min),
        ),
        "product": lambda: net.op(
            "Mul", net.op("Sub", net.constant(np.float32(1)), keep), net.constant(np.float32(-1e4))
        ),
        "view": lambda: net.op(
            "Expand",
            net.op("Mul", net.op("Sub", net.constant(np.float32(1)), keep), net.constant(np.float32(-1e9))),
            net.constant(np.array([1, 6, 6], np.int64)),
        ),
        "constant": lambda: net.constant(np.triu(np.full((1, 6, 6), -1e9, np.float32), 1)),
    }[how]()
    x = "x"
    for _ in range(layers):
        query, key, value = (net.linear(x, 8, 8) for _ in range(3))
        scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 2, 1]))
        weights = net.op("Softmax", net.op("Add", scores, mask), axis=-1)
        x = net.op("Add", x, net.op("MatMul", weights, value))
    y = net.linear(x, 8, 4)
    rng = np.random.default_rng(1)
    feeds = []
    for number in range(24):
        seen = (np.arange(6) < 2 + number % 5).astype(np.float32)[None, None]
        feeds.append({"x": rng.normal(size=(1, 6, 8)).astype(np.float32), "seen": seen})
    return net.model({"x": (1, 6, 8), "seen": (1, 1, 6)}, {y: (1, 6, 4)}), feeds


@pytest.mark.parametrize(("precision", "least"), [("w8a16", 25), ("w8a8", 12)])
@pytest.mark.parametrize("how", ["where", "product", "view", "constant"])
def test_one_mask_of_many_layers_leaves_the_scores_of_all_their_steps(how, precision, least, tmp_path):
    model, feeds = masked(how)
    stage = make_stage("quantize-int8", {"precision": precision}, "test")
    facts, made = run_stage(stage, model, tmp_path, data=house.dataset(feeds), dialect=HTP)
    assert facts["quantization"]["whole"]["kept"]
    assert kinds.worst_db(model, made, feeds[:6]) > least
    index = GraphIndex(made.graph)
    scales = [index.value(node.input[1]) for node in made.graph.node if node.op_type == "QuantizeLinear"]
    assert max(float(scale.max()) for scale in scales) < 1, "no grid reaches to where a mask was"


@pytest.mark.parametrize("precision", ["w8a16", "w8a8"])
def test_what_is_looked_up_in_a_table_lies_on_its_grid(precision, tmp_path):
    model, _, _, made = quantized("language_encoder", precision, tmp_path)
    index = GraphIndex(made.graph)
    gather = next(node for node in made.graph.node if node.op_type == "Gather")
    table = index.producers[gather.input[0]]
    assert index.value(table.input[0]).dtype == np.uint8
    assert index.value(table.input[2]) == 128
    (quantize,) = index.consumers[gather.output[0]]
    assert list(quantize.input[1:]) == list(table.input[1:]), "it is only moved"
    assert not [tensor for tensor in made.graph.initializer if tensor.name not in index.consumers], (
        "nothing is left over"
    )
    words = np.asarray(index.value(table.input[0]), np.float32) - 128
    words *= index.value(table.input[1])
    original = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if list(t.dims) == list(words.shape))
    assert np.abs(words - original).max() <= 0.51 * index.value(table.input[1])


def test_a_norm_has_its_scale_in_one_step_of_uint8_and_its_bias_in_int32(tmp_path):
    _, _, _, made = quantized("vision_transformer", "w8a16", tmp_path)
    index = GraphIndex(made.graph)
    norms = [node for node in made.graph.node if node.op_type == "LayerNormalization"]
    assert norms
    for node in norms:
        scale, bias = (index.producers[name] for name in node.input[1:3])
        assert index.value(scale.input[0]).dtype == np.uint8
        assert index.value(scale.input[1]).size == 1
        assert index.value(bias.input[0]).dtype == np.int32
        steps = index.value(index.producers[node.input[0]].input[1]) * index.value(scale.input[1])
        assert index.value(bias.input[1]) == pytest.approx(steps, rel=1e-6)


def test_where_floats_are_at_hand_a_costly_completion_is_undone(tmp_path):
    net = Net(0)
    large = net.op("Mul", net.linear("x", 12, 12), net.constant(np.float32(1e3)))
    rest = net.op(
        "Sub", net.op("Sub", net.linear("x", 12, 12), large), net.op("Neg", large)
    )  # float keeps what is small
    model, feeds = net.model({"x": (1, 12)}, {rest: (1, 12)}), pictures(1, 12)
    stage = make_stage("quantize-int8", {}, "test")
    facts, _ = run_stage(
        stage, model, tmp_path, data=house.dataset(feeds), dialect=dataclasses.replace(HTP, whole="prefer")
    )
    whole = facts["quantization"]["whole"]
    assert whole["kept"] is False
    assert whole["whole_db"] < whole["mixed_db"] - 3


def test_a_dead_tensor_gets_a_grid_too(tmp_path):
    net = Net(0)
    x = net.op("Relu", net.op("Sub", net.op("Relu", "x"), net.constant(np.float32(1e6))))
    y = net.op("Add", net.linear("x", 12, 12), x)
    model, feeds = net.model({"x": (1, 12)}, {y: (1, 12)}), pictures(1, 12)
    stage = make_stage("quantize-int8", {}, "test")
    _, made = run_stage(stage, model, tmp_path, data=house.dataset(feeds), dialect=HTP)
    assert left(made) == []
    assert kinds.worst_db(model, made, feeds[:4]) > 25


def test_four_bit_weights_are_stored_in_four_bits(tmp_path):
    model, feeds, facts, made = quantized("plain_cnn", "w4a16", tmp_path)
    kinds_of = {
        tensor.name: tensor.data_type for tensor in made.graph.initializer if tensor.name.endswith("_quantized")
    }
    int4 = 22
    assert int4 in set(kinds_of.values())
    assert facts["coverage"]["precision"] == "w4a16"
    assert kinds.worst_db(model, made, feeds[:4]) > 5


def test_a_runtime_without_the_precision_says_what_it_has(tmp_path):
    from edgekit.errors import UnsupportedError

    model, feeds = ARCHITECTURES["perceptron"]()
    stage = make_stage("quantize-int8", {"precision": "w8a16"}, "test")
    with pytest.raises(UnsupportedError, match="has no w8a16"):
        run_stage(stage, model, tmp_path, data=house.dataset(feeds), dialect=ORT_CPU)
