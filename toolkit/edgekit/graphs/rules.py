"""What runtimes commonly refuse in a graph: versions, ranks, types, domains, open shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.artifact import MAIN, Artifact, TensorSpec
from edgekit.events import Finding, Severity
from edgekit.graphs.edit import graphs_in, load_model, opset_of
from edgekit.graphs.storage import tensors_in
from edgekit.profile import Profile

if TYPE_CHECKING:
    import onnx

_RANGE_REMEDY = "Fix the shapes or give a range with --shape NAME=MIN/OPT/MAX, e.g. {example}"
_FIXED_REMEDY = "Fix the shapes with --shape NAME=SHAPE, e.g. {example}"
_BATCHES, _PICTURES, _SEQUENCES = (1, 8, 32), (32, 224, 512), (1, 32, 128)


class Subject:
    """A model that is being linted.

    Attributes:
        artifact: its artifact.
        profile: the device.
        model: the main graph, external data left where it is.
        folder: where it lies.
        name: what rules are named after (`trt`, `qnn`, `ort`).
    """

    def __init__(self, artifact: Artifact, folder: Path, profile: Profile, name: str) -> None:
        """Load the main graph."""
        self.artifact, self.folder, self.profile, self.name = artifact, folder, profile, name
        self.model = load_model(folder / MAIN)

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """All nodes, those of inner graphs too."""
        return [node for graph in graphs_in(self.model.graph) for node in graph.node]

    def finding(self, severity: Severity, rule: str, node: str, text: str, remedy: str = "") -> Finding:
        """Make a finding whose rule is named after the runtime."""
        return Finding(severity=severity, node=node, rule=f"{self.name}-{rule}", text=text, remedy=remedy)


def version_findings(subject: Subject) -> list[Finding]:
    """Refuse an opset above the device's; the IR version is lowered when the graph is written."""
    found, limit = opset_of(subject.model), subject.profile.graph.max_opset
    if found <= limit:
        return []
    text = f"the model is of opset {found}; the device's runtime reads up to {limit}"
    return [
        subject.finding(
            "error",
            "opset",
            "",
            text,
            f"The stage `simplify` lowers it where it can; else export the model with opset {limit} or lower.",
        )
    ]


def rank_findings(subject: Subject) -> list[Finding]:
    """Refuse nodes that read or make tensors of a rank above the device's."""
    limit = subject.profile.graph.max_rank
    ranks = {name: len(shape) for name, shape in shapes_of(subject).items()}
    found = []
    for node in subject.nodes:
        rank = max((ranks.get(name, 0) for name in (*node.input, *node.output)), default=0)
        if rank > limit:
            text = f"node '{node.name}' ({node.op_type}) works on rank {rank}; the device takes up to {limit}"
            remedy = "Merge axes with Reshape before it; a pixel shuffle written so is DepthToSpace."
            found.append(subject.finding("error", "rank", node.name, text, remedy))
    return found


