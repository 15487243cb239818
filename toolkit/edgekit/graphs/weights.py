"""The constant operands of a graph that quantization stores in fewer bits, wherever they stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgekit.graphs.edit import attribute_of, is_standard
from edgekit.graphs.storage import element_count, subgraphs_of, value_of

if TYPE_CHECKING:
    import onnx

LEAST_OTHER = 4096
"""Elements from which a constant of an operator without weights of its own (Add, Mul, ...) is stored in 8 bits."""

_LEAST_SHARE = 0.01
_MATRIX = 2


@dataclass(frozen=True, kw_only=True)
class Operand:
    """One use of a constant as a weight.

    Attributes:
        node: name of the node that reads it.
        position: which of its inputs it is.
        tensor: the initializer's name.
        owner: position of the graph that holds the initializer, see `Weights.graphs`.
        axis: axis of the initializer along which outputs lie, so that each may have its own scale; None: one scale.
        perm: permutation of a Transpose (named `transpose`) between initializer and reader; empty: there is none.
        transpose: the Transpose node's name, or empty.
    """

    node: str
    position: int
    tensor: str
    owner: int
    axis: int | None
    perm: tuple[int, ...] = ()
    transpose: str = ""

    @property
    def key(self) -> tuple[int, str]:
        """What identifies the stored constant."""
        return self.owner, self.tensor


class Weights:
    """All weight operands of a model in canonical form, those of inner graphs too.

    Attributes:
        graphs: the graphs, outermost first.
        operands: in graph order.
        total: elements of all floating-point constants of rank 2 or more.
    """

    def __init__(self, graph: onnx.GraphProto, folder: Path | None = None) -> None:
        """Find the operands of `graph`; `folder` is where its external data lies."""
        self.folder = folder
        self.graphs: list[onnx.GraphProto] = []
        self.operands: list[Operand] = []
        self._tensors: dict[tuple[int, str], onnx.TensorProto] = {}
        self._walk(graph, ())
        self.total = sum(element_count(tensor.dims) for tensor in self._tensors.values() if len(tensor.dims) >= _MATRIX)
        least = max(LEAST_OTHER, _LEAST_SHARE * self.total)
        large = (element_count(self.tensor(operand).dims) >= least for operand in self.operands)
        own = (operand.position in OWN_WEIGHTS.get(self._ops[operand.node], ()) for operand in self.operands)
        self.operands = [
            operand for operand, big, weight in zip(self.operands, large, own, strict=True) if big or weight
        ]

    def tensor(self, operand: Operand) -> onnx.TensorProto:
        """Return the initializer behind an operand."""
        return self._tensors[operand.key]

    def values(self, operand: Operand) -> npt.NDArray[np.floating]:
        """Return the initializer's values (read-only when external)."""
        return value_of(self.tensor(operand), self.folder)

    def of(self, node: str) -> list[Operand]:
        """Return the weight operands of a node."""
        return [operand for operand in self.operands if operand.node == node]

    def _walk(self, graph: onnx.GraphProto, scopes: tuple[int, ...]) -> None:
        from onnx import TensorProto

        here = len(self.graphs)
        self.graphs.append(graph)
        self._ops = getattr(self, "_ops", {})
        scopes = (here, *scopes)
        for tensor in graph.initializer:
            if tensor.data_type == TensorProto.FLOAT:
                self._tensors[here, tensor.name] = tensor
        makers = {name: node for node in graph.node for name in node.output if name}
        for node in graph.node:
            self._ops[node.name] = node.op_type
            if not node.domain:
                self.operands += self._of_node(node, scopes, makers)
            for inner in subgraphs_of(node):
                self._walk(inner, scopes)

    def _of_node(
        self, node: onnx.NodeProto, scopes: tuple[int, ...], makers: dict[str, onnx.NodeProto]
    ) -> Iterator[Operand]:
        for position, name in enumerate(node.input):
            if node.op_type in _NEVER or not name:
                continue
            maker = makers.get(name)
            perm: tuple[int, ...] = ()
            if maker is not None and is_standard(maker, "Transpose") and node.op_type in {"MatMul", "Gemm"}:
                name = maker.input[0]  # noqa: PLW2901 - the constant stands behind the Transpose
            key = next(((scope, name) for scope in scopes if (scope, name) in self._tensors), None)
            if key is None or len(self._tensors[key].dims) < _MATRIX:
                continue
            rank = len(self._tensors[key].dims)
            axis = output_axis(node, position, rank)
            if maker is not None:
                perm = tuple(attribute_of(maker, "perm", list(range(rank))[::-1]))
                axis = None if axis is None else perm[axis]
            yield Operand(
                node=node.name,
                position=position,
                tensor=name,
                owner=key[0],
                axis=axis,
                perm=perm,
                transpose="" if maker is None else maker.name,
            )


OWN_WEIGHTS: dict[str, tuple[int, ...]] = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "MatMul": (0, 1),
    "Gemm": (0, 1),
    "Einsum": (0, 1, 2, 3),
    "Gather": (0,),
    "LSTM": (1, 2),
    "GRU": (1, 2),
    "RNN": (1, 2),
}
"""Op type -> inputs that are weights whatever their size; LSTM and its kin: W and R."""

# their float inputs are scales, regions or bounds, or must be float by the rules of the runtimes
_NEVER = frozenset(
    {"Resize", "Upsample", "Pad", "Clip", "QuantizeLinear", "DequantizeLinear", "If", "Loop", "Scan", "Constant"}
    | {"LayerNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization"}
    | {"Shape", "Size", "NonMaxSuppression", "RoiAlign", "Transpose"}
)


def output_axis(node: onnx.NodeProto, position: int, rank: int) -> int | None:
    """Return the axis of a weight along which the outputs lie; None when one scale must do.

    A grouped ConvTranspose shares its output axis among groups, and kernels want one scale for stacked matrices.
    """
    op = node.op_type
    axis: int | None = rank - 1
    if op == "Conv":
        axis = 0
    elif op == "ConvTranspose":
        axis = 1 if attribute_of(node, "group", 1) == 1 else None
    elif op == "MatMul":
        axis = (rank - 1 if position else rank - 2) if rank == _MATRIX else None
    elif op == "Gemm":
        transposed = bool(attribute_of(node, "transB" if position else "transA", 0))
        axis = int(transposed != bool(position))
    elif op in {"LSTM", "GRU", "RNN"}:
        axis = 1
    elif op == "Einsum":
        axis = _einsum_axis(attribute_of(node, "equation", b"").decode(), position, rank)
    elif op == "Gather":
        axis = int(attribute_of(node, "axis", 0)) % rank
    return axis


def _einsum_axis(equation: str, position: int, rank: int) -> int | None:
    terms, _, result = equation.replace(" ", "").partition("->")
    labels = terms.split(",")
    if position >= len(labels) or not result or "." in equation or len(labels[position]) != rank:
        return None
    kept = [axis for axis, label in enumerate(labels[position]) if label in result]
    return kept[-1] if kept else None
