"""Where TensorRT would run each node of a graph on a Jetson: GPU, DLA, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit.events import Finding
from edgekit.exporter import Placed
from edgekit.graphs.edit import GraphIndex, is_standard
from edgekit.graphs.rules import Subject, shapes_of
from edgekit_exporters.tensorrt.dla import why_off

_NOT_PLACED = ("QuantizeLinear", "DequantizeLinear", "Constant", "Identity")


def place(subject: Subject, findings: Sequence[Finding]) -> tuple[Placed, ...]:
    """Say where each node that computes would run, in the order of the graph.

    Args:
        subject: the model and the profile; with `dla = true` in its settings the DLA gets what it takes.
        findings: what is known of it; nodes that errors name are not supported.
    """
    refused = {finding.node: finding.rule for finding in findings if finding.severity == "error" and finding.node}
    index, shapes = GraphIndex(subject.model.graph, subject.folder), shapes_of(subject)
    dla = bool(subject.profile.settings.get("tensorrt", {}).get("dla", False))
    placed = []
    for node in subject.model.graph.node:
        if is_standard(node, *_NOT_PLACED):
            continue
        on, why = "GPU", ""
        if node.name in refused:
            on, why = "unsupported", refused[node.name]
        elif dla:
            why = why_off(node, shapes, index)
            on = "GPU" if why else "DLA"
        placed.append(Placed(node=node.name, op=node.op_type, on=on, why=why))
    return tuple(placed)
