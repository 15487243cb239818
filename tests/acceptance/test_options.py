"""Options, configuration and what comes after a build, through the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgekit.package import read_package

PI = ("--profile", "raspberry-pi-5")


def test_a_dry_run_tells_the_plan_and_runs_nothing(edgekit, given, tmp_path):
    home = tmp_path / "home"
    asked = (given.model, "--data", given.data(), "--out", tmp_path / "out", "--dry-run")
    ran = edgekit.build(*asked, "--recipe", "auto", home=home)
    assert ran.status == 0
    assert ran.json["status"] == "unproven"
    assert ran.json["package"] is None
    told = "\n".join(stage["facts"]["plan"] for stage in ran.json["stages"])
    assert told.index("simplify") < told.index("int8: equalize") < told.index("fp16: fp16")
    assert not (tmp_path / "out").exists()
    text = edgekit("build", *asked, *PI, home=home)
    assert text.status == 0
    assert "quantize-int8" in text.out
    assert edgekit.build(*asked, "--recipe", "fp17", home=home).status == 2
    refused = edgekit("build", *asked, "--profile", "qcs6490", "--recipe", "fp16", "--json", home=home)
    assert refused.status == 7, "a dry run checks everything that can be checked before"
    stages = [path for path in home.glob("artifacts/??/*/manifest.json") if b'"quantize-int8"' in path.read_bytes()]
    assert stages == []


def test_no_package_judges_and_writes_nothing(edgekit, given, package, tmp_path):
    ran = edgekit.build(given.model, "--data", given.data(), "--no-package", "--out", tmp_path / "out")
    assert ran.status == 0
    assert ran.json["status"] == "pass"
    assert ran.json["package"] is None
    assert ran.check("drop")["value"] is not None
    assert not (tmp_path / "out").exists()
    again = edgekit("package", ran.json["artifact"][:10], "--out", tmp_path / "out", "--json")
    assert again.status == 0
    assert Path(again.json["package"]).is_file()


def test_edgekit_toml_beside_the_model_and_flags_win(edgekit, given, tmp_path):
    shutil.copy(given.model, tmp_path / "model.onnx")
    shutil.copy(given.data(), tmp_path / "data.npz")
    (tmp_path / "edgekit.toml").write_text(
        'profile = "raspberry-pi-5"\ndata = "data.npz"\nout = "packages"\nmax-drop = "1%"\nmax-size = "100B"\n'
        "calibration = 256\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ran = edgekit("build", tmp_path / "model.onnx", "--json", cwd=elsewhere)
    assert ran.status == 3, "the file's budget holds"
    assert ran.check("size")["budget"] == 100
    ran = edgekit("build", tmp_path / "model.onnx", "--json", "--max-size", "1MB", cwd=elsewhere)
    assert ran.status == 0, "the flag wins"
    assert ran.check("drop")["budget"] == 0.01, "the rest of the file still holds"
    assert ran.json["package"] == str(tmp_path / "packages" / "model-raspberry-pi-5.edgekit"), "paths go by the file"
    shutil.move(tmp_path / "edgekit.toml", elsewhere / "other.toml")
    (elsewhere / "other.toml").write_text((elsewhere / "other.toml").read_text().replace('"data', '"../data'))
    ran = edgekit("build", tmp_path / "model.onnx", "--json", "--config", elsewhere / "other.toml", cwd=tmp_path)
    assert ran.status == 3


def test_metrics_of_ones_own_decide(edgekit, given, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def margin(outputs, labels):\n"
        "    scores = outputs['y'][range(len(labels)), labels] - outputs['y'].mean(axis=1)\n"
        "    return float(scores.mean()), scores\n"
        "margin.higher_is_better = True\n"
        "def ruined(outputs, labels):\n"
        "    ruined.calls = getattr(ruined, 'calls', 0) + 1\n"
        "    return 1.0 if ruined.calls == 1 else 0.25\n"
        "ruined.higher_is_better = True\n"
        "ruined.bounded = True\n"
        "def silent(outputs, labels):\n    return 1.0\n"
    )
    asked = (given.model, "--data", given.data(), "--max-drop", "3%", "--out", tmp_path / "out")
    ran = edgekit.build(*asked, "--metric", "python:mine:margin", cwd=tmp_path)
    assert ran.status == 0, ran.err
    own = ran.check("python:mine:margin")
    assert own["value"] > 0
    assert own["unit"] == ""
    drop = ran.check("drop")
    assert drop["status"] == "pass"
    assert drop["low"] < drop["value"] < drop["high"]
    undeclared = edgekit.build(*asked, "--metric", "python:mine:silent", cwd=tmp_path)
    assert undeclared.status == 2
    assert "higher_is_better" in undeclared.json["error"]["remedy"]


def test_a_label_map_gives_the_package_its_words(edgekit, given, package, tmp_path):
    (tmp_path / "labels.txt").write_text("Katze\nHund\nEule\n", encoding="utf-8")
    asked = (given.model, "--data", given.data(), "--out", tmp_path / "out")
    ran = edgekit.build(*asked, "--label-map", tmp_path / "labels.txt")
    assert ran.status == 0, ran.err
    assert read_package(Path(ran.json["package"])).manifest.labels == ("Katze", "Hund", "Eule")
    with np.load(given.data()) as file:
        np.savez(tmp_path / "one.npz", x=file["x"][:1])
    said = edgekit("run", ran.json["package"], tmp_path / "one.npz", "--json")
    assert said.status == 0, said.err
    (sample,) = said.json["samples"]
    assert {row["label"] for row in sample["labels"]} == {"Katze", "Hund", "Eule"}
    assert sum(row["probability"] for row in sample["labels"]) == pytest.approx(1)
    (tmp_path / "twice.txt").write_text("Katze\nKatze\n", encoding="utf-8")
    refused = edgekit.build(*asked, "--label-map", tmp_path / "twice.txt")
    assert refused.status == 4
    assert refused.json["error"]["where"] == str(tmp_path / "twice.txt")


def test_data_and_preprocessing_lie_beside_each_other(edgekit, tmp_path):
    """A folder of images by class with its preprocessing: recorded in the package, and redone by `run`."""
    from onnx import helper, numpy_helper
    from PIL import Image

    from onnx_models import save, tensor

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["m"]),
        helper.make_node("Flatten", ["m"], ["y"]),
    ]
    weight = numpy_helper.from_array(9 * np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1), "w")
    model = save(tmp_path / "colors.onnx", nodes, [tensor("x", ["n", 3, 8, 8])], [tensor("y", ["n", 3])], [weight])
    rng = np.random.default_rng(0)
    for channel, name in enumerate(("blue", "green", "red")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(40):
            pixels = rng.integers(0, 120, (12, 12, 3))
            pixels[..., 2 - channel] += 120
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "data" / name / f"{index}.png")
    (tmp_path / "data" / "preprocessing.toml").write_text(
        'kind = "image"\nresize = [8, 8]\nscale = "1/255"\nmean = 0.5\nstd = 0.25\nlayout = "NCHW"\n'
        'labels = ["red", "green", "blue"]\n'
    )
    ran = edgekit.build(model, "--data", tmp_path / "data", "--max-drop", "10%", "--out", tmp_path / "out")
    assert ran.status == 0, ran.err
    assert ran.check("accuracy-original")["value"] == 1.0, "classes go by their names, not by the order of folders"
    assert "data-normalization-undeclared" not in ran.rules
    manifest = read_package(Path(ran.json["package"])).manifest
    assert manifest.preprocessing["inputs"]["x"]["std"] in (0.25, [0.25], [0.25, 0.25, 0.25])
    said = edgekit(
        "run", ran.json["package"], *(tmp_path / "data" / name / "0.png" for name in ("red", "blue")), "--json"
    )
    assert [sample["labels"][0]["label"] for sample in said.json["samples"]] == ["red", "blue"]


def test_a_signed_package_is_verified_with_its_key_only(edgekit, given, package, tmp_path):
    built = edgekit.build(given.model, "--data", given.data(), "--no-package")
    for name in ("mine", "other"):
        assert edgekit("keygen", tmp_path / name).status == 0
    signed = edgekit("package", built.json["artifact"], "--sign", tmp_path / "mine", "--out", tmp_path, "--json")
    assert signed.status == 0
    path = signed.json["package"]
    verified = edgekit("verify", path, "--key", tmp_path / "mine.pub", "--json")
    assert verified.status == 0
    assert verified.json["signature"]["status"] == "trusted"
    assert [check["status"] for check in verified.json["golden"]] == ["pass"]
    wrong = edgekit("verify", path, "--key", tmp_path / "other.pub", "--json")
    assert wrong.status == 6
    assert wrong.json["error"]["kind"] == "integrity"
    unsigned = edgekit("verify", package, "--key", tmp_path / "mine.pub", "--json")
    assert unsigned.status == 6
    assert "not signed" in unsigned.json["error"]["text"]
    assert edgekit("verify", package, "--json").json["signature"]["status"] == "unsigned"
    also = edgekit.build(given.model, "--data", given.data(), "--sign", tmp_path / "mine", "--out", tmp_path / "built")
    assert edgekit("verify", also.json["package"], "--key", tmp_path / "mine.pub", "--no-golden").status == 0
    assert (tmp_path / "mine").stat().st_mode & 0o077 == 0
    assert edgekit("keygen", tmp_path / "mine").status != 0, "a key is never overwritten"


def test_a_package_that_missed_its_budget_cannot_be_packed_later(edgekit, given, package, tmp_path):
    missed = edgekit.build(given.model, "--data", given.data(), "--max-size", "10B")
    assert missed.status == 3
    later = edgekit("package", missed.json["artifact"], "--out", tmp_path / "out", "--json")
    assert later.status == 3
    assert later.json["error"]["kind"] == "budget"
    assert "size" in later.json["error"]["text"]
    assert not (tmp_path / "out").exists()
    kept = edgekit.build(given.model, "--data", given.data(), "--out", tmp_path / "ok")
    assert kept.status == 0
    assert edgekit("package", kept.json["artifact"], "--out", tmp_path / "out", "--json").status == 0


def test_run_gives_what_onnxruntime_gives_for_the_packaged_model(edgekit, given, package, tmp_path):
    import onnxruntime

    from edgekit.package import extract_package

    with np.load(given.data()) as file:
        x = file["x"][:1]
    np.savez(tmp_path / "one.npz", x=x)
    ran = edgekit("run", package, tmp_path / "one.npz", "--out", tmp_path / "raw.npz", "--json")
    assert ran.status == 0, ran.err
    extracted = extract_package(package, tmp_path / "extracted")
    (wanted,) = onnxruntime.InferenceSession(extracted.model).run(["y"], {"x": x})
    with np.load(tmp_path / "raw.npz") as raw:
        np.testing.assert_allclose(raw["y"], wanted, rtol=1e-5, atol=1e-6)
    wrong = edgekit("run", package, given.model, "--json")
    assert wrong.status == 4
    assert str(given.model) in wrong.json["error"]["where"] + wrong.json["error"]["text"]


def test_a_package_is_a_model_again(edgekit, given, package, tmp_path):
    """Its model is taken; it is quantized already, so a recipe that quantizes refuses it by name."""
    ran = edgekit.build(package, "--recipe", "fp32", "--data", given.data(), "--out", tmp_path)
    assert ran.status == 0, ran.err
    again = edgekit.build(package, "--recipe", "int8", "--data", given.data(), "--out", tmp_path)
    assert again.status == 4
    assert "already quantized" in again.json["error"]["text"]


@pytest.mark.parametrize(
    "command", [["profiles", "list"], ["recipes", "list"], ["doctor"], ["cache", "stats"]], ids=" ".join
)
def test_json_everywhere_is_one_value(edgekit, command):
    ran = edgekit(*command, "--json")
    assert ran.status == 0
    assert json.loads(ran.out)
    assert ran.err == ""


def test_inspect_and_predict_tell_the_model(edgekit, given):
    told = edgekit("inspect", given.model, "--profile", "jetson", "--json")
    assert told.status == 0, told.err
    assert "MatMul" in told.out
    predicted = edgekit("predict", given.model, "--profile", "jetson", "--shape", "x=1x8", "--json")
    assert predicted.status == 0, predicted.err
    (figure,) = [figure for figure in predicted.json["figures"] if figure["name"] == "latency-p50"]
    assert figure["low"] < figure["value"] < figure["high"]


def test_inspect_tells_decisions_and_blame(edgekit, given):
    asked = (given.model, *PI, "--recipe", "int8-fast", "--data", given.data())
    told = edgekit("inspect", *asked, "--plan", "--blame", "--json")
    assert told.status == 0, told.err
    (table,) = told.json["decisions"]
    assert {row["what"] for row in table["decisions"]} >= {"weight"}
    (blame,) = told.json["blame"]
    assert blame["effects"][0]["alone"] >= blame["whole"] - 1
    shown = edgekit("inspect", *asked, "--plan", "--blame")
    assert table["decisions"][0]["tensor"] in shown.out
    assert "share of noise" in shown.out
    assert "% of weights" in shown.out


def test_a_recipe_that_names_no_node_is_refused_with_a_hint(edgekit, given, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[[stage]]\nuse = "quantize-int8"\n[[stage.plan]]\nmatch = "MatMull"\nmode = "float"\n')
    ran = edgekit.build(given.model, "--data", given.data(), "--recipe", recipe)
    assert ran.status == 2
    assert "MatMull" in ran.json["error"]["text"]
    assert "MatMul" in ran.json["error"]["remedy"]


def test_pruning_everything_makes_the_next_build_start_anew(edgekit, given, tmp_path):
    home = tmp_path / "home"
    asked = (given.model, "--recipe", "fp32", "--no-package")
    assert edgekit.build(*asked, home=home).status == 0
    assert edgekit("cache", "stats", "--json", home=home).json["artifacts"] > 0
    pruned = edgekit("cache", "prune", "--all", "--json", home=home)
    assert pruned.json["removed"] > 0
    assert edgekit("cache", "stats", "--json", home=home).json["artifacts"] == 0
    again = edgekit.build(*asked, home=home)
    assert again.status == 0
    assert not any(again.cached.values())
