"""The gate with a simulator: some samples simulated, all on its stand-in; alternatives tried before they are ranked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgekit.artifact import MAIN
from edgekit.budget import Budget
from edgekit.errors import UnsupportedError
from edgekit.evaluate import run_onnx
from edgekit.events import Finding
from edgekit.exporter import load_exporter
from edgekit.gate import FEW, Gate
from edgekit.original import Original
from edgekit.sources import ingest
from edgekit.store import Store
from edgekit.target import Bundle, is_simulator
from house import dataset, profile
from onnx_models import linear


class Stand:
    """A simulator that runs the graph on the CPU and may add noise: no Qualcomm library in it."""

    url, provenance, place = "stand-in", "simulated", "stand-in of a simulator"
    seconds_each = 2.0

    def __init__(self, *, afford=10**6, noise=0.0):
        self.findings, self.afford, self.noise, self.ran = [], afford, noise, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def close(self):
        pass

    def reach(self):
        pass

    def fingerprint(self):
        return {"simulator": self.url}

    def affordable(self, bundle, feed, wanted):
        return min(wanted, self.afford)

    def run(self, bundle, feeds):
        rng = np.random.default_rng(0)
        for outputs in run_onnx(bundle.folder / bundle.facts["model"], feeds):
            self.ran += 1
            yield {name: (y + self.noise * rng.normal(size=y.shape)).astype(y.dtype) for name, y in outputs.items()}

    def measure(self, bundle, feed, *, runs, threads):
        raise AssertionError("a simulator's time is nobody's business")

    def golden(self, bundle, inputs, outputs, *, tolerance):
        raise AssertionError


@pytest.fixture
def gate(tmp_path):
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 8)).astype(np.float32)} for _ in range(200)]
    with Store(tmp_path / "home") as store:
        yield Gate(
            original=Original(
                store=store,
                artifact=ingest(str(linear(tmp_path / "m.onnx")), store),
                data=dataset(feeds),
                metric=None,
            ),
            profile=profile(),
            exporter=load_exporter("onnx"),
            budget=Budget(),
        )


@pytest.fixture
def other(gate, tmp_path):
    model = onnx.load(tmp_path / "m.onnx")
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "W")
    rough = np.round(numpy_helper.to_array(weight) * 6) / 6
    weight.CopyFrom(numpy_helper.from_array(rough.astype(np.float32), "W"))
    onnx.save(model, tmp_path / "rough.onnx")
    return ingest(str(tmp_path / "rough.onnx"), gate.original.store)


def tried(gate, artifact, simulator):
    bundle = Bundle(folder=gate.original.store.folder(artifact.id), facts={"runtime": "onnxruntime", "model": MAIN})
    trial = gate.trial(bundle, simulator, artifact)
    return {figure.name: figure for figure in trial.figures}, trial


def test_it_is_a_simulator_by_what_it_offers():
    assert is_simulator(Stand())


def test_when_all_samples_are_simulated_they_are_what_is_judged(gate, other):
    simulator = Stand()
    figures, trial = tried(gate, other, simulator)
    assert simulator.ran == 100
    assert figures["drop"].n == 100
    assert (figures["drop"].on, figures["drop"].provenance) == (simulator.place, "simulated")
    (told,) = [finding for finding in trial.findings if finding.rule == "htp-distance"]
    assert "100 of 100 samples" in told.text
    assert "CPU against it equal" in told.text


def test_the_stand_in_runs_all_samples_once(gate, other, monkeypatch):
    first, _ = tried(gate, other, Stand(afford=20))
    monkeypatch.setattr("edgekit.original.run_onnx", lambda *_, **__: pytest.fail("it was run again"))
    again, _ = tried(gate, other, Stand(afford=20))
    assert again == first
    with pytest.raises(pytest.fail.Exception, match="again"):
        tried(gate, gate.original.artifact, Stand(afford=20))  # of another graph nothing is known


def test_latency_is_predicted_and_never_timed(gate, other):
    figures, trial = tried(gate, other, Stand())
    assert figures["latency-p50"].provenance == "predicted"
    assert {figure.provenance for figure in trial.original if figure.name == "latency-p50"} == {"predicted"}


def test_what_was_not_simulated_widens_the_drop(gate, other):
    whole, _ = tried(gate, other, Stand())
    some, _ = tried(gate, other, Stand(afford=20))
    assert some["drop"].value == whole["drop"].value
    assert some["drop"].n == 100
    assert some["drop"].high > whole["drop"].high + 0.1, "twenty samples leave 14 % open"
    assert (some["drop"].on, whole["drop"].on) == (f"{Stand.place}, 20 simulated", Stand.place)


def test_how_many_samples_a_proof_takes_is_said(gate, other):
    def told(budget, candidate=other):
        _, trial = tried(replace(gate, budget=Budget(max_drop=budget)), candidate, Stand(afford=20))
        (found,) = [finding for finding in trial.findings if finding.rule == "htp-samples"]
        return found

    assert "20 of 100 samples were simulated, 2 CPU seconds each" in told(0.5).text
    assert "adds 13.91% to the bound" in told(0.5).text
    assert told(0.5).remedy == "", "it is proven"
    same = gate.original.artifact  # the stand-in on all samples leaves 1 - 0.05^(1/100) = 2.95 % open
    found = told(0.08, same)
    assert "58 prove a drop of at most 8.00%, about 116 seconds of a core" in found.text
    assert found.remedy.startswith("--simulate 58")
    assert "no part of the samples proves a drop of at most 2.00%" in told(0.02, same).text
    _, trial = tried(gate, other, Stand())
    assert not [finding for finding in trial.findings if finding.rule == "htp-samples"], "all were simulated"


def test_a_simulator_that_computes_something_else_fails_the_build(gate):
    _, trial = tried(gate, gate.original.artifact, Stand(noise=5.0))
    (wrong,) = [finding for finding in trial.findings if finding.severity == "error"]
    assert wrong.rule == "htp-disagrees"
    assert "computes something else than the graph" in wrong.text


def test_an_alternative_is_tried_on_a_few_samples(gate, other):
    simulator = Stand()
    assert replace(gate, simulator=simulator).check_fit(other) == {"simulated_db": 200.0, "simulated": FEW}
    assert simulator.ran == FEW
    near = replace(gate, simulator=Stand(noise=0.01)).check_fit(other)["simulated_db"]
    assert 25 < near < 60
    with pytest.raises(UnsupportedError, match="computes something else"):
        replace(gate, simulator=Stand(noise=5.0)).check_fit(other)
    assert gate.check_fit(other) == {}


def test_an_alternative_that_the_runtime_refuses_is_none(gate, other, monkeypatch):
    found = Finding(severity="error", node="erf", rule="qnn-operator-fallback", text="runs on the CPU", remedy="do not")
    monkeypatch.setattr(type(gate.exporter), "lint", lambda *_: [found])
    with pytest.raises(UnsupportedError, match="runs on the CPU"):
        gate.check_fit(other)
    replace(gate, allow_fallback=True).check_fit(other)
