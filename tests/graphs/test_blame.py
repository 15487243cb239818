from __future__ import annotations

import msgspec
import numpy as np
import pytest

import kinds
import kinds_int4
from contract import onnx_artifact
from edgekit.errors import NeedsDataError
from edgekit.exporter import load_exporter
from edgekit.graphs import half_blame
from edgekit.graphs.blame import COLUMNS
from edgekit.graphs.sensitivity import Checkpoint, Loss, loss_of, measure
from edgekit.numerics.output_distance import OutputDistance
from edgekit.plan import make_stage
from edgekit.profile import load_profile
from edgekit.recipe import parse_recipe
from edgekit.stage import Context, Examined, Inputs
from edgekit.stages.fp16 import Fp16
from edgekit.stages.quantize_int4 import QuantizeInt4
from edgekit.stages.quantize_int8 import QuantizeInt8
from house import calibration_data


class KilledError(Exception):
    """What a test kills a measurement with."""


def surroundings(tmp_path, model, feeds, *, listen=lambda event: None):
    data = calibration_data(feeds)
    profile = load_profile("host")
    artifact = onnx_artifact(model, tmp_path / "in")
    dialect = load_exporter("onnx").dialect(profile)
    inputs = Inputs(
        artifact=artifact, folder=tmp_path / "in", profile=profile, data=data if feeds else None, dialect=dialect
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    return inputs, Context(scratch=scratch, listen=listen)


def chain(bad: str | None = "b"):
    """Three products in a row; the weight of `bad` has one huge element per channel, so that the others round to 0."""
    rng = np.random.default_rng(3)
    weights = {name: rng.standard_normal((32, 32)).astype(np.float32) / 6 for name in "ABC"}
    if bad:
        weights[bad.upper()][0] = 300.0
    nodes = [
        kinds.node("MatMul", ["x", "A"], ["a1"], name="a"),
        kinds.node("Tanh", ["a1"], ["a2"]),
        kinds.node("MatMul", ["a2", "B"], ["b1"], name="b"),
        kinds.node("Tanh", ["b1"], ["b2"]),
        kinds.node("MatMul", ["b2", "C"], ["y"], name="c"),
    ]
    model = kinds.build(nodes, [kinds.value("x", ["n", 32])], [kinds.value("y", ["n", 32])], weights)
    return model, [{"x": kinds.normal(i, 4, 32) * (np.arange(32) > 0)} for i in range(30)]


def test_the_layer_that_loses_the_accuracy_is_blamed(tmp_path):
    model, feeds = chain("a")
    found = QuantizeInt8(mode="static", method="minmax").blame(*surroundings(tmp_path, model, feeds))
    assert found.effects[0].node == "a"
    assert found.effects[0].share > 0.9
    assert found.effects[0].alone < found.effects[1].alone - 20
    assert found.whole == pytest.approx(found.effects[0].alone, abs=1)
    assert found.smallest == 1
    assert found.effects[0].rest > 20 > found.whole
    assert [e.alone for e in found.effects] == sorted(e.alone for e in found.effects)
    assert sum(e.share for e in found.effects) == pytest.approx(1, abs=1e-3)


def test_the_entries_that_it_gives_make_the_model_good(tmp_path):
    model, feeds = chain("a")
    stage = QuantizeInt8(mode="static", method="minmax", floor=-100, aim=20)
    found = stage.blame(*surroundings(tmp_path / "a", model, feeds))
    recipe = parse_recipe(
        f'[[stage]]\nuse = "quantize-int8"\nmode = "static"\nmethod = "minmax"\nfloor = -100\n{found.recipe()}',
        where="r",
        name="r",
    )
    better = make_stage("quantize-int8", recipe.entries[0].options, "r")
    again = better.blame(*surroundings(tmp_path / "b", model, feeds))
    assert again.whole == found.effects[found.smallest - 1].rest
    assert again.smallest == 0
    assert again.recipe() == ""
    assert "nothing must stay float" in again.shown()


@pytest.mark.parametrize("bits", [4, 8])
def test_matrices_in_blocks_are_blamed_as_if_they_were_written(bits, tmp_path):
    model, feeds = kinds.BOUNDED["small transformer"][0]()
    stage = QuantizeInt4(method="awq", bits=bits, block=32, accuracy_level=1)
    inputs, context = surroundings(tmp_path, model, feeds)
    found = stage.blame(inputs, context)
    assert {e.op for e in found.effects} == {"MatMul", "Gather"}
    assert all(e.mode == f"{bits} bits, block-32" for e in found.effects if e.op == "MatMul")
    (tmp_path / "out").mkdir()
    facts = stage.run(inputs, tmp_path / "out", context)
    (output,) = facts["quantization"]["outputs"].values()
    assert found.whole == pytest.approx(output["sqnr_db"], abs=1.5)
    assert found.effects[-1].rest > found.whole


def test_half_precision_is_blamed_node_by_node_and_its_recipe_cures_it(tmp_path):
    model, feeds = kinds.far_and_back()
    found = Fp16(keep=("back",)).blame(*surroundings(tmp_path / "a", model, feeds))
    assert [(e.node, e.op, e.mode) for e in found.effects] == [("far", "Add", "float16"), ("conv", "Conv", "float16")]
    assert found.effects[0].alone < 35
    assert found.effects[1].alone > 50
    assert found.smallest == 1
    recipe = parse_recipe(
        'title = "t"\n[[stage]]\nuse = "fp16"\nkeep = ["back"]\n' + found.recipe(), where="r", name="r"
    )
    again = make_stage("fp16", recipe.entries[0].options, "r").blame(*surroundings(tmp_path / "b", model, feeds))
    assert [e.node for e in again.effects] == ["conv"]
    assert again.smallest == 0
    with pytest.raises(NeedsDataError, match="measured on calibration samples"):
        Fp16().blame(*surroundings(tmp_path / "c", model, []))


def test_of_many_half_nodes_those_that_lose_most_are_measured_alone(tmp_path, monkeypatch):
    model, feeds = kinds.far_and_back()
    every = Fp16().blame(*surroundings(tmp_path / "a", model, feeds))
    monkeypatch.setattr(half_blame, "MOST_ALONE", 1)
    found = Fp16().blame(*surroundings(tmp_path / "b", model, feeds))
    assert [e.node for e in found.effects] == [every.effects[0].node]
    assert found.whole == every.whole
    assert "2 nodes that round more finely" in found.told


def test_a_layer_alone_costs_what_a_model_with_it_alone_costs(tmp_path):
    model, feeds = kinds.BOUNDED["small transformer"][0]()
    found = QuantizeInt4(method="rtn", accuracy_level=1).blame(*surroundings(tmp_path, model, feeds))
    worst = found.effects[0]
    only = QuantizeInt4(
        method="rtn",
        accuracy_level=1,
        skip=tuple(e.node for e in found.effects[1:]),
    ).blame(*surroundings(tmp_path / "only", model, feeds))
    assert [e.node for e in only.effects] == [worst.node]
    assert only.whole == worst.alone == only.effects[0].alone
    assert only.effects[0].rest == 200


def test_a_killed_measurement_goes_on_where_it_was(tmp_path):
    model, feeds = chain()
    stage = QuantizeInt8(mode="static", method="minmax")
    seen = []

    def kill(event):
        if getattr(event, "label", "") == "blame":
            seen.append(event.done)
            if event.done == 2:
                raise KilledError

    with pytest.raises(KilledError):
        stage.blame(*surroundings(tmp_path, model, feeds, listen=kill))
    file = tmp_path / "scratch" / "blame.jsonl"
    kept = file.read_bytes()
    assert len(Checkpoint(file).known) == 2
    file.write_bytes(kept[:-5])
    again = stage.blame(*surroundings(tmp_path, model, feeds))
    assert file.read_bytes().startswith(kept[:-5])
    whole = stage.blame(*surroundings(tmp_path / "whole", model, feeds))
    assert msgspec.to_builtins(again) == msgspec.to_builtins(whole)


def test_only_what_is_not_known_is_measured():
    opened = []

    class NoReference:
        def distances(self, session):
            return {}

    known = Checkpoint(None)
    known.keep("a", Loss(noise=0.5))
    found = measure(["a", "b"], opened.append, NoReference(), known)
    assert opened == ["b"]
    assert {name: loss.noise for name, loss in found.items()} == {"a": 0.5, "b": 0.0}


def distance(reference, found):
    made = OutputDistance()
    made.add(np.asarray(reference), np.asarray(found))
    return made


def test_losses_add_up_over_outputs_and_name_what_broke():
    x = kinds.normal(0, 16, 8)
    close, dead = distance(x, x * 1.1), distance(x, x * (np.arange(8) != 3))
    assert loss_of({"y": close}).noise == pytest.approx(0.01)
    assert loss_of({"y": close, "z": close}).noise == pytest.approx(0.02)
    (fault,) = loss_of({"y": dead}).faults
    assert "column 3 of axis 1" in fault
    assert loss_of({"n": distance([1, 2, 3, 4], [1, 2, 3, 5])}).noise == pytest.approx(0.25)
    broken = loss_of({"y": distance(x, x * np.nan)})
    assert broken.sqnr == -200
    assert "NaN" in broken.faults[0]
    assert loss_of({"y": distance(x, x)}).sqnr == 200


def test_without_data_nothing_can_be_blamed(tmp_path):
    model, _ = chain()
    for stage in (QuantizeInt8(mode="weights"), QuantizeInt4(method="rtn")):
        assert isinstance(stage, Examined)
        with pytest.raises(NeedsDataError, match="what a layer costs is measured on calibration samples"):
            stage.blame(*surroundings(tmp_path, model, []))


def test_tables_have_the_columns(tmp_path):
    model, feeds = kinds_int4.uneven()
    found = QuantizeInt4(method="rtn").blame(*surroundings(tmp_path, model, feeds))
    _, headings, rows = found.table()
    assert headings == COLUMNS
    assert all(len(row) == len(COLUMNS) for row in rows)
