"""Bad and unsafe input through the command line: exit 4, the file and the next step named, nothing written."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from command import ROOT
from onnx_models import linear, save, tensor

CASES = ROOT / "tests" / "cases"


@pytest.fixture
def refused(edgekit, tmp_path):
    """Run a build that must be refused with exit 4; return the error."""

    def run(*arguments):
        out = tmp_path / "out"
        ran = edgekit.build(*arguments, "--out", out)
        assert ran.status == 4, ran
        assert ran.json["error"]["kind"] == "input"
        assert ran.json["error"]["where"]
        assert ran.json["error"]["text"] in ran.err
        assert ran.json["error"]["remedy"] in ran.err
        assert not out.exists()
        return ran.json["error"]

    return run


@pytest.fixture(scope="session")
def pictured(tmp_path_factory):
    """A model of pictures of 32 x 32: the means of red, green and blue as scores."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["m"]),
        helper.make_node("Flatten", ["m"], ["y"]),
    ]
    weight = numpy_helper.from_array(9 * np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1), "w")
    path = tmp_path_factory.mktemp("pictured") / "colors.onnx"
    return save(path, nodes, [tensor("x", ["n", 3, 32, 32])], [tensor("y", ["n", 3])], [weight])


# --- data: the cases C01, C03, C04, C05


def test_c01_float64_is_cast_with_a_note(edgekit, tmp_path):
    case = CASES / "C01_wrong_dtype"
    ran = edgekit.build(case / "model.onnx", "--data", case / "calib_f64", "--out", tmp_path)
    assert ran.status == 0
    assert "float64 cast to float32" in ran.rules["data-dtype-cast"]


def test_c01_uint8_is_refused_with_the_question_that_matters(refused):
    case = CASES / "C01_wrong_dtype"
    error = refused(case / "model.onnx", "--data", case / "calib_u8")
    assert "dtype uint8, model wants float32; say which scaling was used in training" in error["text"]
    assert "000.npz" in error["where"]


def test_c03_nothing_is_refused_and_too_few_are_told(edgekit, refused, tmp_path):
    case = CASES / "C03_empty_one_missing"
    (tmp_path / "empty").mkdir()
    assert "no samples" in refused(case / "model.onnx", "--data", tmp_path / "empty")["text"]
    error = refused(case / "model.onnx", "--data", case / "wrong_name")
    assert "'input'" in error["text"] + error["remedy"]
    assert "'x'" in error["text"] + error["remedy"]
    error = refused(case / "model.onnx", "--data", case / "missing")
    assert "'z'" in error["text"] + error["where"]


@pytest.mark.parametrize(("folder", "count"), [("one", 1), ("calib", 3)])
def test_c03_few_samples_are_a_warning_in_the_result(edgekit, tmp_path, folder, count):
    case = CASES / "C03_empty_one_missing"
    asked = (case / "model.onnx", "--data", case / folder, "--calibration", 128, "--out", tmp_path)
    ran = edgekit.build(*asked)
    assert ran.status == 0
    assert ran.json["status"] == "unproven"
    assert f"asked 128, found {count}" in ran.rules["data-fewer-than-asked"]
    assert "data-few-samples" in ran.rules
    assert "data-few-samples" in (tmp_path / f"{_name(ran)}.html").read_text(encoding="utf-8")


def test_c04_corrupt_images_are_named(edgekit, refused, pictured, tmp_path):
    case = CASES / "C04_corrupt_images"
    bad = json.loads((case / "expect.json").read_text())["bad"]
    error = refused(pictured, "--data", case / "images")
    assert all(name in error["text"] for name in bad)
    assert "3 of 10" in error["text"]

    from PIL import Image

    shutil.copytree(case / "images", tmp_path / "more")
    rng = np.random.default_rng(0)
    for index in range(50):
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).save(tmp_path / "more" / f"good{index}.png")
    ran = edgekit.build(pictured, "--data", tmp_path / "more", "--out", tmp_path / "few")
    assert ran.status == 0
    assert "3 of 60" in ran.rules["data-bad-files"]
    assert all(name in ran.rules["data-bad-files"] for name in bad)
    assert "data-normalization-undeclared" in ran.rules
    strict = refused(pictured, "--data", tmp_path / "more", "--strict")
    assert "strict" in strict["text"]


