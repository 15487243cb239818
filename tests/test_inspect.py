import json
import sys
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

import house
import kinds
from contract import onnx_artifact
from edgekit.artifact import Artifact
from edgekit.build import build
from edgekit.errors import InputError, NeedsDataError, UnsupportedError, UsageError
from edgekit.events import Finding
from edgekit.inspect import inspect, inspect_model
from edgekit.predict import predict, tables, to_dict
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


def test_a_prediction_is_told_in_tables_and_as_json(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(two_layers().SerializeToString())
    found = predict(str(path), profile="jetson", store=tmp_path / "store")
    figures, facts, kernels = tables(found)
    assert [row[0] for row in figures[2]] == ["latency-p50", "memory"]
    told = dict(facts[2])
    assert told["protocol"] == "CUDA graph"
    assert "leave-one-model-out" in told["interval"]
    assert "is unlike the models of the fit" in told["interval"], "nearly all of it is launches"
    assert told["multiply-accumulates"] == "32"
    assert told["parameters"].startswith("32 in ")
    assert told["shapes"] == "x 1x8"
    assert "live at m" in told["activations"]
    assert kernels[2][0][:3] == ("m", "MatMul+Relu", "matmul fp32")
    assert kernels[2][0][-1] == "launch"
    values = json.loads(json.dumps(to_dict(found)))
    assert values["kernels"][0]["ops"] == ["MatMul", "Relu"]
    assert values["macs"] == 32
    assert values["figures"][0]["high"] == found.figures[0].high


def test_a_node_without_a_static_shape_is_refused_by_name(tmp_path):
    vague = model(
        [
            node("NonZero", ["x"], ["at"], name="nz"),
            node("Cast", ["at"], ["f"], to=1),
            node("MatMul", ["w", "f"], ["y"], name="mm"),
        ],
        [value("x", [4])],
        [value("y", None)],
        {"w": floats(2, 1)},
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(vague.SerializeToString())
    with pytest.raises(InputError, match="has no static shape") as error:
        predict(str(path), profile="jetson", store=tmp_path / "store")
    assert "node 'mm'" in error.value.where


def test_the_protocol_of_a_prediction(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(two_layers().SerializeToString())
    options = {"profile": "jetson", "store": tmp_path / "store"}
    graph, plain = (predict(str(path), protocol=name, **options) for name in ("graph", "plain"))
    assert (graph.protocol, plain.protocol) == ("CUDA graph", "plain launches")
    assert plain.figures[0].value > graph.figures[0].value
    with pytest.raises(UsageError, match="has no CUDA graph"):
        predict(str(path), protocol="plain", profile="host", store=tmp_path / "store")


@pytest.fixture
def cnn(tmp_path):
    graph, feeds = kinds.residual_cnn()
    (tmp_path / "cnn.onnx").write_bytes(graph.SerializeToString())
    np.savez(tmp_path / "x.npz", x=np.concatenate([feed["x"] for feed in feeds]))
    return tmp_path


def asked(folder, **options):
    options = {"profile": "host", "recipe": "int8", "plan": True, "data": str(folder / "x.npz")} | options
    return inspect(str(folder / "cnn.onnx"), store=folder / "store", **options)


def test_the_plan_tells_every_tensor_and_a_build_takes_it_from_the_cache(cnn):
    report = asked(cnn)
    (decided,) = report.decisions
    assert [line.partition("(")[0] for line in report.plan] == ["simplify", "equalize", "quantize-int8"]
    nodes = {d.node for d in decided.plan.decisions if d.what == "weight"}
    assert len(nodes) == 4
    told = json.loads(json.dumps(report.to_dict()))
    assert told["decisions"][0]["coverage"]["weights"] == 1
    assert {"node", "op", "tensor", "what", "bits", "type", "mode", "why"} <= set(told["decisions"][0]["decisions"][0])
    (shown,) = [rows for title, _, rows in report.tables() if "quantize-int8 in the ort-cpu dialect" in title]
    assert len(shown) == len(decided.plan.decisions)
    built = build(
        str(cnn / "cnn.onnx"),
        profile="host",
        recipe="int8",
        data=str(cnn / "x.npz"),
        store=cnn / "store",
        package=False,
    )
    (stage,) = [run for run in built.stages if run.name == "quantize-int8"]
    assert stage.cached
    assert "decisions" not in stage.facts["decisions"]
    again = inspect(built.artifact[:12], plan=True, store=cnn / "store")
    assert again.decisions == report.decisions
    assert again.plan[-1].startswith("quantize-int8(")


def test_an_artifact_of_the_store_is_inspected_by_its_id(cnn):
    simple = build(str(cnn / "cnn.onnx"), profile="host", recipe="fp32", store=cnn / "store", package=False).artifact
    found = inspect(
        simple[:10], profile="host", recipe="int8-fast", blame=True, data=str(cnn / "x.npz"), store=cnn / "store"
    )
    assert found.told["artifact"] == simple
    assert {effect.node for effect in found.blame[0].effects} == {"stem", "depthwise", "project", "head"}


def test_the_plan_of_a_package_is_looked_up_in_the_store(cnn):
    built = build(
        str(cnn / "cnn.onnx"),
        profile="host",
        recipe="int8",
        data=str(cnn / "x.npz"),
        store=cnn / "store",
        out=cnn / "out",
        allow_dominated=True,
    )
    (decided,) = inspect(built.package, plan=True, store=cnn / "store").decisions
    assert decided.plan.stage == "quantize-int8"
    elsewhere = inspect(built.package, plan=True, store=cnn / "other")
    assert not elsewhere.decisions
    assert [f.rule for f in elsewhere.findings if f.rule == "undecided"]


def test_alternatives_are_all_told_and_missing_data_is_a_warning(cnn):
    report = asked(cnn, recipe="auto")
    assert [decided.name for decided in report.decisions] == ["int8", "fp16"]
    bare = asked(cnn, data=None)
    assert not bare.decisions
    (finding,) = [f for f in bare.findings if f.rule == "undecided"]
    assert "calibration samples" in finding.text
    assert "--data" in finding.remedy


def test_blame_names_the_worst_layers_and_is_kept_in_the_store(cnn):
    report = asked(cnn, plan=False, blame=True)
    (found,) = report.blame
    assert {effect.node for effect in found.effects} == {"stem", "depthwise", "project", "head"}
    told = json.loads(json.dumps(report.to_dict()))["blame"][0]
    assert told["effects"][0]["node"] == found.effects[0].node
    assert "recipe" in told
    assert any(title == found.shown() for title, *_ in report.tables())
    heard = []
    again = asked(cnn, plan=False, blame=True, listen=heard.append)
    assert again.blame == report.blame
    assert not [event for event in heard if getattr(event, "label", "") == "blame"]
    other = asked(cnn, plan=False, blame=True, recipe="fp32")
    assert not other.blame
    assert [f.rule for f in other.findings if f.rule == "unblamed"]
    with pytest.raises(NeedsDataError, match="calibration samples"):
        asked(cnn, plan=False, blame=True, data=None)
