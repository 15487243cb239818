"""The Python API: `edgekit.build`, which the command line is a thin face on."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import edgekit as api
from command import PATH
from edgekit import events, jury
from edgekit.budget import Budget, Check, Figure, Verdict
from edgekit.errors import BudgetMissedError, InputError, UnsupportedError, UsageError
from edgekit.events import Finding
from edgekit.exporter import refuse
from edgekit.gate import Trial
from edgekit.package import read_package
from edgekit.score import Score
from house import profile
from onnx_models import linear

room = importlib.import_module("edgekit.build")
PI = "raspberry-pi-5"


@pytest.fixture
def build(edgekit, given, tmp_path):
    """Build the linear classifier with the session's store."""

    def run(**options):
        standard = {"profile": PI, "data": str(given.data()), "out": tmp_path / "out", "store": edgekit.home}
        return api.build(str(given.model), **{**standard, **options})

    return run


def test_the_api_is_the_function_however_often_and_however_it_is_reached():
    """Importing the module of the same name puts it where the function must stay."""
    code = (
        "import edgekit\n"
        "assert callable(edgekit.build) and callable(edgekit.build)\n"
        "import edgekit.build\n"
        "assert callable(edgekit.build)\n"
        "from edgekit.build import build\n"
        "from edgekit import build as same, Budget, Result\n"
        "assert same is build is edgekit.build\n"
        "assert Budget is edgekit.Budget and Result is edgekit.Result\n"
    )
    for start in ("", "import edgekit.build\n", "from edgekit.cli import run_cli\nimport edgekit.validate\n"):
        subprocess.run([sys.executable, "-c", start + code], env={"PYTHONPATH": PATH}, check=True)
    with pytest.raises(AttributeError, match="no attribute 'bild'"):
        _ = api.bild
    assert set(api.__all__) == {"Budget", "Result", "__version__", "build"}


def test_a_build_gives_a_result_and_a_package(build, package):
    result = build(budget=api.Budget(max_drop=0.01))
    assert isinstance(result, api.Result)
    assert (result.status, result.exit, result.error) == ("pass", 0, None)
    found = read_package(Path(result.package))
    assert found.manifest.artifact.id == result.artifact
    assert found.manifest.profile.name == PI
    assert [step.stage for step in found.manifest.lineage] == ["ingest", "simplify", "equalize", "quantize-int8"]
    assert found.verdict.status == "pass"
    assert found.verdict.checks == result.checks
    assert found.manifest.reference is not None
    assert Path(result.package).with_suffix(".html").is_file()


def test_a_budget_may_be_words(build, package):
    result = build(budget={"max-drop": "1%", "max-size": "1MB"}, package=False)
    assert {check.name: check.budget for check in result.checks if check.budget} == {"drop": 0.01, "size": 1e6}
    with pytest.raises(UsageError, match="max-sise"):
        build(budget={"max-sise": "1MB"})


def test_a_missed_budget_is_a_result_and_no_exception(build, package, tmp_path):
    result = build(budget=Budget(max_size=10))
    assert (result.status, result.exit, result.package) == ("fail", 3, None)
    assert "above 10 B" in result.error.text
    assert not (tmp_path / "out").exists()


def test_bad_input_is_an_exception_of_its_class(build):
    with pytest.raises(InputError):
        build(data="/nosuch")
    with pytest.raises(UsageError):
        build(recipe="int9")
    with pytest.raises(UnsupportedError):
        build(profile="qcs6490", recipe="fp16")


def test_progress_is_heard_and_never_printed(build, package, given, capfd):
    heard = []
    build(listen=heard.append, data=str(given.data(count=12)), recipe="fp32")
    started = [event.name for event in heard if isinstance(event, events.StageStarted)]
    done = [event.name for event in heard if isinstance(event, events.StageDone)]
    assert started[-2:] == done == ["simplify", "compile"]
    assert "data-few-samples" in {event.finding.rule for event in heard if isinstance(event, events.Found)}
    assert capfd.readouterr() == ("", "")


def test_every_finding_is_in_the_result(build, given, package):
    """What was found about the data counts too: a listener may not be there."""
    heard = []
    result = build(listen=heard.append, data=str(given.data(count=12)), recipe="fp32")
    told = {event.finding for event in heard if isinstance(event, events.Found)}
    assert told <= set(result.findings)


def test_a_result_says_what_a_stage_found_also_when_it_was_cached(build, given, package):
    one, two = (build(recipe="fp32", data=str(given.data(count=12))) for _ in range(2))
    assert all(run.cached for run in two.stages)
    assert one.findings == two.findings


def test_a_seed_is_part_of_what_is_computed(build, package):
    assert build(package=False).artifact == build(package=False).artifact
    assert build(package=False, seed=1).artifact != build(package=False).artifact


def test_without_data_golden_inputs_are_made_and_checked(build):
    from edgekit.verify import verify_package

    result = build(data=None, recipe="fp32")
    assert result.status == "unproven"
    report = verify_package(Path(result.package))
    assert [check.status for check in report.golden] == ["pass"]
    assert read_package(Path(result.package)).manifest.reference is None


def test_a_judged_candidate_is_packed_again_and_one_that_missed_is_not(build, edgekit, package, tmp_path):
    kept = build(budget=Budget(max_drop=0.01))
    again = room.repackage(kept.artifact[:12], out=str(tmp_path / "again"), store=edgekit.home)
    assert read_package(Path(again.package)).seal.payload == read_package(Path(kept.package)).seal.payload
    assert again.checks == kept.checks
    build(budget=Budget(max_size=10))
    with pytest.raises(BudgetMissedError, match="size"):
        room.repackage(kept.artifact, out=str(tmp_path / "never"), store=edgekit.home)
    build()
    with pytest.raises(InputError, match="no build has judged"):
        room.repackage("ab12" * 16, store=edgekit.home)