PEAK = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""
"""Runs a command from a small process, whose own memory does not count as the command's, and tells its peak in KiB."""


def test_c05_an_image_bomb_is_refused_within_little_memory(edgekit, pictured, tmp_path):
    case = CASES / "C05_image_bomb"
    argv = edgekit.argv("build", pictured, "--profile", "raspberry-pi-5", "--data", case / "images", "--json")
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, *argv],
        env=edgekit.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 4
    assert "image too large" in json.loads(ran.stdout)["error"]["text"]
    assert "bomb.png" in ran.stdout
    assert int(ran.stderr.split()[-1]) < 500 * 1024


def test_q10_samples_that_are_not_finite_are_refused_by_name(refused):
    case = CASES / "C01_wrong_dtype"
    error = refused(case / "model.onnx", "--data", CASES / "Q10_nan_in_one_calib_sample" / "calib")
    assert "003.npz" in error["text"]
    assert "005.npz" in error["text"]


def test_data_that_needs_pickle_is_refused(refused, given, tmp_path):
    np.savez(tmp_path / "evil.npz", x=np.array([{"a": 1}], dtype=object))
    refused(given.model, "--data", tmp_path / "evil.npz")


@pytest.mark.parametrize(
    ("shape", "told"), [((30, 9), "9"), ((30, 2, 3, 8), "3"), ((30,), "")], ids=["columns", "axes", "scalars"]
)
def test_data_of_another_shape_is_refused(refused, given, tmp_path, shape, told):
    np.savez(tmp_path / "data.npz", x=np.zeros(shape, np.float32))
    error = refused(given.model, "--data", tmp_path / "data.npz")
    assert "x" in error["text"] + error["where"]
    assert told in error["text"]


# --- models


def _truncated(path):
    linear(path)
    path.write_bytes(path.read_bytes()[:-20])


def _external(location):
    def write(path):
        linear(path)
        model = onnx.load(path)
        weight = model.graph.initializer[0]
        weight.data_location = TensorProto.EXTERNAL
        weight.ClearField("raw_data")
        weight.external_data.add(key="location", value=location)
        path.write_bytes(model.SerializeToString())

    return write


MODELS = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("I am no model\n"),
    "truncated": _truncated,
    "folder": lambda path: path.mkdir(),
    "lacks its weights": _external("weights.bin"),
    "reads what is not its own": _external("../../../../../../etc/hostname"),
    "opset 99": lambda path: shutil.copy(CASES / "G01_ir_too_new" / "opset99.onnx", path),
    "batch baked": lambda path: shutil.copy(CASES / "G05_batch_baked" / "model.onnx", path),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_broken_model_is_refused_by_name(refused, tmp_path, kind):
    path = tmp_path / "broken.onnx"
    MODELS[kind](path)
    error = refused(path, "--recipe", "fp32")
    if kind == "reads what is not its own":
        assert "hostname" in error["text"] + error["where"]
    if kind == "opset 99":
        assert "99" in error["text"]
        assert "maximum supported" in error["text"]
    if kind == "batch baked":
        assert "declared dynamic axis 'batch' does not work for batch=3" in error["text"]
        assert "rs" in error["text"] + error["where"]


def test_a_newer_ir_that_is_not_used_is_lowered_with_a_note(edgekit, tmp_path):
    ran = edgekit.build(CASES / "G01_ir_too_new" / "ir99.onnx", "--recipe", "fp32", "--out", tmp_path)
    assert ran.status == 0
    assert any("99" in text and "maximum supported" in text for text in ran.rules.values())


