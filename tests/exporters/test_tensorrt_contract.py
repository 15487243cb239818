"""What we write for TensorRT, held against its real parser; and what that refuses, held against our linter."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import architectures
import house
import kinds
import wild
from contract import ORT_CPU, onnx_artifact
from edgekit.exporter import load_exporter
from edgekit.graphs.rules import build_shapes
from edgekit.profile import Graph
from edgekit.stage import Context, Inputs
from edgekit.stages.equalize import Equalize
from edgekit.stages.fp16 import Fp16
from edgekit.stages.quantize_int4 import QuantizeInt4
from edgekit.stages.quantize_int8 import QuantizeInt8
from edgekit.stages.simplify import Simplify
from edgekit_exporters.tensorrt.rtx import LABEL, check_with_rtx

EXPORTER = load_exporter("tensorrt")
SAMPLE = Path(__file__).parents[2] / "samples" / "vision"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="needs the extra trt-check (tensorrt-rtx)"
)


def orin(**graph):
    return house.profile(
        name="orin",
        family="jetson",
        runtime="tensorrt",
        graph=Graph(**{"max_opset": 19, "max_ir": 10, **graph}),
        settings={"tensorrt": {"rtx_check": "off"}},
    )


def run(stage, model, feeds, folder, profile):
    """Run one stage on a graph in memory; return its facts and the new graph."""
    artifact = onnx_artifact(model, folder / "in")
    for name in ("out", "scratch"):
        (folder / name).mkdir()
    inputs = Inputs(
        artifact=artifact,
        folder=folder / "in",
        profile=profile,
        data=house.dataset(feeds),
        dialect=EXPORTER.dialect(profile),
    )
    facts = stage.run(inputs, folder / "out", Context(scratch=folder / "scratch"))
    return facts, onnx.load(folder / "out" / "model.onnx")


def through(stages, model, feeds, tmp_path, profile):
    facts = {}
    for number, stage in enumerate(stages):
        folder = tmp_path / f"stage{number}"
        folder.mkdir()
        told, model = run(stage, model, feeds, folder, profile)
        facts |= told
    return facts, model


def judged(model, tmp_path, profile):
    """Return the errors of our linter, and what the real parser and builder say of the file that is shipped."""
    artifact = onnx_artifact(model, tmp_path / "judged")
    ours = [f for f in EXPORTER.lint(artifact, tmp_path / "judged", profile) if f.severity == "error"]
    (tmp_path / "compiled").mkdir()
    facts = EXPORTER.compile(artifact, tmp_path / "judged", profile, tmp_path / "compiled")
    shapes = facts.get("shapes") or build_shapes(artifact)
    return ours, check_with_rtx(tmp_path / "compiled" / facts["model"], build=True, shapes=shapes)


def accept(model, tmp_path, profile):
    ours, (real, *more) = judged(model, tmp_path, profile)
    assert not ours, ours
    assert (real.severity, more) == ("note", []), real.text
    assert "engine of" in real.text
    assert LABEL in real.text


def quantized(model):
    """The operators that read a dequantized weight."""
    makers = {name: node for node in model.graph.node for name in node.output}
    stored = {tensor.name for tensor in model.graph.initializer}
    found = set()
    for node in model.graph.node:
        maker = makers.get(node.input[1]) if len(node.input) > 1 else None
        while maker is not None and maker.op_type in {"Transpose", "Reshape"}:
            maker = makers.get(maker.input[0])
        if maker is not None and maker.op_type == "DequantizeLinear" and maker.input[0] in stored:
            found.add(node.op_type)
    return found


LONG = {"plain CNN", "ViT", "1-D convolutions", "MLP"}
SEEDED = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [], id=name)
    for name in architectures.ARCHITECTURES
]


@pytest.mark.parametrize("name", SEEDED)
def test_seeded_architectures_in_int8_are_taken(name, tmp_path):
    model, feeds = architectures.ARCHITECTURES[name]()
    profile = orin()
    facts, made = through([Simplify(), Equalize(), QuantizeInt8()], model, feeds, tmp_path, profile)
    assert facts["coverage"]["macs"] > 0.9
    assert quantized(made) & {"Conv", "MatMul", "Gemm"}
    accept(made, tmp_path, profile)


@pytest.mark.parametrize(
    "kind", [kinds.residual_cnn, kinds.small_transformer, kinds.einsum, kinds.boxes_and_scores, kinds.upsample]
)
def test_kinds_that_quantizers_get_wrong_are_taken(kind, tmp_path):
    model, feeds = kind()
    profile = orin()
    if model.opset_import[0].version < 13:
        model = onnx.version_converter.convert_version(model, 17)
    _, made = through([QuantizeInt8()], model, feeds * 2, tmp_path, profile)
    accept(made, tmp_path, profile)


def test_recurrent_layers_are_taken_and_their_gru_stays_float(tmp_path):
    """RTX's builder crashes on quantized weights of a GRU; those of an LSTM it takes."""
    model, feeds = kinds.recurrent()
    profile = orin()
    _, made = through([QuantizeInt8()], model, feeds * 2, tmp_path, profile)
    for value in (*made.graph.input, *made.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = {"s": 12, "b": 2}.get(dim.dim_param, dim.dim_value)
    (gru,) = (node for node in made.graph.node if node.op_type == "GRU")
    weights = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    assert weights[gru.input[1]] == weights[gru.input[2]] == TensorProto.FLOAT
    accept(made, tmp_path, profile)


@pytest.mark.parametrize("name", ["ResNet", "BERT"])
def test_fp16_is_taken(name, tmp_path):
    model, feeds = architectures.ARCHITECTURES[name]()
    _, made = through([Fp16()], model, feeds, tmp_path, orin())
    assert any(tensor.data_type == TensorProto.FLOAT16 for tensor in made.graph.initializer)
    accept(made, tmp_path, orin())


@pytest.mark.parametrize("name", ["MLP", pytest.param("ViT", marks=pytest.mark.slow)])
def test_int4_weights_are_taken(name, tmp_path):
    """Standard DequantizeLinear with blocks, opset 21: for the TensorRT of JetPack 7."""
    model, feeds = architectures.ARCHITECTURES[name]()
    profile = orin(max_opset=21)
    _, made = through([Simplify(), QuantizeInt4(method="rtn", block=16)], model, feeds, tmp_path, profile)
    assert any(tensor.data_type == TensorProto.INT4 for tensor in made.graph.initializer)
    accept(made, tmp_path, profile)


def test_a_trained_depthwise_network_is_taken(tmp_path):
    images = np.load(SAMPLE / "data" / "calibration.npz")["x"][:64]
    feeds = [{"x": (image[None, None] / np.float32(255)).astype(np.float32)} for image in images]
    profile = orin()
    facts, made = through([Simplify(), QuantizeInt8()], onnx.load(SAMPLE / "model.onnx"), feeds, tmp_path, profile)
    assert facts["coverage"]["weights"] > 0.99
    accept(made, tmp_path, profile)


TRAINED = ["ocr-det", "ocr-rec", "ocr-cls", "seizure-a", "basic-pitch", "minilm-l3"]
"""Text detection, recognition and direction, a CNN of EEG spectra, pitch of audio, sentences."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_trained_models_of_others_are_taken(name, tmp_path, edgekit):
    try:
        model = wild.fetch(name, tmp_path)
    except RuntimeError as error:
        pytest.skip(f"cannot be fetched here: {error}")
    data = wild.write_data(name, tmp_path, fixed=True)
    shapes = [word for shape in wild.MODELS[name].shapes for word in ("--shape", shape)]
    ran = edgekit(
        *("build", model, "--profile", "jetson", "--recipe", "int8", "--data", data, *shapes, "--json"),
        *("--out", tmp_path / "out", "--max-drop", "100%"),
    )
    assert ran.status == 0, ran.err
    assert ran.json["coverage"]["weights"] > 0.9
    (told,) = [finding["text"] for finding in ran.json["findings"] if finding["rule"] == "trt-rtx"]
    assert "accepted" in told
    made = next((tmp_path / "out").glob("*.edgekit"))
    from edgekit.package import extract_package

    path = extract_package(made, tmp_path / "extracted").model
    (real,) = check_with_rtx(path, build=True)
    assert real.severity == "note", real.text


SYMMETRIC = {"ActivationSymmetric": True, "WeightSymmetric": True}
FLOAT_BIAS = {"QuantizeBias": False}
INT8 = {"activation_type": "QInt8", "weight_type": "QInt8"}


def by_onnxruntime(architecture, tmp_path, **options):
    """A model as onnxruntime's static quantizer writes it."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    model, feeds = architecture()
    onnx.save(model, tmp_path / "float.onnx")

    class Reader(CalibrationDataReader):
        left = iter(feeds)

        def get_next(self):
            return next(self.left, None)

    for key, known in (("activation_type", QuantType), ("weight_type", QuantType), ("quant_format", QuantFormat)):
        if key in options:
            options[key] = known[options[key]]
    quantize_static(str(tmp_path / "float.onnx"), str(tmp_path / "int8.onnx"), Reader(), **options)
    return onnx.load(tmp_path / "int8.onnx")


def dynamic(tmp_path):
    from onnxruntime.quantization import quantize_dynamic

    onnx.save(architectures.mlp()[0], tmp_path / "float.onnx")
    quantize_dynamic(str(tmp_path / "float.onnx"), str(tmp_path / "int8.onnx"))
    return onnx.load(tmp_path / "int8.onnx")


def pairs(*, opset=17, stored=None, before=(), **constants):
    """x goes through Q and DQ into a product with a dequantized weight; constants are laid over good ones."""
    good = {"xs": np.float32(0.02), "xz": np.int8(0), "w": np.ones((8, 8), np.int8), "ws": np.float32(0.1)}
    nodes = [
        kinds.node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], name="q"),
        kinds.node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], name="dq"),
        *before,
        kinds.node("DequantizeLinear", [before[-1].output[0] if before else "w", "ws"], ["wd"], name="dqw"),
        kinds.node("MatMul", ["xd", "wd"], ["y"], name="mm"),
    ]
    edges = [kinds.value(name, [1, 4, 8]) for name in "xy"]
    return kinds.build(nodes, edges[:1], edges[1:], {**good, **constants}, opset=opset, ir=10)


