"""INT8 on the DLA of TensorRT 8.6 to 10.7: a float graph and a calibration cache made of a graph with Q/DQ."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import onnx
import onnxruntime
import pytest

import house
import kinds
from contract import onnx_artifact, run_stage
from edgekit.artifact import Step
from edgekit.device import builds
from edgekit.errors import UnsupportedError
from edgekit.exporter import load_exporter
from edgekit.profile import Graph, Preferences
from edgekit.stages.quantize_int8 import QuantizeInt8
from edgekit_exporters.tensorrt.calibration import cache_text, implicit
from edgekit_exporters.tensorrt.commands import How, build_plan, trtexec_argv
from edgekit_exporters.tensorrt.rtx import check_with_rtx
from edgekit_exporters.tensorrt.sparsity import is_sparse

EXPORTER = load_exporter("tensorrt")


def orin(**settings):
    return house.profile(
        runtime="tensorrt",
        graph=Graph(max_opset=19, max_ir=10),
        layers=Preferences(sparsity=("2:4",)),
        settings={"tensorrt": {"rtx_check": "off", "dla": True, "dla_cores": 2, **settings}},
    )


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """A residual CNN in int8, its feeds, and its folder."""
    model, feeds = kinds.residual_cnn()
    rules = EXPORTER.dialect(orin())
    made = run_stage(QuantizeInt8(), model, tmp_path_factory.mktemp("int8"), data=house.dataset(feeds), dialect=rules)
    return made[1], feeds


def run(model, feed):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


def copied(model):
    found = onnx.ModelProto()
    found.CopyFrom(model)
    return found


def test_a_cache_is_what_tensorrt_writes():
    """Golden: the first line of 8.4.1 as it writes it, scales as bits; 3caa54fc and 3d5c11b5 are from its own cache."""
    scales = {"input": 0.02079247683286667, "404": 0.05372782424092293}
    assert cache_text("8.4.1", scales) == "TRT-8401-EntropyCalibration2\n404: 3d5c11b5\ninput: 3caa54fc\n"
    assert cache_text("10.14.1", {}).startswith("TRT-101401-EntropyCalibration2\n")
    for version in ("8.6.2", "10.3.0", "10.7.0"):
        assert cache_text(version, scales) == builds.cache_text(version, scales)


def test_every_quantized_tensor_has_its_scale_and_no_pair_is_left(quantized, tmp_path):
    model, feeds = quantized
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    pairs = {n.input[0]: n.input[1] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    found = implicit(copied(model), tmp_path)
    assert pairs
    for name, scale in pairs.items():
        assert found.scales[name] == float(values[scale])
    assert not {n.op_type for n in found.model.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    onnx.checker.check_model(found.model)
    assert [i.name for i in found.model.graph.output] == [i.name for i in model.graph.output]
    for feed in feeds[:3]:
        told, wanted = run(found.model, feed), run(model, feed)
        assert np.abs(told - wanted).max() < 0.1 * np.abs(wanted).max()


def residual():
    """Conv a -> Relu -> conv b -> Add (with the Relu) -> Relu -> conv c, in float."""
    weights = {name: kinds.normal(i, 8, 8, 3, 3) / 8 for i, name in enumerate("ABC")}
    nodes = [
        kinds.node("Conv", ["x", "A"], ["a"], name="a", pads=[1] * 4),
        kinds.node("Relu", ["a"], ["r"], name="relu"),
        kinds.node("Conv", ["r", "B"], ["b"], name="b", pads=[1] * 4),
        kinds.node("Add", ["b", "r"], ["s"], name="sum"),
        kinds.node("Relu", ["s"], ["t"], name="relu2"),
        kinds.node("Conv", ["t", "C"], ["y"], name="c"),
    ]
    edges = [kinds.value("x", [1, 8, 10, 10])], [kinds.value("y", [1, 8, 8, 8])]
    return kinds.build(nodes, *edges, weights, opset=17, ir=8)


def test_scales_pass_where_values_do_and_an_added_convolution_is_marked(tmp_path):
    """Only the sum's own tensors have scales of their own; what the convolution hands to it is told as `no scale`."""
    feeds = [{"x": kinds.normal(i, 1, 8, 10, 10)} for i in range(16)]
    rules = EXPORTER.dialect(orin())
    made = run_stage(QuantizeInt8(), residual(), tmp_path, data=house.dataset(feeds), dialect=rules)[1]
    found = implicit(made, tmp_path)
    assert found.scales["a"] == found.scales["r"]
    assert found.scales["s"] == found.scales["t"]
    assert found.scales["b"] == 1.0
    assert found.lacking == ["c"], "its output is the network's"


