"""One command for a Snapdragon: compiled, simulated, predicted and packed, with Qualcomm's real tools."""

from __future__ import annotations

import importlib.util
import json
import re
import tarfile

import numpy as np
import onnx
import pytest

from edgekit.build import build
from edgekit.errors import UnsupportedError
from edgekit.package import extract_package
from edgekit.profile import load_profile
from edgekit.score import ALIKE
from edgekit.verify import verify_package
from htp_networks import ARCHITECTURES, Net

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the extra qnn (onnxruntime-qnn, x86-64 Linux)"
)
PHONE = "snapdragon-8-gen3"


def asked(name, tmp_path, count=60):
    model, feeds = ARCHITECTURES[name]()
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        size = 1.0 if number < len(feeds) else rng.uniform(0.7, 1.3)
        feed = {key: (array * size).astype(array.dtype) for key, array in feeds[number % len(feeds)].items()}
        np.savez(tmp_path / "data" / f"{number:03}.npz", **feed)
    where = {"profile": PHONE, "data": str(tmp_path / "data"), "out": tmp_path / "out", "store": tmp_path / "home"}
    return str(tmp_path / "model.onnx"), where


@pytest.mark.parametrize(("name", "recipe"), [("depthwise_cnn", "int8-fast"), ("vision_transformer", "w8a16")])
def test_one_command_compiles_simulates_predicts_and_packs(name, recipe, tmp_path):
    model, where = asked(name, tmp_path)
    result = build(model, recipe=recipe, **where)
    assert result.exit == 0
    checks = {check.name: check for check in result.checks}
    assert checks["drop"].provenance == "simulated"
    assert "HTP simulator (SoC 57" in checks["drop"].on
    assert checks["latency-p50"].provenance == "predicted"
    assert "Samsung Galaxy S24" in checks["latency-p50"].on
    assert any(finding.rule == "htp-distance" for finding in result.findings)
    assert not any(finding.rule == "qnn-not-compiled" for finding in result.findings)

    extracted = extract_package(where["out"] / f"model-{PHONE}.edgekit", tmp_path / "package")
    files = {path.name for path in extracted.model.parent.iterdir()}
    assert {"model.onnx", "model_ctx.onnx", "model_ctx_qnn.bin", "context.json", "load.py", "Load.kt"} <= files
    assert extracted.variant.facts["context"]["compatibility"].split(":")[5] == "57"
    assert checks["size"].value == sum(
        (extracted.model.parent / name).stat().st_size for name in ("model_ctx.onnx", "model_ctx_qnn.bin")
    )
    with tarfile.open(where["out"] / f"model-{PHONE}.edgekit") as archive:
        measure = json.load(archive.extractfile("measure.json"))
    assert measure["context"]["soc_model"] == 57, "the device is told what it is to load"
    assert verify_package(where["out"] / f"model-{PHONE}.edgekit").status != "fail"


def test_a_transformer_is_proven_by_as_many_samples_as_the_report_says(tmp_path):
    model, where = asked("vision_transformer", tmp_path, count=500)
    asks = {"recipe": "w8a16", "budget": {"max-drop": "10%"}, **where}
    few = build(model, simulate="5", **asks)
    assert {check.name: check.status for check in few.checks}["drop"] == "unproven"
    (told,) = [finding for finding in few.findings if finding.rule == "htp-samples"]
    number = re.search(r"(\d+) prove a drop of at most 10.00%", told.text)[1]
    assert told.remedy.startswith(f"--simulate {number}")
    enough = build(model, simulate=number, **asks)
    (drop,) = [check for check in enough.checks if check.name == "drop"]
    assert (drop.status, drop.provenance) == ("pass", "simulated")
    assert f"{number} simulated" in drop.on
    assert drop.high <= 0.1


def test_what_falls_off_the_htp_ends_the_build_unless_that_is_allowed(tmp_path):
    net = Net(0)
    x = net.op("Erf", net.linear("x", 12, 12))
    onnx.save(net.model({"x": (1, 12)}, {net.linear(x, 12, 4): (1, 4)}), tmp_path / "model.onnx")
    where = {"profile": PHONE, "recipe": "fp32", "out": tmp_path / "out", "store": tmp_path / "home"}
    with pytest.raises(UnsupportedError, match="Operators of type `Erf` are not supported") as caught:
        build(str(tmp_path / "model.onnx"), **where)
    assert caught.value.exit_status == 7
    result = build(str(tmp_path / "model.onnx"), allow_fallback=True, **where)
    assert result.exit == 0
    assert [f.severity for f in result.findings if f.rule == "qnn-operator-fallback"][:1] == ["error"]
    note = next(check.reason for check in result.checks if check.name == "latency-p50")
    assert "1 nodes on the CPU are not in it" in note


DEVICES = (
    *("snapdragon-888", "snapdragon-8-gen1", "snapdragon-8-gen2", "snapdragon-8-elite", "snapdragon-8-elite-gen5"),
    *("snapdragon-x-elite", "snapdragon-x2-elite", "qcs6490", "qcm6690", "iq-9075", "sa8775p"),
)
"""All but the one that the other tests build for."""


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_each_snapdragon_gets_its_own_binary_simulated_and_predicted(device, tmp_path):
    model, where = asked("squeeze_excite", tmp_path, count=24)
    result = build(model, recipe="int8-fast", simulate="3", **{**where, "profile": device})
    assert result.exit == 0
    htp = load_profile(device).settings["htp"]
    checks = {check.name: check for check in result.checks}
    assert f"HTP simulator (SoC {htp['soc_model']}," in checks["drop"].on
    latency = checks["latency-p50"]
    assert latency.provenance == "predicted"
    assert latency.low < latency.value < latency.high
    assert ("roofline" in latency.on) is (htp["estimate"] == "none"), latency.on
    (extracted,) = where["out"].glob("*.edgekit")
    facts = extract_package(extracted, tmp_path / "package").variant.facts["context"]
    assert facts["compatibility"].split(":")[5] == str(htp["soc_model"])


@pytest.mark.slow
def test_the_advisor_compares_every_precision_and_says_why(tmp_path):
    model, where = asked("squeeze_excite", tmp_path)
    result = build(model, recipe="auto", **where)
    (choice,) = [run.facts for run in result.stages if run.name == "choose"]
    assert set(choice["scores"]) | set(choice["refused"]) == {"int8", "w8a16", "w4a16", "fp16", "fp32"}
    assert choice["chosen"] in choice["scores"]
    assert choice["why"]
    assert all(score["latency_ms"] > 0 for score in choice["scores"].values())
    fastest = min(choice["scores"].values(), key=lambda score: score["latency_ms"])
    chosen = choice["scores"][choice["chosen"]]
    assert chosen["latency_ms"] <= fastest["latency_ms"] * (1 + ALIKE)
    assert chosen["size"] <= fastest["size"]


@pytest.mark.slow
def test_the_advisor_leaves_out_what_the_compiler_gets_wrong(tmp_path, monkeypatch):
    """A float norm before a 16-bit product comes out as noise: such an alternative is refused, another is taken."""
    monkeypatch.setattr("edgekit.graphs.int8_whole._Completion._norm", lambda self, node: None)
    model, where = asked("vision_transformer", tmp_path)
    result = build(model, recipe="auto", **where)
    (choice,) = [run.facts for run in result.stages if run.name == "choose"]
    assert "computes something else than the graph" in choice["refused"]["w8a16"]
    assert choice["chosen"] not in {"w8a16", "w4a16"}
    assert result.exit == 0
