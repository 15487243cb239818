from __future__ import annotations

import pytest

from edgekit.errors import InputError, UsageError
from edgekit.recipe import Choose, Repeat, StageEntry, list_recipes, load_recipe, parse_recipe

WHOLE = """
title = "everything"
[[stage]]
use = "simplify"
[[repeat]]
rounds = 3
[[repeat.stage]]
use = "prune-channels"
share = 0.1
[[stage]]
use = "fp16"
keep-io = true
[[choose]]
[[choose.option]]
name = "a"
[[choose.option.stage]]
use = "quantize-int8"
[[choose.option]]
[[choose.option.stage]]
use = "fp16"
"""


def parse(text):
    return parse_recipe(text, where="r.toml", name="r")


def test_entries_keep_the_order_of_the_text():
    recipe = parse(WHOLE)
    assert [type(entry) for entry in recipe.entries] == [StageEntry, Repeat, StageEntry, Choose]
    assert recipe.entries[1].rounds == 3
    assert recipe.entries[1].body == (StageEntry(use="prune-channels", options={"share": 0.1}),)
    assert recipe.entries[2].options == {"keep_io": True}
    assert [option.name for option in recipe.entries[3].options] == ["a", "fp16"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title = 'x'", "no stages"),
        ("[[stage]]\nuse = 3", "needs 'use'"),
        ("[[stage]]\n", "needs 'use'"),
        ("[[stagee]]\nuse = 'simplify'", "unknown key 'stagee'"),
        ("[stage]\nuse = 'simplify'", "list of tables"),
        ("stage = [{use = 'simplify'}]", "order"),
        ("[[repeat]]\n[[repeat.stage]]\nuse = 'fp16'", "rounds"),
        ("[[repeat]]\nrounds = true\n[[repeat.stage]]\nuse = 'fp16'", "rounds"),
        ("[[repeat]]\nrounds = 2", "no stages in it"),
        ("[[repeat]]\nrounds = 2\nuntil = 3\n[[repeat.stage]]\nuse = 'fp16'", "unknown key 'until'"),
        ("[[choose]]", "nothing to choose"),
        ("[[stage]\nuse", "not valid TOML"),
    ],
)
def test_a_wrong_recipe_says_what_and_where(text, words):
    with pytest.raises(InputError, match=words) as caught:
        parse(text)
    assert caught.value.where.startswith("r.toml")
    assert caught.value.remedy


def test_unknown_names_get_a_suggestion(tmp_path):
    with pytest.raises(UsageError, match="int8"):
        load_recipe("int")
    with pytest.raises(UsageError, match="no such recipe file"):
        load_recipe(str(tmp_path / "gone.toml"))


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_loads_and_says_what_it_does(name):
    assert len(load_recipe(name).title) > 10


def test_the_shipped_recipes():
    assert {"fp32", "fp16", "int8"} <= set(list_recipes())
