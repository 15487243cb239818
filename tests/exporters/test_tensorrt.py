from __future__ import annotations

import importlib.util
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import house
import kinds
from contract import onnx_artifact, run_stage
from edgekit.device import builds
from edgekit.device.trtexec import trtexec_build_argv
from edgekit.exporter import load_exporter
from edgekit.profile import Graph
from edgekit.stages.fp16 import Fp16
from edgekit.stages.quantize_int8 import QuantizeInt8
from edgekit_exporters.tensorrt.commands import TYPING, How, build_plan, cache_name, trtexec_argv
from edgekit_exporters.tensorrt.rtx import LABEL, check_with_rtx

EXPORTER = load_exporter("tensorrt")
RTX = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="needs the extra trt-check (tensorrt-rtx)"
)


def orin(*, int64=True, **settings):
    return house.profile(
        name="orin",
        family="jetson",
        runtime="tensorrt",
        graph=Graph(max_opset=19, max_ir=10, int64=int64),
        settings={"tensorrt": {"rtx_check": "off", **settings}},
    )


def lint(tmp_path, model, profile=None, **facts):
    artifact = onnx_artifact(model, tmp_path / "in")
    artifact = type(artifact)(kind=artifact.kind, files=artifact.files, facts={**artifact.facts, **facts})
    return EXPORTER.lint(artifact, tmp_path / "in", profile or orin())


def errors(found):
    return {(f.node, f.rule): f for f in found if f.severity == "error"}


def pair_model(kind, zero_point, scale=0.02):
    """A convolution whose input goes through Q and DQ; weights int8 and symmetric."""
    constants = {
        "W": np.random.default_rng(0).integers(-127, 127, (4, 3, 3, 3)).astype(np.int8),
        "ws": np.full(4, 0.01, np.float32),
        "wz": np.zeros(4, np.int8),
        "xs": np.asarray(scale, getattr(scale, "dtype", np.float32)),
        "xz": np.asarray(zero_point, kind),
    }
    nodes = [
        kinds.node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], name="q"),
        kinds.node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], name="dq"),
        kinds.node("DequantizeLinear", ["W", "ws", "wz"], ["wd"], axis=0, name="dqw"),
        kinds.node("Conv", ["xd", "wd"], ["y"], name="c"),
    ]
    return kinds.build(
        nodes, [kinds.value("x", [1, 3, 8, 8])], [kinds.value("y", [1, 4, 6, 6])], constants, opset=21, ir=10
    )


