"""Which weights of a graph can be stored on block-wise grids, and why the others stay float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.edit import attribute_of
from edgekit.graphs.plan_edits import BlockEdit, apply_edits, reason_of, refuse_all
from edgekit.graphs.storage import element_count
from edgekit.graphs.weights import Operand, Weights

if TYPE_CHECKING:
    import onnx

_MATRIX = 2
_STAGE = "quantize-int4"


@dataclass(frozen=True, kw_only=True)
class BlockWeight:
    """A stored matrix that can be quantized block-wise: every use of it is a product, a lookup of rows or a filter.

    The filters of a Conv are a matrix too: a row for each output channel, of all that it is multiplied by.

    Attributes:
        key: what identifies it, see `Operand.key`.
        axis: axis of the initializer along which the outputs (the rows of a table) lie: 0 or 1.
        rows: N, the number of outputs.
        depth: K, along which the blocks lie.
        products: MatMul and Gemm that multiply by it.
        lookups: Gather of its rows.
        filters: Conv that slides it.
        shape: dimensions of the initializer.
    """

    key: tuple[int, str]
    axis: int
    rows: int
    depth: int
    products: tuple[Operand, ...]
    lookups: tuple[Operand, ...]
    filters: tuple[Operand, ...]
    shape: tuple[int, ...]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """All its uses."""
        return self.products + self.lookups + self.filters

    def laid(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values `[N, K]` as the initializer lies."""
        return rows.reshape(self.shape) if self.axis == 0 else np.ascontiguousarray(rows.T)

    @property
    def elements(self) -> int:
        """How many weights it holds."""
        return self.rows * self.depth

    @property
    def is_table(self) -> bool:
        """Whether rows of it are looked up: the embedding, which may be the last layer's weight as well."""
        return bool(self.lookups)


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """What is quantized.

    Attributes:
        weights: the matrices.
        reasons: node -> why its weight stays float.
        edits: weight key -> the recipe's entry that counts for it.
    """

    weights: tuple[BlockWeight, ...]
    reasons: dict[str, str]
    edits: dict[tuple[int, str], BlockEdit] = field(default_factory=dict)


def plan_blocks(
    weights: Weights,
    *,
    edits: Sequence[BlockEdit] = (),
    skip: Sequence[str] = (),
    tables: bool,
    filters: bool,
    whole: int = 0,
) -> BlockPlan:
    """Find the matrices that can be quantized.

    A matrix is stored once, so one use that needs it in float keeps it in float for all.

    Args:
        weights: the weight operands of a graph in canonical form.
        edits: what the recipe wants of single nodes; of several that match, the last counts. Of the entries for
            several readers of one matrix, one that leaves it float counts, else the last.
        skip: which of their globs came from the option skip.
        tables: whether tables that are looked up are quantized.
        filters: whether those of Conv are.
        whole: block size that must divide the depth of a matrix; 0: none must.

    Raises:
        UsageError: an entry that matches no node, or that can be followed for none that it counts for.
    """
    nodes = {node.name: node for graph in weights.graphs for node in graph.node}
    named = apply_edits(edits, {name: node.op_type for name, node in nodes.items()}, stage=_STAGE)
    uses: dict[tuple[int, str], list[Operand]] = {}
    for operand in weights.operands:
        uses.setdefault(operand.key, []).append(operand)
    found: list[BlockWeight] = []
    reasons: dict[str, str] = {}
    chosen: dict[tuple[int, str], BlockEdit] = {}
    for key, operands in uses.items():
        asked = [named[operand.node] for operand in operands if operand.node in named]
        if asked:
            chosen[key] = max(asked, key=lambda edit: (edit.mode == "float", edits.index(edit)))
        reason, culprit = _wish(operands, named, skip)
        if not reason:
            reason, culprit = _refusal(weights, operands, nodes, tables=tables, filters=filters)
        if not reason and whole:
            block = chosen[key].block if asked else None
            reason = _uneven(_weight(weights, operands, nodes), block or whole)
        if not reason:
            found.append(_weight(weights, operands, nodes))
            continue
        for operand in operands:
            own = operand.node == culprit or not culprit
            reasons[operand.node] = reason if own else f"its weight is also read by '{culprit}', where {reason}"
    _check_edits(edits, named, weights, reasons)
    return BlockPlan(weights=tuple(found), reasons=reasons, edits=chosen)


def _wish(operands: Sequence[Operand], named: Mapping[str, BlockEdit], skip: Sequence[str]) -> tuple[str, str]:
    """Return the wish to leave a matrix float and the node that has it; empty: none has."""
    left = [operand.node for operand in operands if _leaves(named.get(operand.node))]
    return (reason_of(named[left[0]], skip), left[0]) if left else ("", "")