def test_a_model_that_is_not_there_is_named(refused, tmp_path):
    assert refused(tmp_path / "nosuch.onnx")["where"] == str(tmp_path / "nosuch.onnx")
    refused(tmp_path / "nosuch.pt2")
    refused(tmp_path / "nosuch.edgekit")


def test_a_folder_without_a_model_is_refused_without_reading_it_through(refused, tmp_path):
    """A sparse file that would take hours to read stands for somebody's whole disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(1 << 40)
    assert "config.json" in refused(folder)["text"]


def test_weights_for_a_model_that_has_its_own_are_not_ignored(edgekit, given, tmp_path):
    ran = edgekit.build(given.model, "--weights", tmp_path / "w.safetensors", "--recipe", "fp32", "--out", tmp_path)
    assert ran.status == 2
    assert "weights of its own" in ran.json["error"]["text"]


# --- configuration


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("profil = 'host'", "profile"),
        ("threads = 'two'", "threads"),
        ("= broken", "TOML"),
        ("strict = 1", "strict"),
    ],
)
def test_a_wrong_configuration_names_file_and_key(edgekit, refused, tmp_path, text, told):
    linear(tmp_path / "model.onnx")
    (tmp_path / "edgekit.toml").write_text(text)
    error = refused(tmp_path / "model.onnx")
    assert error["where"] == str(tmp_path / "edgekit.toml")
    assert told in error["text"] + error["remedy"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[stage]]\nuse = 'simplify'\n[[stages]]\nuse = 'x'", "stages"),
        ("title = 'empty'", "no stages"),
        ("[[stage]]\nname = 'simplify'", "use"),
        ("[[", "TOML"),
    ],
)
def test_a_wrong_recipe_names_file_and_key(refused, given, tmp_path, text, told):
    (tmp_path / "mine.toml").write_text(text)
    error = refused(given.model, "--recipe", tmp_path / "mine.toml")
    assert str(tmp_path / "mine.toml") in error["where"]
    assert told in error["text"]


@pytest.mark.parametrize(
    ("stage", "told"),
    [("use = 'simplfy'", "'simplify'"), ("use = 'simplify'\nfast = true", "fast"), ("use = 'fp16'\nkeep = 3", "keep")],
)
def test_an_unknown_stage_or_option_is_a_usage_error(edgekit, given, tmp_path, stage, told):
    (tmp_path / "mine.toml").write_text(f"[[stage]]\n{stage}\n")
    ran = edgekit.build(given.model, "--recipe", tmp_path / "mine.toml", "--data", given.data(), "--out", tmp_path)
    assert ran.status == 2
    assert told in ran.json["error"]["text"] + ran.json["error"]["remedy"]


# --- little room


@pytest.mark.parametrize(("limit", "status"), [(200, 5), (20_000, 2)], ids=["store", "package"])
def test_a_full_disk_is_no_bug_and_leaves_nothing_half(edgekit, given, tmp_path, limit, status):
    """A limit on the size of files stands for a disk that fills up; once there is room, the build ends well."""
    argv = edgekit.argv(
        *("build", given.model, "--profile", "raspberry-pi-5", "--recipe", "fp32", "--data", given.data(count=40)),
        *("--json", "--out", tmp_path / "out"),
    )
    home = tmp_path / "home"

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    done = subprocess.run(
        argv, env=edgekit.environment(home), preexec_fn=limited, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    error = json.loads(done.stdout)["error"]
    assert "cannot be written" in error["text"]
    assert str(home if status == 5 else tmp_path / "out") in error["where"]
    assert not list(tmp_path.glob("out/*"))
    again = subprocess.run(argv, env=edgekit.environment(home), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert not list(home.glob("artifacts/*/.new-*"))


def _name(ran):
    from pathlib import Path

    return Path(ran.json["package"]).stem
