"""The command line in this process: how flags, `edgekit.toml` and defaults come together, and what is printed."""

from __future__ import annotations

import functools
import importlib
import inspect
import json

import pytest
from rich.console import Console

import edgekit
from edgekit import cli
from edgekit import validate as room
from edgekit.budget import Check
from edgekit.cli.options import BUDGETS, settle
from edgekit.cli.printing import alternatives_table, verdict_table
from edgekit.config import KEYS
from edgekit.errors import InputError, TargetError
from edgekit.result import ErrorReport, Result
from onnx_models import linear

REAL_BUILD = edgekit.build


def module_of_build():
    """`edgekit.build` is the function; this is where it lives."""
    return importlib.import_module("edgekit.build")


@pytest.fixture
def built(monkeypatch):
    """Catch what `build` is called with."""
    calls = []

    def build(model, **options):
        calls.append({"model": model, **options})
        return Result(status="pass", exit=0)

    monkeypatch.setattr(module_of_build(), "build", build)
    return calls


@pytest.fixture
def validated(monkeypatch):
    """Catch what `validate` is called with, under its own signature."""
    calls = []

    @functools.wraps(room.validate)
    def validate(model, **options):
        calls.append({"model": model, **options})
        return Result(status="pass", exit=0)

    monkeypatch.setattr(room, "validate", validate)
    return calls


@pytest.fixture
def model(tmp_path):
    return str(linear(tmp_path / "model.onnx"))


def run(*arguments):
    return cli.run_cli([str(argument) for argument in arguments])


def test_flags_reach_build_by_their_names(built, model, capfd):
    flags = [
        *("--profile", "host", "--data", "d", "--recipe", "fp32", "--target", "local", "--out", "o", "--metric", "f1"),
        *("--max-drop", "1%", "--latency-p95", "20ms", "--max-size", "5MB", "--max-memory", "1GB", "--energy", "50mJ"),
        *("--teacher", "t", "--weights", "w", "--label-map", "l", "--shape", "x=1x8", "--shape", "z=1", "--sign", "k"),
        *("--seed", "3", "--threads", "2", "--calibration", "64", "--strict", "--allow-fallback", "--allow-partial"),
        *("--allow-dominated", "--dry-run", "--no-package", "--sustained", "10m", "--simulate", "300"),
    ]
    assert run("build", model, *flags) == 0
    (call,) = built
    call.pop("listen")
    assert call == {
        "model": model,
        "profile": "host",
        "data": "d",
        "recipe": "fp32",
        "target": "local",
        "out": "o",
        "metric": "f1",
        "budget": {"max-drop": "1%", "latency-p95": "20ms", "max-size": "5MB", "max-memory": "1GB", "energy": "50mJ"},
        "teacher": "t",
        "weights": "w",
        "label_map": "l",
        "shape": ("x=1x8", "z=1"),
        "sign": "k",
        "seed": 3,
        "threads": 2,
        "sustained": "10m",
        "simulate": "300",
        "calibration": 64,
        "strict": True,
        "allow_fallback": True,
        "allow_partial": True,
        "allow_dominated": True,
        "dry_run": True,
        "package": False,
    }


def test_what_is_not_asked_is_left_to_the_defaults(built, model, capfd):
    assert run("build", model) == 0
    (call,) = built
    call.pop("listen")
    assert call == {"model": model, "budget": {}, "dry_run": False, "package": True}


def test_every_option_of_build_may_stand_in_the_file(built, model, tmp_path, capfd):
    """By the same names; and what stands there is taken by `build`."""
    values = {str: '"1"', int: "1", bool: "true", list: '["x=1x8"]', dict: '{ kind = "image" }'}
    taken = inspect.signature(REAL_BUILD).parameters
    (tmp_path / "edgekit.toml").write_text("".join(f"{key} = {values[kind]}\n" for key, kind in KEYS.items()))
    assert run("build", model) == 0
    (call,) = built
    keys = {key.replace("-", "_") for key in KEYS} - set(BUDGETS)
    assert keys <= set(call)
    assert set(call["budget"]) == {flag for flag, _ in BUDGETS.values()}
    assert keys <= set(taken)


def test_a_budget_of_the_file_is_overruled_by_its_flag_alone(built, model, tmp_path, capfd):
    (tmp_path / "edgekit.toml").write_text('max-drop = "1%"\nmax-size = "1MB"\nthreads = 4\n')
    assert run("build", model, "--max-size", "2MB") == 0
    assert built[0]["budget"] == {"max-drop": "1%", "max-size": "2MB"}
    assert built[0]["threads"] == 4


def test_paths_in_the_file_go_by_the_file(tmp_path):
    (tmp_path / "edgekit.toml").write_text('data = "d"\nout = "/o"\nlabel-map = "l"\nmetric = "python:mine:f"\n')
    found = settle(str(tmp_path / "m.onnx"), {"config": None, "data": None})
    assert found == {"data": f"{tmp_path}/d", "out": "/o", "label_map": f"{tmp_path}/l", "metric": "python:mine:f"}
    assert settle(str(tmp_path / "m.onnx"), {"data": "mine"})["data"] == "mine"


def test_a_python_model_has_no_file_beside_it(tmp_path, monkeypatch):
    (tmp_path / "edgekit.toml").write_text("threads = 4\n")
    monkeypatch.chdir(tmp_path)
    assert settle("python:factory:make", {}) == {}
    assert settle("python:factory:make", {"config": "edgekit.toml"}) == {"threads": 4}


