from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import house
import htp_networks
import kinds
from contract import run_stage
from edgekit.errors import UsageError
from edgekit.exporter import load_exporter
from edgekit.profile import load_profile
from edgekit.stages.quantize_int8 import QuantizeInt8


def quantized(folder, model, feeds, **options):
    folder.mkdir()
    rules = load_exporter("qnn").dialect(load_profile("snapdragon-8-gen3"))
    stage = QuantizeInt8(precision="w4a16", method="minmax", floor=0.0, aim=0.0, **options)
    facts, made = run_stage(stage, model, folder, data=house.dataset(feeds * 2), dialect=rules)
    return facts["quantization"].get("rounding"), made


@pytest.fixture(scope="module")
def network():
    """A CNN, samples to calibrate on and samples that calibration has not seen."""
    model, _ = htp_networks.plain_cnn()
    feeds = htp_networks.pictures(1, 3, 32, 32, count=64)
    return model, feeds[:40], feeds[40:]


def constants(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_four_bit_weights_come_nearer_step_by_step_on_new_samples(network, tmp_path):
    model, feeds, new = network
    found = {}
    for number, options in enumerate(
        ({}, {"bias": "corrected"}, {"rounding": "learned", "bias": "kept"}, {"rounding": "learned"})
    ):
        told, made = quantized(tmp_path / str(number), model, feeds, **options)
        assert (told or {}).get("kept", False) == bool(options), told
        found[number] = kinds.worst_db(model, made, new)
    nearest, biases, weights, both = found.values()
    assert biases > nearest + 1
    assert weights > nearest + 3
    assert both > biases + 3


def test_biases_alone_leave_weights_and_scales_as_they_are(network, tmp_path):
    model, feeds, _ = network
    plain, made = (constants(quantized(tmp_path / name, model, feeds, bias=name)[1]) for name in ("kept", "corrected"))
    changed = [name for name in plain if not np.array_equal(plain[name], made[name])]
    assert changed
    assert all(plain[name].dtype == np.int32 for name in changed)


def test_scales_are_searched_and_biases_count_in_the_new_ones(network, tmp_path):
    model, feeds, _ = network
    _, plain = quantized(tmp_path / "a", model, feeds)
    _, made = quantized(tmp_path / "b", model, feeds, rounding="learned")
    before, after = constants(plain), constants(made)
    makers = {name: node for node in made.graph.node for name in node.output}
    factors, lowest = [], 0
    for node in made.graph.node:
        if node.op_type not in {"Conv", "Gemm"}:
            continue
        x, weight, bias = (makers[name] for name in node.input)
        factors.append(after[weight.input[1]] / before[weight.input[1]])
        lowest = min(lowest, int(after[weight.input[0]].astype(np.int8).min()))
        assert np.allclose(after[bias.input[1]], after[x.input[1]] * after[weight.input[1]], rtol=1e-5)
        assert np.abs(after[bias.input[0]].astype(np.int64)).max() < 2**31 - 1
    assert min(factor.min() for factor in factors) < 0.9
    assert max(factor.max() for factor in factors) <= 1
    assert lowest == -8, "the smallest integer counts too"
    onnx.checker.check_model(made)


def test_an_unknown_word_for_biases_is_refused():
    with pytest.raises(UsageError, match="unknown bias 'none'"):
        QuantizeInt8(bias="none")


def test_ranges_are_chosen_by_the_error_of_the_outputs(tmp_path):
    """One calibration sample holds a value far from all others: a range up to it costs these their bits."""
    r = np.random.default_rng(0)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 64, 8])],
        [numpy_helper.from_array(kinds.normal(1, 1, 32, 8), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = [{"x": r.normal(size=(1, 64, 32)).astype(np.float32)} for _ in range(90)]
    calibration, new = feeds[:60], feeds[60:]
    calibration[0]["x"][0, 0, 0] = 300
    found, told = {}, {}
    for method in ("minmax", "auto"):
        (tmp_path / method).mkdir()
        stage = QuantizeInt8(method=method, mode="static", floor=0.0, aim=0.0)
        facts, made = run_stage(stage, model, tmp_path / method, data=house.dataset(calibration * 2))
        found[method], told[method] = kinds.worst_db(model, made, new), facts["quantization"]
    assert told["auto"]["method"] != "minmax", (told["auto"], found)
    assert len(told["auto"]["candidates"]) == 3
    assert found["auto"] > found["minmax"] + 6
