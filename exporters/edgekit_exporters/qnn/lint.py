"""The HTP's rules for a graph: ours, and what Qualcomm's compiler says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgekit.artifact import Artifact
from edgekit.events import Finding, Severity
from edgekit.graphs.rules import (
    Subject,
    domain_findings,
    rank_findings,
    shape_findings,
    shapes_of,
    type_findings,
    version_findings,
)
from edgekit.profile import Profile
from edgekit_exporters.qnn.context import RefusedError
from edgekit_exporters.qnn.desk import Desk
from edgekit_exporters.qnn.pools import covers_all, wide_pools
from edgekit_exporters.qnn.told import Refused

NOT_COMPILED = "qnn-not-compiled"
FALLBACK = "qnn-operator-fallback"

_REFUSED = frozenset({"NonZero", "NonMaxSuppression", "Loop", "Scan", "GroupNormalization", "Unique", "Compress"})
_REFUSED_TYPES = {
    "STRING": "the HTP has no strings",
    "DOUBLE": "the HTP has no float64",
    "COMPLEX": "the HTP has no complex numbers",
    "BFLOAT16": "the HTP has no bfloat16",
}
_REMEDY = "Do this step outside the network, choose another recipe, or allow it with --allow-fallback."


def lint(artifact: Artifact, folder: Path, profile: Profile) -> list[Finding]:
    """Refuse what the HTP does not take: open shapes, rank above 5, some operators and types."""
    subject = Subject(artifact, folder, profile, "qnn")
    found = version_findings(subject) + rank_findings(subject)
    found += domain_findings(subject, ("QuantizeLinear", "DequantizeLinear", "Gelu"))
    found += type_findings(subject, _REFUSED_TYPES)
    found += shape_findings(subject, "the HTP needs fixed shapes")
    refused = [
        Refused(node=node.name, op=node.op_type, reason=f"the HTP has no {node.op_type}")
        for node in subject.nodes
        if node.op_type in _REFUSED
    ]
    return [*found, *fallback_findings(refused, "error"), *_pool_findings(subject), *_graph_findings(subject)]


def _graph_findings(subject: Subject) -> list[Finding]:
    """Refuse models of several graphs: Qualcomm's compiler fails on two in one context."""
    names = sorted(subject.artifact.facts.get("graphs", {}))
    if len(names) <= 1:
        return []
    text = f"the model has {len(names)} graphs ({', '.join(names)}); one is compiled into a context"
    return [subject.finding("error", "several-graphs", "", text, "Build each graph on its own.")]


def _pool_findings(subject: Subject) -> list[Finding]:
    """Refuse average pooling that the compiler takes and gets wrong."""
    shapes = shapes_of(subject)
    text = "node '{}' (AveragePool) has a window that is wider than its input: Qualcomm's compiler gives noise for it"
    remedy = "Make the window fit, or average all of the input (GlobalAveragePool)."
    return [
        subject.finding("error", "wide-pool", node.name, text.format(node.name), remedy)
        for node in wide_pools(subject.model, shapes)
        if not covers_all(node, shapes)
    ]


def compile_findings(desk: Desk, artifact: Artifact, folder: Path, profile: Profile) -> list[Finding]:
    """Compile a graph and return what the compiler refuses: nodes off the HTP, or the whole."""
    try:
        desk.context(artifact, folder, profile)
    except RefusedError as error:
        return _refusals(desk, artifact, folder, profile, error)
    twin = profile.settings["htp"].get("integer_twin")
    if twin is not None:
        try:
            desk.context(artifact, folder, profile, soc=int(twin))
        except RefusedError as error:
            return fallback_findings(error.refused, "error") or [_refused(error)]
    return []


def fallback_findings(refused: Sequence[Refused], severity: Severity) -> list[Finding]:
    """Return a finding for each node that would run, or runs, on the CPU."""
    return [
        Finding(
            severity=severity,
            node=row.node,
            rule=FALLBACK,
            text=f"node '{row.node}' ({row.op}) runs on the CPU: {row.reason}",
            remedy=_REMEDY,
        )
        for row in refused
    ]


def other_finding(profile: Profile) -> Finding:
    """Say that another SoC's binary is compiled and not run."""
    names = " or ".join(profile.modules)
    return Finding(
        severity="note",
        node="",
        rule="qnn-other-soc",
        text=f"the binary for {names} is compiled, not run: accuracy and latency are those of the profile's own SoC",
        remedy=f"To judge it too, build with the profile of {names}.",
    )


def not_compiled(why: str) -> Finding:
    """Return the finding that nothing was compiled, nor checked by Qualcomm's tools."""
    return Finding(
        severity="warning",
        node="",
        rule=NOT_COMPILED,
        text=f"no context binary was built: {why}; the package holds the graph, which onnxruntime's QNN provider "
        "compiles on the device; where that provider is missing it runs on the CPU, and nothing here was checked on an "
        "HTP",
        remedy="pip install 'edgekit-toolkit[qnn]' (x86-64 Linux), or measure on a device with onnxruntime-qnn.",
    )


def _refusals(desk: Desk, artifact: Artifact, folder: Path, profile: Profile, error: RefusedError) -> list[Finding]:
    """Return what is refused: with fallback allowed the compiler goes through the whole graph and names all nodes."""
    try:
        context = desk.context(artifact, folder, profile, fallback=True)
    except RefusedError as worse:
        return [*fallback_findings(worse.refused, "error"), _refused(worse)]
    return fallback_findings(context.refused or error.refused, "error") or [_refused(error)]


def _refused(error: RefusedError) -> Finding:
    return Finding(
        severity="error",
        node="",
        rule="qnn-refused",
        text=f"Qualcomm's compiler refuses the graph: {' '.join(error.said.split())[:400]}",
        remedy="Choose another recipe or profile.",
    )
