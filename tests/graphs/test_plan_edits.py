from __future__ import annotations

import pytest

import kinds
import kinds_int4
from contract import run_stage
from edgekit.errors import NeedsDataError, UsageError
from edgekit.exporter import load_exporter
from edgekit.graphs.decisions import load_plan
from edgekit.graphs.plan_edits import Int8Edit, apply_edits
from edgekit.plan import make_stage
from edgekit.profile import load_profile
from edgekit.recipe import parse_recipe
from house import calibration_data


def stage_of(text, use="quantize-int8"):
    """The stage that a recipe's text makes."""
    recipe = parse_recipe(f'[[stage]]\nuse = "{use}"\n{text}', where="test.toml", name="test")
    return make_stage(recipe.entries[0].use, recipe.entries[0].options, "test.toml")


def quantized(tmp_path, stage, kind, *, runtime="onnx", data=True):
    model, feeds = kind
    given = calibration_data(feeds)
    dialect = load_exporter(runtime).dialect(load_profile({"onnx": "host", "tensorrt": "jetson"}[runtime]))
    facts, made = run_stage(stage, model, tmp_path, data=given if data else None, dialect=dialect)
    return facts, made, {d.node: d for d in load_plan(tmp_path / "out1").decisions if d.what == "weight"}


def entry(match, **wish):
    lines = [f'match = "{match}"'] + [f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in wish.items()]
    return "[[stage.plan]]\n" + "\n".join(lines) + "\n"


def test_of_several_entries_the_last_that_matches_counts():
    edits = [Int8Edit(match="Conv", mode="float"), Int8Edit(match="*1", mode="static")]
    found = apply_edits(edits, {"c1": "Conv", "c2": "Conv", "m1": "MatMul"}, stage="s")
    assert {name: edit.mode for name, edit in found.items()} == {"c1": "static", "c2": "float", "m1": "static"}


def test_a_name_with_brackets_matches_itself():
    edits = [Int8Edit(match="a[0]", mode="float")]
    assert set(apply_edits(edits, {"a[0]": "Conv", "a0": "Conv"}, stage="s")) == {"a[0]", "a0"}


def test_modes_follow_the_recipe_and_say_so(tmp_path):
    stage = stage_of(entry("Conv", mode="weights") + entry("stem", mode="float") + entry("project", mode="static"))
    facts, made, plan = quantized(tmp_path, stage, kinds.residual_cnn())
    assert {name: d.mode for name, d in plan.items()} == {
        "stem": "float",
        "depthwise": "weights",
        "project": "static",
        "head": "static",
    }
    assert plan["stem"].why == "left float: the plan of the recipe names it ('stem')"
    assert "the plan of the recipe names it ('project')" in plan["project"].why
    assert "the plan of the recipe names it ('Conv')" in plan["depthwise"].why
    assert plan["head"].why == "weight per-channel int8"
    stem = next(n for n in made.graph.node if n.name == "stem")
    assert "W1" in stem.input
    assert set(facts["coverage"]["left_float"]) == {"stem", "depthwise"}


def test_what_runs_between_integer_nodes_can_be_left_float(tmp_path):
    _, made, _ = quantized(tmp_path, stage_of(entry("MaxPool", mode="float")), kinds.residual_cnn())
    makers = {name: n for n in made.graph.node for name in n.output}
    pool = next(n for n in made.graph.node if n.op_type == "MaxPool")
    assert makers["m"] is pool or makers["m"].op_type == "MaxPool"
    assert not any(n.op_type == "QuantizeLinear" and n.input[0] == "m_float" for n in made.graph.node)
    told = load_plan(tmp_path / "out1").decisions
    (why,) = [d.why for d in told if d.node == pool.name and d.what == "activation"]
    assert why == "left float: the plan of the recipe names it ('MaxPool')"


def test_a_node_that_the_recipe_names_is_not_lowered_by_the_search(tmp_path):
    kind = kinds.residual_cnn()
    _, _, before = quantized(tmp_path / "free", stage_of("floor = 60\naim = 60"), kind)
    assert {d.mode for d in before.values()} & {"weights", "float"}
    lowered = next(name for name, d in before.items() if d.mode != "static")
    text = "floor = 60\naim = 60\n" + entry(lowered, mode="static")
    _, _, after = quantized(tmp_path / "kept", stage_of(text), kind)
    assert after[lowered].mode == "static"


def test_skip_is_short_for_entries_before_the_others(tmp_path):
    stage = stage_of('skip = ["Conv"]\n' + entry("stem", mode="w8a8"))
    _, _, plan = quantized(tmp_path, stage, kinds.residual_cnn())
    assert {name for name, d in plan.items() if d.mode == "float"} == {"depthwise", "project"}
    assert plan["project"].why == "left float: the option skip names it ('Conv')"


