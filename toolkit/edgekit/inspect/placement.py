"""Which unit of a device each node would run on, as sums and as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from edgekit.exporter import Placed

_ROWS = 40


def sums(placed: Sequence[Placed], cost: dict[str, Any] | None) -> dict[str, Any]:
    """Return where each node would run, with its MACs (null when they are not known), and the sums per unit."""
    macs: Counter[str] = Counter()
    for row in cost["rows"] if cost else ():
        macs[row["node"]] += row["macs"]
    nodes = [{**asdict(one), "macs": macs[one.node] if cost else None} for one in placed]
    units: dict[str, dict[str, Any]] = {}
    for node in nodes:
        unit = units.setdefault(node["on"], {"nodes": 0, "macs": 0 if cost else None, "share": None})
        unit["nodes"] += 1
        if cost:
            unit["macs"] += node["macs"]
    total = sum(unit["macs"] or 0 for unit in units.values())
    for unit in units.values():
        unit["share"] = unit["macs"] / total if total else None
    return {"units": units, "nodes": nodes}


def tables(placement: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]]:
    """Yield the tables of what `sums` returned: title, columns, rows."""
    rows = [(unit, str(found["nodes"]), _share(found["share"])) for unit, found in sorted(placement["units"].items())]
    yield "placement", ("on", "nodes", "share of MACs"), rows
    most = max(placement["units"], key=lambda unit: placement["units"][unit]["nodes"], default="")
    others = [node for node in placement["nodes"] if node["on"] != most]
    if others:
        shown = [(node["node"], node["op"], node["on"], node["why"]) for node in others[:_ROWS]]
        yield f"nodes not on the {most}", ("node", "operator", "on", "why"), shown


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
