from __future__ import annotations

import msgspec
import onnx
import pytest
from onnx import TensorProto

import house
import kinds
from contract import onnx_artifact
from edgekit.exporter import load_exporter
from edgekit.profile import Graph

EXPORTER = load_exporter("qnn")
PHONE = house.profile(runtime="qnn", family="snapdragon", graph=Graph(max_rank=5, dynamic_shapes=False))


def test_a_dynamic_batch_is_fixed_and_other_open_shapes_are_refused(tmp_path):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    (tmp_path / "out").mkdir()
    facts = EXPORTER.compile(artifact, tmp_path / "in", PHONE, tmp_path / "out")
    assert facts["graphs"]["model.onnx"]["inputs"][0]["shape"] == [1, 3, 16, 16]
    made = onnx.load(tmp_path / "out" / "model.onnx")
    assert [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 16, 16]
    artifact = onnx_artifact(kinds.recurrent()[0], tmp_path / "in2")
    (found,) = [f for f in EXPORTER.lint(artifact, tmp_path / "in2", PHONE) if f.severity == "error"]
    assert found.rule == "qnn-dynamic-shape"
    assert "fixed shapes" in found.text
    assert "--shape" in found.remedy


def test_a_range_of_shapes_is_no_fixed_shape(tmp_path):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    ranges = {"x": {"min": [1, 3, 16, 16], "opt": [4, 3, 16, 16], "max": [8, 3, 16, 16]}}
    artifact = msgspec.structs.replace(artifact, facts=artifact.facts | {"shape_ranges": ranges})
    (found,) = [f for f in EXPORTER.lint(artifact, tmp_path / "in", PHONE) if f.severity == "error"]
    assert found.rule == "qnn-dynamic-shape"
    assert found.remedy.endswith("--shape x=8x3x16x16")


def test_that_nothing_was_compiled_is_said(tmp_path):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    (tmp_path / "out").mkdir()
    facts = EXPORTER.compile(artifact, tmp_path / "in", PHONE, tmp_path / "out")
    assert [f["rule"] for f in facts["findings"]] == ["qnn-not-compiled"]
    assert facts["providers"][0] == "QNNExecutionProvider"
    assert [f.rule for f in EXPORTER.lint(artifact, tmp_path / "in", PHONE)][-1] == "qnn-not-compiled"


@pytest.mark.parametrize("op", ["NonZero", "Unique"])
def test_operators_that_would_fall_to_the_cpu_are_fallback_errors(op, tmp_path):
    outputs = [kinds.value("y", ["a", "b"], TensorProto.INT64)] if op == "NonZero" else [kinds.value("y", ["n"])]
    model = kinds.build([kinds.node(op, ["x"], ["y"], name="odd")], [kinds.value("x", [4])], outputs, {})
    artifact = onnx_artifact(model, tmp_path / "in")
    found = [f for f in EXPORTER.lint(artifact, tmp_path / "in", PHONE) if f.severity == "error"]
    assert [(f.node, f.rule) for f in found] == [("odd", "qnn-operator-fallback")]
