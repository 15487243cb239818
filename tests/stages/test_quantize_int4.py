from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import house
import kinds_int4
from contract import run_stage
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.exporter import load_exporter
from edgekit.plan import Given, make_plan
from edgekit.profile import load_profile
from edgekit.recipe import load_recipe
from edgekit.stages.quantize_int4 import QuantizeInt4

PACKED = {TensorProto.UINT8, TensorProto.INT8, TensorProto.INT4, TensorProto.UINT4}


def dialect(runtime="onnx", **graph):
    profile = house.profile(runtime=runtime, graph=house.Graph(**graph))
    return load_exporter(runtime).dialect(profile)


def quantize(tmp_path, model, feeds, *, runtime="onnx", graph=None, **options):
    return run_stage(
        QuantizeInt4(**options),
        model,
        tmp_path,
        data=house.calibration_data(feeds) if feeds else None,
        dialect=dialect(runtime, **(graph or {})),
    )


def outputs(model, feed, *, optimized=True):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def sqnr(model, made, feeds):
    ratios = []
    for feed in feeds:
        for before, after in zip(outputs(model, feed), outputs(made, feed), strict=True):
            ratios.append(10 * np.log10((before**2).sum() / max(((before - after) ** 2).sum(), 1e-30)))
    return min(ratios)


def ops(model):
    return [node.op_type for node in model.graph.node]


def share(model):
    """The share of the elements of matrices that is stored in 8 bits or fewer, packed ones counted as stored."""
    narrow = wide = 0
    for tensor in model.graph.initializer:
        if len(tensor.dims) < 2 or "scale" in tensor.name:
            continue
        count = int(np.prod(tensor.dims))
        narrow += count * (tensor.data_type in PACKED)
        wide += count * (tensor.data_type == TensorProto.FLOAT)
    return narrow / (narrow + wide)


@pytest.mark.parametrize("form", ["matmulnbits", "qdq"])
@pytest.mark.parametrize(
    ("block", "method"), [(16, "rtn"), (32, "gptq"), (32, "awq"), (64, "hqq"), (128, "gptq"), (256, "rtn")]
)
def test_a_depth_that_is_no_multiple_of_the_block(tmp_path, form, block, method):  # Q31
    model, feeds = kinds_int4.product(70, 5)
    facts, made = quantize(tmp_path, model, feeds, form=form, block=block, method=method)
    assert sqnr(model, made, feeds) >= 14
    assert share(made) == 1
    assert facts["coverage"]["weights"] == 1
    assert facts["coverage"]["macs"] == 1
    assert facts["coverage"]["left_float"] == []


@pytest.mark.parametrize("block", [512, 1024, 48, 8])
def test_blocks_that_runtimes_do_not_take_are_refused(block):  # Q32
    with pytest.raises(UsageError, match=f"block size {block} is not supported by the runtimes") as caught:
        QuantizeInt4(block=block)
    assert "256" in caught.value.remedy


