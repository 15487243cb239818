"""Which nodes a recipe's entries want in float16 or float32, and why they cannot when they cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edgekit.graphs.half_types import HalfTypes
from edgekit.graphs.plan_edits import HalfEdit, apply_edits, reason_of, refuse_all

if TYPE_CHECKING:
    import onnx

_STAGE = "fp16"


def half_edits(edits: Sequence[HalfEdit], model: onnx.ModelProto, types: HalfTypes) -> dict[str, HalfEdit]:
    """Return the entry that counts for each node of the main graph.

    Raises:
        UsageError: an entry that matches no node, or that can be followed for none that it counts for.
    """
    nodes = {node.name: node for node in model.graph.node}
    named = apply_edits(edits, {name: node.op_type for name, node in nodes.items()}, stage=_STAGE)
    for edit in dict.fromkeys(named.values()):
        mine = [name for name, other in named.items() if other == edit]
        refuse_all(edit, {name: _refusal(nodes[name], edit, types) for name in mine}, stage=_STAGE)
    return named


def kept_by(edits: Mapping[str, HalfEdit], keep: Sequence[str]) -> dict[str, str]:
    """Return the nodes that entries leave in float32, and why; `keep` are the globs of the option of that name."""
    return {
        name: f"the option keep names it ('{edit.match}')" if edit.match in keep else reason_of(edit, ())
        for name, edit in edits.items()
        if edit.mode == "float"
    }


def _refusal(node: onnx.NodeProto, edit: HalfEdit, types: HalfTypes) -> str:
    if not types.inputs(node) and not types.outputs(node):
        return "nothing of it is in floating point"
    return types.refusal(node) if edit.mode == "half" else ""
