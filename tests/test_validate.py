"""Validation of packages: what is taken from the package, and what never is. Machines are stood in for here."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from edgekit import validate as room
from edgekit.budget import Budget, Figure
from edgekit.errors import InputError, IntegrityError, UsageError
from edgekit.evaluate import run_onnx
from edgekit.jobs import read_feeds
from edgekit.target import GoldenResult
from edgekit.validate import validate
from packages import tiny_package


class Machine:
    """A machine that runs models on this one's CPU, off by `error`, and claims round figures."""

    url, provenance = "stand-in", "measured"

    def __init__(self, error=0.0, latency=2.0):
        self.findings, self.error, self.latency, self.measured = [], error, latency, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, bundle, feeds):
        for outputs in run_onnx(bundle.folder / bundle.facts["model"], feeds):
            yield {name: array + np.float32(self.error) * np.arange(array.shape[-1]) for name, array in outputs.items()}

    def measure(self, bundle, feed, *, runs, threads):
        self.measured = (feed, runs, threads)
        low, high = 0.9 * self.latency, 1.1 * self.latency
        told = {"unit": "ms", "provenance": "measured", "on": self.url, "n": runs}
        return (Figure(name="latency-p50", value=self.latency, low=low, high=high, **told),)

    def fingerprint(self):
        return {"machine": self.url}

    def golden(self, bundle, inputs, outputs, *, tolerance):
        found = list(self.run(bundle, read_feeds(inputs)))
        wanted = read_feeds(outputs)
        matches = all(np.allclose(a["y"], b["y"], atol=tolerance.absolute) for a, b in zip(found, wanted, strict=True))
        told = {"y": {"matches": matches, "error": None, "text": "far off"}}
        return GoldenResult(matches=matches, outputs=told, count=1)


@pytest.fixture
def machine(monkeypatch):
    found = Machine()
    monkeypatch.setattr(room, "open_target", lambda url, profile, **_: found)
    return found


@pytest.fixture
def hand_made(tmp_path):
    """A package that nobody's build made: its `details` are what the test gives."""
    return lambda details: str(tiny_package(tmp_path, details=details).path)


def test_a_package_is_judged_with_the_budget_metric_and_data_of_its_build(machine, package, given):
    result = validate(str(package), target="x", data=str(given.data()))
    figures = {check.name: check for check in result.checks}
    assert result.exit == 0
    assert figures["drop"].budget == 0.01
    assert figures["drop"].status == "pass"
    assert figures["drop"].n == 1244
    assert figures["accuracy"].value == pytest.approx(figures["accuracy-original"].value, abs=0.01)
    assert machine.measured[1:] == (100, 1)


def test_a_budget_of_ones_own_is_laid_over(machine, package, given):
    result = validate(str(package), target="x", data=str(given.data()), budget=Budget(latency_ms={"p50": 1.0}))
    assert result.exit == 3
    assert result.status == "fail"
    assert "latency-p50" in result.error.text
    assert {check.name for check in result.checks if check.budget is not None} == {"drop", "latency-p50"}


def test_a_p99_budget_takes_three_hundred_runs(machine, package, given):
    validate(str(package), target="x", data=str(given.data()), budget={"latency-p99": "1s"}, threads=3)
    assert machine.measured[1:] == (300, 3)


def test_a_machine_that_computes_something_else_fails_by_its_golden_outputs(machine, package, given):
    machine.error = 1000.0
    result = validate(str(package), target="x", data=str(given.data()))
    assert result.exit == 3
    assert [f.rule for f in result.findings if f.severity == "error"] == ["golden-mismatch"]
    assert {check.name: check.status for check in result.checks}["drop"] == "fail"


def test_without_data_accuracy_is_unproven_and_the_golden_outputs_still_count(machine, package):
    result = validate(str(package), target="x")
    assert result.exit == 0
    assert result.status == "unproven"
    (drop,) = [check for check in result.checks if check.name == "drop"]
    assert "--data" in drop.reason
    assert validate(str(package), target="x", strict=True).exit == 3
    machine.error = 1000.0
    assert validate(str(package), target="x").exit == 3


def test_a_package_of_few_samples_is_measured_and_stays_unproven(machine, edgekit, given, tmp_path):
    data = given.data(count=12)
    built = edgekit.build(given.model, "--recipe", "fp32", "--data", data, "--out", tmp_path)
    result = validate(built.json["package"], target="x", data=str(data))
    assert result.status == "unproven"
    assert {"data-few-samples"} <= {finding.rule for finding in result.findings}
    with np.load(data) as file:
        assert machine.measured[0]["x"] in file["x"]


def test_other_data_is_refused(machine, package, given):
    with pytest.raises(InputError, match="not the data that the package was built with"):
        validate(str(package), target="x", data=str(given.data(seed=9)))


def test_a_package_names_no_code_that_runs(machine, hand_made, tmp_path, monkeypatch):
    """Its metric may be any `python:` name; nothing is imported because a package says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trap.py").write_text("raise SystemExit('the trap was imported')\n")
    package = hand_made({"metric": "python:trap:f"})
    with pytest.raises(UsageError, match="judged by a function of its builder's") as caught:
        validate(package, target="x")
    assert "--metric python:trap:f" in caught.value.remedy
    assert validate(package, target="x", metric="agreement").status == "unproven"


@pytest.mark.parametrize(
    "details",
    [{"budget": 3}, {"budget": {"max_drop": "much"}}, {"data": []}, {"data": {"seed": "x"}}, {"metric": 5}],
    ids=str,
)
def test_details_that_edgekit_does_not_write_are_bad_input(machine, hand_made, details):
    with pytest.raises(InputError, match="what it says of its build"):
        validate(hand_made(details), target="x")


def test_a_package_without_details_is_measured(machine, hand_made):
    result = validate(hand_made({}), target="x")
    assert result.exit == 0
    assert result.status == "unproven"


def test_a_changed_package_is_refused_before_anything_runs(package, tmp_path):
    content = bytearray(package.read_bytes())
    content[1000] ^= 4
    (tmp_path / "changed.edgekit").write_bytes(content)
    with pytest.raises(IntegrityError):
        validate(str(tmp_path / "changed.edgekit"), target="x://never-opened")


@pytest.mark.parametrize("option", ["profile", "reference"])
def test_what_a_package_knows_is_not_asked(package, option):
    with pytest.raises(UsageError, match="knows its profile and its original"):
        validate(str(package), target="local", **{option: "host"})


def test_a_model_is_held_against_its_original(machine, edgekit, given, tmp_path):
    shutil.copy(given.model, tmp_path / "copy.onnx")
    options = {"target": "x", "data": str(given.data()), "store": edgekit.home}
    same = validate(str(tmp_path / "copy.onnx"), reference=str(given.model), budget={"max-drop": "1%"}, **options)
    assert same.exit == 0
    assert {check.name: check.value for check in same.checks}["agreement"] == 1.0
    machine.error = 1000.0
    broken = validate(str(tmp_path / "copy.onnx"), reference=str(given.model), budget={"max-drop": "1%"}, **options)
    assert broken.exit == 3


def test_findings_of_the_machine_are_told(machine, package):
    from edgekit.events import Finding

    machine.findings.append(Finding(severity="warning", node="x", rule="target-other-device", text="another"))
    assert "target-other-device" in {finding.rule for finding in validate(str(package), target="x").findings}
    assert Path(package).exists()
