from __future__ import annotations

import numpy as np
import onnx
import pytest

import kinds
from contract import run_stage
from edgekit.artifact import sha256_file
from edgekit.errors import InputError
from edgekit.exporter import load_exporter
from edgekit.graphs.decisions import COLUMNS, PLAN, load_plan
from edgekit.graphs.weights import Weights
from edgekit.profile import load_profile
from edgekit.stages.fp16 import Fp16
from edgekit.stages.quantize_int4 import QuantizeInt4
from edgekit.stages.quantize_int8 import QuantizeInt8
from house import calibration_data

PROFILES = {"onnx": "host", "tensorrt": "jetson", "qnn": "snapdragon"}


def made(tmp_path, stage, name, runtime="onnx"):
    """Run a stage on one of the kinds; the float graph, the facts, the written graph and the plan beside it."""
    model, feeds = kinds.BOUNDED[name][0]()
    data = calibration_data(feeds)
    dialect = load_exporter(runtime).dialect(load_profile(PROFILES[runtime]))
    facts, written = run_stage(stage, model, tmp_path, data=data, dialect=dialect)
    return model, facts, written, load_plan(tmp_path / "out1")


def of(plan, what, mode=None):
    return [d for d in plan.decisions if d.what == what and mode in (None, d.mode)]


@pytest.mark.parametrize("runtime", PROFILES)
@pytest.mark.parametrize("name", ["residual CNN", "small transformer", "Q23 LSTM and GRU", "Q35 Einsum", "Gemm"])
def test_the_table_says_what_stands_in_the_int8_graph(name, runtime, tmp_path):
    model, facts, written, plan = made(tmp_path, QuantizeInt8(), name, runtime)
    tensors = {tensor.name: tensor for tensor in written.graph.initializer}
    weights = [d for d in of(plan, "weight") if "nothing between integer products" not in d.why]
    assert {(d.node, d.tensor) for d in weights} == {(o.node, o.tensor) for o in Weights(model.graph).operands}
    for decision in weights:
        stored = tensors.get(decision.tensor + "_quantized")
        assert (stored is not None) == (decision.mode != "float"), decision
        if stored is None:
            assert decision.type == "float32"
            assert decision.why.startswith("left float: ")
            continue
        assert onnx.TensorProto.DataType.Name(stored.data_type).lower() == decision.type
        middle = 128 if decision.type == "uint8" else 0
        assert np.abs(onnx.numpy_helper.to_array(stored).astype(int) - middle).max() < 2 ** (decision.bits - 1)
        scale = tensors.get(stored.name + "_scale") or tensors[stored.name + "_row_scale"]
        per_channel = bool(scale.dims)
        assert decision.granularity == ("per-channel" if per_channel else "per-tensor")
        assert decision.why.startswith(f"weight {decision.granularity} {decision.type}")
    quantized = [n for n in written.graph.node if n.op_type == "QuantizeLinear"]
    assert len(of(plan, "activation", "static")) == len(quantized)
    points = {t.name: onnx.numpy_helper.to_array(t).dtype.name for t in written.graph.initializer if not t.dims}
    assert {d.type for d in of(plan, "activation", "static")} == {points[n.input[2]] for n in quantized}
    dynamic = [n for n in written.graph.node if n.op_type == "DynamicQuantizeLinear"]
    assert len(of(plan, "activation", "dynamic")) == len(dynamic)
    biases = [
        t
        for t in written.graph.initializer
        if t.data_type == onnx.TensorProto.INT32 and t.dims and "_zero_point" not in t.name
    ]
    assert len([d for d in of(plan, "bias") if d.type == "int32"]) == len(biases)
    assert plan.coverage == {k: v for k, v in facts["coverage"].items() if k != "left_float"}
    assert sum(facts["decisions"]["tensors"].values()) == len(plan.decisions)
    for node in facts["coverage"]["left_float"]:
        assert any(d.node == node for d in plan.decisions), f"nothing is said of {node}"


