"""What of a graph a plan really turns into 8 bits: coverage, and what stays float and why."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.errors import EdgekitError
from edgekit.events import Finding
from edgekit.graphs.edit import is_standard
from edgekit.graphs.int8_plan import PRODUCTS, Mode, Plan, Planner
from edgekit.graphs.storage import element_count
from edgekit.numerics.affine import is_dead
from edgekit.numerics.ranges import RangeMeter

if TYPE_CHECKING:
    import onnx

INTEGER_MODES = frozenset({"static", "dynamic"})
ENOUGH = 0.9
"""Coverage from which a graph counts as quantized."""


def macs_of(path: Path, shapes: Mapping[str, Sequence[int]], planner: Planner) -> dict[str, float]:
    """Return the multiply-accumulates of each node of a model file, for these input shapes.

    When they cannot be counted (an axis whose size depends on data), the elements of each node's weights stand in.
    """
    from edgekit.graphs.cost import cost_of

    try:
        found: dict[str, float] = {}
        for row in cost_of(path, shapes).rows:
            found[row.node] = found.get(row.node, 0.0) + row.macs
        return {node: macs for node, macs in found.items() if macs}
    except EdgekitError:
        return {
            node: float(sum(element_count(planner.weights.tensor(operand).dims) for operand in operands))
            for node, operands in planner.operands.items()
        }


def in_integers(plan: Plan, planner: Planner, node: str) -> bool:
    """Say whether a node's products are computed on 8-bit integers, by its mode or inside the runtime's kernel."""
    mode: Mode = plan.modes.get(node, "float")
    if mode in INTEGER_MODES:
        return True
    found = planner.node(node)
    if mode != "weights" or found is None or found.domain or found.op_type not in planner.dialect.block_kernels:
        return False
    turned = found.op_type == "Gemm" and any(
        attribute.i for attribute in found.attribute if attribute.name in ("transA", "transB")
    )
    operands = planner.operands.get(node, [])
    return [operand.position for operand in operands] == [1] and operands[0].axis is not None and not turned


def coverage(plan: Plan, planner: Planner, macs: Mapping[str, float]) -> dict[str, Any]:
    """Measure a plan.

    Returns:
        `precision`; `weights`: share of the elements of all constants of rank 2 or more that are stored in 8 bits;
        `macs`: share of multiply-accumulates on 8-bit integers; `left_float`: nodes that compute in float although
        they multiply or hold weights.
    """
    stored = {
        operand.key: element_count(planner.weights.tensor(operand).dims)
        for operand in planner.weights.operands
        if plan.modes.get(operand.node, "float") != "float"
    }
    total = sum(macs.values())
    done = sum(count for node, count in macs.items() if in_integers(plan, planner, node))
    names = [node.name for graph in planner.weights.graphs for node in graph.node]
    left = [name for name in names if _works(name, planner, macs) and not in_integers(plan, planner, name)]
    bits = 16 if planner.dialect.activation in {"int16", "uint16"} else 8
    return {
        "precision": f"w{4 if planner.dialect.weight == 'int4' else 8}a{bits}",
        "weights": round(sum(stored.values()) / planner.weights.total, 4) if planner.weights.total else 1.0,
        "macs": round(done / total, 4) if total else 1.0,
        "left_float": left,
    }


def _works(name: str, planner: Planner, macs: Mapping[str, float]) -> bool:
    if macs.get(name):
        return True
    node = planner.node(name)
    return name in planner.operands and (node is None or node.op_type != "Gather")


def left_float_findings(
    plan: Plan, planner: Planner, facts: Mapping[str, Any], expected: Container[str]
) -> list[Finding]:
    """Say for every node that computes in float why it does, and whether its weights are stored in 8 bits.

    Args:
        plan: the plan.
        planner: who made it.
        facts: from `coverage`.
        expected: nodes that could not be quantized from the start; the others lost it by their values: a warning.
    """
    shares = _shares(planner)
    ops = {node.name: node for graph in planner.weights.graphs for node in graph.node}
    inner = {node.name for graph in planner.weights.graphs[1:] for node in graph.node}
    found = []
    for name in facts["left_float"]:
        node = ops[name]
        reason = why_float(node, plan, planner, inner=name in inner)
        weights = f" with {shares[name]:.1%} of the weights" if name in shares else ""
        stored = (
            "its weights are stored in 8 bits" if plan.modes.get(name) == "weights" else "nothing of it is quantized"
        )
        found.append(
            Finding(
                severity="warning" if name in plan.reasons and name not in expected else "note",
                node=name,
                rule="left-float",
                text=f"left float: {node.op_type} '{name}'{weights}, because {reason}; {stored}",
            )
        )
    return found


def _shares(planner: Planner) -> dict[str, float]:
    total = max(planner.weights.total, 1)
    counts: dict[str, int] = {}
    for operand in planner.weights.operands:
        counts[operand.node] = counts.get(operand.node, 0) + element_count(planner.weights.tensor(operand).dims)
    return {node: count / total for node, count in counts.items()}


def why_float(node: onnx.NodeProto, plan: Plan, planner: Planner, *, inner: bool) -> str:
    """Say why a node computes in float: by its values or the caller's wish, else by a rule of the dialect."""
    if reason := plan.reasons.get(node.name, ""):
        return reason
    if inner:
        return "it stands in a subgraph (a branch or a loop body), whose activations are not quantized"
    if is_standard(node, *(planner.dialect.ops or PRODUCTS)):
        return "it multiplies two activations"
    return f"{node.op_type} has no int8 kernel in the {planner.dialect.name} dialect"


def dead_findings(meters: Mapping[str, RangeMeter], planner: Planner) -> list[Finding]:
    """Warn of tensors that were 0 in every calibration sample: nothing is known about the range they take later."""
    seen = {name: meters[name] for name in planner.product_tensors() if name in meters and meters[name].count}
    dead = [name for name, meter in seen.items() if is_dead(meter.low, meter.high)]
    return [
        Finding(
            severity="warning",
            node=name,
            rule="zero-range",
            text=f"tensor '{name}' is 0 in every calibration sample, so nothing is known of its range; it gets none",
            remedy="Calibrate with samples that make it alive, or prune the dead part of the network.",
        )
        for name in dead
    ]
