"""What becomes 8-bit in a graph, and why the rest does not: decided before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from edgekit.dialect import Dialect
from edgekit.graphs.edit import GraphIndex, attribute_of, is_standard
from edgekit.graphs.storage import element_count
from edgekit.graphs.weights import Operand, Weights
from edgekit.numerics.affine import BOUNDS, Grid, activation_grid, is_dead, within
from edgekit.numerics.ranges import Method, RangeMeter

if TYPE_CHECKING:
    import onnx

Mode = Literal["static", "dynamic", "weights", "float"]
"""How a node is computed: on integers with ranges from calibration, on integers with ranges of the moment, in float on
weights stored in 8 bits, or as it was."""

SAME_GRID = frozenset(
    {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "MaxPool", "Slice", "Split", "DepthToSpace"}
    | {"SpaceToDepth", "Expand", "Identity", "Resize", "Tile"}
)
"""Operators that only move or choose values: their output lies on the grid of their input."""

CONCAT_SPREAD = 4.0
"""A Concat is left float when its parts' ranges differ by more than this factor: the small part would lose its bits."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The decisions for one graph.

    Attributes:
        modes: node name -> mode; nodes that are not named have no say (no weights, no integer kernel).
        grids: tensor name -> its grid.
        produced: tensors that leave their node as integers: every reader sees the grid's values.
        reads: (node, input position) pairs that read the grid's values of a tensor that others read as floats.
        carried: nodes between quantized nodes that run on integers too.
        reasons: node name -> why it has a lesser mode than was asked.
        dead: tensors that were 0 in every calibration sample.
    """

    modes: Mapping[str, Mode]
    grids: Mapping[str, Grid] = field(default_factory=dict)
    produced: frozenset[str] = frozenset()
    reads: frozenset[tuple[str, int]] = frozenset()
    carried: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)
    dead: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Sketch:
    """Which tensors need a grid, before their ranges are looked at."""

    needed: dict[str, set[str]]
    produced: set[str]
    reads: set[tuple[str, int]]
    carried: set[str]
    same: dict[str, str]


class Planner:
    """Makes plans for one graph in one dialect.

    Attributes:
        index: the main graph.
        weights: its weight operands.
        dialect: the runtime's rules.
    """

    def __init__(self, model: onnx.ModelProto, weights: Weights, dialect: Dialect) -> None:
        """Index the main graph of `model`."""
        self.index = GraphIndex(model.graph, weights.folder)
        self.weights = weights
        self.dialect = dialect
        self.operands: dict[str, list[Operand]] = {}
        for operand in weights.operands:
            self.operands.setdefault(operand.node, []).append(operand)
        self._nodes = {node.name: node for node in model.graph.node}

    def node(self, name: str) -> onnx.NodeProto | None:
        """Return a node of the main graph; None for those of inner graphs."""
        return self._nodes.get(name)

    def compute_nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes of the main graph whose type the dialect multiplies in integers, in order."""
        return [node for node in self.index.graph.node if is_standard(node, *self.dialect.ops)]

    def first_modes(self, wish: Mode, *, products: bool = True) -> tuple[dict[str, Mode], dict[str, str]]:
        """Give every node the best mode that its form allows.

        Args:
            wish: mode of the compute nodes. `dynamic` applies to MatMul and Gemm with a weight, the others are static
                then.
            products: whether products of two activations are quantized too.

        Returns:
            Modes, and for compute nodes that cannot have the wished one, why.
        """
        modes: dict[str, Mode] = dict.fromkeys(self.operands, "weights")
        reasons: dict[str, str] = {}
        for node in self.compute_nodes():
            matrix = node.op_type in {"MatMul", "Gemm"} and node.name in self.operands
            mode: Mode = "static" if wish == "dynamic" and not matrix else wish
            reason = self.refusal(node, mode) if mode != "weights" else ""
            if not reason and not products and node.name not in self.operands:
                reason = "it multiplies two activations, and without that the outputs lie nearer to the original"
            if reason:
                reasons[node.name] = reason
            elif mode != "weights" or node.name in self.operands:
                modes[node.name] = mode
        return modes, reasons

    def refusal(self, node: onnx.NodeProto, mode: Mode) -> str:
        """Say why a compute node cannot be quantized in a mode; empty when it can."""
        positions = {operand.position for operand in self.operands.get(node.name, [])}
        if node.op_type in {"Conv", "ConvTranspose"} and 1 not in positions:
            return "its weight is computed at run time"
        if 0 in positions:
            return "its first operand is the constant one"
        if node.op_type == "Gemm":
            if attribute_of(node, "alpha", 1.0) != 1.0 or attribute_of(node, "beta", 1.0) != 1.0:
                return "it has factors alpha or beta"
            if attribute_of(node, "transA", 0):
                return "it transposes its first operand"
            if len(node.input) > 2 and node.input[2] and node.input[2] not in self.index.initializers:  # noqa: PLR2004
                return "its bias is computed at run time"
        if mode == "dynamic" and not positions:
            return "both its operands are activations"
        if mode == "dynamic" and element_count(self._dims(node)[:-2]) != 1:
            return "its weight is a stack of matrices"
        return ""

    def _dims(self, node: onnx.NodeProto) -> list[int]:
        return list(self.weights.tensor(self.operands[node.name][0]).dims)

    def tensors(self) -> list[str]:
        """Return every tensor that a plan may need a range of, in a fixed order."""
        found: dict[str, None] = {}
        for node in self.compute_nodes():
            constant = {operand.position for operand in self.operands.get(node.name, [])}
            for position, name in enumerate(node.input[:2]):
                if position not in constant and self.index.constant(name) is None:
                    found[name] = None
            if self.dialect.quantize_outputs:
                found[self.tail(node)[0]] = None
        if self.dialect.carry:
            for node in self.index.graph.node:
                if is_standard(node, *self.dialect.carry):
                    found.update(dict.fromkeys(name for name in node.output if name))
        return list(found)

    def tail(self, node: onnx.NodeProto) -> tuple[str, tuple[float, float] | None]:
        """Return where a node's output is put on a grid: behind a Relu or Clip that alone reads it; and its bounds."""
        after = self.index.only_consumer(node.output[0])
        if after is None or not is_standard(after, "Relu", "Clip") or after.input[0] != node.output[0]:
            return node.output[0], None
        if after.op_type == "Relu":
            return after.output[0], (0.0, float("inf"))
        bounds = [self.index.value(name) if name else None for name in [*after.input[1:3], "", ""][:2]]
        if any(name and bound is None for name, bound in zip(after.input[1:3], bounds, strict=False)):
            return node.output[0], None
        low, high = (None if bound is None else float(bound) for bound in bounds)
        return after.output[0], (float("-inf") if low is None else low, float("inf") if high is None else high)

    def plan(
        self,
        modes: Mapping[str, Mode],
        reasons: Mapping[str, str],
        meters: Mapping[str, RangeMeter],
        method: Method,
        *,
        carry: bool = True,
    ) -> Plan:
        """Find the grids that the modes need; nodes for which there is none get a lesser mode, with the reason.

        Args:
            modes: node name -> wished mode.
            reasons: why nodes are already below what was asked.
            meters: tensor name -> its statistics; tensors that are no float32 are missing.
            method: how ranges are chosen.
            carry: whether nodes between quantized ones run on integers too.
        """
        chosen, why = dict(modes), dict(reasons)
        banned: dict[str, str] = {}
        dead: list[str] = []
        while True:
            sketch = self._sketch(chosen, banned, meters, carry=carry)
            grids: dict[str, Grid] = {}
            fresh: dict[str, str] = {}
            for name in sketch.needed:
                root = _root(sketch.same, name)
                found = self._grid(root, meters, method)
                if isinstance(found, str):
                    fresh[root] = found
                else:
                    grids[name] = found
            if not fresh:
                break
            banned |= fresh
            dead += [name for name, reason in fresh.items() if reason == _DEAD and name not in dead]
            for name, users in sketch.needed.items():
                for user in users if (root := _root(sketch.same, name)) in fresh else ():
                    why[user] = f"the range of '{root}' cannot be used: {fresh[root]}"
                    chosen[user] = self.lesser(user)
        return Plan(
            modes=chosen,
            grids=grids,
            produced=frozenset(sketch.produced),
            reads=frozenset(sketch.reads),
            carried=frozenset(sketch.carried),
            reasons=why,
            dead=tuple(dead),
        )

    def lesser(self, node: str) -> Mode:
        """Return the mode below integers for a node: stored weights when it has some."""
        return "weights" if node in self.operands else "float"

    def lowers(self, plan: Plan, node: str) -> bool:
        """Say whether a node still has a mode to lose."""
        return plan.modes.get(node, "float") != "float"

    def _grid(self, name: str, meters: Mapping[str, RangeMeter], method: Method) -> Grid | str:
        meter = meters.get(name)
        if meter is None or not meter.count:
            return "it holds no float32 values"
        if not meter.finite:
            return "it holds infinite or undefined values"
        if is_dead(meter.low, meter.high):
            return _DEAD
        dialect = self.dialect
        least, most = BOUNDS[dialect.activation]
        low, high = meter.range(method, levels=most - least, symmetric=dialect.symmetric_activations)
        if is_dead(low, high):
            low, high = meter.low, meter.high
        grid = activation_grid(low, high, dialect.activation, symmetric=dialect.symmetric_activations)
        bounds = self._bounds_of(name)
        return within(grid, *bounds) if bounds and not dialect.symmetric_activations else grid

    def _bounds_of(self, name: str) -> tuple[float, float] | None:
        node = self.index.producers.get(name)
        if node is None or not is_standard(node, "Clip"):
            return None
        maker = self.index.producers.get(node.input[0])
        return self.tail(maker)[1] if maker is not None else None

    def _sketch(
        self, modes: Mapping[str, Mode], banned: Mapping[str, str], meters: Mapping[str, RangeMeter], *, carry: bool
    ) -> _Sketch:
        sketch = _Sketch(needed={}, produced=set(), reads=set(), carried=set(), same={})
        static = [node for node in self.compute_nodes() if modes.get(node.name) == "static"]
        for node in static:
            constant = {operand.position for operand in self.operands.get(node.name, [])}
            for position, name in enumerate(node.input[:2]):
                if position not in constant:
                    sketch.needed.setdefault(name, set()).add(node.name)
                    sketch.reads.add((node.name, position))
        if self.dialect.quantize_outputs:
            wanted = set(sketch.needed)
            for node in static:
                tail = self.tail(node)[0]
                if tail in wanted or node.op_type not in self.dialect.float_outputs:
                    sketch.needed.setdefault(tail, set()).add(node.name)
                    sketch.produced.add(tail)
        if carry and self.dialect.carry:
            self._carry(sketch, banned, meters)
        self._join_residuals(sketch, {node.output[0] for node in static})
        sketch.reads.difference_update(list(self._reads_of_produced(sketch)))
        return sketch

    def _reads_of_produced(self, sketch: _Sketch) -> Iterator[tuple[str, int]]:
        for node, position in sketch.reads:
            if self._nodes[node].input[position] in sketch.produced:
                yield node, position

    def _carry(self, sketch: _Sketch, banned: Mapping[str, str], meters: Mapping[str, RangeMeter]) -> None:
        leads = set(sketch.needed)
        for node in reversed(self.index.graph.node):
            if is_standard(node, *self.dialect.carry) and any(name in leads for name in node.output):
                leads.update(_data_inputs(node))
        for node in self.index.graph.node:
            inputs = _data_inputs(node)
            if (
                not is_standard(node, *self.dialect.carry)
                or not all(name in sketch.needed for name in inputs)
                or not all(name in leads and name not in banned for name in node.output if name)
                or (node.op_type == "Concat" and self._spread(inputs, meters) > CONCAT_SPREAD)
                or (node.op_type == "Resize" and attribute_of(node, "mode", b"nearest") != b"nearest")
                or (len(node.output) > 1 and node.op_type != "Split")
            ):
                continue
            sketch.carried.add(node.name)
            sketch.reads.update((node.name, i) for i, name in enumerate(node.input) if name in inputs)
            for name in node.output:
                sketch.needed.setdefault(name, set())
                sketch.produced.add(name)
                if node.op_type in SAME_GRID:
                    sketch.same[name] = inputs[0]

    def _spread(self, names: list[str], meters: Mapping[str, RangeMeter]) -> float:
        known = [meters[name] for name in names if name in meters and meters[name].count]
        widths = [max(meter.high, 0.0) - min(meter.low, 0.0) for meter in known]
        return float("inf") if len(known) < len(names) or min(widths) <= 0 else max(widths) / min(widths)

    def _join_residuals(self, sketch: _Sketch, quantized: set[str]) -> None:
        """Let an Add of a quantized node's float output read its other branch on the grid: runtimes fuse that."""
        if self.dialect.quantize_outputs:
            return
        for node in self.index.graph.node:
            if is_standard(node, "Add") and any(name in quantized for name in node.input):
                others = [i for i, name in enumerate(node.input) if name in sketch.needed and name not in quantized]
                sketch.reads.update((node.name, i) for i in others[:1])


_DEAD = "it is 0 in every calibration sample"


def _root(same: Mapping[str, str], name: str) -> str:
    while name in same:
        name = same[name]
    return name


def _data_inputs(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of a node that hold its data: no shapes, scales or bounds."""
    everything = node.op_type in {"Add", "Mul", "Concat"}
    return [name for name in (node.input if everything else node.input[:1]) if name]


def demoted(plan: Plan, planner: Planner, nodes: Mapping[str, str]) -> tuple[dict[str, Mode], dict[str, str]]:
    """Return a plan's modes and reasons with `nodes` (name -> reason) one step down."""
    modes, reasons = dict(plan.modes), dict(plan.reasons)
    for name, reason in nodes.items():
        modes[name] = "float" if modes.get(name) == "weights" else planner.lesser(name)
        reasons[name] = reason
    return modes, reasons