@pytest.mark.parametrize("form", ["matmulnbits", "qdq"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_runtimes_fusions_do_not_change_the_result(tmp_path, form, symmetric):  # Q33
    model, feeds = kinds_int4.product(64, 32)
    _, made = quantize(tmp_path, model, feeds, form=form, symmetric=symmetric, method="rtn", accuracy_level=1)
    for feed in feeds:
        plain, fused = (outputs(made, feed, optimized=flag)[0] for flag in (False, True))
        assert np.abs(plain - fused).max() <= 1e-3 * np.abs(plain).max()
    _, quick = quantize(
        tmp_path / "quick", model, feeds, form=form, symmetric=symmetric, method="rtn", accuracy_level=4
    )
    plain = outputs(made, feeds[0])[0]
    for optimized in (True, False):
        quickly = outputs(quick, feeds[0], optimized=optimized)[0]
        assert np.abs(plain - quickly).max() <= 0.05 * np.abs(plain).max()


def test_a_graph_that_is_in_4_bits_already_is_refused_by_name(tmp_path):  # Q33, as it is given
    model, feeds = kinds_int4.product(64, 32)
    _, made = quantize(tmp_path, model, feeds, form="qdq")
    with pytest.raises(InputError, match=r"already quantized \(operators DequantizeLinear\)"):
        quantize(tmp_path / "again", made, feeds)


@pytest.mark.parametrize("form", ["matmulnbits", "qdq"])
@pytest.mark.parametrize(("bits", "width"), [(4, 64), (8, 48)])
def test_a_tied_table_is_stored_once(tmp_path, form, bits, width):  # Q01
    model, feeds = kinds_int4.tied(vocabulary=120, width=width)
    _, made = quantize(tmp_path, model, feeds, form=form, embedding_bits=bits, method="rtn")
    stored = [t for t in made.graph.initializer if t.name.startswith("table") and np.prod(t.dims) * 8 >= 120 * width]
    assert [t.data_type in PACKED for t in stored] == [True]
    assert made.ByteSize() < 0.45 * model.ByteSize()
    assert sqnr(model, made, feeds) >= (20 if bits == 8 else 14)
    if form == "matmulnbits":
        assert {"GatherBlockQuantized", "MatMulNBits"} <= set(ops(made))


def test_a_lookup_whose_rows_are_no_whole_blocks_keeps_its_width(tmp_path):
    model, feeds = kinds_int4.tied(vocabulary=50, width=40, tie=False)
    for form in ("matmulnbits", "qdq"):
        _, made = quantize(tmp_path / form, model, feeds, form=form, embedding_bits=8, method="rtn")
        assert outputs(made, feeds[0])[0].shape == outputs(model, feeds[0])[0].shape
        assert sqnr(model, made, feeds) > 17


def test_tables_stay_float_when_asked_and_are_told(tmp_path):
    model, feeds = kinds_int4.tied(vocabulary=120, width=64)
    facts, made = quantize(tmp_path, model, feeds, embeddings=False, method="rtn")
    assert facts["coverage"]["left_float"] == ["lookup", "head"]
    why = {finding["node"]: finding["text"] for finding in facts["findings"] if finding["rule"] == "left-float"}
    assert "also read by 'lookup', where tables stay float" in why["head"]
    model, feeds = kinds_int4.tied(vocabulary=120, width=64, tie=False)
    facts, made = quantize(tmp_path / "apart", model, feeds, embeddings=False, method="rtn")
    assert "Gather" in ops(made)
    assert facts["coverage"]["left_float"] == ["lookup"]
    assert any("tables stay float" in finding["text"] for finding in facts["findings"])


@pytest.mark.parametrize("kind", ["cast", "transpose", "constant", "gemm"])
@pytest.mark.parametrize("form", ["matmulnbits", "qdq"])
def test_weights_wherever_they_stand(tmp_path, kind, form):  # Q17
    model, feeds = kinds_int4.spelled(kind)
    facts, made = quantize(tmp_path, model, feeds, form=form, method="gptq")
    assert sqnr(model, made, feeds) >= 15
    assert share(made) == 1
    assert facts["coverage"]["weights"] == 1


def test_auto_measures_and_says_why(tmp_path):
    model, feeds = kinds_int4.uneven()
    facts, made = quantize(tmp_path, model, feeds)
    found = facts["quantization"]
    assert set(found["candidates"]) == {"rtn", "hqq", "awq", "gptq"}
    assert found["candidates"][found["method"]] == max(found["candidates"].values())
    assert found["method"] in {"awq", "gptq"}, "inputs this uneven reward methods that look at them"
    assert found["method"] in found["why"]
    assert "held-out" in found["why"]
    assert 4.5 < found["bits_per_weight"] < 4.7
    assert sqnr(model, made, feeds) > found["candidates"]["rtn"] - 1


def test_awq_divides_the_input_once_for_the_layers_that_share_it(tmp_path):
    model, feeds = kinds_int4.uneven()
    facts, made = quantize(tmp_path, model, feeds, method="awq", accuracy_level=1)
    assert ops(made).count("Mul") == 1
    _, plain = quantize(tmp_path / "rtn", model, feeds, method="rtn", accuracy_level=1)
    assert sqnr(model, made, feeds) > sqnr(model, plain, feeds) + 1
    mixed, raised = quantize(tmp_path / "mixed", model, feeds, method="awq", accuracy_level=1, mean_bits=7)
    assert sqnr(model, raised, feeds) > sqnr(model, made, feeds)
    assert mixed["coverage"]["eight_bit"] == 0.5
    assert ops(raised).count("Mul") == 1
    assert facts["coverage"]["eight_bit"] == 0


def test_more_bits_on_average_are_nearer(tmp_path):
    model, feeds = kinds_int4.uneven()
    sizes, ratios = [], []
    for number, bits in enumerate((4.3, 5, 7, 9)):
        facts, made = quantize(tmp_path / str(number), model, feeds, method="rtn", mean_bits=bits, accuracy_level=1)
        sizes.append(made.ByteSize())
        ratios.append(sqnr(model, made, feeds))
        assert facts["quantization"]["bits_per_weight"] <= bits
        assert facts["quantization"]["mixed"]["bits_after"] == facts["quantization"]["bits_per_weight"]
    assert sizes == sorted(sizes)
    assert ratios == sorted(ratios)
    assert ratios[3] > ratios[0] + 15


def test_without_data_the_values_alone_decide_and_it_is_told(tmp_path):
    model, _ = kinds_int4.product(64, 32)
    facts, _ = quantize(tmp_path, model, [])
    assert [finding["rule"] for finding in facts["findings"]] == ["unchecked"]
    assert facts["quantization"]["method"] == "rtn"
    with pytest.raises(UsageError, match="gptq needs calibration samples"):
        quantize(tmp_path / "g", model, [], method="gptq")


def test_samples_with_nan_are_named(tmp_path):
    model, feeds = kinds_int4.product(64, 32, count=25)
    feeds[7]["x"][0, 0] = np.nan
    with pytest.raises(InputError, match=r"memory\[7\] \(NaN in input 'x'\)"):
        quantize(tmp_path, model, feeds, method="gptq")


def test_what_stays_float_is_told_and_nothing_is_stored_twice(tmp_path):
    model, feeds = kinds_int4.refused()
    facts, made = quantize(tmp_path, model, feeds, method="rtn")
    why = {finding["node"]: finding["text"] for finding in facts["findings"] if finding["rule"] == "left-float"}
    assert set(why) == set(facts["coverage"]["left_float"]) == {"stack", "first", "shared", "add"}
    assert "rank 3" in why["stack"]
    assert "first operand is the constant one" in why["first"]
    assert "also read by 'add'" in why["shared"]
    assert 0 < facts["coverage"]["weights"] < 1
    assert sqnr(model, made, feeds) > 14
    skipped, _ = quantize(tmp_path / "skip", *kinds_int4.uneven(), method="rtn", skip=("left*",))
    assert skipped["coverage"]["left_float"] == ["left"]


def test_a_matrix_in_a_branch_is_quantized_there(tmp_path):
    model, feeds = kinds_int4.branch()
    for form in ("matmulnbits", "qdq"):
        facts, made = quantize(tmp_path / form, model, feeds, form=form)
        assert facts["coverage"]["weights"] == 1
        assert sqnr(model, made, feeds) > 14
        inner = [t for a in made.graph.node[-1].attribute for t in a.g.initializer]
        held = [*made.graph.initializer, *inner]
        assert not [t for t in held if t.data_type == TensorProto.FLOAT and np.prod(t.dims) >= 32 * 32]


def test_tiny_weights_keep_their_precision(tmp_path):
    model, feeds = kinds_int4.product(64, 32, scale=1e-7)
    for form in ("matmulnbits", "qdq"):
        _, made = quantize(tmp_path / form, model, feeds, form=form)
        assert sqnr(model, made, feeds) > 14


def test_each_dialect_gets_its_own_form(tmp_path):
    model, feeds = kinds_int4.product(64, 32)
    _, ort = quantize(tmp_path / "ort", model, feeds, method="rtn")
    assert ops(ort) == ["Cast", "Identity", "MatMulNBits"]
    _, trt = quantize(tmp_path / "trt", model, feeds, runtime="tensorrt", method="rtn")
    assert "DequantizeLinear" in ops(trt)
    assert all(node.domain == "" for node in trt.graph.node)
    assert trt.opset_import[0].version >= 21
    kinds = {tensor.data_type for tensor in trt.graph.initializer}
    assert kinds == {TensorProto.INT4, TensorProto.FLOAT}
    scales = next(t for t in trt.graph.initializer if t.data_type == TensorProto.FLOAT)
    assert (numpy_helper.to_array(scales) > 0).all()
    with pytest.raises(UnsupportedError, match="depth of 70 is no multiple of the block of 32"):
        quantize(tmp_path / "uneven", *kinds_int4.product(70, 6), runtime="tensorrt")
    with pytest.raises(UnsupportedError, match="last dimension is odd"):
        quantize(tmp_path / "odd", *kinds_int4.product(64, 5), runtime="tensorrt")
    with pytest.raises(UnsupportedError, match="only symmetric"):
        quantize(tmp_path / "asym", model, feeds, runtime="tensorrt", symmetric=False)
    with pytest.raises(UnsupportedError, match="need opset 21; tensorrt reads up to 19"):
        quantize(tmp_path / "old", model, feeds, runtime="tensorrt", graph={"max_opset": 19})
    with pytest.raises(UnsupportedError, match="qnn dialect has no 4-bit weights"):
        quantize(tmp_path / "qnn", model, feeds, runtime="qnn")


def test_raising_the_opset_keeps_the_meaning_of_older_operators(tmp_path):
    model, feeds = kinds_int4.older()
    _, made = quantize(tmp_path, model, feeds, form="qdq", method="rtn")
    onnx.checker.check_model(made, full_check=True)
    assert sqnr(model, made, feeds) > 14
    assert "axes" not in [a.name for node in made.graph.node for a in node.attribute]


def test_profiles_without_4_bits_refuse_the_recipe():
    recipe = load_recipe("int4")
    given = Given(kind="onnx", model="model.onnx", data=True, teacher=False)
    for name in ("host", "raspberry-pi-5"):
        profile = load_profile(name)
        make_plan(recipe, profile, load_exporter(profile.runtime), given)
    profile = load_profile("jetson-orin-nano-8gb")
    with pytest.raises(UnsupportedError, match="does not run w4a16"):
        make_plan(recipe, profile, load_exporter(profile.runtime), given)


def test_options_are_checked():
    for options, message in (
        ({"method": "awg"}, "unknown method 'awg'"),
        ({"bits": 3}, "bits 3 is not supported"),
        ({"accuracy_level": 2}, "accuracy_level 2"),
    ):
        with pytest.raises(UsageError, match=message):
            QuantizeInt4(**options)


def test_an_empty_helper_graph_is_unsupported(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"], name="r")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with pytest.raises(UnsupportedError, match="no MatMul, Gemm, Gather or"):
        quantize(tmp_path, model, [{"x": np.ones((2, 4), np.float32)}])


@pytest.mark.parametrize("kind", ["product", "gemm", "tied"])
def test_the_real_parser_of_tensorrt_takes_what_is_written(tmp_path, kind):
    rtx = pytest.importorskip("edgekit_exporters.tensorrt.rtx")
    if not rtx.is_installed():
        pytest.skip("tensorrt-rtx is not installed")
    model, feeds = {
        "product": lambda: kinds_int4.product(64, 32),
        "gemm": lambda: kinds_int4.spelled("gemm"),
        "tied": lambda: kinds_int4.tied(vocabulary=120, width=64),
    }[kind]()
    _, made = quantize(tmp_path, model, feeds, runtime="tensorrt", method="rtn")
    onnx.save(made, tmp_path / "good.onnx")
    assert not [finding for finding in rtx.check_with_rtx(tmp_path / "good.onnx") if finding.severity != "note"]


def test_the_real_parser_refuses_blocks_that_are_cut_off(tmp_path):
    rtx = pytest.importorskip("edgekit_exporters.tensorrt.rtx")
    if not rtx.is_installed():
        pytest.skip("tensorrt-rtx is not installed")
    _, made = quantize(tmp_path, *kinds_int4.product(70, 6), form="qdq", method="rtn", symmetric=True)
    onnx.save(made, tmp_path / "bad.onnx")
    found = rtx.check_with_rtx(tmp_path / "bad.onnx")
    assert any("whole blocks" in finding.text and finding.severity == "error" for finding in found)
