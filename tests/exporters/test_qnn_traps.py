"""Every trap of Qualcomm's compiler that is known, by number: it is caught, by the real compiler where there is one.

1 gates fused twice: tests/targets/test_htp_sim.py. 5 the SoC sticks, 6 silent options, 12 reasons of refusals:
test_qnn_compile.py. No check of the SoC at load: test_qnn_several.py, tests/targets/test_htp_sim.py.
"""

from __future__ import annotations

import importlib.util

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import house
import kinds
from contract import onnx_artifact, run_stage
from edgekit.errors import EdgekitError, UnsupportedError
from edgekit.exporter import load_exporter
from edgekit.plan import make_stage
from edgekit.profile import load_profile
from edgekit.stage import Context, Inputs
from edgekit.target import Bundle
from edgekit.targets import open_target
from edgekit_exporters.qnn.context import compile_context
from edgekit_exporters.qnn.desk import options_of

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the extra qnn (onnxruntime-qnn, x86-64 Linux)"
)
EXPORTER = load_exporter("qnn")
PHONE = load_profile("snapdragon-8-gen3")
INT64, INT8, UINT8, UINT16, INT4 = (getattr(TensorProto, name) for name in ("INT64", "INT8", "UINT8", "UINT16", "INT4"))
value, node = kinds.value, kinds.node


def errors(model, folder, profile=PHONE):
    artifact = onnx_artifact(model, folder)
    return [finding for finding in EXPORTER.lint(artifact, folder, profile) if finding.severity == "error"]


def quantized(name, dtype, values, scale, zero, *, axis=None):
    """Return constants and the DequantizeLinear of a stored tensor."""
    axes = {} if axis is None else {"axis": axis}
    constants = {f"{name}_q": (values, dtype), f"{name}_s": (scale, None), f"{name}_z": (zero, dtype)}
    return constants, node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name], **axes)


def activation(name, source, dtype=UINT8, scale=0.03, zero=128):
    constants = {f"{name}_s": (np.float32(scale), None), f"{name}_z": (np.array(zero), dtype)}
    rows = [
        node("QuantizeLinear", [source, f"{name}_s", f"{name}_z"], [f"{name}_q"]),
        node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name]),
    ]
    return constants, rows


def graph(nodes, inputs, outputs, constants, opset=21):
    tensors = []
    for name, (values, dtype) in constants.items():
        array = np.asarray(values)
        kind = dtype or helper.np_dtype_to_tensor_dtype(array.dtype)
        tensors.append(helper.make_tensor(name, kind, array.shape, array.ravel().tolist()))
    made = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def quantized_norm(scale_type):
    """A quantized LayerNorm whose scale is stored in a type."""
    start, before = activation("x", "in")
    end, after = activation("y", "n")
    weight, weigh = quantized("w", scale_type, np.full(16, 100), np.float32(0.01), np.array(0))
    bias, shift = quantized("b", TensorProto.INT32, np.zeros(16), np.float32(0.0003), np.array(0))
    norm = node("LayerNormalization", ["x", "w", "b"], ["n"], name="norm", axis=-1)
    return graph(
        [*before, weigh, shift, norm, *after],
        [value("in", [1, 4, 16])],
        [value("y", [1, 4, 16])],
        {**start, **weight, **bias, **end},
    )


def test_2_a_norm_with_an_int8_scale_would_be_on_the_cpu_and_one_in_uint8_is_not(tmp_path):
    found = {finding.node: finding for finding in errors(quantized_norm(INT8), tmp_path / "int8")}
    assert found["norm"].rule == "qnn-operator-fallback"
    assert errors(quantized_norm(UINT8), tmp_path / "uint8") == []


def quantized_by_us(model, shape, precision, tmp_path):
    """Run quantize-int8 for the phone on data of the input `in`."""
    stage = make_stage("quantize-int8", {"precision": precision}, "test")
    data = house.dataset(kinds.draws(8, **{"in": shape}))
    return run_stage(stage, model, tmp_path, data=data, profile=PHONE, dialect=EXPORTER.dialect(PHONE))[1]


@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_2_our_stage_stores_no_norm_scale_in_int8(precision, tmp_path):
    nodes = [
        node("MatMul", ["in", "w"], ["x"], name="product"),
        node("LayerNormalization", ["x", "g", "b"], ["y"], name="norm", axis=-1),
    ]
    constants = {"w": kinds.normal(0, 16, 16), "g": 1 + kinds.normal(1, 16) / 10, "b": kinds.normal(2, 16)}
    model = kinds.build(nodes, [value("in", [1, 4, 16])], [value("y", [1, 4, 16])], constants)
    made = quantized_by_us(model, (1, 4, 16), precision, tmp_path)
    types = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    makers = {output: one for one in made.graph.node for output in one.output}
    (norm,) = [one for one in made.graph.node if one.op_type == "LayerNormalization"]
    stored = makers[norm.input[1]]
    assert stored.op_type == "DequantizeLinear", "or this test looks at nothing"
    assert types[stored.input[0]] != INT8
    assert errors(made, tmp_path / "made") == []


