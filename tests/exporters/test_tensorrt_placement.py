"""Where nodes would run, which switches that costs, and which Q/DQ pairs keep kernels apart."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import architectures
import house
import kinds
from contract import onnx_artifact, run_stage
from edgekit.exporter import Placer, load_exporter
from edgekit.profile import Graph
from edgekit.stages.quantize_int8 import QuantizeInt8
from edgekit_exporters.tensorrt.segments import Segments

EXPORTER = load_exporter("tensorrt")


def orin(**settings):
    return house.profile(
        name="orin",
        family="jetson",
        runtime="tensorrt",
        graph=Graph(max_opset=19, max_ir=10),
        settings={"tensorrt": {"rtx_check": "off", "dla_cores": 2, **settings}},
    )


def look(tmp_path, model, **settings):
    """Return (findings, node -> (unit, why))."""
    artifact = onnx_artifact(model, tmp_path / "m")
    found = EXPORTER.lint(artifact, tmp_path / "m", orin(**settings))
    placed = EXPORTER.place(artifact, tmp_path / "m", orin(**settings), found)
    return found, {one.node: (one.on, one.why) for one in placed}


def one(op, *, shape=(1, 8, 16, 16), out=(1, 8, 16, 16), weights=None, extra=(), **attributes):
    constants = weights or {}
    node = kinds.node(op, ["x", *constants, *extra], ["y"], name="n", **attributes)
    return kinds.build([node], [kinds.value("x", list(shape))], [kinds.value("y", list(out))], constants)


def conv(kernel=3, **attributes):
    weights = {"W": kinds.normal(0, 8, 8 // attributes.get("group", 1), kernel, kernel)}
    return one("Conv", weights=weights, out=(1, 8, 8, 8), **attributes)


OFF = {  # what -> (a graph of one node, words of the reason; empty: the DLA takes it)
    "convolution": (conv(pads=[1] * 4), ""),
    "depthwise": (conv(pads=[1] * 4, group=8), ""),
    "stride of 9": (conv(strides=[9, 9]), "strides [9, 9] beyond 1..8"),
    "kernel of 33": (conv(33, pads=[16] * 4), "kernel [33, 33]"),
    "signal": (one("Relu", shape=(1, 8, 16), out=(1, 8, 16)), "4 axes, this node on 3"),
    "pooling": (one("MaxPool", kernel_shape=[2, 2], strides=[2, 2], out=(1, 8, 8, 8)), ""),
    "wide pooling": (one("AveragePool", kernel_shape=[16, 16], out=(1, 8, 1, 1)), "kernel_shape [16, 16]"),
    "global pooling": (one("GlobalAveragePool", out=(1, 8, 1, 1)), "no such layer"),
    "concat of channels": (
        one("Concat", weights={"k": kinds.normal(0, 1, 8, 16, 16)}, axis=1, out=(1, 16, 16, 16)),
        "",
    ),
    "concat of rows": (
        one("Concat", weights={"k": kinds.normal(0, 1, 8, 16, 16)}, axis=2, out=(1, 8, 32, 16)),
        "channels, not axis 2",
    ),
    "softmax": (one("Softmax", axis=1), ""),
    "softmax of many": (one("Softmax", axis=1, shape=(1, 2000, 1, 1), out=(1, 2000, 1, 1)), "2000 values"),
    "clip from 0": (one("Clip", weights={"lo": np.float32(0), "hi": np.float32(6)}), ""),
    "clip from -1": (one("Clip", weights={"lo": np.float32(-1), "hi": np.float32(1)}), "from 0 upwards"),
    "deconvolution": (
        one("ConvTranspose", weights={"W": kinds.normal(0, 8, 4, 2, 2)}, strides=[2, 2], out=(1, 4, 32, 32)),
        "",
    ),
    "padded deconvolution": (
        one("ConvTranspose", weights={"W": kinds.normal(0, 8, 4, 3, 3)}, pads=[1] * 4, out=(1, 4, 16, 16)),
        "no padding",
    ),
    "grouped deconvolution": (
        one("ConvTranspose", weights={"W": kinds.normal(0, 8, 4, 2, 2)}, group=2, out=(1, 8, 17, 17)),
        "grouped",
    ),
    "square of itself": (one("MatMul", shape=(8, 8), out=(8, 8), extra=["x"]), "constants only"),
}


@pytest.mark.parametrize("what", OFF)
def test_what_the_dla_takes(what, tmp_path):
    model, words = OFF[what]
    _, placed = look(tmp_path, model, dla=True)
    on, why = placed["n"]
    assert on == ("GPU" if words else "DLA")
    assert words in why
    assert bool(words) == bool(why)


def resize(height, mode):
    constants = {"sizes": np.array([1, 8, height, height])}
    node = kinds.node("Resize", ["x", "", "", "sizes"], ["y"], name="n", mode=mode)
    edges = [kinds.value("x", [1, 8, 16, 16]), kinds.value("y", [1, 8, height, height])]
    return kinds.build([node], edges[:1], edges[1:], constants)


@pytest.mark.parametrize(
    ("height", "mode", "on"),
    [
        (32, "nearest", "DLA"),
        (32, "linear", "DLA"),
        (128, "linear", "GPU"),
        (24, "nearest", "GPU"),
        (32, "cubic", "GPU"),
    ],
)
def test_the_dla_enlarges_by_whole_factors(height, mode, on, tmp_path):
    assert look(tmp_path, resize(height, mode), dla=True)[1]["n"][0] == on


def test_without_dla_everything_is_on_the_gpu_and_what_is_refused_nowhere(tmp_path):
    constants = {"W": kinds.normal(0, 8, 8)}
    nodes = [kinds.node("MatMul", ["x", "W"], ["a"], name="mm"), kinds.node("Det", ["a"], ["y"], name="det")]
    model = kinds.build(nodes, [kinds.value("x", [8, 8])], [kinds.value("y", [])], constants)
    _, placed = look(tmp_path, model)
    assert placed == {"mm": ("GPU", ""), "det": ("unsupported", "trt-operator")}


def test_a_device_without_dla_is_told(tmp_path):
    found, _ = look(tmp_path, conv(pads=[1] * 4), dla=True, dla_cores=0)
    assert [(f.rule, f.severity) for f in found] == [("trt-no-dla", "error")]


def segments(*rows):
    """Rows: name, unit ('' for a view), inputs."""
    nodes, units = [], {}
    for name, unit, *inputs in rows:
        nodes.append(onnx.helper.make_node("Conv" if unit else "Reshape", inputs, [name], name=name))
        units |= {name: unit} if unit else {}
    return Segments(onnx.helper.make_graph(nodes, "g", [], []), units)


def test_switches_and_segments_of_a_chain():
    chain = segments(("a", "DLA", "x"), ("b", "GPU", "a"), ("c", "DLA", "b"), ("d", "DLA", "c"))
    assert (chain.switches, chain.count("DLA"), chain.count("GPU")) == (2, 2, 1)


def test_a_view_between_is_no_switch():
    chain = segments(("a", "DLA", "x"), ("v", "", "a"), ("b", "DLA", "v"))
    assert (chain.switches, chain.count("DLA")) == (0, 1)


def test_a_branch_over_the_gpu_cuts_the_dla_in_two():
    """d waits for b on the GPU, which waits for a: the two cannot be one piece although a feeds d."""
    graph = segments(("a", "DLA", "x"), ("b", "GPU", "a"), ("c", "DLA", "a"), ("d", "DLA", "b", "c"))
    assert graph.count("DLA") == 2
    assert graph.switches == 2


def test_several_tensors_between_two_segments_are_one_switch():
    graph = segments(("a", "DLA", "x"), ("b", "DLA", "a"), ("c", "GPU", "a", "b"), ("d", "GPU", "b", "c"))
    assert (graph.switches, graph.count("GPU")) == (1, 1)


def test_two_independent_parts_are_two_segments():
    graph = segments(("a", "DLA", "x"), ("b", "DLA", "y"), ("c", "GPU", "a", "b"))
    assert (graph.count("DLA"), graph.switches) == (2, 2)


PAIR = {"s": np.float32(0.02), "z": np.int8(0), "ws": np.full(8, 0.01, np.float32), "W": np.ones((8, 8, 1, 1), np.int8)}


def pair(name, out):
    quantize = kinds.node("QuantizeLinear", [name, "s", "z"], [out + "_q"], name=out + "_q")
    return [quantize, kinds.node("DequantizeLinear", [out + "_q", "s", "z"], [out], name=out + "_dq")]


def weight(out):
    return kinds.node("DequantizeLinear", ["W", "ws"], [out], axis=0, name=out + "_dq")


def build(nodes):
    edges = [kinds.value(name, [1, 8, 4, 4]) for name in "xy"]
    return kinds.build(nodes, edges[:1], edges[1:], PAIR)


def fusions(tmp_path, model):
    found, _ = look(tmp_path, model)
    return {(f.rule, f.node) for f in found if f.severity == "warning"}


def test_a_pair_between_a_convolution_and_its_activation_is_told(tmp_path):
    layer = [*pair("x", "xd"), weight("wd"), kinds.node("Conv", ["xd", "wd"], ["c"], name="conv")]
    split = build([*layer, *pair("c", "cd"), kinds.node("Relu", ["cd"], ["y"], name="relu")])
    assert fusions(tmp_path / "a", split) == {("trt-split-activation", "relu")}
    behind = build([*layer, kinds.node("Relu", ["c"], ["r"], name="relu"), *pair("r", "y")])
    assert fusions(tmp_path / "b", behind) == set()


def test_a_residual_with_two_quantized_branches_is_told(tmp_path):
    layer = [*pair("x", "xd"), weight("wd"), kinds.node("Conv", ["xd", "wd"], ["c"], name="conv")]
    both = build([*layer, *pair("c", "cd"), kinds.node("Add", ["cd", "xd"], ["y"], name="add")])
    assert fusions(tmp_path / "a", both) == {("trt-both-branches", "add")}
    one_branch = build([*layer, kinds.node("Add", ["c", "xd"], ["y"], name="add")])
    assert fusions(tmp_path / "b", one_branch) == set()


def test_a_product_with_one_quantized_operand_is_told(tmp_path):
    model = build([weight("wd"), kinds.node("Conv", ["x", "wd"], ["y"], name="conv")])
    assert fusions(tmp_path, model) == {("trt-half-quantized", "conv")}


@pytest.mark.parametrize("name", ["ResNet", "squeeze and excite", "ViT"])
def test_what_we_quantize_breaks_no_fusion(name, tmp_path):
    model, feeds = architectures.ARCHITECTURES[name]()
    _, made = run_stage(QuantizeInt8(), model, tmp_path, data=house.dataset(feeds), dialect=EXPORTER.dialect(orin()))
    assert fusions(tmp_path / "made", made) == set()


def test_it_is_what_inspect_asks_for():
    assert isinstance(EXPORTER, Placer)
    assert not isinstance(load_exporter("onnx"), Placer)


def test_inspect_tells_the_shares(edgekit, tmp_path):
    profile = tmp_path / "mine.toml"
    profile.write_text('extends = "jetson-agx-orin-64gb"\ntitle = "AGX with DLA"\n[settings.tensorrt]\ndla = true\n')
    constants = {"W": kinds.normal(0, 8, 3, 3, 3), "V": kinds.normal(1, 8, 8, 1, 1), "i": np.arange(8)}
    nodes = [
        kinds.node("Conv", ["x", "W"], ["a"], name="first", pads=[1] * 4),
        kinds.node("Gather", ["a", "i"], ["b"], name="pick", axis=1),
        kinds.node("Conv", ["b", "V"], ["y"], name="second"),
    ]
    model = kinds.build(nodes, [kinds.value("x", [1, 3, 8, 8])], [kinds.value("y", [1, 8, 8, 8])], constants)
    onnx.save(model, tmp_path / "model.onnx")
    ran = edgekit("inspect", tmp_path / "model.onnx", "--profile", profile, "--json")
    assert ran.status == 0, ran.err
    placement = ran.json["placement"]
    assert placement["units"]["DLA"] == {"nodes": 2, "macs": 8 * 27 * 64 + 64 * 64, "share": 1.0}
    assert placement["units"]["GPU"]["share"] == 0
    assert {row["node"]: row["on"] for row in placement["nodes"]} == {"first": "DLA", "pick": "GPU", "second": "DLA"}
    assert "1 node off the DLA, 2 device switches" in json.dumps(ran.json["findings"])
    shown = edgekit("inspect", tmp_path / "model.onnx", "--profile", profile)
    assert "share of MACs" in shown.out
    assert "pick" in shown.out.partition("nodes not on the DLA")[2]