@pytest.mark.parametrize("mode", ["dynamic", "static", "w8a8"])
def test_products_can_be_named_in_a_graph_of_weights(mode, tmp_path):
    text = 'mode = "weights"\n' + entry("q_node", mode=mode)
    _, made, plan = quantized(tmp_path, stage_of(text), kinds.BOUNDED["small transformer"][0]())
    assert plan["q_node"].mode == {"w8a8": "static"}.get(mode, mode)
    assert {d.mode for name, d in plan.items() if name != "q_node"} == {"weights"}
    assert any(n.op_type == "MatMulInteger" for n in made.graph.node) == (mode == "dynamic")


@pytest.mark.parametrize(
    ("text", "match", "remedy"),
    [
        (entry("Cnov", mode="float"), "'Cnov' matches no node", "'Conv'"),
        (entry("haed", mode="float"), "'haed' matches no node", "'head'"),
        ('skip = ["nothing-like-it"]', "matches no node", "Known: "),
        (entry("Flatten", mode="static"), "Flatten has no int8 kernel in the ort-cpu dialect", "another mode"),
        (entry("MaxPool", mode="weights"), "it has no weights", "another mode"),
        (entry("stem", mode="dynamic"), "only MatMul and Gemm", "another mode"),
    ],
)
def test_an_entry_that_does_nothing_is_refused(text, match, remedy, tmp_path):
    with pytest.raises(UsageError, match=match) as caught:
        quantized(tmp_path, stage_of(text), kinds.residual_cnn())
    assert remedy in caught.value.remedy
    assert caught.value.where == "quantize-int8, plan or skip"


def test_a_misspelled_name_is_told_before_data_is_asked_for(tmp_path):
    with pytest.raises(UsageError, match="'haed' matches no node"):
        quantized(tmp_path / "a", stage_of(entry("haed", mode="float")), kinds.residual_cnn(), data=False)
    text = 'mode = "weights"\n' + entry("head", mode="static")
    with pytest.raises(NeedsDataError, match="calibration samples"):
        quantized(tmp_path / "b", stage_of(text), kinds.residual_cnn(), data=False)


@pytest.mark.parametrize("text", ['match = "x"\nmode = "flaot"', 'match = "x"', 'match = "x"\nmode = "float"\nbit = 4'])
@pytest.mark.parametrize("use", ["quantize-int8", "quantize-int4"])
def test_an_entry_has_known_keys_and_words(text, use):
    if use == "quantize-int4" and "mode" not in text:
        text += '\nbits = "four"'
    with pytest.raises(UsageError, match=use):
        stage_of(f"[[stage.plan]]\n{text}", use)


def test_one_glob_may_fit_some_nodes_and_not_others(tmp_path):
    stage = stage_of(entry("*", mode="static"))
    _, _, plan = quantized(tmp_path, stage, kinds.BOUNDED["small transformer"][0]())
    assert plan["q_node"].mode == "static"
    assert plan["x_node"].mode == "weights"
    assert "but Gather has no int8 kernel" in plan["x_node"].why


def test_bits_and_blocks_of_single_matrices(tmp_path):
    text = 'method = "rtn"\n' + entry("MatMul", bits=8) + entry("f_node", block=16) + entry("q_node", mode="float")
    _, made, plan = quantized(tmp_path, stage_of(text, "quantize-int4"), kinds.BOUNDED["small transformer"][0]())
    assert (plan["k_node"].bits, plan["k_node"].granularity) == (8, "block-32")
    assert (plan["f_node"].bits, plan["f_node"].granularity) == (4, "block-16")
    assert plan["q_node"].why == "left float: the plan of the recipe names it ('q_node')"
    assert "the plan of the recipe names it ('f_node')" in plan["f_node"].why
    blocks = {n.name: a.i for n in made.graph.node for a in n.attribute if a.name == "block_size"}
    assert (blocks["f_node"], blocks["k_node"]) == (16, 32)
    assert next(n for n in made.graph.node if n.name == "q_node").op_type == "MatMul"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (entry("left1", block=24), "block size 24 is not supported"),
        (entry("left1", bits=5), "bits 5 is not supported"),
        (entry("lfet1", bits=8), "'lfet1' matches no node"),
        (entry("*", mode="float"), "nothing in the model can be stored in 4 bits"),
    ],
)
def test_entries_that_int4_cannot_follow_are_refused(text, match, tmp_path):
    with pytest.raises(Exception, match=match) as caught:
        quantized(tmp_path, stage_of(text, "quantize-int4"), kinds_int4.uneven())
    assert caught.value.remedy


def test_a_matrix_of_several_readers_follows_the_one_that_keeps_it_float(tmp_path):
    stage = stage_of('method = "rtn"\n' + entry("y_node", mode="float") + entry("x_node", bits=8), "quantize-int4")
    with pytest.raises(UsageError, match="also read by 'y_node', where the plan of the recipe names it"):
        quantized(tmp_path, stage, kinds.shared_weight())
