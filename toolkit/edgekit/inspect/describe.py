"""What a model is made of, what it costs, and what a profile lacks for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgekit.artifact import MAIN, Artifact
from edgekit.errors import EdgekitError, UnsupportedError
from edgekit.events import Finding, grouped
from edgekit.exporter import Placer, load_exporter
from edgekit.inspect.placement import sums
from edgekit.profile import Profile

_KNOWN = ("opset", "ir", "producer", "domains", "quantized", "license", "task", "labels")


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
        `placement` (`units`: unit -> nodes, MACs and their share; `nodes`: each with the unit that it would run on and
        why; null where the runtime has one unit only, or without a profile),
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
    placement = None
    if profile is not None:
        exporter = load_exporter(profile.runtime)
        findings += exporter.lint(artifact, folder, profile)
        if isinstance(exporter, Placer):
            placement = sums(exporter.place(artifact, folder, profile, findings), graphs[MAIN]["cost"])
    return {
        "artifact": artifact.id,
        "facts": {key: artifact.facts[key] for key in _KNOWN if artifact.facts.get(key) not in (None, [])},
        "graphs": graphs,
        "profile": None if profile is None else profile.name,
        "placement": placement,
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
