"""Use case `inspect`: what a model is made of, what it costs, what a profile lacks for it, what would become of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edgekit import events
from edgekit.artifact import Artifact
from edgekit.events import Finding
from edgekit.exporter import load_exporter
from edgekit.inspect.decide import Decided, accuse, artifact_of, decide, stored_plan
from edgekit.inspect.describe import inspect_model
from edgekit.inspect.tables import Report, Table
from edgekit.loading import load_graph
from edgekit.pipeline import Pipeline
from edgekit.plan import Given, Plan, make_plan
from edgekit.profile import Profile, load_profile
from edgekit.recipe import load_recipe
from edgekit.sources import ingest, read_data
from edgekit.store import Store

__all__ = ["Report", "Table", "inspect", "inspect_model"]


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What was asked of a model, and what surrounds the asking."""

    model: str
    device: Profile
    recipe: str | None
    data: str | None
    weights: str | None
    shape: Sequence[str]
    threads: int
    store: Store
    listen: events.Listener


def inspect(  # noqa: PLR0913 - one keyword per option of the command line
    model: str,
    *,
    profile: str | None = None,
    plan: bool = False,
    blame: bool = False,
    recipe: str | None = None,
    data: str | None = None,
    weights: str | None = None,
    shape: Sequence[str] = (),
    threads: int = 1,
    store: Path | None = None,
    listen: events.Listener = events.ignore,
) -> Report:
    """Say what is in a model: inputs, operators, MACs, parameters, shapes, and what a device lacks for it.

    Args:
        model: as `edgekit.build` takes it, or the id (its first characters) of an artifact in the store.
        profile: a device to hold it against.
        plan: also run the recipe's stages as a build does, and say what they decide for every tensor and why; of a
            package or an artifact that was quantized, what was decided.
        blame: also measure which layers lose the accuracy: the outputs' distance with each quantized alone, and with
            the worst ones left float. Needs data; what was measured survives a kill.
        recipe: the recipe of the plan and the blame; default: the profile's.
        data: their data.
        weights: a safetensors file for a `python:` model.
        shape: `input=SHAPE` or `input=MIN/OPT/MAX`.
        threads: CPU threads for calibration and measurement.
        store: the store's folder.
        listen: where progress goes.
    """
    device = load_profile(profile or "host")
    with Store(store) as shelf:
        asked = _Asked(
            model=model,
            device=device,
            recipe=recipe,
            data=data,
            weights=weights,
            shape=shape,
            threads=threads,
            store=shelf,
            listen=listen,
        )
        known = artifact_of(model, shelf) if plan or not Path(model).exists() else None
        graph = known or load_graph(model, shelf, device, weights=weights, shape=shape, listen=listen)
        told = inspect_model(graph, shelf.folder(graph.id), device if profile else None)
        found: _Found = ((), (), [])
        if plan:
            found = _looked_up(known, shelf) if known else _planned(asked, graph)
        blamed, more = accuse(*_pipeline(asked, graph), graph) if blame else ([], [])
    lines, decisions, findings = found
    told["findings"] += msgspec.to_builtins([*findings, *more])
    return Report(told=told, plan=lines, decisions=decisions, blame=tuple(blamed))


_Found = tuple[tuple[str, ...], tuple[Decided, ...], list[Finding]]


def _looked_up(artifact: Artifact, store: Store) -> _Found:
    """Return the steps that made an artifact, and what they decided."""
    lines = tuple(f"{step.stage}({_options(step.options)})" for step in artifact.lineage)
    return lines, tuple(stored_plan(artifact, store)), []


def _planned(asked: _Asked, graph: Artifact) -> _Found:
    """Return what a build would do with a float graph, and what its stages decide."""
    if asked.model.endswith(".edgekit"):
        text = "the artifact that the package was compiled from is not in this store, so its decisions are not known"
        remedy = "Inspect it where it was built, or build it again."
        return (), (), [Finding(severity="warning", node="", rule="undecided", text=text, remedy=remedy)]
    chain, pipeline = _pipeline(asked, graph)
    decisions, findings = decide(chain, pipeline, graph)
    if chain.training:
        text = "the recipe's training was not run: the decisions are those for the model as it is"
        findings.append(
            Finding(severity="note", node="", rule="untrained", text=text, remedy="Build it to see the rest.")
        )
    return tuple(chain.lines()), tuple(decisions), [*pipeline.findings, *findings]


def _pipeline(asked: _Asked, graph: Artifact) -> tuple[Plan, Pipeline]:
    """Return what a build would do with a captured graph, and the surroundings of its stages."""
    exporter = load_exporter(asked.device.runtime)
    known = artifact_of(asked.model, asked.store)
    kind = "onnx" if known or asked.model.endswith((".onnx", ".edgekit")) else "torch"
    given = Given(model=asked.model, kind=kind, data=asked.data is not None, teacher=False)
    chain = make_plan(load_recipe(asked.recipe or asked.device.recipe), asked.device, exporter, given)
    samples = None
    if asked.data is not None:
        weights = Path(asked.weights) if asked.weights else None
        source = known or ingest(asked.model, asked.store, weights=weights)
        samples = read_data(asked.data, graph, source=asked.store.folder(source.id), listen=asked.listen)
    pipeline = Pipeline(
        store=asked.store,
        profile=asked.device,
        dialect=exporter.dialect(asked.device),
        data=samples,
        threads=asked.threads,
        allow_partial=True,
        listen=asked.listen,
    )
    return chain, pipeline


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items() if value not in (None, (), [], {}))
