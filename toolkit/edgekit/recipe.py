"""Recipes: ordered stages as TOML, with rounds ([[repeat]]) and alternatives ([[choose]])."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from edgekit.errors import InputError, UsageError, did_you_mean

_HEADER = re.compile(r"^\s*\[\[\s*(stage|repeat|choose)\s*\]\]", re.MULTILINE)


class StageEntry(msgspec.Struct, frozen=True, kw_only=True, tag="stage"):
    """One stage with its options."""

    use: str
    options: dict[str, Any] = {}


class Repeat(msgspec.Struct, frozen=True, kw_only=True, tag="repeat"):
    """A body run up to `rounds` times; each round is judged, the last good one is kept."""

    rounds: int
    body: tuple[StageEntry, ...]


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One alternative of a Choose."""

    name: str
    body: tuple[StageEntry, ...]


class Choose(msgspec.Struct, frozen=True, kw_only=True, tag="choose"):
    """Alternatives, of which the best within the budget is kept."""

    options: tuple[Option, ...]


Entry = StageEntry | Repeat | Choose


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A named, ordered list of entries."""

    name: str
    title: str
    entries: tuple[Entry, ...]


def recipes_folder() -> Path:
    """Return the folder of the shipped recipes."""
    return Path(__file__).parent / "recipes"


def list_recipes() -> list[str]:
    """Return the names of the shipped recipes."""
    return sorted(p.stem for p in recipes_folder().glob("*.toml"))


def recipe_path(name: str) -> Path:
    """Return the file of a shipped recipe, or of any by its path; UsageError when there is none."""
    path = Path(name) if name.endswith(".toml") else recipes_folder() / f"{name}.toml"
    if not path.is_file():
        if name.endswith(".toml"):
            raise UsageError("no such recipe file", where=name, remedy="Give a shipped recipe's name or a .toml file.")
        raise UsageError(f"unknown recipe '{name}'", remedy=did_you_mean(name, list_recipes()))
    return path


def load_recipe(name: str) -> Recipe:
    """Load a shipped recipe by name, or any by the path of its `.toml` file.

    Raises:
        UsageError: no such recipe.
        InputError: the file is not a recipe; names the file and the key.
    """
    path = recipe_path(name)
    return parse_recipe(path.read_text(encoding="utf-8"), where=str(path), name=path.stem)


def parse_recipe(text: str, *, where: str, name: str) -> Recipe:
    """Parse a recipe; tables keep the order in which they stand in the text."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not valid TOML: {error}", where=where, remedy="Correct the line.") from error
    _only(table, {"title", "stage", "repeat", "choose"}, where)
    groups = {key: _tables(table.get(key, []), where, key) for key in ("stage", "repeat", "choose")}
    order = _HEADER.findall(text)
    if any(order.count(key) != len(rows) for key, rows in groups.items()):
        raise InputError(
            "the order of the stages is unclear",
            where=where,
            remedy="Write each entry as a [[stage]], [[repeat]] or [[choose]] table.",
        )
    parse: dict[str, Callable[[dict[str, Any], str], Entry]] = {"stage": _stage, "repeat": _repeat, "choose": _choose}
    rows = {key: iter(tables) for key, tables in groups.items()}
    entries = tuple(parse[key](next(rows[key]), f"{where}: {key} {i}") for i, key in enumerate(order, 1))
    if not entries:
        raise InputError("the recipe has no stages", where=where, remedy="Add a [[stage]] table.")
    return Recipe(name=name, title=str(table.get("title", name)), entries=entries)


def _stage(table: dict[str, Any], where: str) -> StageEntry:
    use = table.get("use")
    if not isinstance(use, str):
        raise InputError("a stage needs 'use'", where=where, remedy='For example: use = "simplify"')
    return StageEntry(use=use, options={k.replace("-", "_"): v for k, v in table.items() if k != "use"})


def _body(table: dict[str, Any], where: str) -> tuple[StageEntry, ...]:
    rows = _tables(table.get("stage", []), where, "stage")
    if not rows:
        raise InputError("there are no stages in it", where=where, remedy="Add a stage table below it.")
    return tuple(_stage(row, f"{where}: stage {i}") for i, row in enumerate(rows, 1))


def _repeat(table: dict[str, Any], where: str) -> Repeat:
    _only(table, {"rounds", "stage"}, where)
    rounds = table.get("rounds")
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        raise InputError("'rounds' must be a whole number of at least 1", where=where, remedy="For example: rounds = 5")
    return Repeat(rounds=rounds, body=_body(table, where))


def _choose(table: dict[str, Any], where: str) -> Choose:
    _only(table, {"option"}, where)
    options = []
    for i, row in enumerate(_tables(table.get("option", []), where, "option"), 1):
        place = f"{where}: option {i}"
        _only(row, {"name", "stage"}, place)
        body = _body(row, place)
        options.append(Option(name=str(row.get("name", "+".join(s.use for s in body))), body=body))
    if not options:
        raise InputError("there is nothing to choose from", where=where, remedy="Add [[choose.option]] tables.")
    return Choose(options=tuple(options))


def _tables(value: Any, where: str, key: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise InputError(f"'{key}' must be a list of tables", where=where, remedy=f"Write [[{key}]].")
    return value


def _only(table: dict[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"unknown key '{key}'", where=where, remedy=did_you_mean(key, sorted(known)))
