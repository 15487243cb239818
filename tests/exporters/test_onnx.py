from __future__ import annotations

import onnx
import pytest

import house
import kinds
from contract import onnx_artifact
from edgekit.exporter import load_exporter
from edgekit.profile import Cpu, Graph

EXPORTER = load_exporter("onnx")


def device(arch="x86_64", features=(), **changes):
    return house.profile(cpu=Cpu(arch=arch, cores=house.sourced(2), features=features), **changes)


@pytest.mark.parametrize(
    ("arch", "features", "activation", "reduced"),
    [
        ("x86_64", ("avx2",), "uint8", True),
        ("x86_64", ("avx2", "avx512_vnni"), "uint8", False),
        ("AMD64", ("avx_vnni",), "uint8", False),
        ("aarch64", ("dotprod",), "int8", False),
        ("aarch64", (), "int8", False),
    ],
)
def test_the_dialect_follows_the_features_of_the_cpu(arch, features, activation, reduced):
    dialect = EXPORTER.dialect(device(arch, features))
    assert dialect.name == "ort-cpu"
    assert (dialect.activation, dialect.reduce_range) == (activation, reduced)
    assert not dialect.symmetric_activations, "a zero point at the end of the range lets a Relu fuse"


def test_the_ir_version_is_lowered_and_providers_come_from_the_profile(tmp_path):
    model = kinds.residual_cnn()[0]
    model.ir_version = 10
    artifact = onnx_artifact(model, tmp_path / "in")
    (tmp_path / "out").mkdir()
    settings = {"onnx": {"providers": ["XnnpackExecutionProvider", "CPUExecutionProvider"]}}
    profile = device(graph=Graph(max_ir=8), settings=settings)
    facts = EXPORTER.compile(artifact, tmp_path / "in", profile, tmp_path / "out")
    assert facts["providers"] == ["XnnpackExecutionProvider", "CPUExecutionProvider"]
    assert onnx.load(tmp_path / "out" / "model.onnx").ir_version == 8
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.onnx"]


def test_the_optimized_file_is_only_an_extra(tmp_path):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    (tmp_path / "out").mkdir()
    profile = device(settings={"onnx": {"optimized": True}})
    facts = EXPORTER.compile(artifact, tmp_path / "in", profile, tmp_path / "out")
    assert facts["model"] == "model.onnx"
    assert facts["optimized"]["file"] == "optimized.onnx"
    ops = {n.op_type for n in onnx.load(tmp_path / "out" / "optimized.onnx").graph.node}
    assert "FusedConv" in ops
    assert {n.domain for n in onnx.load(tmp_path / "out" / "model.onnx").graph.node} == {""}


def test_bfloat16_is_refused_by_name(tmp_path):
    artifact = onnx_artifact(kinds.brain_float()[0], tmp_path / "in")
    found = EXPORTER.lint(artifact, tmp_path / "in", device())
    assert any(f.severity == "error" and "bfloat16" in f.text for f in found)


def test_dynamic_shapes_are_refused_only_where_the_device_has_none(tmp_path):
    artifact = onnx_artifact(kinds.recurrent()[0], tmp_path / "in")
    assert EXPORTER.lint(artifact, tmp_path / "in", device()) == []
    found = EXPORTER.lint(artifact, tmp_path / "in", device(graph=Graph(dynamic_shapes=False)))
    assert [f.rule for f in found] == ["ort-dynamic-shape"]
    assert "x[s,b]" in found[0].text
    assert "--shape" in found[0].remedy
