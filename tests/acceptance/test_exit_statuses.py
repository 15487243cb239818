"""Every exit status through the command line: text with the place and the next step, and one JSON object."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time

import pytest

from command import sound


def told(ran, kind, status):
    """Check an error as text on stderr and as the object on stdout; return the object."""
    sound(ran)
    error = ran.json["error"]
    assert ran.status == status
    assert error["kind"] == kind
    assert ran.json["status"] == ("fail" if status == 3 else "error")
    if status != 3:  # what missed a budget is told on stdout, with the table
        for part in ("text", "where", "remedy"):
            assert error[part] in ran.err
    return error


def test_0_and_the_text_says_what_was_judged(edgekit, given, package):
    asked = ("build", given.model, "--profile", "raspberry-pi-5", "--data", given.data(), "--max-drop", "1%")
    ran = edgekit(*asked, "--out", package.parent)
    assert ran.status == 0
    assert "verdict: pass" in ran.out
    assert f"package: {package}" in ran.out
    assert "simulated on onnxruntime" in ran.out
    assert "predicted on" in ran.out
    assert "coverage: 100.0% of the weights" in ran.out
    assert "quantize-int8" in ran.err
    quiet = edgekit(*asked, "--out", package.parent, "--quiet")
    assert quiet.err == ""
    assert "verdict: pass" in quiet.out
    assert "coverage" not in quiet.out


def test_1_is_a_bug_with_its_traceback(edgekit, given, tmp_path):
    """A module that is broken stands for a bug: it is put before edgekit's own parts by sitecustomize."""
    (tmp_path / "sitecustomize.py").write_text(
        "import edgekit.recipe\n"
        "def broken(name):\n    raise RuntimeError('something impossible')\n"
        "edgekit.recipe.load_recipe = broken\n"
    )
    ran = edgekit("build", given.model, "--json", PYTHONPATH=str(tmp_path))
    assert ran.status == 1
    assert ran.json["error"]["kind"] == "bug"
    assert "RuntimeError: something impossible" in ran.json["error"]["text"]
    assert "edgekit doctor" in ran.json["error"]["remedy"]
    assert "Traceback" in ran.err


@pytest.mark.parametrize(
    ("arguments", "text", "remedy"),
    [
        (["--profile", "jetsom"], "jetsom", "Did you mean 'jetson'"),
        (["--profil", "jetson"], "--profil", "edgekit build --help"),
        (["--recipe", "int9"], "int9", "Did you mean 'int"),
        (["--metric", "acuracy"], "acuracy", "Did you mean 'accuracy'?"),
        (["--target", "usb://x"], "usb://x", "local, ssh"),
        (["--max-size", "5XB"], "xb", "max-size 5MB"),
        (["--max-drop", "-1%"], "negative", "max-drop 1%"),
        (["--latency-p99", "fast"], "fast", "20ms"),
        (["--threads", "0"], "--threads", "edgekit build --help"),
        (["--shape", "z=1x8"], "'z'", "x"),
        (["--shape", "x=1x9"], "axis 1", "8"),
    ],
    ids=lambda value: value[0].lstrip("-") + " " + value[1] if isinstance(value, list) else "",
)
def test_2_usage(edgekit, given, tmp_path, arguments, text, remedy):
    asked = [given.model, "--data", given.data(count=40), "--out", tmp_path / "out", "--json"]
    ran = edgekit("build", *asked, *(() if "--profile" in arguments else ("--profile", "raspberry-pi-5")), *arguments)
    error = told(ran, "usage", 2)
    assert text in error["text"] + error["where"]
    assert remedy in error["remedy"]
    assert not (tmp_path / "out").exists()