def quantized_product(zero_point):
    start, before = activation("x", "in", UINT16, 0.0001, 32768)
    end, after = activation("y", "n", UINT16, 0.001, 32768)
    weight, weigh = quantized("w", INT4, np.arange(256).reshape(16, 16) % 15 - 7, np.float32(0.1), np.array(zero_point))
    product = node("MatMul", ["x", "w"], ["n"], name="product")
    return graph(
        [*before, weigh, product, *after],
        [value("in", [1, 4, 16])],
        [value("y", [1, 4, 16])],
        {**start, **weight, **end},
    )


def simulated(model, feed, folder):
    """Return CPU against simulator in dB."""
    artifact = onnx_artifact(model, folder / "in")
    (folder / "out").mkdir()
    facts = EXPORTER.compile(artifact, folder / "in", PHONE, folder / "out")
    (found,) = open_target("htp-sim", PHONE).run(Bundle(folder=folder / "out", facts=facts), [feed])
    expected = kinds.run(model, feed)[0].astype(np.float64)
    return 10 * np.log10((expected**2).sum() / max(((expected - found["y"]) ** 2).sum(), 1e-30))


@pytest.mark.parametrize("zero_point", [0, 3])
def test_3_four_bit_weights_are_refused_or_right(zero_point, tmp_path):
    """What needs them symmetric is onnxruntime's quantizer; the compiler takes others, and they come out right."""
    model = quantized_product(zero_point)
    assert errors(model, tmp_path / "lint") == []
    assert simulated(model, {"in": kinds.normal(1, 1, 4, 16)}, tmp_path) > 40


def test_3_four_bit_weights_of_our_own_are_symmetric(tmp_path):
    weights = {"w": kinds.normal(0, 64, 64)}
    model = kinds.build(
        [node("MatMul", ["in", "w"], ["y"], name="product")],
        [value("in", [1, 4, 64])],
        [value("y", [1, 4, 64])],
        weights,
    )
    made = quantized_by_us(model, (1, 4, 64), "w4a16", tmp_path)
    tensors = {tensor.name: tensor for tensor in made.graph.initializer}
    narrow = [name for name, tensor in tensors.items() if tensor.data_type == INT4]
    assert narrow, "or this test looks at nothing"
    for one in made.graph.node:
        if one.op_type == "DequantizeLinear" and tensors.get(one.input[0]) is not None:
            zeros = onnx.numpy_helper.to_array(tensors[one.input[2]]) if len(one.input) > 2 else np.zeros(1)
            assert tensors[one.input[0]].data_type != INT4 or not zeros.astype(np.int64).any()
    assert errors(made, tmp_path / "made") == []


