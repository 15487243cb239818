"""What we write for onnxruntime's CPU, held against the kernels that it really chooses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import architectures
import house
import kinds
import wild
from contract import onnx_artifact
from edgekit.errors import InputError
from edgekit.exporter import load_exporter
from edgekit.graphs.calibrate import open_graph
from edgekit.graphs.kernels import optimized_ops
from edgekit.profile import Cpu, load_profile
from edgekit.stage import Context, Inputs
from edgekit.stages.quantize_int8 import QuantizeInt8
from edgekit.stages.simplify import Simplify

SEEDED = {
    **architectures.ARCHITECTURES,
    "depthwise and residual": kinds.residual_cnn,
    "transformer": kinds.small_transformer,
    "two heads of one weight": kinds.shared_weight,
    "detector": kinds.boxes_and_scores,
}
SAMPLE = Path(__file__).parents[2] / "samples" / "vision"
MACHINES = {
    "x86 with VNNI": ("x86_64", ("avx2", "avx512_vnni")),
    "x86 without": ("x86_64", ("avx2",)),
    "Arm": ("aarch64", ("dotprod",)),
}
FLOAT = {"Conv", "FusedConv", "MatMul", "FusedMatMul", "Gemm", "FusedGemm"}
INTEGER = {
    *("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulInteger"),
}


def machine(name):
    arch, features = MACHINES[name]
    return house.profile(runtime="onnx", cpu=Cpu(arch=arch, cores=house.sourced(2), features=features))


def quantized(model, feeds, folder, profile, **options):
    """Simplify and quantize a graph in memory for a profile; return facts and graph."""
    dialect = load_exporter("onnx").dialect(profile)
    facts = {}
    for number, stage in enumerate((Simplify(), QuantizeInt8(**options))):
        place = folder / str(number)
        artifact = onnx_artifact(model, place / "in")
        for name in ("out", "scratch"):
            (place / name).mkdir()
        inputs = Inputs(
            artifact=artifact, folder=place / "in", profile=profile, data=house.dataset(feeds), dialect=dialect
        )
        facts |= stage.run(inputs, place / "out", Context(scratch=place / "scratch"))
        model = onnx.load(place / "out" / "model.onnx")
    return facts, model


def weighted(model, reads):
    """Names of products, by the stored type of what they read as a weight."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    return [
        node
        for node in model.graph.node
        if node.op_type in FLOAT and reads(makers.get(node.input[1]), stored.get(node.input[1]))
    ]


@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize("name", SEEDED)
def test_seeded_architectures_run_on_integer_kernels(name, where, tmp_path):
    """No product with a weight is left to a float kernel but those that the plan names with a reason."""
    model, feeds = SEEDED[name]()
    profile = machine(where)
    facts, made = quantized(model, feeds, tmp_path, profile)
    assert not [finding for finding in facts["findings"] if finding["rule"] == "kernel-not-fused"]
    found = optimized_ops(made, tmp_path, signed=where == "Arm")
    products = sum(node.op_type in {"Conv", "MatMul", "Gemm"} for node in model.graph.node)
    inner = len(
        weighted(made, lambda maker, stored: stored is None and (maker is None or "Dequant" not in maker.op_type))
    )
    left = len(facts["coverage"]["left_float"])
    assert sum(found[op] for op in INTEGER) >= products - inner - left > 0
    assert sum(found[op] for op in FLOAT) <= inner + left
    assert facts["coverage"]["macs"] > 0.9
    assert all(output["sqnr_db"] > 15 for output in facts["quantization"]["outputs"].values())


@pytest.mark.parametrize("where", ["x86 with VNNI", "Arm"])
@pytest.mark.parametrize("bounds", kinds.CLIPS)
def test_clips_of_any_bounds_run_on_integer_kernels(bounds, where, tmp_path):
    model, feeds = kinds.clipped(*bounds)
    facts, made = quantized(model, feeds, tmp_path, machine(where))
    assert not [finding for finding in facts["findings"] if finding["rule"] == "kernel-not-fused"]
    found = optimized_ops(made, tmp_path, signed=where == "Arm")
    assert found["QLinearConv"] == 2
    assert facts["quantization"]["outputs"]["y"]["sqnr_db"] > 30


