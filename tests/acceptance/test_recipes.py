"""Recipes with choices and rounds, run with real stages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import helper, numpy_helper

from onnx_models import samples_of, save, tensor

WIDTH = 640


@pytest.fixture(scope="session")
def wide(tmp_path_factory):
    """A network of three layers, large enough that its weights decide its time, and its data."""
    folder = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(0)
    sizes = [WIDTH, WIDTH, WIDTH, 5]
    nodes, weights, last = [], [], "x"
    for index, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weight = rng.normal(size=(rows, columns), scale=rows**-0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{index}"], [f"h{index}"], name=f"layer{index}"))
        last = f"h{index}"
        if columns == WIDTH:
            nodes.append(helper.make_node("Relu", [last], [f"r{index}"], name=f"relu{index}"))
            last = f"r{index}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    model = save(folder / "wide.onnx", nodes, [tensor("x", ["n", WIDTH])], [tensor("y", ["n", 5])], weights)
    samples_of(model, folder / "data.npz", count=700)
    return model


def asked(wide, out):
    return wide, "--data", wide.parent / "data.npz", "--out", out


def fact(ran, name):
    (found,) = [stage["facts"] for stage in ran.json["stages"] if stage["name"] == name]
    return found


def test_auto_takes_the_fastest_that_keeps_the_budget(edgekit, wide, tmp_path):
    ran = edgekit.build(*asked(wide, tmp_path), "--recipe", "auto", "--max-drop", "5%")
    assert ran.status == 0, ran.err
    chosen = fact(ran, "choose")
    scores = chosen["scores"]
    assert set(scores) == {"int8", "fp16", "fp32"}
    assert chosen["chosen"] == "int8"
    assert scores["int8"]["latency_ms"] == min(score["latency_ms"] for score in scores.values())
    assert scores["int8"]["size"] < scores["fp16"]["size"] < scores["fp32"]["size"]
    assert ran.json["coverage"]["precision"] == "w8a8"
    assert ran.check("size")["value"] == pytest.approx(scores["int8"]["size"], rel=0.05)


def test_auto_gives_up_speed_for_the_budget(edgekit, wide, tmp_path):
    """A drop above the budget on few samples rules nothing out; unproven on the evaluation data too, it gives way."""
    metric = ("--metric", "cosine", "--no-package")
    free = fact(edgekit.build(*asked(wide, tmp_path), "--recipe", "auto", *metric), "choose")
    assert free["chosen"] == "int8"
    lost = {name: score["drop"] for name, score in free["scores"].items()}
    assert lost["int8"] > lost["fp16"] >= 0
    limit = (lost["int8"] + lost["fp16"]) / 2
    ran = edgekit.build(*asked(wide, tmp_path), "--recipe", "auto", "--max-drop", f"{100 * limit}%", *metric)
    first, second = [stage["facts"] for stage in ran.json["stages"] if stage["name"] == "choose"]
    low, high = first["scores"]["int8"]["drop_bounds"]
    assert low < limit < high
    assert (first["chosen"], first["scores"]["int8"]["doubtful"]) == ("int8", True)
    assert "may be chance" in first["why"]
    assert second["chosen"] == "fp16"
    assert ran.json["coverage"]["precision"] == "fp16"
    assert "next-alternative" in {finding["rule"] for finding in ran.json["findings"]}


def test_auto_leaves_out_what_the_device_does_not_run(edgekit, wide, tmp_path):
    """QCS6490 has no fp16, and says so in what was refused; every option that remains is tried."""
    ran = edgekit.build(*asked(wide, tmp_path), "--recipe", "auto", "--no-package", profile="qcs6490")
    assert ran.status == 0, ran.err
    chosen = fact(ran, "choose")
    assert "fp16" not in chosen["scores"]
    assert "does not run fp16" in chosen["refused"]["fp16"]
    assert set(chosen["scores"]) >= {"int8", "w8a16", "w4a16"}
    alike = [score for score in chosen["scores"].values() if score["within"]]
    assert chosen["scores"][chosen["chosen"]]["size"] == min(score["size"] for score in alike), "as fast, and smaller"


ROUNDS = """
[[stage]]
use = "simplify"

[[repeat]]
rounds = 3
[[repeat.stage]]
use = "{stage}"
"""


def test_rounds_end_when_nothing_changes(edgekit, wide, tmp_path):
    (tmp_path / "rounds.toml").write_text(ROUNDS.format(stage="simplify"))
    ran = edgekit.build(*asked(wide, tmp_path), "--recipe", tmp_path / "rounds.toml")
    assert ran.status == 0, ran.err
    rounds = [stage["facts"] for stage in ran.json["stages"] if stage["name"] == "repeat"]
    assert rounds[-1]["why"] == "nothing changed: the rounds end"
    assert len(rounds) < 3


def test_a_round_that_makes_the_model_slower_is_undone(edgekit, given, tmp_path):
    """Quantizing eight weights costs more time than it saves, so the float model of the round before is kept."""
    (tmp_path / "rounds.toml").write_text(ROUNDS.format(stage="quantize-int8"))
    ran = edgekit.build(given.model, "--data", given.data(), "--recipe", tmp_path / "rounds.toml", "--out", tmp_path)
    assert ran.status == 0, ran.err
    (only,) = [stage["facts"] for stage in ran.json["stages"] if stage["name"] == "repeat"]
    assert only["kept"] is False
    assert ran.check("agreement")["value"] == 1.0
    assert ran.check("size")["value"] < given.model.stat().st_size + 50
    assert ran.json["coverage"] == {}


def test_a_choice_of_which_nothing_can_be_built_says_why(edgekit, given, tmp_path):
    (tmp_path / "none.toml").write_text(
        '[[choose]]\n[[choose.option]]\nname = "only"\n[[choose.option.stage]]\nuse = "fp16"\n'
    )
    ran = edgekit.build(given.model, "--recipe", tmp_path / "none.toml", "--out", tmp_path, profile="qcs6490")
    assert ran.status == 7
    assert "only: " in ran.json["error"]["text"]
    assert "does not run fp16" in ran.json["error"]["text"]