def defaults_of_onnxruntime(tmp_path):
    """A CNN as onnxruntime's own quantizer writes it when nothing is said."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    model, feeds = kinds.residual_cnn()
    onnx.save(model, tmp_path / "float.onnx")

    class Reader(CalibrationDataReader):
        left = iter(feeds)

        def get_next(self):
            return next(self.left, None)

    quantize_static(str(tmp_path / "float.onnx"), str(tmp_path / "int8.onnx"), Reader())
    return onnx.load(tmp_path / "int8.onnx")


def test_a_shifted_zero_point_is_refused_at_every_node_with_its_value(tmp_path):
    found = errors(lint(tmp_path, pair_model(np.uint8, 37)))
    assert {node for node, rule in found if rule == "trt-asymmetric"} == {"q", "dq"}
    text = found["q", "trt-asymmetric"].text
    assert "node 'q'" in text
    assert "zero_point 37 (uint8)" in text
    assert "--recipe int8" in found["q", "trt-asymmetric"].remedy


def test_uint8_is_refused_also_with_zero_point_0_and_16_bits_are(tmp_path):
    assert ("q", "trt-uint8") in errors(lint(tmp_path, pair_model(np.uint8, 0)))
    assert ("q", "trt-16-bit") in errors(lint(tmp_path, pair_model(np.int16, 0)))
    assert {node for node, _ in errors(lint(tmp_path, pair_model(np.int8, 0)))} == {""}, "only the opset"


def test_half_scales_are_refused(tmp_path):
    model = pair_model(np.int8, 0, np.float16(0.02))
    assert ("q", "trt-half-scale") in errors(lint(tmp_path, model))


def test_an_int32_bias_and_integer_operators_are_refused(tmp_path):
    model, feeds = kinds.residual_cnn()
    rules = load_exporter("onnx").dialect(house.profile())
    _, made = run_stage(QuantizeInt8(), model, tmp_path, data=house.dataset(feeds), dialect=rules)
    found = errors(lint(tmp_path / "a", made))
    assert any(rule == "trt-int32-bias" for _, rule in found)
    assert any(rule in {"trt-uint8", "trt-asymmetric"} for _, rule in found)
    model, feeds = kinds.softmax_between()
    folder = tmp_path / "dynamic"
    folder.mkdir()
    _, made = run_stage(QuantizeInt8(mode="dynamic"), model, folder, data=house.dataset(feeds), dialect=rules)
    refused = {
        f.text.rpartition(" ")[2]
        for (_, rule), f in errors(lint(tmp_path / "b", made)).items()
        if rule == "trt-operator"
    }
    assert refused == {"DynamicQuantizeLinear", "MatMulInteger"}


def test_int64_values_are_refused_only_where_they_lose_something(tmp_path):
    nodes = [
        kinds.node("Slice", ["x", "s", "e"], ["a"], name="sl"),
        kinds.node("Add", ["ids", "off"], ["y"], name="add"),
        kinds.node("Identity", ["a"], ["z"], name="id"),
    ]
    constants = {"s": np.array([0, 0]), "e": np.array([2**63 - 1] * 2), "off": np.array([2**40])}
    inputs = [kinds.value("x", [1, 8]), kinds.value("ids", [1, 4], TensorProto.INT64)]
    outputs = [kinds.value("y", [1, 4], TensorProto.INT64), kinds.value("z", [1, 8])]
    model = kinds.build(nodes, inputs, outputs, constants)
    found = errors(lint(tmp_path, model, orin(int64=False)))
    assert set(found) == {("add", "trt-int64")}
    assert "int64 value 1099511627776" in found["add", "trt-int64"].text
    assert not errors(lint(tmp_path, model, orin()))


def two_dynamic_inputs():
    constants = {"W": kinds.normal(0, 8, 8)}
    nodes = [kinds.node("MatMul", ["x", "W"], ["a"]), kinds.node("Add", ["a", "m"], ["y"])]
    inputs = [kinds.value("x", ["batch", "seq", 8]), kinds.value("m", ["batch", 1, 1])]
    return kinds.build(nodes, inputs, [kinds.value("y", ["batch", "seq", 8])], constants)


def test_dynamic_inputs_without_a_range_are_listed_with_the_option(tmp_path):
    (found,) = errors(lint(tmp_path, two_dynamic_inputs())).values()
    assert "x[batch,seq], m[batch]" in found.text
    assert "--shape x=1x1x8/1x32x8/1x128x8 --shape m=1x1x1" in found.remedy
    assert "MIN/OPT/MAX" in found.remedy


def test_ranges_reach_the_commands_and_a_lone_batch_is_built_for_one(tmp_path):
    ranges = {
        "x": {"min": [1, 1, 8], "opt": [4, 16, 8], "max": [8, 64, 8]},
        "m": {"min": [1, 1, 1], "opt": [4, 1, 1], "max": [8, 1, 1]},
    }
    assert not errors(lint(tmp_path, two_dynamic_inputs(), shape_ranges=ranges))
    artifact = onnx_artifact(two_dynamic_inputs(), tmp_path / "in2")
    artifact = type(artifact)(kind="onnx", files=artifact.files, facts={**artifact.facts, "shape_ranges": ranges})
    (tmp_path / "out").mkdir()
    facts = EXPORTER.compile(artifact, tmp_path / "in2", orin(), tmp_path / "out")
    assert facts["shapes"]["x"] == [[1, 1, 8], [4, 16, 8], [8, 64, 8]]
    plan = json.loads((tmp_path / "out" / "build.json").read_text())
    assert plan["commands"]["10.3"] == [
        "trtexec",
        "--onnx=model.onnx",
        "--saveEngine=model.engine",
        "--skipInference",
        "--stronglyTyped",
        "--minShapes=m:1x1x1,x:1x1x8",
        "--optShapes=m:4x1x1,x:4x16x8",
        "--maxShapes=m:8x1x1,x:8x64x8",
    ]
    notes = [f for f in lint(tmp_path / "c", kinds.residual_cnn()[0]) if f.rule == "trt-batch-1"]
    assert [f.severity for f in notes] == ["note"]
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in3")
    (tmp_path / "out3").mkdir()
    facts = EXPORTER.compile(artifact, tmp_path / "in3", orin(), tmp_path / "out3")
    assert facts["shapes"] == {"x": [[1, 3, 16, 16]] * 3}


GOLDEN = {
    "8.5": ["--int8", "--fp16"],
    "8.6": ["--int8", "--fp16"],
    "10.3": ["--stronglyTyped"],
    "10.16": ["--stronglyTyped"],
    "11": [],
}


@pytest.mark.parametrize("version", GOLDEN)
def test_exact_commands_of_every_version(version):
    """Golden: what is typed on the device that has this TensorRT."""
    build_only = "--buildOnly" if version == "8.5" else "--skipInference"
    start = ["trtexec", "--onnx=m.onnx", "--saveEngine=model.engine", build_only, *GOLDEN[version]]
    assert trtexec_argv("m.onnx", version, How()) == start
    assert trtexec_argv("m.onnx", version, How(shapes={"x": [[1, 3], [2, 3], [4, 3]]}, dla=True)) == [
        *start,
        "--minShapes=x:1x3",
        "--optShapes=x:2x3",
        "--maxShapes=x:4x3",
        "--useDLACore=0",
        "--allowGPUFallback",
    ]
    assert set(GOLDEN) == set(TYPING)


def test_the_plan_names_the_jetpack_of_each_command(tmp_path):
    for dla in (False, True):
        plan = build_plan("model.onnx", How(dla=dla))
        assert set(plan["jetpacks"].values()) == set(plan["commands"])
        assert ("10.16" in plan["commands"]) == (not dla), "JetPack 7.2 has no DLA"
        assert plan["jetpacks"]["6.1 - 6.2.2"] == "10.3"
        told = "--useDLACore=0" in plan["commands"]["10.3"]
        assert told == dla
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    for dla in (False, True):
        (tmp_path / str(dla)).mkdir()
        facts = EXPORTER.compile(artifact, tmp_path / "in", orin(dla=dla, dla_cores=2), tmp_path / str(dla))
        assert facts.get("dla_core") == (0 if dla else None)


@pytest.mark.parametrize("version", TYPING)
def test_the_commands_are_those_of_the_device_runner(version):
    shapes, scales = {"x": [[1, 3], [2, 3], [4, 3]]}, {"x": 0.5}
    cache, half = cache_name(version), ["c1", "c2"]
    for ours, theirs in (
        (How(shapes=shapes), builds.Build(shapes)),
        (How(shapes=shapes, dla=True), builds.Build(shapes, 0)),
        (How(sparse=True), builds.Build(sparse=True)),
        (
            How(dla=True, explicit=True, calibrated=True, half=half, sparse=True),
            builds.Build(None, 0, True, builds.Calibration("m.onnx", scales, half), True),
        ),
    ):
        there = trtexec_build_argv("trtexec", "m.onnx", "model.engine", version, theirs, cache)
        assert trtexec_argv("m.onnx", version, ours) == there


def test_types_that_orin_has_not_are_refused(tmp_path):
    model = kinds.build(
        [kinds.node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE), kinds.node("Mul", ["d", "k"], ["y"])],
        [kinds.value("x", [4])],
        [kinds.value("y", [4], TensorProto.DOUBLE)],
        {"k": np.float64(2)},
    )
    assert any("float64" in f.text for f in errors(lint(tmp_path, model)).values())


def test_the_dla_is_reported_on_when_the_profile_asks_for_it(tmp_path):
    constants = {f"W{i}": kinds.normal(i, 8, 8, 3, 3) / 10 for i in range(4)}
    constants |= {"two": np.float32(2), "idx": np.arange(8), "sh": np.array([1, 8, 8, 8])}
    nodes, last = [], "x"
    extra = [("Gather", "idx", {"axis": 1}), ("Pow", "two", {}), ("Reshape", "sh", {}), ("Relu", "", {})]
    for i, (op, operand, attributes) in enumerate(extra):
        nodes.append(kinds.node("Conv", [last, f"W{i}"], [f"c{i}"], pads=[1] * 4, name=f"c{i}"))
        inputs = [f"c{i}", operand] if operand else [f"c{i}"]
        nodes.append(kinds.node(op, inputs, [f"o{i}"], name=f"{op.lower()}{i}", **attributes))
        last = f"o{i}"
    model = kinds.build(nodes, [kinds.value("x", [1, 8, 8, 8])], [kinds.value("o3", [1, 8, 8, 8])], constants)
    assert not [f for f in lint(tmp_path, model) if "dla" in f.rule]
    found = [f for f in lint(tmp_path, model, orin(dla=True, dla_cores=2)) if "dla" in f.rule]
    assert [f.node for f in found if f.rule == "trt-dla"] == ["gather0", "pow1", "reshape2"]
    assert "3 nodes off the DLA, 4 device switches" in found[-1].text


@RTX
@pytest.mark.parametrize("kind", [kinds.residual_cnn, kinds.small_transformer, kinds.recurrent, kinds.einsum])
def test_the_real_parser_and_builder_take_what_the_int8_stage_makes(kind, tmp_path):
    model, feeds = kind()
    rules = EXPORTER.dialect(orin())
    _, made = run_stage(QuantizeInt8(), model, tmp_path, data=house.dataset(feeds * 2), dialect=rules)
    shapes = {}
    for item in made.graph.input:
        dims = [d.dim_value or 2 for d in item.type.tensor_type.shape.dim]
        if any(d.dim_param for d in item.type.tensor_type.shape.dim):
            shapes[item.name] = [dims] * 3
    (found,) = check_with_rtx(tmp_path / "out1" / "model.onnx", build=True, shapes=shapes)
    assert found.severity == "note", found.text
    assert "engine of" in found.text
    assert LABEL in found.text


@RTX
def test_the_real_parser_takes_the_fp16_graph(tmp_path):
    model, feeds = kinds.small_transformer()
    run_stage(Fp16(), model, tmp_path, data=house.dataset(feeds))
    (found,) = check_with_rtx(tmp_path / "out1" / "model.onnx", build=True)
    assert found.severity == "note", found.text


@RTX
def test_the_real_parser_refuses_what_onnxruntime_writes_by_default_and_so_do_our_rules(tmp_path):
    model = defaults_of_onnxruntime(tmp_path)
    profile = orin(rtx_check="parse")
    found = errors(lint(tmp_path, model, profile))
    told = [f.text for (_, rule), f in found.items() if rule == "trt-rtx"]
    assert told, "the real tool refuses it"
    assert any("zero point" in text or "Int32" in text for text in told)
    assert any(rule in {"trt-asymmetric", "trt-int32-bias"} for _, rule in found), "and our rules see why"


@RTX
def test_a_file_that_is_no_model_is_an_error_of_the_real_tool_and_not_a_crash(tmp_path):
    (tmp_path / "x.onnx").write_bytes(b"\x08\x08no model at all")
    (found,) = check_with_rtx(tmp_path / "x.onnx")[:1]
    assert found.severity == "error"
    assert LABEL in found.text


def test_a_child_that_dies_is_a_warning(tmp_path, monkeypatch):
    from edgekit_exporters.tensorrt import rtx

    broken = tmp_path / "child.py"
    broken.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(rtx, "_CHILD", broken)
    (found,) = rtx.check_with_rtx(tmp_path / "x.onnx")
    assert found.severity == "warning"
    assert "died with signal SIGABRT" in found.text