def spelled_gelu():
    """GELU as exporters spell it out, behind a product."""
    constants = {
        "w": kinds.normal(0, 16, 16),
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    nodes = [
        node("MatMul", ["in", "w"], ["x"], name="product"),
        node("Div", ["x", "root"], ["d"], name="div"),
        node("Erf", ["d"], ["e"], name="bell"),
        node("Add", ["e", "one"], ["a"], name="add"),
        node("Mul", ["x", "a"], ["m"], name="mul"),
        node("Mul", ["m", "half"], ["y"], name="halve"),
    ]
    return kinds.build(nodes, [value("in", [1, 4, 16])], [value("y", [1, 4, 16])], constants)


def test_4_the_fusion_that_an_erf_needs_is_named_for_the_plan_and_a_bare_one_is_refused(tmp_path):
    (first,) = [spec for spec in EXPORTER.prepare(PHONE) if spec.name == "fuse-gelu"]
    artifact = onnx_artifact(spelled_gelu(), tmp_path / "in")
    for part in ("out", "scratch"):
        (tmp_path / part).mkdir()
    given = Inputs(artifact=artifact, folder=tmp_path / "in", profile=PHONE, data=None, dialect=EXPORTER.dialect(PHONE))
    stage = make_stage(first.name, first.options, "test")
    stage.run(given, tmp_path / "out", Context(scratch=tmp_path / "scratch"))
    made = onnx.load(tmp_path / "out" / "model.onnx")
    assert "Erf" not in {one.op_type for one in made.graph.node}
    assert errors(made, tmp_path / "fused") == []
    bare = kinds.build([node("Erf", ["in"], ["y"], name="bell")], [value("in", [1, 8])], [value("y", [1, 8])], {})
    assert "bell" in {finding.node for finding in errors(bare, tmp_path / "bare")}


WIDE, FLAT = [1, 16, 8, 8], [1, 16, 1, 1]
GROUPS = {"g": kinds.normal(2, 16), "o": kinds.normal(3, 16)}
AXES = {"axes": np.array([2, 3])}
FUNCTIONS = {  # operator -> opset, the shape of its output, constants behind its input, attributes
    "Mish": (18, WIDE, {}, {}),
    "Celu": (17, WIDE, {}, {"alpha": 0.7}),
    "Shrink": (18, WIDE, {}, {"lambd": 0.2}),
    "Softsign": (18, WIDE, {}, {}),
    "GroupNormalization": (21, WIDE, GROUPS, {"num_groups": 4}),
    "ReduceL1": (18, FLAT, AXES, {}),
    "ReduceLogSumExp": (18, FLAT, AXES, {}),
    "ReduceSumSquare": (18, FLAT, AXES, {}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_the_htp_has_not_are_written_out(name, tmp_path):
    """Behind a convolution, in integers: what stands in the plan makes a graph of it that the compiler takes whole."""
    opset, shape, constants, attributes = FUNCTIONS[name]
    nodes = [
        node("Conv", ["in", "w"], ["x"], name="conv"),
        node(name, ["x", *constants], ["y"], name="function", **attributes),
    ]
    weights = {"w": kinds.normal(0, 16, 3, 1, 1), **constants}
    model = kinds.build(nodes, [value("in", [1, 3, 8, 8])], [value("y", shape)], weights, opset=opset)
    (first,) = [spec for spec in EXPORTER.prepare(PHONE) if spec.name == "expand"]
    written = run_stage(make_stage(first.name, first.options, "test"), model, tmp_path / "written", profile=PHONE)[1]
    assert name not in {one.op_type for one in written.graph.node}
    stage = make_stage("simplify", {}, "test")
    simple = run_stage(stage, written, tmp_path / "simple", profile=PHONE)[1]
    made = quantized_by_us(simple, (1, 3, 8, 8), "w8a8", tmp_path / "quantized")
    assert errors(made, tmp_path / "made") == []


@pytest.mark.parametrize("name", ["qcs6490", "qcm6690", "snapdragon-888"])
def test_5_a_float_product_alone_does_not_slip_to_the_cpu_of_a_chip_without_floats(name, tmp_path):
    model = kinds.build(
        [node("MatMul", ["in", "w"], ["y"], name="product")],
        [value("in", [1, 4, 16])],
        [value("y", [1, 4, 16])],
        {"w": kinds.normal(0, 16, 16)},
    )
    assert errors(model, tmp_path, load_profile(name))


@pytest.mark.parametrize("soc", [1, 255])
def test_7_a_soc_that_is_none_ends_in_an_error_not_on_the_cpu(soc, tmp_path):
    htp = {**PHONE.settings["htp"], "soc_model": soc}
    unknown = msgspec.structs.replace(PHONE, settings={"htp": htp})
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    (tmp_path / "out").mkdir()
    with pytest.raises(EdgekitError):
        EXPORTER.compile(artifact, tmp_path / "in", unknown, tmp_path / "out")
    assert not (tmp_path / "out" / "model_ctx.onnx").exists()


def test_8_what_quantizes_inputs_and_outputs_lies_on_the_htp(tmp_path):
    found = {}
    for offload in ("0", "1"):
        folder = tmp_path / offload
        folder.mkdir()
        model = quantized_product(0)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        options = options_of(PHONE) | {"offload_graph_io_quantization": offload}
        context = compile_context(folder, options, fallback=True)
        nodes = onnx.load(context.folder / "model_ctx.onnx", load_external_data=False).graph.node
        found[offload] = {one.op_type for one in nodes}
    assert found["0"] == {"EPContext"}
    assert "QuantizeLinear" in found["1"], "the default that this guards against"
    assert options_of(PHONE)["offload_graph_io_quantization"] == "0"


def test_9_the_library_prints_nothing_into_our_output(tmp_path, capfd):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    (tmp_path / "out").mkdir()
    type(EXPORTER)().compile(artifact, tmp_path / "in", PHONE, tmp_path / "out")
    assert capfd.readouterr() == ("", "")


def one_op(op, inputs, output, constants=None, opset=17, out_type=TensorProto.FLOAT, extra=(), **attributes):
    names = [*inputs, *(constants or {})]
    return kinds.build(
        [node(op, names, ["y", *extra], name="it", **attributes)],
        [value(name, shape) for name, shape in inputs.items()],
        [value("y", output, out_type)],
        constants or {},
        opset=opset,
        ir=10,
    )


REFUSED = {
    "transpose of rank 6": lambda: one_op(
        "Transpose", {"x": [1, 2, 2, 2, 2, 2]}, [2, 2, 2, 2, 2, 1], perm=[5, 4, 3, 2, 1, 0]
    ),
    "erf": lambda: one_op("Erf", {"x": [1, 8]}, [1, 8]),
    "non-zero": lambda: one_op("NonZero", {"x": [4]}, [1, "n"], out_type=INT64),
    "open shapes": lambda: one_op("Relu", {"x": [1, "n", "m"]}, [1, "n", "m"]),
    "group norm": lambda: one_op(
        "GroupNormalization",
        {"x": [1, 8, 4, 4]},
        [1, 8, 4, 4],
        {"s": np.ones(8, np.float32), "b": np.zeros(8, np.float32)},
        opset=21,
        num_groups=2,
    ),
    "pooling beyond its input": lambda: one_op(
        "AveragePool", {"x": [1, 8, 3, 3]}, [1, 8, 1, 1], kernel_shape=[9, 9], pads=[3] * 4, count_include_pad=1
    ),
    "pooling beyond its input, some of it": lambda: one_op(
        "AveragePool", {"x": [1, 8, 3, 3]}, [1, 8, 3, 3], kernel_shape=[9, 9], pads=[4] * 4
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_11_what_the_compiler_does_not_take_is_refused_with_the_node(name, tmp_path):
    found = errors(REFUSED[name](), tmp_path)
    assert found
    assert all(finding.text and finding.remedy for finding in found)
    assert {finding.node for finding in found} & {"it", "x", ""}


def test_11_two_graphs_are_refused(tmp_path):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path)
    graphs = {**artifact.facts["graphs"], "decoder.onnx": artifact.facts["graphs"]["model.onnx"]}
    both = msgspec.structs.replace(artifact, facts=artifact.facts | {"graphs": graphs})
    (found,) = [one for one in EXPORTER.lint(both, tmp_path, PHONE) if one.severity == "error"]
    assert found.rule == "qnn-several-graphs"
    assert "decoder.onnx, model.onnx" in found.text


@pytest.mark.parametrize("kernel", [4, 5])
def test_11_a_window_that_holds_all_of_its_input_is_made_global_and_right(kernel, tmp_path):
    """As it stands the compiler takes it, and the simulator gives noise."""
    pads = [kernel - 4, kernel - 4, 1, 1]
    model = one_op(
        "AveragePool", {"x": [1, 8, 3, 3]}, [1, 8, 1, 1], kernel_shape=[kernel] * 2, pads=pads, strides=[9, 9]
    )
    assert errors(model, tmp_path / "lint") == []
    assert simulated(model, {"x": kinds.normal(1, 1, 8, 3, 3)}, tmp_path) > 50


TAKEN = {
    "3-D convolution": lambda: one_op(
        "Conv", {"x": [1, 4, 4, 8, 8]}, [1, 4, 2, 6, 6], {"w": kinds.normal(0, 4, 4, 3, 3, 3)}
    ),
    "transposed convolution": lambda: one_op(
        "ConvTranspose", {"x": [1, 4, 8, 8]}, [1, 4, 10, 10], {"w": kinds.normal(0, 4, 4, 3, 3)}
    ),
    "gelu": lambda: one_op("Gelu", {"x": [1, 4, 16]}, [1, 4, 16], opset=20),
    "cumulative sum": lambda: one_op("CumSum", {"x": [1, 16]}, [1, 16], {"a": np.array(1, np.int64)}),
    "resize": lambda: one_op(
        "Resize",
        {"x": [1, 4, 8, 8]},
        [1, 4, 16, 16],
        {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)},
        mode="nearest",
    ),
    "grid sample": lambda: one_op("GridSample", {"x": [1, 4, 8, 8], "g": [1, 4, 4, 2]}, [1, 4, 4, 4]),
    "root mean square norm": lambda: one_op(
        "RMSNormalization", {"x": [1, 4, 16]}, [1, 4, 16], {"s": np.ones(16, np.float32)}, opset=23
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKEN)
def test_11_what_it_takes_is_not_refused(name, tmp_path):
    phone = msgspec.structs.replace(PHONE, graph=msgspec.structs.replace(PHONE.graph, max_opset=23))
    assert errors(TAKEN[name](), tmp_path, phone) == []


def test_a_network_that_is_refused_as_a_whole_is_never_a_success(tmp_path):
    """The success message of a model that lies wholly on the CPU."""
    bare = kinds.build([node("Erf", ["in"], ["y"], name="bell")], [value("in", [1, 8])], [value("y", [1, 8])], {})
    artifact = onnx_artifact(bare, tmp_path / "in")
    (tmp_path / "out").mkdir()
    with pytest.raises(UnsupportedError):
        EXPORTER.compile(artifact, tmp_path / "in", PHONE, tmp_path / "out")
