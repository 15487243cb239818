import json
import sys
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

import house
from contract import onnx_artifact
from edgekit.artifact import Artifact
from edgekit.errors import UnsupportedError, UsageError
from edgekit.events import Finding
from edgekit.inspect import inspect_model
from edgekit.predict import predict
from graph_models import floats, model, node, value


class FakeExporter:
    """A runtime that dislikes Relu."""

    name: ClassVar[str] = "fake"

    def lint(self, artifact, folder, profile):
        return [Finding(severity="error", node="r", rule="fake-relu", text=f"no Relu on {profile.name}", remedy="wait")]


@pytest.fixture
def profile(monkeypatch):
    module = ModuleType("edgekit_exporters.fake")
    module.EXPORTER = FakeExporter()
    monkeypatch.setitem(sys.modules, "edgekit_exporters.fake", module)
    return house.profile(runtime="fake")


def two_layers():
    return model(
        [node("MatMul", ["x", "w"], ["h"], name="m"), node("Relu", ["h"], ["y"], name="r")],
        [value("x", ["b", 8])],
        [value("y", ["b", 4])],
        {"w": floats(8, 4)},
    )


def test_a_model_is_described(tmp_path, profile):
    artifact = onnx_artifact(two_layers(), tmp_path)
    artifact.facts.update({"opset": 17, "findings": [{"severity": "note", "node": "", "rule": "a", "text": "b"}]})
    report = inspect_model(artifact, tmp_path, profile)
    assert json.loads(json.dumps(report)) == report
    assert report["artifact"] == artifact.id
    assert report["facts"] == {"opset": 17}
    assert report["profile"] == "test-device"
    graph = report["graphs"]["model.onnx"]
    assert graph["operators"] == {"MatMul": 1, "Relu": 1}
    assert graph["nodes"] == 2
    assert graph["weights"] == {"float": 128}
    assert graph["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["b", 8]}]
    cost = graph["cost"]
    assert (cost["macs"], cost["parameters"], cost["weight_bytes"], cost["shapes"]) == (32, 32, 128, {"x": [1, 8]})
    assert [row["node"] for row in cost["rows"]] == ["m", "r"]
    assert [finding["rule"] for finding in report["findings"]] == ["a", "fake-relu"]


def test_without_profile_there_is_no_lint_and_shapes_can_be_given(tmp_path):
    report = inspect_model(onnx_artifact(two_layers(), tmp_path), tmp_path, shapes={"x": [3, 8]})
    assert report["profile"] is None
    assert report["findings"] == []
    assert report["graphs"]["model.onnx"]["cost"]["macs"] == 96


def test_costs_that_cannot_be_counted_are_a_finding(tmp_path):
    vague = model(
        [node("Reshape", ["x", "s"], ["y"])],
        [value("x", ["b", "length"])],
        [value("y", ["b", "length"])],
        {"s": np.array([0, -1], np.int64)},
    )
    report = inspect_model(onnx_artifact(vague, tmp_path), tmp_path)
    assert report["graphs"]["model.onnx"]["cost"] is None
    (finding,) = report["findings"]
    assert (finding["rule"], finding["severity"]) == ("cost-unknown", "note")
    assert "'length'" in finding["text"]
    assert "--shape" in finding["remedy"]


def test_what_is_no_graph_yet_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="'torch' model has no graph"):
        inspect_model(Artifact(kind="torch", files={}, facts={}), tmp_path)


def test_a_prediction_comes_from_the_roofline_of_the_profile(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(two_layers().SerializeToString())
    figure, memory = predict(str(path), profile="jetson", store=tmp_path / "store").figures
    assert (figure.name, figure.unit, figure.provenance, figure.n) == ("latency-p50", "ms", "predicted", 0)
    assert figure.on.startswith("roofline of jetson")
    assert figure.low < figure.value < figure.high
    assert memory.name == "memory"


def test_the_protocol_of_a_prediction(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(two_layers().SerializeToString())
    options = {"profile": "jetson", "store": tmp_path / "store"}
    graph, plain = (predict(str(path), protocol=name, **options) for name in ("graph", "plain"))
    assert (graph.protocol, plain.protocol) == ("CUDA graph", "plain launches")
    assert plain.figures[0].value > graph.figures[0].value
    with pytest.raises(UsageError, match="has no CUDA graph"):
        predict(str(path), protocol="plain", profile="host", store=tmp_path / "store")