@pytest.mark.parametrize("where", MACHINES)
def test_integer_types_follow_the_cpu(where, tmp_path):
    """u8 x s8 where the CPU multiplies so; 7-bit weights where such products saturate; s8 x s8 on Arm."""
    model, feeds = architectures.ARCHITECTURES["ResNet"]()
    _, made = quantized(model, feeds, tmp_path, machine(where))
    kind = {item.name: item for item in made.graph.initializer}
    points = {kind[node.input[2]].data_type for node in made.graph.node if node.op_type == "QuantizeLinear"}
    assert points == {onnx.TensorProto.INT8 if where == "Arm" else onnx.TensorProto.UINT8}
    weights = [
        onnx.numpy_helper.to_array(kind[node.input[0]])
        for node in made.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in kind
    ]
    largest = max(int(np.abs(array.astype(np.int16)).max()) for array in weights if array.dtype == np.int8)
    assert largest == (63 if where == "x86 without" else 127)


def test_what_this_cpu_does_not_fuse_is_told(tmp_path):
    """Signed activations are right on x86 and stay float there: the kernels say so, not the file."""
    model, feeds = architectures.ARCHITECTURES["ResNet"]()
    _, made = quantized(model, feeds, tmp_path, machine("Arm"))
    assert optimized_ops(made, tmp_path, signed=True)["QLinearConv"] == 6
    assert optimized_ops(made, tmp_path, signed=False)["QLinearConv"] < 6


@pytest.mark.parametrize("name", ["depthwise and residual", "transformer"])
def test_the_newest_opset_that_this_machine_takes_runs_on_integer_kernels(name, tmp_path):
    """What the profile says of onnxruntime here holds for opset and IR version."""
    profile = load_profile("host")
    model, feeds = SEEDED[name]()
    model.opset_import[0].version, model.ir_version = profile.graph.max_opset, profile.graph.max_ir
    onnx.checker.check_model(model, full_check=True)
    facts, made = quantized(model, feeds, tmp_path, profile)
    assert made.opset_import[0].version == profile.graph.max_opset
    assert not [finding for finding in facts["findings"] if finding["rule"] == "kernel-not-fused"]
    found = optimized_ops(made, tmp_path, signed=False)
    assert sum(found[op] for op in INTEGER) >= 3


@pytest.mark.parametrize("name", ["depthwise and residual", "transformer"])
def test_signed_activations_are_written_in_an_opset_that_x86_loads_too(name, tmp_path):
    """onnxruntime#25526: what an Arm device runs is judged here first."""
    model, feeds = SEEDED[name]()
    model.opset_import[0].version = 21
    _, made = quantized(model, feeds, tmp_path, machine("Arm"))
    assert made.opset_import[0].version == 20
    assert optimized_ops(made, tmp_path, signed=False).total() > 0


def test_a_bad_pair_meets_onnxruntimes_own_error(tmp_path):
    constants = {"s": np.float32(0.1), "z": np.int8(0), "u": np.uint8(0)}
    nodes = [
        kinds.node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantize"),
        kinds.node("DequantizeLinear", ["q", "s", "u"], ["y"], name="dequantize"),
    ]
    model = kinds.build(nodes, [kinds.value("x", [1, 4])], [kinds.value("y", [1, 4])], constants)
    with pytest.raises(InputError, match="Type") as caught:
        open_graph(model, tmp_path, threads=1)
    assert "dequantize" in str(caught.value)


def test_a_trained_depthwise_network_is_whole_on_integers(tmp_path):
    images = np.load(SAMPLE / "data" / "calibration.npz")["x"][:64]
    feeds = [{"x": (image[None, None] / np.float32(255)).astype(np.float32)} for image in images]
    facts, made = quantized(onnx.load(SAMPLE / "model.onnx"), feeds, tmp_path, machine("x86 with VNNI"))
    found = optimized_ops(made, tmp_path)
    assert not FLOAT & set(found)
    assert not {"Clip", "Relu"} & set(found), "activations are part of the integer kernels"
    assert facts["coverage"]["macs"] == 1


TRAINED = ("ocr-det", "ocr-rec", "ocr-cls", "seizure-a", "minilm-l3")
"""Text detection, recognition and direction, a CNN of EEG spectra, sentences."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_trained_models_of_others_run_on_integer_kernels(name, tmp_path):
    try:
        path = wild.fetch(name, tmp_path)
    except RuntimeError as error:
        pytest.skip(f"cannot be fetched here: {error}")
    feeds = [feed for feed, _ in zip(wild.feeds(name, fixed=True), range(40), strict=False)]
    model = onnx.version_converter.convert_version(onnx.load(path), 17)
    facts, made = quantized(model, feeds, tmp_path, machine("x86 with VNNI"))
    assert not [finding for finding in facts["findings"] if finding["rule"] == "kernel-not-fused"]
    found = optimized_ops(made, tmp_path)
    assert sum(found[op] for op in INTEGER) > 4 * sum(found[op] for op in FLOAT - {"MatMul", "FusedMatMul"})
    assert facts["coverage"]["weights"] > 0.9
