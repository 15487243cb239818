"""Which tensors of a graph lie on a grid once some nodes compute in integers, before their ranges are looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgekit.dialect import Dialect
from edgekit.graphs.edit import GraphIndex, attribute_of, is_standard
from edgekit.numerics.ranges import RangeMeter

if TYPE_CHECKING:
    import onnx

SAME_GRID = frozenset(
    {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "MaxPool", "Slice", "Split", "DepthToSpace"}
    | {"SpaceToDepth", "Expand", "Identity", "Resize", "Tile"}
)
"""Operators that only move or choose values: their output lies on the grid of their input."""

CONCAT_SPREAD = 4.0
"""A Concat is left float when its parts' ranges differ by more than this factor: the small part would lose its bits."""


@dataclass(frozen=True, kw_only=True)
class Regions:
    """What computing in integers asks of the tensors.

    Attributes:
        needed: tensors that need a grid -> the nodes that lose integers when there is none.
        produced: those that leave their node as integers.
        reads: (node, input position) pairs that read the grid's values of the others.
        carried: nodes between quantized nodes that run on integers too.
        same: tensor -> the tensor whose grid it shares.
    """

    needed: dict[str, set[str]] = field(default_factory=dict)
    produced: set[str] = field(default_factory=set)
    reads: set[tuple[str, int]] = field(default_factory=set)
    carried: set[str] = field(default_factory=set)
    same: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        """Return the tensor that decides on the grid of `name`."""
        while name in self.same:
            name = self.same[name]
        return name


def tail_of(index: GraphIndex, node: onnx.NodeProto) -> tuple[str, tuple[float, float] | None]:
    """Return where a node's output is put on a grid: behind a Relu or Clip that alone reads it; and its bounds.

    A Clip that leaves 0 out is no such end: grids hold 0, and a runtime could not drop the Clip for what the grid does.
    """
    after = index.only_consumer(node.output[0])
    if after is None or not is_standard(after, "Relu", "Clip") or after.input[0] != node.output[0]:
        return node.output[0], None
    if after.op_type == "Relu":
        return after.output[0], (0.0, float("inf"))
    bounds = [float("-inf"), float("inf")]
    for position, name in enumerate(after.input[1:3]):
        value = index.value(name) if name else None
        if name and value is None:
            return node.output[0], None
        if value is not None:
            bounds[position] = float(value)
    low, high = bounds
    return (after.output[0], (low, high)) if low <= 0 <= high else (node.output[0], None)


def find_regions(
    index: GraphIndex,
    dialect: Dialect,
    static: Sequence[onnx.NodeProto],
    constants: Mapping[str, set[int]],
    *,
    meters: Mapping[str, RangeMeter],
    banned: Mapping[str, str] | None,
) -> Regions:
    """Find what the static nodes need.

    Args:
        index: the graph.
        dialect: the runtime's rules.
        static: the nodes that compute in integers with ranges from calibration.
        constants: node name -> positions of its weights.
        meters: tensor statistics, to compare the parts of a Concat.
        banned: tensors that cannot have a grid; None: nothing is carried from one quantized node to the next.
    """
    regions = Regions()
    for node in static:
        for position, name in enumerate(node.input[:2]):
            if position not in constants.get(node.name, ()):
                regions.needed.setdefault(name, set()).add(node.name)
                regions.reads.add((node.name, position))
    if dialect.quantize_outputs:
        wanted = set(regions.needed)
        for node in static:
            tail = tail_of(index, node)[0]
            if tail in wanted or node.op_type not in dialect.float_outputs:
                regions.needed.setdefault(tail, set()).add(node.name)
                regions.produced.add(tail)
    else:
        _join_residuals(index, regions, {node.output[0] for node in static})
    if banned is not None and dialect.carry:
        _carry(index, dialect, regions, banned, meters)
    nodes = {node.name: node for node in index.graph.node}
    inside = {(name, position) for name, position in regions.reads if nodes[name].input[position] in regions.produced}
    regions.reads.difference_update(inside)
    return regions


def _join_residuals(index: GraphIndex, regions: Regions, quantized: set[str]) -> None:
    """Let an Add of a quantized node's float output read its other branch on the grid: runtimes fuse that."""
    for node in index.graph.node:
        if is_standard(node, "Add") and any(name in quantized for name in node.input):
            others = [i for i, name in enumerate(node.input) if name in regions.needed and name not in quantized]
            regions.reads.update((node.name, i) for i in others[:1])


def _carry(
    index: GraphIndex,
    dialect: Dialect,
    regions: Regions,
    banned: Mapping[str, str],
    meters: Mapping[str, RangeMeter],
) -> None:
    leads = set(regions.needed)
    for node in reversed(index.graph.node):
        if is_standard(node, *dialect.carry) and any(name in leads for name in node.output):
            leads.update(_data_inputs(node))
    for node in index.graph.node:
        inputs = _data_inputs(node)
        if (
            not is_standard(node, *dialect.carry)
            or not all(name in regions.needed for name in inputs)
            or not all(name in leads and name not in banned for name in node.output if name)
            or not _carries(node, inputs, meters)
        ):
            continue
        regions.carried.add(node.name)
        regions.reads.update((node.name, i) for i, name in enumerate(node.input) if name in inputs)
        for name in node.output:
            regions.needed.setdefault(name, set())
            regions.produced.add(name)
            if node.op_type in SAME_GRID:
                regions.same[name] = inputs[0]


def _carries(node: onnx.NodeProto, inputs: list[str], meters: Mapping[str, RangeMeter]) -> bool:
    if node.op_type == "Concat":
        return _spread(inputs, meters) <= CONCAT_SPREAD
    if node.op_type == "Resize":
        return bool(attribute_of(node, "mode", b"nearest") == b"nearest")
    return len(node.output) == 1 or node.op_type == "Split"


def _spread(names: list[str], meters: Mapping[str, RangeMeter]) -> float:
    known = [meters[name] for name in names if name in meters and meters[name].count]
    widths = [max(meter.high, 0.0) - min(meter.low, 0.0) for meter in known]
    return float("inf") if len(known) < len(names) or min(widths) <= 0 else max(widths) / min(widths)


def _data_inputs(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of a node that hold its data: no shapes, scales or bounds."""
    everything = node.op_type in {"Add", "Mul", "Concat"}
    return [name for name in (node.input if everything else node.input[:1]) if name]
