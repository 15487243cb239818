"""What becomes 8-bit in a graph, and why the rest does not: decided before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from edgekit.dialect import Dialect
from edgekit.graphs.edit import GraphIndex, attribute_of, is_standard
from edgekit.graphs.int8_regions import find_regions, tail_of
from edgekit.graphs.storage import element_count
from edgekit.graphs.weights import Operand, Weights
from edgekit.numerics.affine import BOUNDS, Grid, activation_grid, is_dead, within
from edgekit.numerics.ranges import Method, RangeMeter

if TYPE_CHECKING:
    import onnx

Mode = Literal["static", "dynamic", "weights", "float"]
"""How a node is computed: on integers with ranges from calibration, on integers with ranges of the moment, in float on
weights stored in 8 bits, or as it was."""


PRODUCTS = ("Conv", "MatMul", "Gemm")
"""What is multiplied in integers when a dialect names no operators."""


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
        self._constants = {name: {item.position for item in items} for name, items in self.operands.items()}
        self._ops = {node.name: node.op_type for graph in weights.graphs for node in graph.node}
        self._nodes = {node.name: node for node in model.graph.node}

    def node(self, name: str) -> onnx.NodeProto | None:
        """Return a node of the main graph; None for those of inner graphs."""
        return self._nodes.get(name)

    def op(self, name: str) -> str:
        """Return the operator type of a node, also of an inner graph."""
        return str(self._ops[name])

    def compute_nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes of the main graph whose type the dialect multiplies in integers, in order."""
        return [node for node in self.index.graph.node if is_standard(node, *(self.dialect.ops or PRODUCTS))]

    @cached_property
    def computes(self) -> frozenset[str]:
        """The names of the compute nodes."""
        return frozenset(node.name for node in self.compute_nodes())

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
        for name, op in self._ops.items():
            if name in modes and op in self.dialect.float_weights:
                modes[name] = "float"
                reasons[name] = f"{self.dialect.name} does not take the weights of {op} in 8 bits"
        for node in self.compute_nodes():
            matrix = node.op_type in {"MatMul", "Gemm"} and node.name in self.operands
            mode: Mode = "static" if wish == "dynamic" and not matrix else wish
            reason = self.refusal(node, mode) if mode != "weights" else ""
            if not reason and not products and node.name not in self.operands:
                reason = "it multiplies two activations, which the chosen form leaves float"
            if reason:
                reasons[node.name] = reason
            elif mode != "weights" or node.name in self.operands:
                modes[node.name] = mode
        if not self.dialect.stored_per_channel:
            for name in [name for name, mode in modes.items() if mode == "weights" and name in self.computes]:
                modes[name] = "float"
                reasons.setdefault(name, f"{self.dialect.name} takes no 8-bit weights in float products")
        return modes, reasons

    def refusal(self, node: onnx.NodeProto, mode: Mode) -> str:
        """Say why a compute node cannot be quantized in a mode; empty when it can."""
        positions = self._constants.get(node.name, set())
        weighted = node.op_type in {"Conv", "ConvTranspose"}
        stacked = bool(positions) and element_count(self._dims(node)[:-2]) != 1
        problems = {
            "its weight is computed at run time": weighted and 1 not in positions,
            "its first operand is the constant one": 0 in positions,
            "both its operands are activations": mode == "dynamic" and not positions,
            "its weight is a stack of matrices": mode == "dynamic" and not weighted and stacked,
        }
        if node.op_type == "Gemm":
            computed = len(node.input) > 2 and node.input[2] and node.input[2] not in self.index.initializers  # noqa: PLR2004
            problems |= {
                "it has factors alpha or beta": any(attribute_of(node, name, 1.0) != 1.0 for name in ("alpha", "beta")),
                "it transposes its first operand": bool(attribute_of(node, "transA", 0)),
                "its bias is computed at run time": bool(computed),
            }
        return next((problem for problem, holds in problems.items() if holds), "")

    def _dims(self, node: onnx.NodeProto) -> list[int]:
        return list(self.weights.tensor(self.operands[node.name][0]).dims)

    def tensors(self) -> list[str]:
        """Return every tensor that a plan may need a range of, in a fixed order."""
        found = dict.fromkeys(self.product_tensors())
        for node in self.index.graph.node if self.dialect.carry else ():
            if is_standard(node, *self.dialect.carry):
                found.update(dict.fromkeys(name for name in node.output if name))
        return list(found)

    def product_tensors(self) -> list[str]:
        """Return what products read, and make when their outputs are quantized, in a fixed order."""
        found: dict[str, None] = {}
        for node in self.compute_nodes():
            for position, name in enumerate(node.input[:2]):
                if position not in self._constants.get(node.name, ()) and self.index.constant(name) is None:
                    found[name] = None
            if self.dialect.quantize_outputs:
                found[tail_of(self.index, node)[0]] = None
        return list(found)

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
        banned = self._kept_out(chosen)
        dead: list[str] = []
        while True:
            static = [node for node in self.compute_nodes() if chosen.get(node.name) == "static"]
            regions = find_regions(
                self.index,
                self.dialect,
                static,
                self._constants,
                meters=meters,
                banned=banned if carry else None,
            )
            grids: dict[str, Grid] = {}
            fresh: dict[str, str] = {}
            for name in regions.needed:
                root = regions.root(name)
                found = self._grid(root, meters, method)
                if isinstance(found, str):
                    fresh[root] = found
                else:
                    grids[name] = found
            if not fresh:
                break
            banned |= fresh
            dead += [name for name, reason in fresh.items() if reason == _DEAD and name not in dead]
            for name, users in regions.needed.items():
                for user in users if (root := regions.root(name)) in fresh else ():
                    why[user] = f"the range of '{root}' cannot be used: {fresh[root]}"
                    chosen[user] = self.lesser(user)
        return Plan(
            modes=chosen,
            grids=grids,
            produced=frozenset(regions.produced),
            reads=frozenset((node, at) for node, at in regions.reads if chosen.get(node) != "float"),
            carried=frozenset(regions.carried),
            reasons=why,
            dead=tuple(dead),
        )

    def _kept_out(self, modes: Mapping[str, Mode]) -> dict[str, str]:
        """Return the outputs of nodes that could run between integer nodes and were named to stay float, and why."""
        named = [node for node in self.index.graph.node if modes.get(node.name) == "float"]
        carried = [node for node in named if is_standard(node, *self.dialect.carry)] if self.dialect.carry else []
        return {name: f"'{node.name}' is to stay float" for node in carried for name in node.output if name}

    def lesser(self, node: str) -> Mode:
        """Return the mode below integers for a node: stored weights when it has some and the runtime takes them."""
        return "weights" if node in self.operands and self.dialect.stored_per_channel else "float"

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
        return tail_of(self.index, maker)[1] if maker is not None else None


_DEAD = "it is 0 in every calibration sample"


def demoted(
    plan: Plan, planner: Planner, nodes: Mapping[str, str], *, to: Mode
) -> tuple[dict[str, Mode], dict[str, str]]:
    """Return a plan's modes and reasons with `nodes` (name -> reason) lowered; `weights` only where they have some."""
    modes, reasons = dict(plan.modes), dict(plan.reasons)
    for name, reason in nodes.items():
        modes[name] = planner.lesser(name) if to == "weights" else to
        reasons[name] = reason
    return modes, reasons
