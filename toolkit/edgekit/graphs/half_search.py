"""Judges float16 plans under true float16 rounding, and keeps nodes in float32 until outputs are near enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.errors import EdgekitError
from edgekit.events import Finding
from edgekit.graphs.calibrate import Reference, open_graph
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.edit import graphs_in, is_standard
from edgekit.graphs.half_plan import HalfPlan, HalfPlanner
from edgekit.graphs.half_types import FOLLOWERS, HalfTypes
from edgekit.graphs.half_write import LEAST_STORED, emulated
from edgekit.graphs.probes import local_ratios, probed, twin_name
from edgekit.graphs.storage import element_count
from edgekit.numerics.output_distance import OutputDistance

if TYPE_CHECKING:
    from edgekit.data import Samples

_MATRIX = 2
_PROBES = 4
_BY_FORM = (
    "it holds a subgraph",
    "it is of the domain",
    "its operator",
    "the ONNX specification",
    "its type",
    "its definition",
    "it works on sequences",
    "onnxruntime does not run",
)


def faults(distances: Mapping[str, OutputDistance], floor: float) -> list[str]:
    """Name the outputs that lie too far from the original."""
    wrong = []
    for name, found in distances.items():
        if found.incomparable.startswith("it has"):
            wrong.append(f"output '{name}': {found.incomparable}")
        elif found.sqnr < floor:
            wrong.append(f"output '{name}' has {found.sqnr:.1f} dB, below {floor:g} dB")
    return wrong


@dataclass(frozen=True, kw_only=True)
class HalfSearch:
    """Plans for one model, judged against the original's outputs.

    Attributes:
        source: the model in canonical form.
        types: its types.
        planner: makes the plans.
        reference: the original's outputs.
        samples: where they come from.
        threads: CPU threads.
    """

    source: Canonical
    types: HalfTypes
    planner: HalfPlanner
    reference: Reference
    samples: Samples
    threads: int

    def settle(
        self, keep: Mapping[str, str], *, floor: float, aim: float, covers: Callable[[HalfPlan], bool]
    ) -> tuple[HalfPlan, Mapping[str, OutputDistance]]:
        """Keep as few further nodes in float32 as it takes for every output to reach `floor` dB.

        When all do, more are kept for `aim` as long as `covers` says that enough is left in float16.
        """
        first = self._attempt(keep)
        if not faults(first[1], aim):
            return first
        order = [item for item in self.ranked(first[0]) if item[0] not in self.planner.forced]
        if faults(first[1], floor):
            first = self._fewest(first, order, keep, floor)
        if faults(first[1], aim):
            better = self._fewest(first, order, keep, aim)
            if not faults(better[1], aim) and covers(better[0]):
                return better
        return first

    def computing(self, plan: HalfPlan) -> list[str]:
        """Return the float16 nodes that do more than move values, in graph order."""
        nodes = self.source.model.graph.node
        return [node.name for node in nodes if node.name in plan.half and node.op_type not in FOLLOWERS]

    def _fewest(
        self,
        tried: tuple[HalfPlan, Mapping[str, OutputDistance]],
        order: Sequence[tuple[str, float]],
        keep: Mapping[str, str],
        bound: float,
    ) -> tuple[HalfPlan, Mapping[str, OutputDistance]]:
        """Keep the smallest number of nodes of `order` (worst first) that clears the faults at `bound`; else all."""
        wrong = faults(tried[1], bound)[0]

        def kept(count: int) -> dict[str, str]:
            return dict(keep) | {
                name: f"{wrong} with it in float16 (its own output then has {ratio:.1f} dB)"
                for name, ratio in order[:count]
            }

        few, many = 0, len(order)
        best = self._attempt(kept(many)) if many else tried
        if faults(best[1], bound):
            return best
        while many - few > 1:
            middle = (few + many) // 2
            now = self._attempt(kept(middle))
            if faults(now[1], bound):
                few = middle
            else:
                many, best = middle, now
        return best

    def _attempt(self, keep: Mapping[str, str]) -> tuple[HalfPlan, Mapping[str, OutputDistance]]:
        plan = self.planner.plan(keep)
        session = open_graph(emulated(self.source, self.types, plan), self.source.folder, threads=self.threads)
        return plan, self.reference.distances(session)

    def ranked(self, plan: HalfPlan) -> list[tuple[str, float]]:
        """Order the float16 nodes by the error each makes on its own, worst first, with its ratio in dB."""
        nodes = {node.name: node for node in self.source.model.graph.node}
        names = [name for name in self.computing(plan) if self.types.outputs(nodes[name]) == [nodes[name].output[0]]]
        if not names:
            return []
        model, probes = probed(self.source.model, names)
        twins = {twin_name(name) for name in names}
        makers = {node.output[0] for node in model.graph.node if node.name in twins}
        types = HalfTypes(model, dict.fromkeys(self.types.floats | makers, "tensor(float)"))
        copy = Canonical(model=model, folder=self.source.folder, findings=())
        rounded = emulated(copy, types, replace(plan, half=frozenset(twins)))
        indices = self.reference.indices[:_PROBES]
        return local_ratios(rounded, copy.folder, probes, self.samples, indices, threads=self.threads)


def half_coverage(
    source: Canonical, types: HalfTypes, plan: HalfPlan, path: Path, shapes: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Measure a plan.

    Returns:
        `precision`; `weights`: share of the elements of constants of rank 2 or more that are stored in float16; `macs`:
        share of multiply-accumulates in float16; `left_float`: nodes kept in float32 with the reasons in `findings`.
    """
    from edgekit.graphs.cost import cost_of

    readers: dict[str, bool] = {}
    for node in source.model.graph.node:
        wanted = types.inputs(node) if node.name in plan.half else []
        for position, name in enumerate(node.input):
            readers[name] = readers.get(name, False) or position in wanted
    total = stored = 0
    for position, graph in enumerate(graphs_in(source.model.graph)):
        for tensor in graph.initializer:
            count = element_count(tensor.dims)
            if len(tensor.dims) < _MATRIX or (position == 0 and tensor.name not in types.floats):
                continue
            total += count
            fits = tensor.name not in plan.wide
            stored += count * (fits and (count >= LEAST_STORED or readers.get(tensor.name, False)))
    try:
        macs = {row.node: row.macs for row in cost_of(path, shapes).rows}
    except EdgekitError:
        macs = {node.name: 1 for node in source.model.graph.node if is_standard(node, "Conv", "MatMul", "Gemm")}
    done = sum(count for name, count in macs.items() if name in plan.half)
    return {
        "precision": "fp16",
        "weights": round(stored / total, 4) if total else 1.0,
        "macs": round(done / sum(macs.values()), 4) if sum(macs.values()) else 1.0,
        "left_float": list(plan.reasons),
    }


def kept_findings(plan: HalfPlan) -> list[Finding]:
    """Say why nodes stay float32, and which constants float16 cannot hold.

    What a node's form forbids is a note, what values forbid a warning.
    """
    constants = [
        Finding(
            severity="warning",
            node=name,
            rule="constant-out-of-range",
            text=f"constant {name} has {problem}; it and its readers stay fp32",
        )
        for name, problem in plan.wide.items()
    ]
    overruled = [
        Finding(
            severity="warning",
            node=name,
            rule="overruled",
            text=f"node {name} computes in float16 as the plan of the recipe says, although {reason}",
            remedy="Take its entry out of the recipe.",
        )
        for name, reason in plan.overruled.items()
    ]
    return (
        constants
        + overruled
        + [
            Finding(
                severity="note" if reason.startswith(_BY_FORM) else "warning",
                node=name,
                rule="kept-float32",
                text=f"node {name} kept in fp32: {reason}",
            )
            for name, reason in plan.reasons.items()
        ]
    )
