"""Candidates of a build are judged one after the other until one may ship."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgekit.budget import Budget
from edgekit.exporter import load_exporter
from edgekit.gate import Gate
from edgekit.jury import Jury
from edgekit.original import Original
from edgekit.pipeline import Pipeline, Way
from edgekit.sources import ingest
from edgekit.store import Store
from house import dataset, profile
from onnx_models import linear


@pytest.fixture
def jury(tmp_path):
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 8)).astype(np.float32)} for _ in range(200)]
    device, exporter = profile(), load_exporter("onnx")
    with Store(tmp_path / "home") as store:
        reference = ingest(str(linear(tmp_path / "m.onnx")), store)
        original = Original(store=store, artifact=reference, data=dataset(feeds), metric=None)
        yield Jury(
            pipeline=Pipeline(store=store, profile=device, dialect=exporter.dialect(device)),
            gate=Gate(original=original, profile=device, exporter=exporter, budget=Budget(max_drop=0.05)),
            target=None,
            strict=False,
            allow_dominated=False,
        )


@pytest.fixture
def way(jury, tmp_path):
    """Return the reference with its weights changed, as an alternative of that name."""

    def run(name, change):
        model = onnx.load(tmp_path / "m.onnx")
        weight = next(tensor for tensor in model.graph.initializer if tensor.name == "W")
        weight.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(weight)).astype(np.float32), "W"))
        onnx.save(model, tmp_path / f"{name}.onnx")
        return Way(artifact=ingest(str(tmp_path / f"{name}.onnx"), jury.gate.original.store), names=(name,))

    return run


def turned(weight):
    return weight[::-1]


def near(weight):
    return weight * 1.001


def test_what_passes_first_is_built_and_no_other_is_asked_for(jury, way):
    first = way("near", near)

    def ways():
        yield first
        raise AssertionError("another candidate was asked for")

    found = jury.first_to_ship(ways())
    assert (found.candidate, found.name, found.why_not) == (first.artifact, "near", None)
    assert found.verdict.status == "pass"
    assert not {"next-alternative", "no-alternative"} & {finding.rule for finding in found.findings}
    assert [run.name for run in jury.pipeline.runs] == ["compile"]


def test_an_alternative_that_fails_gives_way_to_the_next_and_it_is_told(jury, way):
    first, second = way("turned", turned), way("near", near)
    found = jury.first_to_ship([first, second])
    assert (found.candidate, found.name, found.why_not) == (second.artifact, "near", None)
    (told,) = [finding for finding in found.findings if finding.rule == "next-alternative"]
    assert told.severity == "warning"
    assert "near is built because turned does not pass (" in told.text
    assert "among 2 alternatives" in told.text
    assert "edgekit validate" in told.remedy


def test_where_none_passes_the_first_is_reported_with_what_the_others_miss(jury, way):
    first, second = way("turned", turned), way("rolled", lambda weight: np.roll(weight, 1, axis=1))
    found = jury.first_to_ship([first, second])
    assert found.candidate == first.artifact
    assert found.why_not.kind == "budget"
    (told,) = [finding for finding in found.findings if finding.rule == "no-alternative"]
    assert "turned does not pass" in told.text
    assert "rolled does not pass" in told.text


def test_a_recipe_without_a_choice_is_told_as_before(jury, way):
    found = jury.first_to_ship([replace(way("turned", turned), names=())])
    assert found.why_not is not None
    assert found.name == ""
    assert not {"next-alternative", "no-alternative"} & {finding.rule for finding in found.findings}


@pytest.mark.parametrize("strict", [False, True])
def test_what_is_unproven_ships_unless_all_must_be_proven(jury, way, strict):
    unproven = replace(jury.gate, budget=Budget(max_drop=0.0))
    first, second = way("near", near), way("nearer", lambda weight: weight * 1.0001)
    found = replace(jury, gate=unproven, strict=strict).first_to_ship([first, second])
    assert found.verdict.status == "unproven"
    assert (found.why_not is None) is not strict
    assert ("no-alternative" in {finding.rule for finding in found.findings}) is strict


def test_what_is_doubtful_twice_gives_way_to_what_is_not(jury, way):
    """It lost too much on the calibration data, perhaps by chance, and is not proven on the evaluation data either."""
    unproven = replace(jury, gate=replace(jury.gate, budget=Budget(max_drop=0.0)))
    first, second = replace(way("near", near), doubtful=True), way("nearer", lambda weight: weight * 1.0001)
    found = unproven.first_to_ship([first, second])
    assert (found.candidate, found.why_not) == (second.artifact, None)
    (told,) = [finding for finding in found.findings if finding.rule == "next-alternative"]
    assert "near does not pass (it lost too much on the calibration data and is unproven here)" in told.text
    proven = jury.first_to_ship([first, second])
    assert (proven.candidate, proven.verdict.status) == (first.artifact, "pass")


def test_what_is_doubtful_twice_ships_where_nothing_else_does(jury, way):
    unproven = replace(jury, gate=replace(jury.gate, budget=Budget(max_drop=0.0)))
    first, second = replace(way("near", near), doubtful=True), way("turned", turned)
    found = unproven.first_to_ship([first, second])
    assert (found.candidate, found.why_not) == (first.artifact, None)
    assert "turned does not pass" in next(f.text for f in found.findings if f.rule == "next-alternative")