@pytest.mark.parametrize("precision", ["w8a16", "w4a16"])
def test_other_precisions_are_told_as_they_are(precision, tmp_path):
    stage = QuantizeInt8(precision=precision)
    *_, written, plan = made(tmp_path, stage, "residual CNN", "qnn")
    stored = {t.name: t.data_type for t in written.graph.initializer}
    weights = of(plan, "weight", "static")
    narrow = [d for d in weights if "nothing between integer products" not in d.why]
    assert {d.type for d in narrow} == {"int4" if precision == "w4a16" else "int8"}
    for decision in narrow:
        assert stored[decision.tensor + "_quantized"] == onnx.TensorProto.DataType.Value(decision.type.upper())
        assert decision.bits == (4 if precision == "w4a16" else 8)
    assert {(d.type, d.bits) for d in of(plan, "activation", "static")} == {("uint16", 16)}
    assert plan.coverage["precision"] == precision


def test_what_has_no_kernel_says_so(tmp_path):
    *_, plan = made(tmp_path, QuantizeInt8(), "Q23 LSTM and GRU")
    why = {d.op: d.why for d in of(plan, "weight")}
    assert "GRU has no int8 kernel in the ort-cpu dialect" in why["GRU"]
    *_, plan = made(tmp_path / "trt", QuantizeInt8(), "Q23 LSTM and GRU", "tensorrt")
    why = {d.op: d.why for d in of(plan, "weight")}
    assert why["GRU"] == "left float: tensorrt does not take the weights of GRU in 8 bits"


def test_the_table_says_what_stands_in_the_int4_graph(tmp_path):
    stage = QuantizeInt4(method="gptq", mean_bits=6)
    _, facts, written, plan = made(tmp_path, stage, "small transformer")
    bits = {n.name: a.i for n in written.graph.node for a in n.attribute if a.name == "bits"}
    blocks = {n.name: a.i for n in written.graph.node for a in n.attribute if a.name == "block_size"}
    stored = of(plan, "weight", "weights")
    assert {d.node: d.bits for d in stored} == bits
    assert {d.node: int(d.granularity.removeprefix("block-")) for d in stored} == blocks
    assert len(set(zip(bits.values(), blocks.values(), strict=True))) > 1
    assert any("alone it left" in d.why for d in stored)
    assert [d.op for d in of(plan, "activation", "float")] == ["MatMul", "MatMul"]
    assert facts["decisions"]["file"] == PLAN


def test_the_table_says_what_stands_in_the_float16_graph(tmp_path):
    *_, written, plan = made(tmp_path, Fp16(keep=("Softmax",)), "small transformer")
    inferred = onnx.shape_inference.infer_shapes(written).graph
    found = {v.name.removesuffix("_inner"): v.type.tensor_type.elem_type for v in inferred.value_info}
    kinds_of = {16: onnx.TensorProto.FLOAT16, 32: onnx.TensorProto.FLOAT}
    made_by_nodes = of(plan, "activation")
    assert len(made_by_nodes) == 21
    assert {d.tensor: kinds_of[d.bits] for d in made_by_nodes}.items() <= found.items()
    stored = {t.name.removesuffix("_float16"): t.data_type for t in written.graph.initializer}
    for decision in of(plan, "weight"):
        assert stored[decision.tensor] == kinds_of[decision.bits]
    (kept,) = [d for d in plan.decisions if d.op == "Softmax"]
    assert kept.why == "left float: the option keep names it ('Softmax')"


def test_rows_have_the_columns_and_the_file_is_part_of_the_artifact(tmp_path):
    *_, plan = made(tmp_path, QuantizeInt8(), "Gemm")
    assert all(len(d.row()) == len(COLUMNS) for d in plan.decisions)
    assert sha256_file(tmp_path / "out1" / PLAN) == sha256_file(tmp_path / "out2" / PLAN)


def test_what_is_no_plan_is_refused(tmp_path):
    assert load_plan(tmp_path) is None
    (tmp_path / PLAN).write_text('{"stage": 3}')
    with pytest.raises(InputError, match="not a plan"):
        load_plan(tmp_path)
