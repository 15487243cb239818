"""The contract of every exporter that can be found by name."""

from __future__ import annotations

import dataclasses
import json
import pkgutil

import onnx
import onnxruntime
import pytest

import edgekit_exporters
import house
import kinds
from contract import onnx_artifact, run_stage
from edgekit.artifact import canonical_json, sha256_file
from edgekit.budget import Figure
from edgekit.errors import UnsupportedError
from edgekit.exporter import load_exporter
from edgekit.plan import make_stage
from edgekit.profile import Graph
from edgekit.stages.quantize_int8 import QuantizeInt8

NAMES = sorted(module.name for module in pkgutil.iter_modules(edgekit_exporters.__path__))
OFF = {"tensorrt": {"rtx_check": "off"}}


def device(name, **graph):
    return house.profile(runtime=name, graph=Graph(**{"max_opset": 19, **graph}), settings=OFF)


def make(tmp_path, model):
    return onnx_artifact(model, tmp_path / "in"), tmp_path / "in"


@pytest.mark.parametrize("name", NAMES)
def test_the_declaration_is_whole(name):
    exporter = load_exporter(name)
    assert exporter.name == name
    assert exporter.revision >= 1
    dialect = exporter.dialect(device(name))
    with pytest.raises(dataclasses.FrozenInstanceError):
        dialect.activation = "int4"
    assert dialect == exporter.dialect(device(name)), "the same profile gives the same rules"
    assert (dialect.max_opset, dialect.max_ir) == (19, 10), "the profile's limits are the dialect's"
    for spec in exporter.prepare(device(name)):
        make_stage(spec.name, spec.options, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [kinds.residual_cnn, kinds.small_transformer])
def test_a_good_model_gives_no_error_and_compiles_to_what_it_names(name, kind, tmp_path):
    exporter = load_exporter(name)
    artifact, folder = make(tmp_path, kind()[0])
    assert [f for f in exporter.lint(artifact, folder, device(name)) if f.severity == "error"] == []
    written = []
    for number in (1, 2):
        out = tmp_path / f"out{number}"
        out.mkdir()
        facts = exporter.compile(artifact, folder, device(name), out)
        files = {path.name: sha256_file(path) for path in out.rglob("*") if path.is_file()}
        written.append((json.loads(canonical_json(facts)), files))
        assert facts["model"] in files
        assert facts["runtime"] in {"onnxruntime", "tensorrt"}
        assert facts["providers"]
        assert str(tmp_path) not in json.dumps(facts)
    assert written[0] == written[1], "compiling twice gives other bytes or facts"
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    path = tmp_path / "out1" / written[0][0]["model"]
    onnx.checker.check_model(str(path))
    onnxruntime.InferenceSession(str(path), quiet, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_model_is_an_error_that_names_the_node(name, tmp_path):
    nodes = [kinds.node("Reshape", ["x", "s"], ["a"]), kinds.node("Transpose", ["a"], ["y"], name="tr")]
    model = kinds.build(
        nodes, [kinds.value("x", [64])], [kinds.value("y", [2] * 6)], {"s": kinds.np.array([2] * 6)}, opset=18
    )
    artifact, folder = make(tmp_path, model)
    found = load_exporter(name).lint(artifact, folder, device(name, max_rank=5, max_opset=17))
    errors = {f.rule.partition("-")[2]: f for f in found if f.severity == "error"}
    assert {"rank", "opset"} <= set(errors)
    assert any(f.node == "tr" and "rank 6" in f.text and f.remedy for f in found)
    assert "18" in errors["opset"].text
    assert "17" in errors["opset"].text


@pytest.mark.parametrize("name", NAMES)
def test_what_the_int8_stage_makes_for_it_passes_its_own_lint(name, tmp_path):
    exporter = load_exporter(name)
    for kind in (kinds.residual_cnn, kinds.small_transformer):
        model, feeds = kind()
        home = tmp_path / kind.__name__
        home.mkdir()
        rules = exporter.dialect(device(name))
        _, made = run_stage(QuantizeInt8(), model, home, data=house.dataset(feeds * 2), dialect=rules)
        artifact, folder = make(home / "again", made)
        errors = [f for f in exporter.lint(artifact, folder, device(name)) if f.severity == "error"]
        assert errors == []


@pytest.mark.parametrize("name", NAMES)
def test_the_latency_is_predicted_with_an_interval(name, tmp_path):
    artifact, folder = make(tmp_path, kinds.residual_cnn()[0])
    figures = load_exporter(name).estimate(artifact, folder, device(name))
    (latency,) = [f for f in figures if f.name == "latency-p50"]
    assert isinstance(latency, Figure)
    assert latency.provenance == "predicted"
    assert 0 < latency.low < latency.value < latency.high


def test_an_unknown_runtime_is_refused():
    with pytest.raises(UnsupportedError, match="no exporter for the runtime 'coreml'"):
        load_exporter("coreml")
