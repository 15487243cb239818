"""The object that `--json` prints: its schema stands in docs/, and what the commands print keeps it."""

from __future__ import annotations

import json
import math

import jsonschema
import msgspec
import pytest

from command import ROOT
from edgekit import errors
from edgekit.budget import Check, Verdict
from edgekit.events import Finding
from edgekit.result import ErrorReport, Result, exit_of, of_error, schema
from edgekit.stage_runs import StageRun

FILE = ROOT / "docs" / "result.schema.json"
BOUNDS = {"low": 0.0, "high": 0.015, "n": 1000}
CHECK = Check(
    name="drop", value=0.01, unit="1", budget=0.02, status="pass", provenance="measured", on="local", **BOUNDS
)
WRITE = "from edgekit.result import schema; print(json.dumps(schema(), indent=2))"


@pytest.fixture(scope="module")
def validator():
    found = json.loads(FILE.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def test_the_file_in_docs_is_the_schema_of_the_code():
    said = json.loads(FILE.read_text(encoding="utf-8"))
    assert said == json.loads(json.dumps(schema())), f"write {FILE.name} again: python -c 'import json; {WRITE}'"


def test_the_schema_says_what_every_key_may_be(validator):
    top = validator.schema["$defs"]["Result"]["properties"]
    assert set(top) == set(Result.__struct_fields__)
    assert set(top["status"]["enum"]) == {"pass", "fail", "unproven", "error"}
    check = validator.schema["$defs"]["Check"]["properties"]
    assert set(check["provenance"]["enum"]) == {"measured", "simulated", "predicted"}
    assert set(check["status"]["enum"]) == {"pass", "fail", "unproven"}


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"exit": "0"},
        {"error": {"kind": "bug"}},
        {"checks": [{"name": "drop"}]},
        {"stages": [{"name": "simplify", "seconds": "1", "cached": False, "facts": {}}]},
        {"findings": [{"severity": "fatal", "node": "", "rule": "", "text": ""}]},
        {"package": 5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_schema_refuses_what_is_wrong(validator, change):
    good = json.loads(whole().to_json())
    validator.validate(good)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**good, **change})


def whole():
    return Result(
        status="pass",
        exit=0,
        checks=(CHECK,),
        artifact="ab" * 32,
        package="out/model.edgekit",
        stages=(StageRun(name="simplify", seconds=0.5, cached=False, facts={"nodes": 3}),),
        coverage={"weights": 1.0},
        findings=(Finding(severity="note", node="conv", rule="a-rule", text="told", remedy=""),),
    )


def test_a_result_comes_back_as_it_went():
    assert msgspec.json.decode(whole().to_json(), type=Result) == whole()


def test_numbers_that_json_does_not_have_become_null(validator):
    odd = msgspec.structs.replace(CHECK, value=math.nan, high=math.inf)
    found = json.loads(msgspec.structs.replace(whole(), checks=(odd,)).to_json())
    assert found["checks"][0]["value"] is None
    assert found["checks"][0]["high"] is None
    validator.validate(found)


def test_names_that_are_not_utf_8_become_escapes():
    result = Result(
        status="error", exit=4, error=ErrorReport(kind="input", text="t", where="/d/\udcff.onnx", remedy="r")
    )
    assert json.loads(result.to_json())["error"]["where"] == "/d/\\xff.onnx"


ERRORS = [
    errors.UsageError,
    errors.BudgetMissedError,
    errors.InputError,
    errors.TargetError,
    errors.IntegrityError,
    errors.UnsupportedError,
    errors.EdgekitError,
]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_a_result(validator, kind):
    result = of_error(kind("what", where="where.onnx", remedy="next"))
    assert result.exit == kind.exit_status
    assert result.status == ("fail" if kind is errors.BudgetMissedError else "error")
    assert result.error == ErrorReport(kind=kind.kind, text="what", where="where.onnx", remedy="next")
    validator.validate(json.loads(result.to_json()))


def test_every_error_class_has_its_own_status_and_kind():
    assert {kind.exit_status for kind in ERRORS} == {1, 2, 3, 4, 5, 6, 7}
    assert len({kind.kind for kind in ERRORS}) == len(ERRORS)
    assert set(errors.EdgekitError.__subclasses__()) == set(ERRORS) - {errors.EdgekitError}


@pytest.mark.parametrize(
    ("status", "strict", "exit_status"),
    [("pass", True, 0), ("unproven", False, 0), ("unproven", True, 3), ("fail", False, 3), ("fail", True, 3)],
)
def test_the_exit_status_of_a_verdict(status, strict, exit_status):
    assert exit_of(Verdict(status=status, checks=()), strict=strict) == exit_status


COMMANDS = {
    "a package": (0, ["{build}"]),
    "a plan": (0, ["{build}", "--dry-run"]),
    "without data": (0, ["build", "{model}", "--recipe", "fp32", "--profile", "raspberry-pi-5", "--no-package"]),
    "a missed budget": (3, ["{build}", "--max-size", "1B"]),
    "usage": (2, ["{build}", "--recipe", "int9"]),
    "an unknown option": (2, ["{build}", "--fast"]),
    "an unknown command": (2, ["biuld"]),
    "input": (4, ["{build}", "--data", "/nosuch"]),
    "unsupported": (7, ["build", "{model}", "--profile", "qcs6490", "--recipe", "fp16"]),
    "verified": (0, ["verify", "{package}"]),
    "no package": (4, ["verify", "{model}"]),
    "inspected": (0, ["inspect", "{model}", "--profile", "jetson"]),
    "predicted": (0, ["predict", "{model}", "--profile", "jetson", "--shape", "x=1x8"]),
    "an unknown profile": (2, ["profiles", "show", "jetsn"]),
    "nothing judged": (4, ["package", "ab12ab12"]),
}


@pytest.mark.parametrize("what", COMMANDS)
def test_what_the_commands_print_keeps_the_schema(validator, edgekit, given, package, what, tmp_path):
    status, words = COMMANDS[what]
    build = ["build", given.model, "--profile", "raspberry-pi-5", "--data", given.data(), "--out", tmp_path]
    arguments = [
        part
        for word in words
        for part in (build if word == "{build}" else [word.format(model=given.model, package=package)])
    ]
    ran = edgekit(*arguments, "--json")
    assert ran.status == status, ran.err
    validator.validate(ran.json)
    assert ran.json["exit"] == status
    assert (ran.json["error"] is None) == (status == 0)