def scalar(value):
    """A scalar that was quantized like everything else."""
    nodes = [
        kinds.node("DequantizeLinear", ["c", "s"], ["cd"], name="dqc"),
        kinds.node("Mul", ["x", "cd"], ["y"], name="scale"),
    ]
    edges = [kinds.value(name, [1, 4, 8]) for name in "xy"]
    return kinds.build(nodes, edges[:1], edges[1:], {"c": np.int8(value), "s": np.float32(0.1)})


def blocked(kind, *, zero_point=None):
    """A weight of 4 bits in blocks, as DequantizeLinear of opset 21."""
    import ml_dtypes

    dtype = getattr(ml_dtypes, kind)
    constants = {"w": np.ones((32, 8)).astype(dtype), "ws": np.full((2, 8), 0.1, np.float32)}
    if zero_point is not None:
        constants["wz"] = np.full((2, 8), zero_point).astype(dtype)
    nodes = [
        kinds.node("DequantizeLinear", list(constants), ["wd"], axis=0, block_size=16, name="dqw"),
        kinds.node("MatMul", ["x", "wd"], ["y"], name="mm"),
    ]
    return kinds.build(nodes, [kinds.value("x", [4, 32])], [kinds.value("y", [4, 8])], constants, opset=21, ir=10)


def nbits(kind):
    constants = {"B": np.full((8, 8, 16), 0x88, np.uint8), "S": np.full(64, 0.1, kind)}
    sizes = {"K": 256, "N": 8, "bits": 4, "block_size": 32}
    node = helper.make_node("MatMulNBits", ["x", "B", "S"], ["y"], name="nb", domain="com.microsoft", **sizes)
    which = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    edges = [kinds.value("x", [4, 256], which), kinds.value("y", [4, 8], which)]
    return kinds.build([node], edges[:1], edges[1:], constants, extra=("com.microsoft",))