def shapes_of(subject: Subject) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes that are known of a model's tensors, open axes by name (empty when they have none)."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(subject.model, data_prop=True)
    except Exception:  # noqa: BLE001 - inference is a help here: what it cannot tell is not judged
        inferred = subject.model
    shapes: dict[str, tuple[int | str, ...]] = {
        tensor.name: tuple(tensor.dims) for tensor in subject.model.graph.initializer
    }
    for graph in graphs_in(inferred.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            kind = value.type.tensor_type
            if kind.HasField("shape"):
                sizes = (d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim)
                shapes[value.name] = tuple(sizes)
    return shapes


def domain_findings(subject: Subject, known: Iterable[str] = ()) -> list[Finding]:
    """Refuse operators of other domains than the default one, except those named."""
    allowed = set(known)
    return [
        subject.finding(
            "error",
            "domain",
            node.name,
            f"node '{node.name}': {node.domain}::{node.op_type} is not standard ONNX; this runtime does not know it",
            "Export the model without runtime-specific fusions.",
        )
        for node in subject.nodes
        if node.domain not in {"", "ai.onnx"} and node.op_type not in allowed
    ]


def type_findings(subject: Subject, refused: Mapping[str, str]) -> list[Finding]:
    """Refuse tensors of some types.

    Args:
        subject: the model.
        refused: ONNX type name (`DOUBLE`, a prefix such as `FLOAT8` too) -> why.
    """
    import onnx

    found = []
    stored = ((tensor.name, tensor.data_type) for tensor in tensors_in(subject.model))
    edges = (
        (value.name, value.type.tensor_type.elem_type)
        for graph in graphs_in(subject.model.graph)
        for value in (*graph.input, *graph.output)
    )
    seen = set()
    for name, kind in (*stored, *edges):
        word = onnx.TensorProto.DataType.Name(kind)
        why = next((why for prefix, why in refused.items() if word.startswith(prefix)), None)
        if why is not None and name not in seen:
            seen.add(name)
            text = f"tensor '{name}' is of type {word.lower()}: {why}"
            found.append(subject.finding("error", "type", name, text, "Export the model in float32."))
    return found


def open_inputs(artifact: Artifact) -> dict[str, TensorSpec]:
    """Return the inputs with dynamic axes for which no range was given (`--shape NAME=MIN/OPT/MAX`)."""
    ranges = artifact.facts.get("shape_ranges", {})
    return {
        spec.name: spec
        for spec in artifact.specs("inputs")
        if spec.name not in ranges and any(isinstance(dim, str) for dim in spec.shape)
    }


def only_batch(specs: Iterable[TensorSpec]) -> bool:
    """Say whether nothing but first axes is dynamic, and those that are go by one name."""
    names = {dim for spec in specs for dim in spec.shape[1:] if isinstance(dim, str)}
    return not names and len({spec.shape[0] for spec in specs}) == 1


def unfit_inputs(artifact: Artifact, profile: Profile) -> dict[str, TensorSpec]:
    """Return the inputs whose shapes a device does not take: open ones; where shapes must be fixed, ranges too."""
    if profile.graph.dynamic_shapes:
        return open_inputs(artifact)
    return {spec.name: spec for spec in artifact.specs("inputs") if _axes(spec)}


def shape_findings(subject: Subject, what: str) -> list[Finding]:
    """Refuse inputs of shapes that the device does not take: one finding that lists them all.

    A lone dynamic batch for which no range was given is built for 1.
    """
    specs = unfit_inputs(subject.artifact, subject.profile)
    if not specs:
        return []
    ranges, lone = subject.profile.graph.dynamic_shapes, only_batch(specs.values())
    listed = ", ".join(f"{name}[{','.join(_axes(spec))}]" for name, spec in specs.items())
    example = " ".join(f"--shape {name}={_example(spec, lone=lone, ranges=ranges)}" for name, spec in specs.items())
    if lone and open_inputs(subject.artifact):
        text = f"the batch of {listed} is dynamic: it is built for batch 1"
        return [subject.finding("note", "batch-1", next(iter(specs)), text, "For other sizes: " + example)]
    text = f"dynamic inputs {listed}: {what}"
    remedy = (_RANGE_REMEDY if ranges else _FIXED_REMEDY).format(example=example)
    return [subject.finding("error", "dynamic-shape", next(iter(specs)), text, remedy)]


def _axes(spec: TensorSpec) -> list[str]:
    return [dim for dim in spec.shape if isinstance(dim, str)]


def _example(spec: TensorSpec, *, lone: bool, ranges: bool) -> str:
    """Write a shape as an example: pictures of 224 pixels, sequences of 32 steps; batches where they alone are open."""
    usual = _BATCHES if lone else _PICTURES if len(spec.shape) == len("NCHW") else _SEQUENCES

    def sizes(free: int) -> str:
        batch = free if lone else 1
        return "x".join(str(d if isinstance(d, int) else free if axis else batch) for axis, d in enumerate(spec.shape))

    shown = dict.fromkeys(sizes(free) for free in usual)
    return "/".join(shown) if ranges else sizes(usual[1])


def build_shapes(artifact: Artifact) -> dict[str, list[list[int]]]:
    """Return input -> [min, opt, max] for every dynamic input: the user's ranges, else batch 1."""
    ranges = artifact.facts.get("shape_ranges", {})
    shapes = {name: [list(asked[key]) for key in ("min", "opt", "max")] for name, asked in ranges.items()}
    for name, spec in open_inputs(artifact).items():
        fixed = [dim if isinstance(dim, int) else 1 for dim in spec.shape]
        shapes[name] = [fixed, fixed, fixed]
    return shapes


def usual_shapes(artifact: Artifact) -> dict[str, Sequence[int]]:
    """Return the shapes that a prediction is made for: the usual ones of the user's ranges."""
    ranges = artifact.facts.get("shape_ranges", {})
    return {name: tuple(asked["opt"]) for name, asked in ranges.items()}


def values_of(subject: Subject) -> Iterator[tuple[str, Any]]:
    """Yield name and tensor of every constant, those of inner graphs and Constant nodes too."""
    for graph in graphs_in(subject.model.graph):
        for tensor in graph.initializer:
            yield tensor.name, tensor
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield node.output[0] if node.output else node.name, attribute.t
