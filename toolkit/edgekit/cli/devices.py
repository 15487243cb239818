"""`edgekit profiles`, `edgekit recipes` and `edgekit doctor`."""

from __future__ import annotations

from typing import Any

import click

from edgekit.cli.options import json_option, quiet_option


@click.group()
def profiles() -> None:
    """Devices as data."""


@profiles.command("list")
@json_option
def list_all(as_json: bool) -> int:
    """List the devices."""
    from edgekit.cli.printing import console_for_stdout, print_json, rows_table
    from edgekit.profile import list_profiles

    rows = list_profiles()
    if as_json:
        print_json([row._asdict() for row in rows])
        return 0
    shown = [(row.name, row.title, row.family) for row in rows if not row.abstract]
    console_for_stdout().print(rows_table("profiles", ("name", "device", "family"), shown))
    return 0


@profiles.command("show")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> int:
    """Show a device's values, the source of each figure, and the file that it comes from."""
    from edgekit.cli.printing import console_for_stdout, print_json, rows_table
    from edgekit.profile import explain_profile

    rows = explain_profile(name)
    if as_json:
        print_json({row.key: {"value": row.value, "source": row.source, "file": row.file} for row in rows})
        return 0
    cells = [(row.key, row.value, row.source, row.file) for row in rows]
    console_for_stdout().print(rows_table(name, ("key", "value", "source", "file"), cells))
    return 0


@profiles.command("calibrate")
@click.argument("name")
@click.option("--target", metavar="URL", help="Where the device is (default: the profile's).")
@click.option(
    "--model", "models", multiple=True, metavar="MODEL", help="Scale by a run of this model, in place of small graphs."
)
@click.option("--out", metavar="FILE", help="The profile to write (default: NAME-calibrated.toml here).")
@quiet_option
@json_option
def calibrate(name: str, quiet: bool, as_json: bool, **options: Any) -> int:
    """Measure a device and write a profile that extends NAME with what it reaches."""
    from edgekit.calibrate import calibrate as run_calibrate
    from edgekit.cli.printing import Teller, console_for_stdout, print_json, rows_table

    with Teller(quiet=quiet or as_json) as teller:
        found = run_calibrate(name, listen=teller.listen, **options)
    if as_json:
        told = {**vars(found), "path": str(found.path)}
        print_json({"status": "pass", "exit": 0, "error": None, **told})
        return 0
    cells = [(graph, f"{ms:.4g} ms", f"{found.ratios[graph] - 1:+.0%}") for graph, ms in found.measured.items()]
    console = console_for_stdout()
    console.print(rows_table(f"{name} on {found.target}", ("graph", "measured", "predicted"), cells))
    console.print(f"90 % interval: x {found.spread:.3g}; written: {found.path}", soft_wrap=True)
    return 0


@click.group()
def recipes() -> None:
    """What a build does."""


@recipes.command("list")
@json_option
def list_recipes(as_json: bool) -> int:
    """List the shipped recipes."""
    from edgekit import recipe
    from edgekit.cli.printing import console_for_stdout, print_json, rows_table

    found = [(name, recipe.load_recipe(name).title) for name in recipe.list_recipes()]
    if as_json:
        print_json([{"name": name, "title": title} for name, title in found])
        return 0
    console_for_stdout().print(rows_table("recipes", ("name", "what it does"), found))
    return 0


@recipes.command("show")
@click.argument("name")
def show_recipe(name: str) -> int:
    """Print a recipe's file: a start for one of your own."""
    from edgekit import recipe

    recipe.load_recipe(name)
    click.echo(recipe.recipe_path(name).read_text(encoding="utf-8"), nl=False)
    return 0


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Say what this machine has for edgekit, and how to get what is missing."""
    from edgekit.cli.printing import console_for_stdout, print_json, rows_table
    from edgekit.doctor import examine

    rows = examine()
    if as_json:
        print_json([{"what": r.what, "state": r.state, "used_for": r.used_for, "remedy": r.remedy} for r in rows])
        return 0
    cells = [(r.what, r.state, r.used_for, r.remedy) for r in rows]
    console_for_stdout().print(rows_table("doctor", ("what", "state", "used for", "how to get it"), cells))
    return 0


COMMANDS = (profiles, recipes, doctor)