def float8():
    import ml_dtypes

    return pairs(opset=21, xz=np.asarray(0).astype(ml_dtypes.float8_e4m3fn))


def refused(rule, words, make):
    return pytest.param(rule, words, make, id=f"{rule}: {words}"[:60])


TURN = kinds.node("Transpose", ["w"], ["wt"], perm=[1, 0], name="turn")
SAME = kinds.node("Identity", ["w"], ["wt"], name="same")
REFUSED = [  # our rule, words of the real tool, how the model is made (with a scratch folder)
    refused("int32-bias", "Int32", lambda t: by_onnxruntime(architectures.resnet, t)),
    refused("int32-bias", "Int32", lambda t: by_onnxruntime(architectures.resnet, t, **INT8, extra_options=SYMMETRIC)),
    refused("asymmetric", "zero point", lambda t: by_onnxruntime(architectures.bert, t)),
    refused(
        "asymmetric", "zero point", lambda t: by_onnxruntime(architectures.mlp, t, **INT8, extra_options=FLOAT_BIAS)
    ),
    refused("asymmetric", "zero point", lambda t: pairs(xz=np.uint8(37))),
    refused("16-bit", "initializer", lambda t: pairs(opset=21, xz=np.int16(0))),
    refused("16-bit", "initializer", lambda t: pairs(opset=21, xz=np.uint16(0))),
    refused("operator", "", lambda t: by_onnxruntime(architectures.plain_cnn, t, quant_format="QOperator")),
    refused("operator", "DynamicQuantizeLinear", dynamic),
    refused(
        "quantized-constant",
        "Quantized constant",
        lambda t: by_onnxruntime(
            architectures.vit, t, **INT8, per_channel=True, extra_options={**SYMMETRIC, **FLOAT_BIAS}
        ),
    ),
    refused("quantized-constant", "Quantized constant", lambda t: scalar(3)),
    refused("quantized-constant", "Quantized constant", lambda t: pairs(before=[TURN])),
    refused("quantized-constant", "Quantized constant", lambda t: pairs(before=[SAME])),
    refused("scale", "positive", lambda t: pairs(ws=np.float32(0))),
    refused("scale", "positive", lambda t: pairs(ws=np.float32(-1))),
    refused("uint4", "initializer", lambda t: blocked("uint4")),
    refused("uint4", "initializer", lambda t: blocked("uint4", zero_point=0)),
    refused("asymmetric", "initializer", lambda t: blocked("uint4", zero_point=8)),
    refused("domain", "FP16", lambda t: nbits(np.float32)),
    refused("domain", "MatMulNBits", lambda t: nbits(np.float16)),
    refused("fp8", "target", lambda t: float8()),
]