def test_two_models_of_one_name_get_packages_of_one_name_in_their_own_folders(edgekit, tmp_path):
    linear(tmp_path / "m.onnx", seed=1)
    result = api.build(str(tmp_path / "m.onnx"), profile=PI, recipe="fp32", out=tmp_path / "a", store=edgekit.home)
    assert Path(result.package) == tmp_path / "a" / f"m-{PI}.edgekit"


@pytest.mark.parametrize(
    ("model", "stem"),
    [
        ("python:mine:make_net", "make_net"),
        ("owner/some-model", "some-model"),
        ("dir/net.v2.onnx", "net.v2"),
        ("net.pt2", "net"),
        ("old-jetson.edgekit", "old-jetson"),
        ("wéird näme (1).onnx", "wéird-näme--1"),
        ("...onnx", "model"),
    ],
)
def test_a_package_is_named_after_its_model(model, stem):
    assert room._stem(model) == stem


# --- what keeps a candidate from shipping

FALLBACK = Finding(severity="error", node="n1", rule="trt-fallback", text="runs on the CPU", remedy="--allow-fallback")
BROKEN = Finding(severity="error", node="n2", rule="trt-type", text="has no kernel", remedy="cast it")
NOTE = Finding(severity="warning", node="n3", rule="trt-slow", text="is slow")


def test_what_the_runtime_refuses_names_all_nodes_and_the_first_remedy():
    with pytest.raises(UnsupportedError) as caught:
        refuse([NOTE, BROKEN, FALLBACK], profile(), allow_fallback=False)
    assert caught.value.where == "n2 [trt-type]"
    assert "and 1 more" in caught.value.text
    assert "n2, n1" in caught.value.text
    assert caught.value.remedy == "cast it"


def test_only_fallbacks_can_be_allowed():
    refuse([NOTE, FALLBACK], profile(), allow_fallback=True)
    refuse([NOTE], profile(), allow_fallback=False)
    with pytest.raises(UnsupportedError):
        refuse([FALLBACK], profile(), allow_fallback=False)
    with pytest.raises(UnsupportedError):
        refuse([BROKEN, FALLBACK], profile(), allow_fallback=True)


def check(name, status, reason=""):
    return Check(
        name=name, value=1.0, unit="B", budget=1.0, status=status, provenance="measured", on="x", reason=reason
    )


def figure(name, value):
    return Figure(name=name, value=value, unit="B", provenance="measured", on="x")


def why_not(*checks, findings=(), figures=(), original=(), strict=False, allow_dominated=False):
    trial = Trial(figures=tuple(figures), original=tuple(original), findings=tuple(findings))
    verdict = Verdict(status="pass", checks=checks)
    return jury.why_not(verdict, trial, strict=strict, allow_dominated=allow_dominated)


WORSE = {
    "figures": [figure("size", 20.0), figure("memory", 20.0)],
    "original": [figure("size", 10.0), figure("memory", 10.0)],
}


def test_a_missed_budget_says_each_reason():
    assert why_not(check("size", "pass"), check("drop", "unproven")) is None
    told = why_not(check("size", "fail", "size is too big"), check("drop", "fail", "drop is too deep"))
    assert told.text == "size is too big; drop is too deep"
    strict = why_not(check("size", "pass"), check("drop", "unproven", "too few samples"), strict=True)
    assert strict.text == "too few samples"


def test_outputs_that_died_keep_a_candidate_from_shipping():
    dead = Finding(severity="error", node="y", rule="output-not-finite", text="is NaN", remedy="fp32")
    told = why_not(check("size", "pass"), findings=[NOTE, dead])
    assert told.text == "y: is NaN"
    assert told.where == "y"


def test_what_is_worse_in_every_way_ships_only_when_allowed():
    assert "better at nothing" in why_not(check("size", "pass"), **WORSE).text
    assert why_not(check("size", "pass"), **WORSE, allow_dominated=True) is None
    budget_first = why_not(check("size", "fail", "too big"), **WORSE, allow_dominated=True)
    assert budget_first.text == "too big"


COARSE_OR_WHOLE = """
title = "one that loses, one that does not"
[[choose]]
[[choose.option]]
name = "coarse"
[[choose.option.stage]]
use = "quantize-int4"
bits = 2
method = "rtn"
[[choose.option]]
name = "whole"
[[choose.option.stage]]
use = "simplify"
"""


def test_an_alternative_that_only_the_evaluation_data_refuse_gives_way(build, package, tmp_path, monkeypatch):
    """Calibration data that tell nothing: the ranking takes what is fastest."""
    (tmp_path / "choice.toml").write_text(COARSE_OR_WHOLE)

    def score(_gate, candidate):
        coarse = any(step.stage == "quantize-int4" for step in candidate.lineage)
        return Score(within=True, latency_ms=1.0 if coarse else 2.0, size=1, drop=None)

    monkeypatch.setattr("edgekit.gate.Gate.score", score)
    result = build(recipe=str(tmp_path / "choice.toml"), budget=Budget(max_drop=0.02))
    assert (result.status, result.exit, result.error) == ("pass", 0, None)
    assert [run.facts["chosen"] for run in result.stages if run.name == "choose"] == ["coarse", "whole"]
    (told,) = [finding for finding in result.findings if finding.rule == "next-alternative"]
    assert "coarse does not pass" in told.text
    assert [step.stage for step in read_package(Path(result.package)).manifest.lineage] == ["ingest", "simplify"]
