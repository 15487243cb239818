"""What quantization-aware training writes, held against the real runtimes as what calibration writes is."""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import onnx
import pytest

import house
import htp_networks
import kinds
from contract import onnx_artifact
from edgekit.exporter import load_exporter
from edgekit.graphs.kernels import optimized_ops
from edgekit.plan import make_stage
from edgekit.profile import Cpu, load_profile
from edgekit.stage import Context, Inputs
from edgekit.target import Bundle
from edgekit.targets import open_target
from edgekit_exporters.tensorrt.rtx import check_with_rtx

NETWORKS = ["depthwise_cnn", "vision_transformer"]
TRAINING = ("quantize-aware-train", {"epochs": 1, "alpha": 1.0, "batch": 8, "rate": 1e-3})
INTEGER = {"QLinearConv", "QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulInteger", "QLinearMatMul"}


def trained(name, profile, tmp_path, precision="w8a8"):
    """Quantize a network and train it; return the float graph, the trained one, its folder, samples and facts."""
    model, feeds = getattr(htp_networks, name)()
    original, data = model, dataclasses.replace(house.dataset(feeds), training=house.MemorySamples(feeds * 2))
    exporter = load_exporter(profile.runtime)
    teacher = (onnx_artifact(model, tmp_path / "teacher"), tmp_path / "teacher")
    prepared = [(spec.name, spec.options) for spec in exporter.prepare(profile)]
    facts = {}
    for number, (stage, options) in enumerate([*prepared, ("quantize-int8", {"precision": precision}), TRAINING]):
        place = tmp_path / str(number)
        inputs = Inputs(
            artifact=onnx_artifact(model, place / "in"),
            folder=place / "in",
            profile=profile,
            data=data,
            dialect=exporter.dialect(profile),
            teacher=teacher,
        )
        for part in ("out", "scratch"):
            (place / part).mkdir()
        facts |= make_stage(stage, options, "test").run(inputs, place / "out", Context(scratch=place / "scratch"))
        model = onnx.load(place / "out" / "model.onnx")
    assert facts["qat"]["training"]["epochs"] == 1
    return original, model, feeds, facts


@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_runs_it_on_integer_kernels(name, tmp_path):
    profile = house.profile(
        runtime="onnx", cpu=Cpu(arch="x86_64", cores=house.sourced(2), features=("avx2", "avx512_vnni"))
    )
    original, made, feeds, facts = trained(name, profile, tmp_path)
    (tmp_path / "optimized").mkdir()
    found = optimized_ops(made, tmp_path / "optimized", signed=False)
    products = sum(node.op_type in {"Conv", "MatMul", "Gemm"} for node in original.graph.node)
    assert sum(found[op] for op in INTEGER) >= products - len(facts["coverage"]["left_float"]) - 2 > 0
    assert kinds.worst_db(original, made, feeds) > 12


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="needs the extra trt-check")
@pytest.mark.parametrize("name", NETWORKS)
def test_tensorrt_takes_it(name, tmp_path):
    profile = load_profile("jetson")
    original, made, feeds, _ = trained(name, profile, tmp_path)
    onnx.save(made, tmp_path / "made.onnx")
    (told,) = check_with_rtx(tmp_path / "made.onnx", build=True)
    assert told.severity == "note", told.text
    assert "engine of" in told.text
    assert kinds.worst_db(original, made, feeds) > 12


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the extra qnn")
@pytest.mark.parametrize(
    ("name", "precision", "least"), [("depthwise_cnn", "w8a8", 22), ("vision_transformer", "w8a16", 35)]
)
def test_the_htp_runs_all_of_it(name, precision, least, tmp_path):
    profile = load_profile("snapdragon-8-gen3")
    _, made, feeds, _ = trained(name, profile, tmp_path, precision)
    exporter, artifact = load_exporter("qnn"), onnx_artifact(made, tmp_path / "in")
    assert [found for found in exporter.lint(artifact, tmp_path / "in", profile) if found.severity == "error"] == []
    (tmp_path / "out").mkdir()
    compiled = exporter.compile(artifact, tmp_path / "in", profile, tmp_path / "out")
    assert compiled["context"]["refused"] == []
    bundle = Bundle(folder=tmp_path / "out", facts=compiled)
    (output,) = (value.name for value in made.graph.output)
    on_htp = [row[output] for row in open_target("htp-sim", profile).run(bundle, feeds[:3])]
    left, right = (
        np.concatenate(rows).astype(np.float64) for rows in ([kinds.run(made, f)[0] for f in feeds[:3]], on_htp)
    )
    assert 10 * np.log10((left**2).sum() / ((left - right) ** 2).sum()) > least
