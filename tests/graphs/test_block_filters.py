"""Filters of Conv in blocks: what the nodes give is what the codes stand for, and runtimes compute it once."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import kinds
from contract import run_stage
from edgekit.errors import UnsupportedError
from edgekit.exporter import load_exporter
from edgekit.graphs.block_filters import FilterNodes
from edgekit.graphs.cost import cost_of
from edgekit.graphs.decisions import load_plan
from edgekit.numerics.blockwise import BlockFormat, quantize_rtn
from edgekit.profile import load_profile
from edgekit.stages.quantize_int4 import QuantizeInt4
from house import calibration_data


@pytest.mark.parametrize("scales", ["float16", "float32"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("shape", [(5, 1, 3, 3), (4, 12, 3, 3), (3, 40, 1), (2, 32, 1, 1)], ids=str)
def test_the_nodes_give_what_the_codes_stand_for(shape, bits, symmetric, scales):
    filters = np.random.default_rng(bits).standard_normal(shape).astype(np.float32)
    fmt = BlockFormat(bits=bits, block=32, symmetric=symmetric, negative_scales=True, scale_type=scales)
    codes = quantize_rtn(filters.reshape(shape[0], -1), fmt)
    constants, taken = [], set()

    def fresh(name):
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    nodes = FilterNodes(lambda values, name: constants.append(onnx.numpy_helper.from_array(values, name)), fresh)
    out = nodes.unpacked(codes, shape, "w")
    value = onnx.helper.make_tensor_value_info(out, TensorProto.FLOAT, list(shape))
    graph = onnx.helper.make_graph(nodes.made, "g", [], [value], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    (found,) = kinds.run(model, {})
    np.testing.assert_array_equal(found, codes.dequantized().reshape(shape))


def stored(tmp_path, model, feeds, profile, **options):
    device = load_profile(profile)
    dialect = load_exporter(device.runtime).dialect(device)
    return run_stage(QuantizeInt4(**options), model, tmp_path, data=calibration_data(feeds), dialect=dialect)


@pytest.mark.parametrize("options", [{}, {"form": "qdq"}, {"bits": 8}, {"method": "hqq"}], ids=str)
def test_a_cnn_is_stored_in_blocks_and_runs_as_it_did(options, tmp_path):
    model, feeds = kinds.residual_cnn()
    facts, made = stored(tmp_path, model, feeds, "host", **options)
    assert facts["coverage"]["weights"] == 1
    assert facts["coverage"]["macs"] == 1
    assert kinds.worst_db(model, made, feeds) > (45 if "bits" in options else 15)
    filters = [d for d in load_plan(tmp_path / "out1").decisions if d.op == "Conv" and d.what == "weight"]
    assert len(filters) == 3
    assert all(d.mode == "weights" and d.bits == options.get("bits", 4) for d in filters)
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.log_severity_level = 4
    onnxruntime.InferenceSession(made.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    left = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert not left & {"BitShift", "Concat", "Slice"}, "onnxruntime unpacks when it loads"


def test_tensorrt_has_no_such_filters(tmp_path):
    model, feeds = kinds.residual_cnn()
    with pytest.raises(UnsupportedError, match="Conv has no kernel for block-wise weights"):
        stored(tmp_path, model, feeds, "jetson")


def test_a_file_of_filters_gets_a_sixth_of_its_size(tmp_path):
    weights = {"W": np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)}
    nodes = [kinds.node("Conv", ["x", "W"], ["y"], name="wide")]
    model = kinds.build(nodes, [kinds.value("x", [1, 64, 5, 5])], [kinds.value("y", [1, 64, 3, 3])], weights)
    _, made = stored(tmp_path, model, kinds.draws(4, x=(1, 64, 5, 5)), "host")
    assert made.ByteSize() < model.ByteSize() / 5.5
    onnx.save(made, tmp_path / "made.onnx")
    cost = cost_of(tmp_path / "made.onnx")
    assert cost.parameters == 64 * 64 * 9
    assert cost.held_bytes == 4 * cost.parameters, "floats, once it is loaded"
    assert cost.weight_bytes < cost.held_bytes / 5.5


def test_a_plan_may_leave_a_conv_float(tmp_path):
    model, feeds = kinds.residual_cnn()
    facts, _ = stored(tmp_path, model, feeds, "host", skip=("stem",))
    assert facts["coverage"]["left_float"] == ["stem"]


def test_nothing_but_a_transposed_conv_cannot_be_stored(tmp_path):
    node = kinds.node("ConvTranspose", ["x", "W"], ["y"], name="up")
    weights = {"W": np.random.default_rng(0).standard_normal((4, 3, 2, 2)).astype(np.float32)}
    model = kinds.build([node], [kinds.value("x", [1, 4, 5, 5])], [kinds.value("y", [1, 3, 6, 6])], weights)
    with pytest.raises(UnsupportedError, match="nothing in the model can be stored in 4 bits"):
        stored(tmp_path, model, kinds.draws(4, x=(1, 4, 5, 5)), "host")


def test_bits_of_filters_are_chosen_too_where_no_block_divides_them(tmp_path):
    model, feeds = kinds.residual_cnn()
    facts, _ = stored(tmp_path, model, feeds, "host", aim=40.0)
    assert facts["quantization"]["mixed"]["after_db"] >= 40
    assert facts["findings"] == []


def test_an_aim_that_nothing_reaches_is_told(tmp_path):
    model, feeds = kinds.residual_cnn()
    facts, _ = stored(tmp_path, model, feeds, "host", aim=90.0)
    (found,) = [finding for finding in facts["findings"] if finding["rule"] == "aim-missed"]
    assert found["severity"] == "warning"
    assert "not the aim of 90" in found["text"]