def test_validate_takes_of_the_file_what_is_its_own(validated, model, tmp_path, capfd):
    text = 'profile = "host"\nrecipe = "int8"\nout = "o"\nallow-partial = true\nmax-drop = "1%"\nmetric = "f1"\n'
    (tmp_path / "edgekit.toml").write_text(text)
    assert run("validate", model, "--target", "local") == 0
    assert run("validate", tmp_path / "p.edgekit", "--target", "local") == 0
    one, two = validated
    for call in validated:
        call.pop("listen")
        call.pop("model")
    assert one == {"target": "local", "profile": "host", "metric": "f1", "budget": {"max-drop": "1%"}}
    assert two == {"target": "local", "metric": "f1", "budget": {"max-drop": "1%"}}, "a package knows its profile"


def test_validate_knows_no_option_that_does_nothing(capfd, model):
    assert run("validate", model, "--target", "local", "--allow-fallback") == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("bad", where="a.onnx", remedy="do this"), 4),
        (TargetError("gone", where="ssh://x", remedy="switch it on"), 5),
        (ZeroDivisionError("surprise"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=["input", "target", "bug", "interrupted"],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_every_end_is_told_once(monkeypatch, model, capfd, error, status, as_json):
    def build(model, **options):
        raise error

    monkeypatch.setattr(module_of_build(), "build", build)
    assert run("build", model, *(["--json"] if as_json else [])) == status
    out, err = capfd.readouterr()
    if as_json:
        found = json.loads(out)
        assert found["exit"] == status
        assert found["status"] == "error"
        assert found["error"]["remedy"]
    else:
        assert out == ""
    assert [line.startswith("edgekit: ") for line in err.splitlines()].count(True) == 1
    assert ("Traceback" in err) == (status == 1)


def test_the_text_names_the_place_and_the_next_step(monkeypatch, capfd):
    assert run("inspect", "nosuch.onnx") == 4
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "edgekit: nosuch.onnx: no such file\nCheck the path of the model.\n"


def test_help_is_no_error(capfd):
    assert run("--help") == 0
    out, err = capfd.readouterr()
    assert "Exit status: 0 no budget missed" in out
    assert err == ""
    assert run("--version") == 0


def test_an_exit_status_of_a_result_is_the_commands(monkeypatch, built, model, capfd):
    error = ErrorReport(kind="budget", text="size is too big", where="", remedy="Change it.")
    result = Result(status="fail", exit=3, error=error, checks=(check(status="fail"),))
    monkeypatch.setattr(module_of_build(), "build", lambda model, **options: result)
    assert run("build", model) == 3
    out, _ = capfd.readouterr()
    assert "verdict: fail" in out
    assert "reason: size is too big" in out
    assert "next: Change it." in out


def check(**changes):
    values = {
        "name": "size",
        "value": 2e6,
        "unit": "B",
        "budget": 1e6,
        "status": "pass",
        "provenance": "measured",
        "on": "model files",
    }
    return Check(**{**values, **changes})


def test_the_table_says_how_each_value_was_obtained():
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), width=200)
    bounds = {"low": 2.0, "high": 4.0, "n": 120}
    rows = (
        check(),
        check(name="latency-p95", unit="ms", value=3.0, provenance="predicted", on="roofline", **bounds),
        check(name="drop", unit="1", value=None, status="unproven", reason="too few samples", budget=0.01),
        check(name="memory", budget=None, reason="reported only: no budget"),
    )
    console.print(verdict_table(rows))
    text = console.file.getvalue()
    assert "measured on model files" in text
    assert "predicted on roofline, n = 120" in text
    assert "2 ms .. 4 ms" in text
    assert "too few samples" in text
    assert "reported only" not in text
    (memory,) = [line for line in text.splitlines() if "memory" in line]
    assert "pass" not in memory, "without a budget nothing was passed"


def test_an_alternative_that_chance_may_have_put_over_budget_is_not_ruled_out(capfd):
    score = {"within": True, "latency_ms": 1.25, "size": 2000, "drop": 0.012, "doubtful": True}
    scores = {"int8": score, "fp16": score | {"doubtful": False}, "w4": score | {"within": False, "doubtful": False}}
    Console(width=160).print(alternatives_table({"chosen": "int8", "scores": scores, "refused": {}}))
    lines = {name: line for line in capfd.readouterr().out.splitlines() for name in scores if name in line}
    assert "not ruled out" in lines["int8"]
    assert "keeps the budgets" in lines["fp16"]
    assert "misses a budget" in lines["w4"]


def test_the_alternatives_are_told_with_what_the_simulator_gave(capfd):
    score = {"within": True, "latency_ms": 1.25, "size": 2000, "drop": 0.001}
    facts = {"chosen": "fp16", "scores": {"fp16": score | {"simulated_db": 55.1, "simulated": 4}, "int8": score}}
    Console(width=160).print(alternatives_table(facts | {"refused": {"w8a16": "it is\nrefused"}}))
    told = capfd.readouterr().out
    assert "simulator to CPU" in told
    assert "55.1 dB" in told
    assert "it is refused" in told
    Console(width=160).print(alternatives_table({"chosen": "int8", "scores": {"int8": score}, "refused": {}}))
    assert "simulator" not in capfd.readouterr().out
