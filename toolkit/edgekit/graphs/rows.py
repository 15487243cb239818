"""Walking an analyzed graph node by node and writing down what each costs: the counting behind `cost`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.errors import InputError
from edgekit.graphs.edit import attribute_of, is_standard, reads, subgraphs_of
from edgekit.graphs.macs import VIEWS, does_macs, is_counted, macs_of, other_operations
from edgekit.graphs.scope import Scope
from edgekit.graphs.shapes import body_scope
from edgekit.graphs.storage import element_bits, packed_bytes

if TYPE_CHECKING:
    import onnx

_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split", "GatherBlockQuantized"})
_POINTWISE = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Relu", "Clip", "Neg", "Abs", "Max", "Min", "Where", "Equal", "Less"),
        *("Greater", "And", "Or", "Not", "Xor", "LessOrEqual", "GreaterOrEqual", "Sign", "Floor", "Ceil", "Round"),
        *("LeakyRelu", "PRelu", "HardSigmoid", "HardSwish", "ThresholdedRelu", "BatchNormalization", "Mod", "Sum"),
        *("Mean", "Pow", "Sqrt", "Reciprocal", "Exp", "Log", "Sigmoid", "Tanh", "Erf", "Softplus", "Sin", "Cos"),
        *("Elu", "Selu", "Celu", "Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Mish", "Swish", "Cast", "CastLike"),
        *("QLinearAdd", "QLinearMul"),
    }
)
_QUANTIZE = frozenset({"QuantizeLinear", "DequantizeLinear"})
_WEIGHT_INPUTS = {
    "QLinearConv": (3, 8),
    "QLinearMatMul": (3,),
    "QGemm": (3, 6),
    "MatMulInteger": (1,),
    "ConvInteger": (1,),
    "MatMulNBits": (1,),
    "MatMulIntegerToFloat": (1, 6),
    "DynamicQuantizeMatMul": (1, 4),
    "DynamicQuantizeLSTM": (1, 2, 3),
    "GatherBlockQuantized": (0,),
    **dict.fromkeys(("Resize", "Pad", "Clip", "Upsample", "Range", "OneHot", "TopK"), ()),
}
"""Which inputs of an operator are weights, where not every constant number is (scales, limits, fill values)."""


_Stored = tuple[int, int]
"""Parameters and bytes of a stored tensor."""


def _is_weight_type(kind: int) -> bool:
    import onnx

    name = onnx.TensorProto.DataType.Name(kind)
    return "FLOAT" in name or name == "DOUBLE" or (0 < element_bits(kind) <= 8 and name != "BOOL")  # noqa: PLR2004


class Counter:
    """One pass over a model.

    Attributes:
        stored: name of a tensor stored for weights -> (parameters, bytes); scales have bytes and no parameters, what
            is computed from a shape alone has parameters and no bytes.
        held: name of a weight, or of what is stored for it -> bytes while the model is loaded: what is computed from
            constants takes its own place, and what it was computed from none.
        sizes: activation name -> bytes.
        uncounted: names of nodes whose work is not known.
        unshaped: names of nodes whose shapes depend on data.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.stored: dict[str, _Stored] = {}
        self.held: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.used: set[str] = set()
        self.uncounted: list[str] = []
        self.unshaped: list[str] = []

    def graph(self, graph: onnx.GraphProto, scope: Scope) -> list[dict[str, Any]]:
        """Return the rows of a graph, those of its branches and loop bodies included."""
        makers = {name: node for node in graph.node for name in node.output if name}
        self.used.update(name for node in graph.node for name in reads(node))
        self.used.update(value.name for value in graph.output)
        rows: list[dict[str, Any]] = []
        for node in graph.node:
            if all(name in scope.constants for name in node.output if name) or is_standard(node, "Constant"):
                continue
            if list(subgraphs_of(node)):
                rows += self.inner(node, scope)
            else:
                rows.append(self.row(node, scope, makers))
        return rows

    def inner(self, node: onnx.NodeProto, scope: Scope) -> list[dict[str, Any]]:
        """Return the rows of an `If` (the costlier branch when the condition is not known), a `Loop` or a `Scan`."""
        if is_standard(node, "If"):
            found = [self.graph(graph, inside) for graph, inside in scope.inner[node.name]]
            return max(found, key=lambda rows: (sum(row["macs"] for row in rows), len(rows)))
        body = next(subgraphs_of(node))
        steps, kinds = self.steps(node, body, scope)
        if steps is None:
            self.uncounted.append(node.name)
            return []
        return self.graph(body, body_scope(self.model, self.folder, body, scope, kinds)) * steps

    def steps(
        self, node: onnx.NodeProto, body: onnx.GraphProto, scope: Scope
    ) -> tuple[int | None, list[onnx.TypeProto | None]]:
        """Return how often a loop body runs (None when it is not known) and the types of the body's inputs."""
        if is_standard(node, "Loop"):
            trips = scope.values.get(node.input[0])
            endless = not node.input[1] or bool(scope.values.get(node.input[1], False))
            kinds = [None, None, *(scope.types.get(name) for name in node.input[2:])]
            return (int(trips.reshape(-1)[0]) if trips is not None and endless else None), kinds
        scanned = int(attribute_of(node, "num_scan_inputs", 0))
        states = len(node.input) - scanned
        axes = list(attribute_of(node, "scan_input_axes", [0] * scanned))
        shapes = [scope.static(name) for name in node.input[states:]]
        if not scanned or shapes[0] is None or not is_standard(node, "Scan") or len(body.input) != len(node.input):
            return None, []
        kinds = [scope.types.get(name) for name in node.input[:states]] + [None] * scanned
        return shapes[0][axes[0]], kinds

    def row(self, node: onnx.NodeProto, scope: Scope, makers: dict[str, onnx.NodeProto]) -> dict[str, Any]:
        """Return the row of one plain node.

        Raises:
            InputError: it does multiply-accumulates and has no static shape.
        """
        writes = [name for name in node.output if name in self.used]
        names = [*reads(node), *writes]
        shapes = {name: shape for name in names if (shape := scope.static(name)) is not None}
        missing = next((name for name in names if name not in shapes), None)
        if missing is not None:
            self.refuse(node, missing, scope)
        if not is_counted(node):
            self.uncounted.append(node.name)
        active = [name for name in dict.fromkeys(reads(node)) if name not in scope.constants]
        sources = [self.source(name, scope, makers) for name in active]
        for name in (*active, *sources, *writes):
            self.sizes[name] = self.bytes_of(name, scope)
        written = sum(self.sizes[name] for name in writes)
        read = sum(self.sizes[name] for name in dict.fromkeys(sources))
        weights = list(self.weights_of(node, scope, makers))
        fresh = {name: found for _, stored in weights for name, found in stored.items() if name not in self.stored}
        self.stored.update(fresh)
        reads_of_weights = math.ceil(sum(read for read, _ in weights))
        macs = macs_of(node, shapes) if does_macs(node) else 0
        return {
            "node": node.name,
            "op": node.op_type,
            "kind": self.kind(node, shapes),
            "macs": macs,
            "flops": 2 * macs + (0 if missing is not None or macs else other_operations(node, shapes)),
            "parameters": sum(elements for elements, _ in fresh.values()),
            "weight_bytes": sum(size for _, size in fresh.values()),
            "weight_reads": min(reads_of_weights, written) if node.op_type in _LOOKUPS else reads_of_weights,
            "input_bytes": min(read, written) if node.op_type in _LOOKUPS else read,
            "output_bytes": written,
            "dtype": self.dtype(node, scope, makers),
            "reads": tuple(sources),
            "writes": tuple(writes),
            "input_shapes": tuple(shapes.get(name, ()) for name in active),
            "output_shapes": tuple(shapes.get(name, ()) for name in writes),
        }

    def refuse(self, node: onnx.NodeProto, name: str, scope: Scope) -> None:
        """Note a node without static shapes; InputError when its work cannot be counted without."""
        if not does_macs(node):
            self.unshaped.append(node.name)
            return
        origin = scope.lost.get(name)
        since = f"; it is lost at node '{origin.name}' ({origin.op_type})" if origin is not None else ""
        raise InputError(
            f"has no static shape: the size of '{name}' is not known{since}",
            where=f"node '{node.name}' ({node.op_type})",
            remedy="Give the shapes of all inputs (--shape); shapes that depend on values cannot be counted.",
        )

    def kind(self, node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> str:
        """Return what sort of work a node is; see `cost.Row.kind`."""
        if does_macs(node):
            group = int(attribute_of(node, "group", 1)) if "Conv" in node.op_type else 1
            channels = shapes[node.input[0]][1] if group > 1 else 0
            return "compute" if group == 1 else "depthwise" if group == channels else "grouped"
        if node.op_type in _QUANTIZE:
            return "quantize"
        if node.op_type in VIEWS:
            return "view"
        return "elementwise" if node.op_type in _POINTWISE else "other"

    def source(self, name: str, scope: Scope, makers: dict[str, onnx.NodeProto]) -> str:
        """Return the tensor that is really read: the integers behind a DequantizeLinear."""
        maker = makers.get(name)
        if maker is not None and maker.op_type == "DequantizeLinear" and maker.input[0] not in scope.constants:
            return str(maker.input[0])
        return name

    def bytes_of(self, name: str, scope: Scope) -> int:
        """Return the bytes of a tensor; 0 when its shape is not known."""
        shape, kind = scope.static(name), scope.element_type(name)
        return packed_bytes(kind, math.prod(shape)) if shape is not None and kind else 0

    def weights_of(
        self, node: onnx.NodeProto, scope: Scope, makers: dict[str, onnx.NodeProto]
    ) -> Iterator[tuple[int, dict[str, _Stored]]]:
        """Yield, for each weight that a node reads, the bytes that are read and what is stored for it.

        A weight is a constant of one or more axes, of floating point or 8 bits at most; constants of other types are
        shapes and indices.
        """
        if node.op_type in _QUANTIZE:
            return
        positions = _WEIGHT_INPUTS.get(node.op_type)
        for position in range(len(node.input)) if positions is None else positions:
            name = node.input[position] if position < len(node.input) else ""
            shape = scope.static(name) if name in scope.constants else None
            if not shape or (positions is None and not _is_weight_type(scope.element_type(name))):
                continue
            stored = self.storage(name, scope, makers, integers=positions is not None)
            maker = makers.get(name)
            folded = maker is not None and maker.op_type != "DequantizeLinear"
            if node.op_type == "MatMulNBits":
                stored = {
                    name: (int(attribute_of(node, "K")) * int(attribute_of(node, "N")), self.bytes_of(name, scope))
                }
            if _is_folded(name, makers):
                self.held[name] = self.bytes_of(name, scope)
            else:
                self.held.update((held, size) for held, (_, size) in stored.items())
            yield self.bytes_of(name, scope) if folded else sum(size for _, size in stored.values()), stored

    def storage(
        self, name: str, scope: Scope, makers: dict[str, onnx.NodeProto], *, integers: bool
    ) -> dict[str, _Stored]:
        """Return the stored tensors that a constant is computed from; shapes, indices and single numbers left out.

        Args:
            name: the constant.
            scope: what is known of the graph.
            makers: tensor name -> the node that makes it.
            integers: the constant is a weight of whatever type.
        """
        found: dict[str, _Stored] = {}
        waiting, seen, scales = [name], {name}, set[str]()
        of_any_type = {name} if integers else set()
        packed = False
        while waiting:
            current = waiting.pop()
            maker = makers.get(current)
            if maker is None or is_standard(maker, "Constant"):
                wanted = _is_weight_type(scope.element_type(current)) or current in of_any_type
                if wanted and scope.static(current):
                    elements = 0 if current in scales else math.prod(scope.static(current) or ())
                    found[current] = (elements, self.bytes_of(current, scope))
                continue
            waiting += [source for source in reads(maker) if source not in seen]
            seen.update(reads(maker))
            packed = packed or maker.op_type == "BitShift"
            if maker.op_type in _QUANTIZE:
                scales.update(maker.input[1:])
                of_any_type.add(maker.input[0])
        elements = math.prod(scope.static(name) or ())
        if packed and found:  # several weights share a byte
            largest = max(found, key=lambda one: found[one][1])
            return {one: (elements if one == largest else 0, size) for one, (_, size) in found.items()}
        return found or {name: (elements, 0)}

    def dtype(self, node: onnx.NodeProto, scope: Scope, makers: dict[str, onnx.NodeProto]) -> str:
        """Return the type a node computes in."""
        import onnx

        def stored(name: str) -> int:
            maker = makers.get(name)
            behind = maker is not None and maker.op_type == "DequantizeLinear"
            return scope.element_type(maker.input[0] if behind and maker is not None else name)

        if does_macs(node) and len(node.input) > 1:
            bits = {element_bits(kind) for name in node.input[:2] if (kind := stored(name))}
            integer = all("INT" in onnx.TensorProto.DataType.Name(stored(name)) for name in node.input[:2])
            if integer and bits and node.op_type != "MatMulNBits":
                return "int8" if max(bits) <= 8 else "int16"  # noqa: PLR2004
        if node.op_type in {"QLinearConv", "QLinearMatMul", "QGemm", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}:
            return "int8"
        kind = next((scope.element_type(name) for name in (*node.input, *node.output) if scope.element_type(name)), 0)
        return str(onnx.helper.tensor_dtype_to_np_dtype(kind).name) if kind and element_bits(kind) else "unknown"


def _is_folded(name: str, makers: dict[str, onnx.NodeProto]) -> bool:
    """Say whether a constant is computed when the model is loaded; what hangs on a DequantizeLinear is not."""
    if name not in makers:
        return False
    left, seen = [name], set()
    while left:
        maker = makers.get(left.pop())
        if maker is None or maker.name in seen:
            continue
        if maker.op_type == "DequantizeLinear":
            return False
        seen.add(maker.name)
        left.extend(maker.input)
    return True
