"""What `inspect` found, as JSON values and as the tables that a user wants to see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from edgekit.events import Finding
from edgekit.graphs.blame import Blame
from edgekit.inspect import placement
from edgekit.inspect.decide import Decided

Table = tuple[str, Sequence[str], Sequence[Sequence[Any]]]
"""Title, headings and rows."""

_ROWS = 40
"""Nodes that the table of costs shows: those with the most MACs."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is known of a model.

    Attributes:
        told: as `inspect_model` gives it.
        plan: the stages of a build, one line each.
        decisions: what they decide for every tensor, one table per stage that changes precision.
        blame: what every layer costs, one table per stage that quantizes.
    """

    told: dict[str, Any]
    plan: tuple[str, ...] = ()
    decisions: tuple[Decided, ...] = ()
    blame: tuple[Blame, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """What is worth knowing."""
        return msgspec.convert(self.told["findings"], list[Finding])

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            **self.told,
            "plan": list(self.plan),
            "decisions": [found.to_dict() for found in self.decisions],
            "blame": [{**msgspec.to_builtins(found), "recipe": found.recipe()} for found in self.blame],
        }

    def tables(self) -> Iterator[Table]:
        """Yield the tables."""
        yield "model", ("what", "value"), [(key, _brief(value)) for key, value in self.told["facts"].items()]
        for file, graph in self.told["graphs"].items():
            sides = [(side, spec) for side in ("inputs", "outputs") for spec in graph[side]]
            rows = [(side[:-1], spec["name"], spec["dtype"], spec["shape"]) for side, spec in sides]
            yield file, ("side", "name", "type", "shape"), rows
            yield "operators", ("operator", "nodes"), list(graph["operators"].items())
            if graph["cost"]:
                yield from _cost_tables(graph["cost"])
        if self.told["placement"]:
            yield from placement.tables(self.told["placement"])
        if self.plan:
            yield "plan", ("stage",), [(line,) for line in self.plan]
        for found in self.decisions:
            yield found.table()
        for blamed in self.blame:
            yield blamed.table()
            if recipe := blamed.recipe():
                yield "entries of a recipe that leave these layers float", ("toml",), [(recipe,)]


def _cost_tables(cost: dict[str, Any]) -> Iterator[Table]:
    totals = ("macs", "flops", "parameters", "weight_bytes", "activation_bytes")
    yield "cost", ("what", "value"), [(name, f"{cost[name]:,}") for name in totals]
    rows = sorted(cost["rows"], key=lambda row: -row["macs"])[:_ROWS]
    shown = [(row["node"], row["op"], f"{row['macs']:,}", f"{row['parameters']:,}") for row in rows if row["macs"]]
    yield "nodes by MACs", ("node", "operator", "MACs", "parameters"), shown


def _brief(value: Any) -> str:
    """Return a value as one line: of a license its name, else the first line of its text."""
    if isinstance(value, dict) and "text" in value:
        return str(value.get("name") or next((line.strip() for line in value["text"].splitlines() if line.strip()), ""))
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
