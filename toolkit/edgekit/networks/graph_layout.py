"""What of a quantized ONNX graph can be learned: its integers, biases, scales and float weights. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.networks.graph_packed import without_copies, without_unpacking
from edgekit.numerics.affine import BOUNDS
from edgekit.numerics.packing import pack_codes, unpack_codes

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[Any]

CARRIED = ("int8", "uint8", "int4", "uint4", "int16", "uint16")
"""Integer types that stand for real numbers: a graph module carries them as floats."""

BLOCKED = {"MatMulNBits": 1, "GatherBlockQuantized": 0}
"""Operator on packed codes -> position of the codes."""

ZERO = 3
"""Position of the zero points of such an operator."""

_ZERO_POINTS = {
    "QuantizeLinear": (2,), "DequantizeLinear": (2,), "MatMulInteger": (2, 3), "MatMulNBits": (ZERO,),
    "GatherBlockQuantized": (ZERO,),
}  # fmt: skip
_SCALES = {"QuantizeLinear": 1, "DequantizeLinear": 1}
_FLOAT_WEIGHTS = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "MatMul": (0, 1), "LayerNormalization": (1, 2),
    "Add": (0, 1),
}  # fmt: skip
_WITH_BIAS = 3
_MATRIX = 2
_MOST_INT8 = 127


@dataclass(frozen=True)
class Node:
    """A node: names of its inputs and outputs, and its attributes as Python values (tensors as arrays)."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Packed:
    """How codes lie in an initializer of bytes: `[rows, blocks, block]` codes of `bits`, in the shape `dims`."""

    bits: int
    block: int
    dims: tuple[int, ...]

    def unpack(self, values: Array) -> Array:
        """Return the codes, one a byte."""
        return unpack_codes(values.reshape(values.shape[0], -1, self.block * self.bits // 8), self.bits, self.block)

    def pack(self, codes: Array) -> Array:
        """Return the bytes of such codes."""
        return pack_codes(codes.astype(np.uint8), self.bits).reshape(self.dims)


@dataclass(frozen=True)
class Weight:
    """One integer initializer: its bounds, and the scale that it is counted in, as far as it is one that is known."""

    name: str
    low: int
    high: int
    scale: str = ""
    axis: int | None = None
    block: int = 0
    packed: Packed | None = None


@dataclass(frozen=True)
class Bias:
    """One int32 initializer, the scale of its steps, and the two scales whose product that is (or empty)."""

    name: str
    scale: str
    activation: str = ""
    weight: str = ""


class Layout:
    """A graph read as data.

    Attributes:
        nodes: in order.
        outputs: names of the graph's outputs.
        rows: what the first axis of every input is fixed to; 0 when it is open.
        arrays: initializer -> values; those of 4 bits one a byte.
        kinds: initializer -> type, in the words of `numerics.affine.BOUNDS` where it is one of those.
        weights, biases: what is stored in integers.
    """

    def __init__(self, path: Path, *, bits: int) -> None:
        """Read `path`; int8 weights have `bits`, sign included."""
        import onnx

        model = onnx.load(path)
        self.outputs = [value.name for value in model.graph.output]
        self.rows = _fixed_rows(model.graph)
        self.arrays = {tensor.name: _array(tensor) for tensor in model.graph.initializer}
        nodes = without_copies([_node(node) for node in model.graph.node], self.arrays, self.outputs)
        self.nodes, self._filters = without_unpacking(nodes, self.arrays, self.outputs)
        self.kinds = {tensor.name: _kind(tensor) for tensor in model.graph.initializer}
        self._readers: dict[str, list[tuple[Node, int]]] = {}
        self._makers = {name: node for node in self.nodes for name in node.outputs}
        for node in self.nodes:
            for position, name in enumerate(node.inputs):
                self._readers.setdefault(name, []).append((node, position))
            if node.op == "QuantizeLinear":
                zero = node.inputs[2] if len(node.inputs) > _SCALES[node.op] + 1 else ""
                node.attributes["bounds"] = BOUNDS[self.kinds.get(zero, "uint8")]
        self.weights = list(self._find_weights(bits))
        self.biases = list(self._find_biases())

    def blocked(self, name: str) -> Node | None:
        """Return a node that reads a tensor as codes in blocks, directly or through a Reshape."""
        for node, position in self._readers.get(name, []):
            if BLOCKED.get(node.op) == position:
                return node
            if node.op == "Reshape" and position == 0 and (found := self.blocked(node.outputs[0])):
                return found
        return None

    def fuses(self, node: Node) -> bool:
        """Say whether a product on stored weights is one that onnxruntime computes in integers, block by block.

        It does so where only this product dequantizes the weight, a matrix [in, out] with a scale for each output, and
        its activation comes as floats; of Gemm only what is a plain product with a bias.
        """
        plain = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0}
        if node.op == "Gemm" and any(node.attributes.get(key, value) != value for key, value in plain.items()):
            return False
        weight, data = (self._makers.get(name) for name in (node.inputs[1], node.inputs[0]))
        if weight is None or weight.op != "DequantizeLinear" or (data is not None and data.op == "DequantizeLinear"):
            return False
        stored, codes = self.arrays.get(weight.inputs[1]), self.arrays.get(weight.inputs[0])
        if codes is None or codes.ndim != _MATRIX or int(weight.attributes.get("axis", 1)) % _MATRIX != 1:
            return False
        return stored is not None and stored.size > 1 and len(self._readers.get(node.inputs[1], [])) == 1

    def scales(self) -> list[str]:
        """Return the scales that may be learned: read by Q/DQ nodes only; those of biases follow from them."""
        following = {bias.scale for bias in self.biases if bias.activation}
        fixed = {bias.scale for bias in self.biases if not bias.activation}
        weights = {weight.scale for weight in self.weights}
        found = []
        for name, value in self.arrays.items():
            readers = self._readers.get(name, [])
            own = bool(readers) and all(_SCALES.get(node.op) == position for node, position in readers)
            counts = any(node.op == "QuantizeLinear" for node, _ in readers) or name in weights
            if own and counts and name not in following | fixed and value.dtype == np.float32:
                found.append(name)
        return found

    def float_weights(self) -> list[str]:
        """Return the float initializers that are weights or biases of layers."""
        return [name for name in self.arrays if self._is_float_weight(name)]

    def carried(self, name: str) -> Array:
        """Return a constant as it is used: integers of few bits as floats, packed zero points one by one."""
        value, kind = self.arrays[name], self.kinds[name]
        if kind not in CARRIED:
            return np.array(value)
        for node, position in self._readers.get(name, []):
            if node.op in BLOCKED and position == ZERO and kind == "uint8":
                width = int(node.attributes.get("bits", 4))
                flat = unpack_codes(value.reshape(-1, value.shape[-1]), width, value.shape[-1] * 8 // width)
                return flat.astype(np.float32)
        return value.astype(np.float32)

    def _find_weights(self, bits: int) -> Iterator[Weight]:
        for name, value in self.arrays.items():
            readers = self._readers.get(name, [])
            zero = any(self._is_constant(node, position) for node, position in readers)
            if self.kinds[name] not in CARRIED or zero or value.size <= 1 or not readers:
                continue
            if reader := self.blocked(name):
                width, block = int(reader.attributes.get("bits", 4)), int(reader.attributes["block_size"])
                packed = Packed(bits=width, block=block, dims=value.shape)
                yield Weight(name, 0, 2**width - 1, packed=packed)
                continue
            if name in self._filters:
                width = self._filters[name]
                yield Weight(name, 0, 2**width - 1, packed=Packed(width, value.shape[-1] * 8 // width, value.shape))
                continue
            low, high = BOUNDS[self.kinds[name]]
            if self.kinds[name] == "int8":
                low, high = _symmetric(value, bits)
            yield self._counted(name, low, high)

    def _is_constant(self, node: Node, position: int) -> bool:
        """Say whether a node reads integers that are no weight: a zero point, or floats that nothing is taken from."""
        if node.op == "Cast":
            readers = self._readers.get(node.outputs[0], [])
            return not readers or any(reader.op != "Sub" or place for reader, place in readers)
        return position in _ZERO_POINTS.get(node.op, ())

    def _counted(self, name: str, low: int, high: int) -> Weight:
        """Return a weight with its scale, where every reader dequantizes it by the same stored scale."""
        readers = self._readers[name]
        scales = {node.inputs[1] for node, position in readers if node.op == "DequantizeLinear" and position == 0}
        plain = all(node.op == "DequantizeLinear" and position == 0 for node, position in readers)
        if not plain or len(scales) != 1 or not scales <= self.arrays.keys():
            return Weight(name, low, high)
        scale, attributes = scales.pop(), readers[0][0].attributes
        axis = int(attributes.get("axis", 1)) if self.arrays[scale].size > 1 else None
        return Weight(name, low, high, scale, axis, int(attributes.get("block_size", 0)))

    def _find_biases(self) -> Iterator[Bias]:
        for name in self.arrays:
            readers = self._readers.get(name, [])
            if self.kinds[name] != "int32" or not readers or any(n.op != "DequantizeLinear" or p for n, p in readers):
                continue
            scale = readers[0][0].inputs[1]
            activation, weight = self._factors(readers[0][0].outputs[0])
            yield (
                Bias(name, scale, activation, weight) if self._follows(scale, activation, weight) else Bias(name, scale)
            )

    def _follows(self, scale: str, activation: str, weight: str) -> bool:
        """Say whether a bias' steps are the product of two stored scales."""
        one, other = self.arrays.get(activation), self.arrays.get(weight)
        if one is None or other is None or one.size != 1:
            return False
        return bool(np.allclose(self.arrays[scale].ravel(), one.ravel()[0] * other.ravel(), rtol=1e-4))

    def _factors(self, bias: str) -> tuple[str, str]:
        """Return the scales of the activation and the weight that a product with this bias reads."""
        node = self._readers[bias][0][0] if self._readers.get(bias) else None
        if node is None or len(node.inputs) < _WITH_BIAS:
            return "", ""
        found = []
        for name in node.inputs[:2]:
            maker = self._makers.get(name)
            while maker is not None and maker.op in {"Transpose", "Reshape"}:
                maker = self._makers.get(maker.inputs[0])
            found.append(maker.inputs[1] if maker is not None and maker.op == "DequantizeLinear" else "")
        return found[0], found[1]

    def _is_float_weight(self, name: str) -> bool:
        value, readers = self.arrays[name], self._readers.get(name, [])
        if value.dtype != np.float32 or value.size <= 1 or not readers:
            return False
        if not all(position in _FLOAT_WEIGHTS.get(node.op, ()) for node, position in readers):
            return False
        return all(node.op != "Add" or value.ndim == 1 for node, _ in readers)


def _symmetric(values: Array, bits: int) -> tuple[int, int]:
    """Return the bounds of int8 weights of `bits`; of all 8 where they have those: only products need fewer."""
    most = int(2 ** (bits - 1) - 1)
    most = most if int(np.abs(values.astype(np.int16)).max()) <= most else _MOST_INT8
    return -most, most


def _fixed_rows(graph: onnx.GraphProto) -> int:
    constants = {tensor.name for tensor in graph.initializer}
    shapes = [value.type.tensor_type.shape.dim for value in graph.input if value.name not in constants]
    first = {dims[0].dim_value for dims in shapes if len(dims)}
    return int(first.pop()) if len(first) == 1 else 0


def _kind(tensor: onnx.TensorProto) -> str:
    import onnx

    return str(onnx.TensorProto.DataType.Name(tensor.data_type)).lower()


def _node(node: onnx.NodeProto) -> Node:
    import onnx

    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    plain = {
        key: np.array(onnx.numpy_helper.to_array(value)) if isinstance(value, onnx.TensorProto) else value
        for key, value in values.items()
    }
    return Node(node.name, node.op_type, tuple(node.input), tuple(node.output), {**plain, "outputs": len(node.output)})


def _array(tensor: onnx.TensorProto) -> Array:
    import onnx

    value = onnx.numpy_helper.to_array(tensor)
    kinds = {"int4": np.int8, "uint4": np.uint8}
    return value.astype(kinds[_kind(tensor)]) if _kind(tensor) in kinds else np.array(value)