def _check_edits(
    edits: Sequence[BlockEdit], named: Mapping[str, BlockEdit], weights: Weights, reasons: Mapping[str, str]
) -> None:
    stored = {operand.node for operand in weights.operands}
    for edit in edits:
        mine = [name for name, other in named.items() if other == edit]
        refusals = {name: "" if _leaves(edit) else reasons.get(name, "") for name in mine if name in stored}
        refuse_all(edit, refusals or dict.fromkeys(mine, "it has no weight"), stage=_STAGE)


def _leaves(edit: BlockEdit | None) -> bool:
    return edit is not None and edit.mode == "float"


def _uneven(weight: BlockWeight, block: int) -> str:
    if weight.depth % block:
        return f"its depth of {weight.depth} is no multiple of the block of {block}, which the runtime asks for"
    if (weight.depth if weight.axis == 0 else weight.rows) % 2:
        return "its last dimension is odd, and the runtime wants 4-bit weights in pairs"
    return ""


def matrix_of(weights: Weights, weight: BlockWeight) -> npt.NDArray[np.float32]:
    """Return a weight's values as `[N, K]`."""
    values = np.asarray(weights.values(weight.operands[0]), np.float32)
    return values.reshape(weight.rows, -1) if weight.axis == 0 else np.ascontiguousarray(values.T)


def _weight(weights: Weights, operands: list[Operand], nodes: dict[str, onnx.NodeProto]) -> BlockWeight:
    dims = list(weights.tensor(operands[0]).dims)
    axis = operands[0].axis or 0

    def read_by(*ops: str) -> tuple[Operand, ...]:
        return tuple(operand for operand in operands if nodes[operand.node].op_type in ops)

    return BlockWeight(
        key=operands[0].key,
        axis=axis,
        rows=dims[axis],
        depth=element_count(dims) // dims[axis],
        products=read_by("MatMul", "Gemm"),
        lookups=read_by("Gather"),
        filters=read_by("Conv"),
        shape=tuple(dims),
    )


def _refusal(
    weights: Weights,
    operands: list[Operand],
    nodes: dict[str, onnx.NodeProto],
    *,
    tables: bool,
    filters: bool,
) -> tuple[str, str]:
    """Return why a matrix stays float, and the node that is at fault (empty: all of them); empty: nothing is."""
    for operand in operands:
        if reason := _node_refusal(operand, nodes[operand.node], weights, tables=tables, filters=filters):
            return reason, operand.node
    axes = {operand.axis for operand in operands}
    if len(axes) > 1:
        return "its weight is multiplied along both axes, and blocks lie along one", ""
    if other := _other_reader(weights, operands):
        return f"its weight is also read by {other}", ""
    if not np.isfinite(weights.values(operands[0])).all():
        return "its weight holds infinite or undefined values", ""
    return "", ""


def _node_refusal(operand: Operand, node: onnx.NodeProto, weights: Weights, *, tables: bool, filters: bool) -> str:
    dims = list(weights.tensor(operand).dims)
    lookup, slides = node.op_type == "Gather", node.op_type == "Conv" and filters
    known = {"MatMul", "Gemm", "Gather"} | ({"Conv"} if filters else set())
    rules = (
        (node.op_type not in known, f"{node.op_type} has no kernel for block-wise weights"),
        (slides and (operand.axis != 0 or bool(operand.transpose)), "its filters are transposed"),
        (len(dims) != _MATRIX and not slides, f"its weight is of rank {len(dims)}; blocks are for matrices"),
        (not element_count(dims), "its weight is empty"),
        (lookup and (operand.axis != 0 or operand.position != 0), "it does not look up rows"),
        (lookup and not tables, "tables stay float (embeddings = false)"),
        (not lookup and operand.position != 1, "its first operand is the constant one"),
        (
            bool(attribute_of(node, "transA", 0)) or attribute_of(node, "alpha", 1.0) != 1.0,
            "it transposes or scales its first operand",
        ),
    )
    return next((reason for broken, reason in rules if broken), "")


def _other_reader(weights: Weights, operands: list[Operand]) -> str:
    """Name what reads a stored weight besides its operands (also behind a Transpose); empty: nothing does."""
    name, owner = operands[0].tensor, operands[0].owner
    held = weights.graphs[owner]
    expected = {(operand.node, operand.position) for operand in operands}
    behind = {operand.transpose for operand in operands if operand.transpose}
    names = {name} | {
        out for graph in weights.graphs for node in graph.node if node.name in behind for out in node.output
    }
    if any(value.name in names for value in held.output):
        return "the model's outputs"
    for graph in weights.graphs:
        if graph is not held and any(tensor.name == name for tensor in graph.initializer):
            continue  # an inner graph with a constant of its own by that name
        for node in graph.node:
            for position, read in enumerate(node.input):
                if read in names and node.name not in behind and (node.name, position) not in expected:
                    return f"'{node.name}' ({node.op_type})"
    return ""