@pytest.mark.parametrize(("rule", "words", "make"), REFUSED)
def test_what_the_real_tool_refuses_our_linter_refuses_by_name(rule, words, make, tmp_path):
    made = make(tmp_path)
    ours, real = judged(made, tmp_path, orin(max_opset=21))
    assert {finding.severity for finding in real} == {"error"}, "the real tool takes it"
    assert any(words.lower() in finding.text.lower() for finding in real), real
    named = {finding.node for finding in ours if finding.rule == f"trt-{rule}"}
    assert named, ours
    assert named <= {node.name for node in made.graph.node}
    assert all(f"'{finding.node}'" in finding.text and finding.remedy for finding in ours)


def test_a_good_pair_is_taken(tmp_path):
    """Else the models above could be refused for another reason than theirs."""
    accept(pairs(), tmp_path, orin())


def test_a_good_block_is_taken(tmp_path):
    accept(blocked("int4"), tmp_path, orin(max_opset=21))


def test_uint8_activations_are_refused_although_the_parser_takes_them(tmp_path):
    """It reads them as int8, so that values above 127 saturate. The one place where we are stricter than it."""
    ours, (real,) = judged(pairs(xz=np.uint8(0)), tmp_path, orin())
    assert real.severity == "note"
    assert {(finding.node, finding.rule) for finding in ours} == {("q", "trt-uint8"), ("dq", "trt-uint8")}


def test_every_operator_quantized_is_taken_where_no_scalar_is(tmp_path):
    """Pairs everywhere are slower, not wrong: TensorRT builds them, so they are no error."""
    options = {**INT8, "per_channel": True, "extra_options": {**SYMMETRIC, **FLOAT_BIAS}}
    accept(by_onnxruntime(architectures.resnet, tmp_path, **options), tmp_path, orin())


def test_what_we_write_for_another_runtime_is_refused_by_both(tmp_path):
    model, feeds = architectures.resnet()
    profile = orin()
    artifact = onnx_artifact(model, tmp_path / "in")
    for name in ("out", "scratch"):
        (tmp_path / name).mkdir()
    inputs = Inputs(
        artifact=artifact, folder=tmp_path / "in", profile=profile, data=house.dataset(feeds), dialect=ORT_CPU
    )
    QuantizeInt8().run(inputs, tmp_path / "out", Context(scratch=tmp_path / "scratch"))
    ours, real = judged(onnx.load(tmp_path / "out" / "model.onnx"), tmp_path, profile)
    assert real[0].severity == "error"
    assert any(f.rule in {"trt-int32-bias", "trt-asymmetric", "trt-uint8"} for f in ours)