def test_2_a_useless_metric_or_target_is_told_before_any_work(edgekit, given, tmp_path):
    """Not after hours: nothing is in the store then."""
    for flag, value in (("--metric", "acuracy"), ("--target", "usb://x"), ("--out", given.model)):
        home = tmp_path / flag
        ran = edgekit.build(given.model, "--data", given.data(), flag, value, home=home)
        told(ran, "usage", 2)
        assert not list(home.glob("artifacts/*/*"))
    ran = edgekit.build(given.model, "--data", given.data(), "--sign", tmp_path / "nosuch.key", home=tmp_path / "k")
    told(ran, "input", 4)
    assert not list((tmp_path / "k").glob("artifacts/*/*"))


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (["biuld", "x"], "Did you mean 'build'?"),
        (["profiles", "show", "jetsn"], "Did you mean 'jetson'"),
        (["recipes", "show", "int9"], "Did you mean 'int"),
        (["cache", "prune", "--older", "3x"], "30d"),
        (["validate", "x.onnx"], "--help"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_2_everywhere(edgekit, command, remedy):
    ran = edgekit(*command)
    assert ran.status == 2
    assert ran.out == ""
    assert remedy in ran.err


@pytest.mark.parametrize("command", [[], ["profiles"], ["cache"]])
def test_2_nothing_asked_shows_the_help(edgekit, command):
    ran = edgekit(*command)
    assert ran.status == 2
    assert ran.err.startswith("Usage: edgekit")
    assert ran.out == ""


def test_3_the_text_says_which_budget(edgekit, given, package, tmp_path):
    asked = (given.model, "--profile", "raspberry-pi-5", "--data", given.data(), "--max-size", "100B")
    ran = edgekit("build", *asked, "--out", tmp_path / "out")
    assert ran.status == 3
    assert "verdict: fail" in ran.out
    assert "reason: size is" in ran.out
    assert "next: " in ran.out
    assert "package:" not in ran.out
    assert not (tmp_path / "out").exists()
    told(edgekit("build", *asked, "--json"), "budget", 3)


def test_4_input(edgekit, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"nothing of the kind")
    ran = edgekit("build", tmp_path / "model.onnx", "--recipe", "fp32", "--profile", "raspberry-pi-5", "--json")
    assert told(ran, "input", 4)["where"]


def test_5_a_tool_that_is_missing(edgekit, given, package):
    asked = ("validate", package, "--data", given.data(), "--target", "ssh://127.0.0.1:9", "--json")
    error = told(edgekit(*asked, PATH="/nowhere"), "target", 5)
    assert "ssh" in error["text"]
    assert "install" in error["remedy"].lower()


@pytest.mark.system("openssh-server")
def test_5_a_target_that_cannot_be_reached(edgekit, given, package):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"ssh://127.0.0.1:{free.getsockname()[1]}"
    error = told(edgekit("validate", package, "--data", given.data(), "--target", url, "--json"), "target", 5)
    assert error["where"] == url
    assert "cannot be reached" in error["text"]


def test_5_a_library_that_is_missing(edgekit, given, tmp_path):
    """A torch model without torch: the extra that brings it is named."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    (tmp_path / "factory.py").write_text("def make():\n    import torch\n")
    asked = ("build", "python:factory:make", "--profile", "raspberry-pi-5", "--json")
    ran = edgekit(*asked, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert "edgekit-toolkit[torch]" in told(ran, "target", 5)["remedy"]


def test_6_a_package_that_was_changed(edgekit, package, tmp_path):
    content = bytearray(package.read_bytes())
    content[len(content) // 2] ^= 1
    changed = tmp_path / "changed.edgekit"
    changed.write_bytes(content)
    for command in (["verify", changed], ["run", changed, "x.npz"], ["validate", changed, "--target", "local"]):
        error = told(edgekit(*command, "--json"), "integrity", 6)
        assert str(changed) in error["where"]


def test_7_a_graph_that_the_profile_does_not_take(edgekit, tmp_path):
    from onnx import helper

    from onnx_models import save, tensor

    model = save(
        tmp_path / "deep.onnx",
        [helper.make_node("Relu", ["x"], ["y"], name="the_relu")],
        [tensor("x", [1, 1, 1, 1, 1, 8])],
        [tensor("y", [1, 1, 1, 1, 1, 8])],
    )
    ran = edgekit("build", model, "--profile", "snapdragon", "--recipe", "fp16", "--json", "--out", tmp_path / "out")
    error = told(ran, "unsupported", 7)
    assert "the_relu" in error["text"] + error["where"] or "x" in error["where"]
    assert not (tmp_path / "out").exists()


def test_7_a_precision_that_the_profile_does_not_have(edgekit, given):
    ran = edgekit("build", given.model, "--profile", "qcs6490", "--recipe", "fp16", "--json")
    error = told(ran, "unsupported", 7)
    assert error["where"] == "stage fp16"
    assert "does not run fp16" in error["text"]
    assert "w8a8" in error["remedy"]


@pytest.mark.parametrize("whole_group", [False, True], ids=["edgekit alone", "as a terminal does"])
@pytest.mark.parametrize("wait", [0.3, 2.0])
def test_130_an_interruption_says_how_to_go_on(edgekit, given, tmp_path, wait, whole_group):
    asked = ("build", given.model, "--profile", "raspberry-pi-5", "--data", given.data(count=60), "--json")
    for number in range(8):  # a quick machine may be done before the signal
        home, result = tmp_path / f"home{number}", tmp_path / f"out{number}"
        argv = edgekit.argv(*asked, "--out", result)
        child = subprocess.Popen(
            argv,
            env=edgekit.environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        deadline = time.monotonic() + 60
        while not (home / "artifacts").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(wait)
        (os.killpg if whole_group else os.kill)(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
        if "interrupted" in out:
            break
        wait /= 2
    assert child.returncode == 130, err
    found = json.loads(out)
    assert found["status"] == "error"
    assert found["exit"] == 130
    assert found["error"]["kind"] == "interrupted"
    assert found["error"]["remedy"] == "The same command goes on from there."
    assert "Traceback" not in err
    assert found["error"]["remedy"] in err
    assert not list(result.glob("*"))
    assert not list(home.glob("artifacts/*/.new-*/**/model.onnx"))