def test_a_sum_without_a_scale_marks_nothing(quantized, tmp_path):
    """Then the DLA adds in float16, and a scale of 1 would round away what the convolution gives."""
    found = implicit(copied(quantized[0]), tmp_path)
    assert 1.0 not in found.scales.values()
    assert {"project", "skip"} <= set(found.lacking)
    assert found.scales["c1"] == found.scales["k1"], "behind a Clip as before it"


def chain(*, kind=np.int8, zero=0, per_block=False, float_first=False, small=False):
    """Conv (quantized, or with a name that trtexec cannot be told) -> Relu -> Conv -> GlobalAveragePool."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (4, 4, 3, 3))
    weights[:, 0, 0, 0] = 127
    constants = {
        "W": (weights // (4 if small else 1)).astype(np.int8),
        "ws": np.full(4, 0.01, np.float32),
        "wz": np.zeros(4, np.int8),
        "xs": np.float32(0.02),
        "xz": np.asarray(zero, kind),
        "F": rng.normal(size=(4, 4, 3, 3)).astype(np.float32),
    }
    del per_block
    first = kinds.node("Conv", ["x", "F"], ["a"], name="first: odd,name", pads=[1] * 4)
    nodes = [
        *([first] if float_first else [kinds.node("Identity", ["x"], ["a"], name="i")]),
        kinds.node("Relu", ["a"], ["r"], name="relu"),
        kinds.node("QuantizeLinear", ["r", "xs", "xz"], ["rq"], name="q"),
        kinds.node("DequantizeLinear", ["rq", "xs", "xz"], ["rd"], name="dq"),
        kinds.node("DequantizeLinear", ["W", "ws", "wz"], ["wd"], axis=0, name="dqw"),
        kinds.node("Conv", ["rd", "wd"], ["c"], name="second"),
        kinds.node("GlobalAveragePool", ["c"], ["y"], name="pool"),
    ]
    edges = [kinds.value("x", [1, 4, 8, 8])], [kinds.value("y", [1, 4, 1, 1])]
    return kinds.build(nodes, *edges, constants, opset=17, ir=8)


def test_a_node_that_the_plan_left_float_stays_half_and_is_named_for_trtexec(tmp_path):
    found = implicit(chain(float_first=True), tmp_path)
    assert found.half == ["first__odd_name"]
    assert found.scales == {"r": pytest.approx(0.02), "a": pytest.approx(0.02)}
    assert found.lacking == ["second", "pool"]
    assert found.regrown == []


def test_weights_that_tensorrt_would_scale_otherwise_are_told(tmp_path):
    assert implicit(chain(small=True), tmp_path).regrown == ["second"]


@pytest.mark.parametrize(("kind", "zero"), [(np.uint8, 0), (np.int8, 3), (np.uint8, 128)])
def test_other_pairs_have_no_place_in_a_calibration(kind, zero, tmp_path):
    with pytest.raises(UnsupportedError, match=r"node 'dq': only symmetric int8") as caught:
        implicit(chain(kind=kind, zero=zero), tmp_path)
    assert "dla_calibration" in caught.value.remedy


def compiled(model, tmp_path, profile, **lineage):
    artifact = onnx_artifact(model, tmp_path / "in")
    (tmp_path / "out").mkdir()
    return EXPORTER.compile(artifact, tmp_path / "in", profile, tmp_path / "out"), tmp_path / "out"


def test_a_bundle_brings_graph_scales_and_a_cache_for_each_tensorrt(quantized, tmp_path):
    facts, out = compiled(quantized[0], tmp_path, orin(dla_calibration=True))
    assert facts["calibration"] == {"model": "dla.onnx", "scales": "dla.json"}
    assert (facts["dla_core"], facts["explicit"], facts["loads"]) == (0, True, ["model.onnx"])
    told = json.loads((out / "dla.json").read_text())
    for version, release in (("8.6", "8.6.2"), ("10.3", "10.3.0")):
        assert (out / f"dla-{version}.cache").read_text() == builds.cache_text(release, told["scales"])
    plan = json.loads((out / "build.json").read_text())
    assert set(plan["commands"]) == {"8.6", "10.3"}
    assert plan["commands"]["10.3"][:7] == [
        "trtexec",
        "--onnx=dla.onnx",
        "--saveEngine=model.engine",
        "--skipInference",
        "--int8",
        "--fp16",
        "--calib=dla-10.3.cache",
    ]
    assert plan["commands"]["10.3"][-2:] == ["--useDLACore=0", "--allowGPUFallback"]
    assert "leave `dla_calibration` out" in plan["refused"]["11"]
    assert plan["refused"]["10.16"] == "it drives no DLA"
    build = builds.build_of({**facts, "model": "model.onnx"}, str(out / "model.onnx"))
    assert build.calibration == builds.Calibration(str(out / "dla.onnx"), told["scales"], told["half"])


def test_without_the_option_versions_that_take_no_pairs_there_are_refused(quantized, tmp_path):
    facts, out = compiled(quantized[0], tmp_path, orin())
    assert "calibration" not in facts
    plan = json.loads((out / "build.json").read_text())
    assert set(plan["commands"]) == {"11"}
    assert "dla_calibration = true" in plan["refused"]["10.3"]
    artifact = onnx_artifact(quantized[0], tmp_path / "again")
    (finding,) = [f for f in EXPORTER.lint(artifact, tmp_path / "again", orin()) if f.rule == "trt-dla-explicit"]
    assert "takes no Q/DQ on the DLA" in finding.text


def test_what_the_calibration_costs_is_told(tmp_path):
    artifact = onnx_artifact(chain(float_first=True, small=True), tmp_path)
    found = {f.rule: f for f in EXPORTER.lint(artifact, tmp_path, orin(dla_calibration=True)) if "dla-" in f.rule}
    assert "2 scales by a calibration cache" in found["trt-dla-calibration"].text
    assert "2 nodes ('second', 'pool')" in found["trt-dla-half"].text
    assert found["trt-dla-weights"].node == "second"
    odd = onnx_artifact(chain(kind=np.uint8), tmp_path / "odd")
    found = EXPORTER.lint(odd, tmp_path / "odd", orin(dla_calibration=True))
    assert any(f.rule == "trt-dla-calibration" and f.severity == "error" for f in found)


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="needs the extra trt-check")
def test_the_real_parser_takes_the_float_graph(quantized, tmp_path):
    _, out = compiled(quantized[0], tmp_path, orin(dla_calibration=True))
    assert [f for f in check_with_rtx(out / "dla.onnx", build=False) if f.severity == "error"] == []


# --- 2:4


def pruned(tmp_path, pattern, stage="prune-weights"):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    step = Step(stage=stage, revision=1, options={"pattern": pattern}, inputs={}, libraries={}, facts={})
    return type(artifact)(kind=artifact.kind, files=artifact.files, facts=artifact.facts, lineage=(step,))


def test_sparse_kernels_are_asked_for_where_network_and_device_have_the_pattern(tmp_path):
    artifact, here = pruned(tmp_path, "2:4"), orin()
    assert is_sparse(artifact, here)
    assert not is_sparse(pruned(tmp_path, "1:4"), here)
    assert not is_sparse(pruned(tmp_path, "2:4", "another-stage"), here)
    assert not is_sparse(artifact, house.profile(layers=Preferences()))
    (tmp_path / "out").mkdir()
    facts = EXPORTER.compile(artifact, tmp_path / "in", orin(dla=False), tmp_path / "out")
    assert facts["sparse"] is True
    commands = json.loads((tmp_path / "out" / "build.json").read_text())["commands"]
    assert all("--sparsity=enable" in command for command in commands.values())


def test_the_dense_network_s_commands_stay_as_they_are():
    assert not any("--sparsity=enable" in argv for argv in build_plan("m.onnx", How())["commands"].values())
    assert "--sparsity=enable" in trtexec_argv("m.onnx", "11", How(sparse=True))
