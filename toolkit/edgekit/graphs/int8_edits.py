"""Which mode a recipe's entry gives a node of an int8 model, and why it cannot when it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from edgekit.graphs.edit import is_standard
from edgekit.graphs.int8_plan import Mode, Planner
from edgekit.graphs.plan_edits import Int8Edit, apply_edits, refuse_all

_STAGE = "quantize-int8"
_MATRICES = ("MatMul", "Gemm")


def int8_edits(edits: Sequence[Int8Edit], planner: Planner) -> dict[str, Int8Edit]:
    """Return the entry that counts for each node that has something to quantize.

    Raises:
        UsageError: an entry that matches no node, or that can be followed for none that it counts for.
    """
    ops = {node.name: node.op_type for graph in planner.weights.graphs for node in graph.node}
    named = apply_edits(edits, ops, stage=_STAGE)
    found: dict[str, Int8Edit] = {}
    for edit in dict.fromkeys(named.values()):
        mine = [name for name, other in named.items() if other == edit]
        refusals = {name: edited_mode(planner, name, edit.mode, "static")[1] for name in mine}
        refuse_all(edit, refusals, stage=_STAGE)
        found |= {name: edit for name in mine if _has_a_say(planner, name)}
    return found


def edited_mode(
    planner: Planner, name: str, wish: Literal["float", "weights", "static", "dynamic", "w8a8"], form: Mode
) -> tuple[Mode, str]:
    """Return the mode that an entry gives a node in a graph of some form, and why it cannot be (empty: it can)."""
    op, stored = planner.op(name), name in planner.operands
    if wish == "float":
        return "float", "" if _has_a_say(planner, name) else "nothing of it is quantized anyway"
    if wish == "weights":
        never = f"{planner.dialect.name} does not take the weights of {op} in 8 bits"
        missing = "" if stored else "it has no weights"
        return "weights", never if op in planner.dialect.float_weights else missing
    matrix = op in _MATRICES and stored
    mode: Mode = "static" if wish == "static" or (wish == "w8a8" and not (form == "dynamic" and matrix)) else "dynamic"
    return mode, _no_integers(planner, name, mode, matrix=matrix)


def _no_integers(planner: Planner, name: str, mode: Mode, *, matrix: bool) -> str:
    """Say why a node cannot compute in integers; empty when it can."""
    node, dialect = planner.node(name), planner.dialect
    if node is None:
        return "it stands in a subgraph (a branch or a loop body), whose activations are not quantized"
    if name not in planner.computes:
        return f"{node.op_type} has no int8 kernel in the {dialect.name} dialect"
    if mode == "dynamic" and not matrix:
        return "only MatMul and Gemm with a constant matrix run on ranges of the moment"
    if mode == "dynamic" and not dialect.dynamic_transformers:
        return f"the {dialect.name} dialect has no ranges of the moment"
    return planner.refusal(node, mode)


def _has_a_say(planner: Planner, name: str) -> bool:
    """Say whether something of a node can be quantized: its weights, its products, or what it passes on."""
    node = planner.node(name)
    carried = bool(planner.dialect.carry) and node is not None and is_standard(node, *planner.dialect.carry)
    return carried or name in planner.operands or name in planner.computes
