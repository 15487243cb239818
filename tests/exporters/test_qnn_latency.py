"""Predicted latencies on Snapdragons: Qualcomm's estimate, the chain from IQ-9075, and what neither can say."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

import kinds
from contract import onnx_artifact
from edgekit.exporter import load_exporter
from edgekit.profile import load_profile
from edgekit_exporters.qnn import latency
from edgekit_exporters.qnn.chain import FORMS, SPREAD, Seen, terms
from edgekit_exporters.qnn.context import Context
from edgekit_exporters.qnn.told import Estimate, Refused
from htp_networks import Net

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the extra qnn (onnxruntime-qnn, x86-64 Linux)"
)
EXPORTER = load_exporter("qnn")
ROOT = Path(__file__).parents[2]


class Told:
    """Stands in for the desk: a compiler that estimates what it is told."""

    def __init__(self, us, *, refused=(), missing=0, operators=100):
        estimate = Estimate(us=us, low=us, high=us, read=1000, written=200, spilled=30, missing=missing)
        self.context_of = lambda soc: Context(
            folder=Path(),
            soc_model=soc or 77,
            compatibility="",
            refused=refused,
            estimate=estimate,
            graphs=1,
            operators=operators,
        )
        self.asked = []

    def context(self, artifact, folder, profile, *, soc=None, fallback=False):
        self.asked.append(soc)
        return self.context_of(soc)


def initializers(model):
    return [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]


def predicted(us, profile, tmp_path, *, precision="", **told):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    if precision:
        artifact = msgspec.structs.replace(artifact, facts=artifact.facts | {"coverage": {"precision": precision}})
    desk = Told(us, **told)
    figures = latency.predict(desk, artifact, tmp_path / "in", load_profile(profile), compiles=True).figures
    return {figure.name: figure for figure in figures}, desk


def test_an_estimate_of_the_soc_itself_is_straightened(tmp_path):
    found, desk = predicted(1000, "iq-9075", tmp_path)
    assert found["latency-p50"].value == pytest.approx(0.909 + 0.295)
    assert found["latency-p50"].low < found["latency-p50"].value < found["latency-p50"].high
    assert "Qualcomm" in found["latency-p50"].on
    assert (found["ddr-traffic"].value, found["vtcm-spill"].value) == (1200, 30)
    assert desk.asked == [None], "it is compiled for the device itself"


def test_a_phone_is_reached_by_way_of_iq_9075(tmp_path):
    found, desk = predicted(2000, "snapdragon-8-gen3", tmp_path, precision="w8a16")
    law = json.loads(latency.CHAINS.read_text())["chains"]["57"]["precisions"]["w8a16"]
    weights = sum(array.size for array in initializers(kinds.residual_cnn()[0]))
    ms = 0.909 * 2 + 0.295
    log = np.dot(law["weights"], terms(law["form"], Seen(ms=ms, operators=100, parameters=weights)))
    assert found["latency-p50"].value == pytest.approx(ms * np.exp((log - np.log(ms)).clip(*law["ratios"])))
    assert desk.asked == [77]
    assert "Samsung Galaxy S24" in found["latency-p50"].on


def test_a_latency_far_from_all_that_were_published_decides_nothing(tmp_path):
    found, _ = predicted(9e6, "snapdragon-8-gen3", tmp_path)
    assert "outside of what the model was fitted on" in found["latency-p50"].note


def test_the_interval_is_as_wide_as_errors_are_for_networks_alike(tmp_path):
    found = predicted(300, "snapdragon-8-elite", tmp_path, operators=40)[0]["latency-p50"]
    assert found.low < found.value < found.high
    law = json.loads(latency.CHAINS.read_text())["chains"]["69"]["precisions"]["float"]
    first = latency._native_spread()
    weights = sum(array.size for array in initializers(kinds.residual_cnn()[0]))
    parts = terms(SPREAD, Seen(ms=0.909 * 0.3 + 0.295, operators=40, parameters=weights))
    scale = np.exp(np.dot(law["scale"], parts)).clip(*law["scales"])
    expected = np.hypot(law["low"] * scale, first) + np.hypot(law["high"] * scale, first)
    assert np.log(found.high / found.low) == pytest.approx(expected)
    networks = [
        Seen(ms=ms, operators=n, parameters=p) for ms, n, p in ((0.5, 40, 1e6), (0.5, 400, 1e7), (30, 400, 1e8))
    ]
    widths = [high - low for low, high in (latency._spreads(seen, law) for seen in networks)]
    assert len(set(widths)) == 3
    assert min(widths) > 2 * first, "never narrower than the first step alone"


@pytest.mark.parametrize("count", [1, 100_000])
def test_nor_does_one_of_more_or_fewer_operators(tmp_path, count):
    found, _ = predicted(2000, "snapdragon-8-gen3", tmp_path, operators=count)
    assert f"{count} operators is outside" in found["latency-p50"].note


def test_nor_does_one_of_fewer_weights(tmp_path):
    found, _ = predicted(2000, "snapdragon-8-gen3", tmp_path)
    assert "weights is outside of what the model was fitted on" in found["latency-p50"].note


@pytest.mark.parametrize(("operators", "us"), [(20, 200_000), (3000, 300)])
def test_no_ratio_to_iq_9075_is_predicted_that_none_had(tmp_path, operators, us):
    found, _ = predicted(us, "snapdragon-8-elite-gen5", tmp_path, operators=operators)
    law = json.loads(latency.CHAINS.read_text())["chains"]["87"]["precisions"]["float"]
    ratio = np.log(found["latency-p50"].value / (0.909e-3 * us + 0.295))
    assert law["ratios"][0] - 1e-9 <= ratio <= law["ratios"][1] + 1e-9


def test_each_form_has_the_terms_of_the_simpler_ones():
    seen = Seen(ms=2.0, operators=50, parameters=1e6, by_onnxruntime=False)
    for few, many in itertools.pairwise([form for form in FORMS if "compiler" not in form]):
        assert terms(many, seen)[: len(terms(few, seen))] == terms(few, seen)
    here = Seen(ms=2.0, operators=50, parameters=1e6)
    for form in FORMS:
        assert (terms(form, seen) != terms(form, here)) == ("compiler" in form)


def test_without_a_count_of_operators_nothing_is_predicted(tmp_path):
    found, _ = predicted(2000, "snapdragon-8-gen3", tmp_path, operators=0)
    assert found["latency-p50"].value is None


def test_what_the_estimate_leaves_out_is_said(tmp_path):
    refused = (Refused(node="erf", op="Erf", reason="none"),)
    found, _ = predicted(2000, "snapdragon-8-gen3", tmp_path, refused=refused, missing=3)
    assert found["latency-p50"].note.startswith("1 nodes on the CPU are not in it; 3 operators have no cost in it")


def test_float_graphs_have_no_latency_on_a_chip_without_floats(tmp_path):
    found, _ = predicted(2000, "qcs6490", tmp_path)
    assert found["latency-p50"].value is None
    assert "nothing was published of float" in found["latency-p50"].note


def test_without_the_compiler_it_is_the_roofline(tmp_path):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    for name, compiles in (("snapdragon-8-gen3", False), ("snapdragon-888", True)):
        found = latency.predict(Told(1), artifact, tmp_path / "in", load_profile(name), compiles=compiles)
        (figure,) = [figure for figure in found.figures if figure.name == "latency-p50"]
        assert figure.on.startswith("roofline")


@needs_compiler
def test_the_real_compiler_tells_a_latency_for_each_profile(tmp_path):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    values = {}
    for name in ("snapdragon-8-gen1", "snapdragon-8-gen3", "snapdragon-8-elite", "iq-9075", "sa8775p"):
        found = {f.name: f for f in EXPORTER.estimate(artifact, tmp_path / "in", load_profile(name))}
        values[name] = found["latency-p50"].value
        assert found["ddr-traffic"].value > 0
    assert values["snapdragon-8-gen1"] > values["snapdragon-8-gen3"] > values["snapdragon-8-elite"]


def mobilenet2(side):
    """MobileNetV2 as it is published (Sandler et al. 2018), with a smaller picture and no weights worth the name."""
    net = Net(0)
    low, high = net.constant(np.float32(0)), net.constant(np.float32(6))
    x, c = net.op("Clip", net.conv("x", 3, 32, stride=2), low, high), 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, width, repeats, first in rows:
        for repeat in range(repeats):
            stride, inner, h = (1 if repeat else first), c * expansion, x
            if expansion > 1:
                h = net.op("Clip", net.conv(h, c, inner, 1), low, high)
            h = net.op("Clip", net.conv(h, inner, inner, 3, stride=stride, group=inner), low, high)
            h = net.conv(h, inner, width, 1)
            x, c = (net.op("Add", x, h) if stride == 1 and c == width else h), width
    x = net.op("Clip", net.conv(x, c, 1280, 1), low, high)
    return net.model({"x": (1, 3, side, side)}, {net.head(x, 1280, 1000): (1, 1000)})


@needs_compiler
def test_operators_are_counted_as_ai_hub_counts_layers(tmp_path):
    """Published for MobileNetV2 in float, run by onnxruntime: 104; it may name what goes in and out otherwise."""
    artifact = onnx_artifact(mobilenet2(64), tmp_path)
    context = EXPORTER._desk.context(artifact, tmp_path, load_profile("iq-9075"))
    assert abs(context.operators - 104) <= 3


@pytest.mark.slow
def test_the_coefficients_are_what_the_script_fits(tmp_path, monkeypatch):
    before = latency.CHAINS.read_text()
    copy = tmp_path / "benchmarks"
    (copy / "aihub").mkdir(parents=True)
    (tmp_path / "exporters/edgekit_exporters/qnn").mkdir(parents=True)
    for name in ("snapdragon.py", "aihub/perf.csv"):
        (copy / name).write_bytes((ROOT / "benchmarks" / name).read_bytes())
    done = subprocess.run(
        [sys.executable, str(copy / "snapdragon.py"), "--write"],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "exporters"), str(ROOT / "toolkit")])},
    )
    assert (tmp_path / "exporters/edgekit_exporters/qnn/chains.json").read_text() == before
    assert "Samsung Galaxy S24" in done.stdout
