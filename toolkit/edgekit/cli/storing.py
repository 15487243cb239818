"""`edgekit cache`."""

from __future__ import annotations

import re

import click

from edgekit.cli.options import json_option
from edgekit.errors import UsageError

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}


@click.group()
def cache() -> None:
    """The store of artifacts and what was computed before."""


@cache.command()
@json_option
def stats(as_json: bool) -> int:
    """Say what the store holds."""
    from edgekit.cli.printing import console_for_stdout, print_json, rows_table
    from edgekit.housekeeping import count
    from edgekit.report import shown
    from edgekit.store import Store

    with Store() as store:
        found = count(store)
        where = str(store.root)
    if as_json:
        print_json({"root": where, "artifacts": found.artifacts, "records": found.records, "bytes": found.bytes})
        return 0
    rows = [("folder", where), ("artifacts", found.artifacts), ("records", found.records)]
    console_for_stdout().print(rows_table("cache", ("what", "value"), [*rows, ("size", shown(found.bytes, "B"))]))
    return 0


@cache.command()
@click.option("--max-size", metavar="SIZE", help="Keep what was used last, up to this size, e.g. 10GB.")
@click.option("--older", metavar="AGE", help="Remove what was not used for this long, e.g. 30d or 12h.")
@click.option("--all", "everything", is_flag=True, help="Remove everything.")
@json_option
def prune(max_size: str | None, older: str | None, everything: bool, as_json: bool) -> int:
    """Remove artifacts that were not used for a while (without options: 30 days)."""
    from edgekit.budget import parse_size
    from edgekit.cli.printing import console_for_stdout, print_json
    from edgekit.housekeeping import prune as remove_old
    from edgekit.report import shown
    from edgekit.store import Store

    limit = 0 if everything else parse_size(max_size, "max-size") if max_size else None
    age = _seconds(older) if older else (None if limit is not None else 30 * _UNITS["d"])
    with Store() as store:
        removed, freed = remove_old(store, max_bytes=limit, max_age=age)
    if as_json:
        print_json({"removed": removed, "freed_bytes": freed})
    else:
        console_for_stdout().print(f"removed {removed} artifacts, {shown(freed, 'B')}")
    return 0


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([dhms])", text.strip())
    if found is None:
        raise UsageError(f"'{text}' is not an age", where="--older", remedy="For example: 30d, 12h or 90m.")
    return float(found[1]) * _UNITS[found[2]]


COMMANDS = (cache,)
