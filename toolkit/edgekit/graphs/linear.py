"""Linear layers as a graph spells them: MatMul, MatMul and Add, or Gemm, with constant weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.edit import GraphIndex, attribute_of, is_standard
from edgekit.graphs.storage import is_external

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, kw_only=True)
class Linear:
    """`output = source @ weight + bias`.

    Attributes:
        nodes: the node, or the two nodes, that spell it.
        source: the input tensor.
        output: the output tensor.
        weight: [K, N], in the graph's type.
        bias: [N], or None.
        stored: names of the initializers that only this layer reads.
    """

    nodes: tuple[onnx.NodeProto, ...]
    source: str
    output: str
    weight: npt.NDArray[Any]
    bias: npt.NDArray[Any] | None
    stored: tuple[str, ...]

    @property
    def is_gemm(self) -> bool:
        """Whether it is spelled as a Gemm."""
        return self.nodes[0].op_type == "Gemm"


def find_linear(index: GraphIndex, node: onnx.NodeProto) -> Linear | None:
    """Return the linear layer that starts at a node, with the bias that follows it; None when none does.

    Weights in external data are left alone: they are too large to multiply here.
    """
    if not is_standard(node, "MatMul", "Gemm") or _weight(index, node.input[1]) is None:
        return None
    weight = _weight(index, node.input[1])
    if weight is None or not node.input[0] or index.constant(node.input[0]) is not None:
        return None
    return _gemm(index, node, weight) if node.op_type == "Gemm" else _matmul(index, node, weight)


def _weight(index: GraphIndex, name: str) -> npt.NDArray[Any] | None:
    tensor = index.constant(name)
    if tensor is None or is_external(tensor) or len(tensor.dims) != 2:  # noqa: PLR2004 - a matrix
        return None
    value = index.value(name)
    return value if value is not None and value.dtype.kind == "f" else None


def _gemm(index: GraphIndex, node: onnx.NodeProto, weight: npt.NDArray[Any]) -> Linear | None:
    if attribute_of(node, "transA", 0):
        return None
    matrix = weight.T if attribute_of(node, "transB", 0) else weight
    bias = None
    names = [node.input[1]]
    if len(node.input) > 2 and node.input[2]:  # noqa: PLR2004 - the third input
        bias = _bias(index, node.input[2], matrix.shape[1])
        if bias is None:
            return None
        bias = (bias * attribute_of(node, "beta", 1.0)).astype(matrix.dtype)
        names.append(node.input[2])
    scaled = (matrix * attribute_of(node, "alpha", 1.0)).astype(matrix.dtype)
    return Linear(
        nodes=(node,),
        source=node.input[0],
        output=node.output[0],
        weight=scaled,
        bias=bias,
        stored=_own(index, names),
    )


def _matmul(index: GraphIndex, node: onnx.NodeProto, weight: npt.NDArray[Any]) -> Linear:
    after = index.only_consumer(node.output[0])
    if after is not None and is_standard(after, "Add"):
        other = next((name for name in after.input if name != node.output[0]), "")
        bias = _bias(index, other, weight.shape[1])
        if bias is not None:
            return Linear(
                nodes=(node, after),
                source=node.input[0],
                output=after.output[0],
                weight=weight,
                bias=bias.astype(weight.dtype),
                stored=_own(index, [node.input[1], other]),
            )
    return Linear(
        nodes=(node,),
        source=node.input[0],
        output=node.output[0],
        weight=weight,
        bias=None,
        stored=_own(index, [node.input[1]]),
    )


def _bias(index: GraphIndex, name: str, width: int) -> npt.NDArray[Any] | None:
    """Return a constant as a vector of `width`, when adding it changes no shape."""
    tensor = index.constant(name) if name else None
    if tensor is None or is_external(tensor):
        return None
    value = index.value(name)
    if value is None or value.dtype.kind != "f" or value.ndim > 2 or any(size != 1 for size in value.shape[:-1]):  # noqa: PLR2004
        return None
    if value.ndim > 1 or value.size not in {1, width}:
        return None
    return np.broadcast_to(value.reshape(-1), (width,))


def _own(index: GraphIndex, names: list[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in index.initializers and len(index.consumers.get(name, [])) == 1)
