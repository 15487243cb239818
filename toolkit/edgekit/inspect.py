"""Use case `inspect`: what a model is made of, what it costs, and what a profile lacks for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edgekit import events
from edgekit.artifact import Artifact
from edgekit.errors import EdgekitError, UnsupportedError
from edgekit.events import Finding, grouped
from edgekit.exporter import load_exporter
from edgekit.loading import load_graph
from edgekit.plan import Given, make_plan
from edgekit.profile import Profile, load_profile
from edgekit.recipe import load_recipe
from edgekit.store import Store

_KNOWN = ("opset", "ir", "producer", "domains", "quantized", "licence", "task", "labels")


Table = tuple[str, Sequence[str], Sequence[Sequence[Any]]]
"""Title, headings and rows."""

_ROWS = 40
"""Nodes that the table of costs shows: those with the most MACs."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is known of a model: `told` as `inspect_model` gives it, and what a build would do with it."""

    told: dict[str, Any]
    plan: tuple[str, ...]

    @property
    def findings(self) -> list[Finding]:
        """What is worth knowing."""
        return msgspec.convert(self.told["findings"], list[Finding])

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**self.told, "plan": list(self.plan)}

    def tables(self) -> Iterator[Table]:
        """Yield the tables that a user wants to see."""
        yield "model", ("what", "value"), [(key, _brief(value)) for key, value in self.told["facts"].items()]
        for file, graph in self.told["graphs"].items():
            sides = [(side, spec) for side in ("inputs", "outputs") for spec in graph[side]]
            rows = [(side[:-1], spec["name"], spec["dtype"], spec["shape"]) for side, spec in sides]
            yield file, ("side", "name", "type", "shape"), rows
            yield "operators", ("operator", "nodes"), list(graph["operators"].items())
            if graph["cost"]:
                yield from _cost_tables(graph["cost"])
        if self.plan:
            yield "plan", ("stage",), [(line,) for line in self.plan]


def inspect(  # noqa: PLR0913 - one keyword per option of the command line
    model: str,
    *,
    profile: str | None = None,
    plan: bool = False,
    recipe: str | None = None,
    data: str | None = None,
    weights: str | None = None,
    shape: Sequence[str] = (),
    store: Path | None = None,
    listen: events.Listener = events.ignore,
) -> Report:
    """Say what is in a model: inputs, operators, MACs, parameters, shapes, and what a device lacks for it.

    Args:
        model: as `edgekit.build` takes it.
        profile: a device to hold it against.
        plan: also say what a build would do.
        recipe: the recipe of the plan; default: the profile's.
        data: the data of the plan.
        weights: a safetensors file for a `python:` model.
        shape: `input=SHAPE` or `input=MIN/OPT/MAX`.
        store: the store's folder.
        listen: where progress goes.
    """
    device = load_profile(profile or "host")
    with Store(store) as shelf:
        graph = load_graph(model, shelf, device, weights=weights, shape=shape, listen=listen)
        told = inspect_model(graph, shelf.folder(graph.id), device if profile else None)
    lines: tuple[str, ...] = ()
    if plan:
        kind = "onnx" if model.endswith((".onnx", ".edgekit")) else "torch"
        given = Given(model=model, kind=kind, data=data is not None, teacher=False)
        chosen = load_recipe(recipe or device.recipe)
        lines = tuple(make_plan(chosen, device, load_exporter(device.runtime), given).lines())
    return Report(told=told, plan=lines)


def inspect_model(
    artifact: Artifact,
    folder: Path,
    profile: Profile | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Describe a model.

    Args:
        artifact: an artifact of kind `onnx`.
        folder: where its files lie.
        profile: a device to hold it against.
        shapes: input name -> shape to count costs for; see `edgekit.graphs.cost.cost_of`.

    Returns:
        JSON values: `artifact` (its id), `facts` (opset, producer, ...), `graphs` (file -> inputs, outputs, nodes,
        operators, weights by type, and `cost` with `macs`, `flops`, `parameters`, `weight_bytes`, `activation_bytes`,
        `shapes`, `rows`; null when it cannot be counted, and then a finding says why), `profile` (its name or null),
        `findings` (those of the artifact and what the profile's runtime would refuse or run badly).

    Raises:
        UnsupportedError: the artifact is not an ONNX graph.
    """
    if artifact.kind != "onnx":
        raise UnsupportedError(
            f"a '{artifact.kind}' model has no graph yet",
            remedy="Capture it first: edgekit build with --recipe fp32.",
        )
    findings: list[Finding] = msgspec.convert(artifact.facts.get("findings", []), list[Finding])
    graphs = {
        file: _describe(file, signature, folder, shapes, findings)
        for file, signature in artifact.facts["graphs"].items()
    }
    if profile is not None:
        findings += load_exporter(profile.runtime).lint(artifact, folder, profile)
    return {
        "artifact": artifact.id,
        "facts": {key: artifact.facts[key] for key in _KNOWN if artifact.facts.get(key) not in (None, [])},
        "graphs": graphs,
        "profile": None if profile is None else profile.name,
        "findings": msgspec.to_builtins(grouped(findings)),
    }


def _describe(
    file: str,
    signature: dict[str, Any],
    folder: Path,
    shapes: Mapping[str, Sequence[int]] | None,
    findings: list[Finding],
) -> dict[str, Any]:
    from edgekit.graphs.cost import cost_of
    from edgekit.graphs.facts import operators_of, weights_by_type

    operators: Counter[str] = operators_of(folder / file)
    found: dict[str, Any] = {
        "inputs": signature["inputs"],
        "outputs": signature["outputs"],
        "operators": dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        "nodes": operators.total(),
        "weights": weights_by_type(folder / file),
        "cost": None,
    }
    try:
        cost = cost_of(folder / file, shapes)
    except EdgekitError as error:
        findings.append(
            Finding(
                severity="note", node=file, rule="cost-unknown", text=str(error).splitlines()[0], remedy=error.remedy
            )
        )
        return found
    totals = {
        "macs": cost.macs,
        "flops": cost.flops,
        "parameters": cost.parameters,
        "weight_bytes": cost.weight_bytes,
        "activation_bytes": cost.activation_bytes,
        "shapes": cost.shapes,
        "uncounted": cost.uncounted,
        "unshaped": cost.unshaped,
        "rows": cost.rows,
    }
    found["cost"] = msgspec.json.decode(msgspec.json.encode(totals))
    return found


def _cost_tables(cost: dict[str, Any]) -> Iterator[Table]:
    totals = ("macs", "flops", "parameters", "weight_bytes", "activation_bytes")
    yield "cost", ("what", "value"), [(name, f"{cost[name]:,}") for name in totals]
    rows = sorted(cost["rows"], key=lambda row: -row["macs"])[:_ROWS]
    shown = [(row["node"], row["op"], f"{row['macs']:,}", f"{row['parameters']:,}") for row in rows if row["macs"]]
    yield "nodes by MACs", ("node", "operator", "MACs", "parameters"), shown


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
