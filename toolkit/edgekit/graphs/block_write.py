"""Writes block-wise weights into a graph: as onnxruntime's block operators, or as standard DequantizeLinear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from edgekit.dialect import Dialect
from edgekit.errors import UnsupportedError
from edgekit.graphs.block_filters import FilterNodes
from edgekit.graphs.block_inputs import ProductInputs
from edgekit.graphs.block_plan import BlockWeight
from edgekit.graphs.block_solve import Solved
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.copies import copy_without
from edgekit.graphs.edit import GraphIndex, attribute_of, drop_dead, graphs_in, opset_of, sort_nodes
from edgekit.graphs.opset import at_least
from edgekit.graphs.weights import Operand
from edgekit.numerics.blockwise import BlockCodes
from edgekit.numerics.packing import pack_blocks, pack_codes, signed

if TYPE_CHECKING:
    import onnx

Form = Literal["matmulnbits", "qdq"]

BLOCKED_OPSET = 21
"""First opset whose DequantizeLinear knows blocks and 4 bits."""

FLOAT_ACCURACY = 1
"""Accuracy level at which onnxruntime multiplies in float32."""

FUSED_ACCURACY = 4
"""Accuracy level at which onnxruntime quantizes the activations to 8 bits inside the kernel."""

_BLOCKED_IR = 10
_BIAS = 2


def write_blocks(
    source: Canonical,
    plan: tuple[BlockWeight, ...],
    solved: Solved,
    dialect: Dialect,
    *,
    form: Form,
    accuracy_level: int,
    halved: bool = False,
) -> onnx.ModelProto:
    """Return a new model with quantized weights; constants that stay float in external files stay references.

    Args:
        source: the float model.
        plan: the matrices that are quantized.
        solved: their codes, and the factors that inputs are divided by.
        dialect: the runtime's rules.
        form: how they are written.
        accuracy_level: see `MatMulNBits`.
        halved: whether products read their input as two parts of 8 bits, see `ProductInputs.halves`.

    Raises:
        UnsupportedError: the form needs an opset that the graph cannot be brought to, or that the runtime lacks.
    """
    model = copy_without(source.model, {weight.key[1] for weight in plan if weight.key[0] == 0})
    if form == "qdq" and opset_of(model) < BLOCKED_OPSET:
        if dialect.max_opset < BLOCKED_OPSET:
            raise UnsupportedError(
                f"4-bit weights as DequantizeLinear need opset {BLOCKED_OPSET}; {dialect.name} reads up to "
                f"{dialect.max_opset} on this device",
                remedy="Choose another recipe, e.g. int8 or fp16.",
            )
        model = at_least(model, BLOCKED_OPSET)
    draft = _Draft(model, source, form, accuracy_level, halved=halved)
    for weight in plan:
        draft.write(weight, solved)
    return draft.finished(dialect)


class _Draft:
    """One model being written."""

    def __init__(
        self, model: onnx.ModelProto, source: Canonical, form: Form, accuracy_level: int, *, halved: bool
    ) -> None:
        self.model, self.form, self.level = model, form, accuracy_level
        self.halved = halved and accuracy_level == FUSED_ACCURACY and form == "matmulnbits"
        self.graphs = list(graphs_in(model.graph))
        self.index = GraphIndex(model.graph, source.folder)
        self.nodes = {node.name: node for graph in self.graphs for node in graph.node}
        self.before: dict[str, list[onnx.NodeProto]] = {}
        self.instead: dict[str, list[onnx.NodeProto]] = {}
        self.head: dict[int, list[onnx.NodeProto]] = {}
        self.inputs = ProductInputs(self.index, opset_of(model), self._constant)
        self.foreign = False

    def finished(self, dialect: Dialect) -> onnx.ModelProto:
        """Place the nodes and remove what nothing reads."""
        for number in range(len(self.graphs) - 1, -1, -1):
            graph = self.graphs[number]
            nodes = list(self.head.get(number, []))
            for node in graph.node:
                nodes += self.before.get(node.name, [])
                nodes += self.instead.get(node.name, [node])
            copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
            del graph.node[:]
            graph.node.extend(copies)
        sort_nodes(self.model.graph)
        for graph in reversed(list(graphs_in(self.model.graph))):  # those of before the nodes were copied are gone
            drop_dead(graph)
        del self.model.graph.value_info[:]
        if self.foreign and all(entry.domain != "com.microsoft" for entry in self.model.opset_import):
            entry = self.model.opset_import.add()
            entry.domain, entry.version = "com.microsoft", 1
        least = _BLOCKED_IR if self.form == "qdq" else 0
        self.model.ir_version = max(min(self.model.ir_version, dialect.max_ir), least)
        return self.model

    # --- one weight --------------------------------------------------------------------------------------------------

    def write(self, weight: BlockWeight, solved: Solved) -> None:
        """Store one matrix and let its readers use it."""
        codes = solved.codes[weight.key]
        if weight.filters:
            self._write_filters(weight, codes)
            return
        for operand in weight.products:
            node = self.nodes[operand.node]
            if (factors := solved.factors.get(node.input[0])) is not None:
                node.input[0], made = self.inputs.divided(node.input[0], factors)
                self.head.setdefault(0, []).extend(made)
        if self.form == "matmulnbits":
            self._write_contrib(weight, codes)
        else:
            self._write_standard(weight, codes)

    def _constant(self, values: npt.NDArray[Any], name: str, owner: int) -> None:
        import onnx

        tensor = onnx.numpy_helper.from_array(np.ascontiguousarray(values), name)
        self.graphs[owner].initializer.append(tensor)

    def _write_filters(self, weight: BlockWeight, codes: BlockCodes) -> None:
        owner, name = weight.key
        nodes = FilterNodes(lambda values, fresh: self._constant(values, fresh, owner), self.index.fresh_name)
        read = nodes.unpacked(codes, weight.shape, name)
        self.head.setdefault(owner, []).extend(nodes.made)
        for operand in weight.filters:
            self.nodes[operand.node].input[1] = read

    # --- onnxruntime's operators -------------------------------------------------------------------------------------

    def _write_contrib(self, weight: BlockWeight, codes: BlockCodes) -> None:
        from onnx import TensorProto, helper

        self.foreign = True
        owner, fmt = weight.key[0], codes.format
        packed = pack_blocks(codes)
        base = self.index.fresh_name(f"{weight.key[1]}_{fmt.bits}bit")
        if not weight.products:
            self._constant(packed.codes.reshape(weight.rows, -1), base + "_rows", owner)
        else:
            self._constant(packed.codes, base, owner)
        scales = base + "_scales"
        if fmt.scale_type == "float16":
            self._constant(packed.scales, base + "_scales_half", owner)
            made = helper.make_node("Cast", [base + "_scales_half"], [scales], name=scales, to=TensorProto.FLOAT)
            self.head.setdefault(owner, []).append(made)
        else:
            self._constant(packed.scales.astype(np.float32), scales, owner)
        zeros = []
        if packed.zero_points is not None:
            zeros = [base + "_zero_points"]
            self._constant(packed.zero_points, zeros[0], owner)
        if weight.products and weight.lookups:
            self._constant(np.array([weight.rows, -1], np.int64), base + "_shape", owner)
            made = helper.make_node("Reshape", [base, base + "_shape"], [base + "_rows"], name=base + "_rows")
            self.head.setdefault(owner, []).append(made)
        read = self._unfolded(base, owner) if weight.products and fmt.scale_type == "float16" else base
        for operand in weight.products:
            self._product(operand, weight, codes, [read, scales, *zeros])
        for operand in weight.lookups:
            self._lookup(operand, weight, codes, [base + "_rows", scales, *zeros])

    def _unfolded(self, codes: str, owner: int) -> str:
        """Return codes behind an Identity, which is folded with the Cast of their scales when a model is loaded.

        Where nothing is folded (graph optimizations off), onnxruntime packs constant codes with scales that it does not
        know yet, and computes nonsense; codes that are no constant either it reads as they are.
        """
        from onnx import helper

        read = codes + "_read"
        self.head.setdefault(owner, []).append(helper.make_node("Identity", [codes], [read], name=read))
        return read

    def _product(self, operand: Operand, weight: BlockWeight, codes: BlockCodes, stored: list[str]) -> None:
        from onnx import helper

        node, fmt = self.nodes[operand.node], codes.format
        biased = node.op_type == "Gemm" and len(node.input) > _BIAS and bool(node.input[_BIAS])
        out = self.index.fresh_name(node.output[0] + "_product") if biased else node.output[0]
        halved = self.halved and weight.depth % fmt.block == 0
        level = FLOAT_ACCURACY if self.halved and not halved else self.level
        read, sums = node.input[0], out
        if halved:
            inner = self._owner(node) > 0
            read, before = self.inputs.halves(read, fmt.block, own=node.name if inner else "")
            sums = self.index.fresh_name(out + "_halves")
            (self.head.setdefault(0, []) if operand.owner == 0 else self.before.setdefault(node.name, [])).extend(
                before
            )
        product = helper.make_node(
            "MatMulNBits",
            [read, *stored],
            [sums],
            name=node.name,
            domain="com.microsoft",
            K=weight.depth,
            N=weight.rows,
            bits=fmt.bits,
            block_size=fmt.block,
            accuracy_level=level,
        )
        added = [self.inputs.added(sums, out)] if halved else []
        self._replace(node, [product, *added, *([self._bias(node, out)] if biased else [])])

    def _bias(self, node: onnx.NodeProto, product: str) -> onnx.NodeProto:
        from onnx import helper

        name = self.index.fresh_name(node.name + "_bias")
        if attribute_of(node, "beta", 1.0) != 1.0:
            scaled, factor = name + "_scaled", name + "_beta"
            self._constant(np.float32(attribute_of(node, "beta")).reshape(1), factor, self._owner(node))
            before = self.before.setdefault(node.name, [])
            before.append(helper.make_node("Mul", [node.input[_BIAS], factor], [scaled], name=scaled))
            return helper.make_node("Add", [product, scaled], [node.output[0]], name=name)
        return helper.make_node("Add", [product, node.input[_BIAS]], [node.output[0]], name=name)

    def _owner(self, node: onnx.NodeProto) -> int:
        return next(i for i, graph in enumerate(self.graphs) if any(item.name == node.name for item in graph.node))

    def _replace(self, node: onnx.NodeProto, made: list[onnx.NodeProto]) -> None:
        """Put nodes in the place of one, before what already follows it."""
        self.instead[node.name] = [*made, *self.instead.get(node.name, [node])[1:]]

    def _lookup(self, operand: Operand, weight: BlockWeight, codes: BlockCodes, stored: list[str]) -> None:
        """Look up packed rows; onnxruntime dequantizes what was looked up, a filled-up last block is cut off."""
        from onnx import helper

        node, fmt = self.nodes[operand.node], codes.format
        filled = weight.depth % fmt.block != 0
        out = self.index.fresh_name(node.output[0] + "_filled") if filled else node.output[0]
        made = [
            helper.make_node(
                "GatherBlockQuantized",
                [stored[0], node.input[1], *stored[1:]],
                [out],
                name=node.name,
                domain="com.microsoft",
                bits=fmt.bits,
                block_size=fmt.block,
                gather_axis=0,
                quantize_axis=1,
            )
        ]
        if filled:
            names = [self.index.fresh_name(f"{out}_{word}") for word in ("start", "end", "axis")]
            for name, value in zip(names, (0, weight.depth, -1), strict=True):
                self._constant(np.array([value], np.int64), name, operand.owner)
            made.append(helper.make_node("Slice", [out, *names], [node.output[0]], name=out))
        self._replace(node, made)

    # --- standard ONNX -----------------------------------------------------------------------------------------------

    def _write_standard(self, weight: BlockWeight, codes: BlockCodes) -> None:
        """Store the matrix as it lay, so that its readers (and a Transpose before them) stay as they are.

        onnxruntime multiplies on 8-bit activations when blocks lie along axis 0 before a MatMul; at lower accuracy
        levels the matrix is stored the other way round, which it leaves alone.
        """
        owner, name = weight.key
        turned = weight.axis == 1 and self.level != FUSED_ACCURACY
        axis = 0 if turned else weight.axis
        read = self._dequantized(f"{name}_{codes.format.bits}bit", codes, owner, rows_first=axis == 0)
        if turned:
            read = self._turned(read, owner)
        for graph in self.graphs:
            shadowed = graph is not self.graphs[owner] and any(held.name == name for held in graph.initializer)
            for node in [] if shadowed else graph.node:
                for position, given in enumerate(node.input):
                    if given == name:
                        node.input[position] = read

    def _turned(self, name: str, owner: int) -> str:
        from onnx import helper

        out = self.index.fresh_name(name + "_turned")
        self.head.setdefault(owner, []).append(helper.make_node("Transpose", [name], [out], name=out, perm=[1, 0]))
        return out

    def _dequantized(self, base: str, codes: BlockCodes, owner: int, *, rows_first: bool) -> str:
        from onnx import helper

        fmt = codes.format
        base = self.index.fresh_name(base)
        out = self.index.fresh_name(base + "_float")

        def laid(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return values if rows_first else np.ascontiguousarray(values.T)

        self._integers(laid(codes.codes), fmt.bits, base, owner, symmetric=fmt.symmetric)
        self._constant(laid(codes.scales.astype(np.float32)), base + "_scales", owner)
        inputs = [base, base + "_scales"]
        if not fmt.symmetric:
            inputs.append(base + "_zero_points")
            self._integers(laid(codes.zero_points), fmt.bits, inputs[-1], owner, symmetric=False)
        made = helper.make_node(
            "DequantizeLinear", inputs, [out], name=out, axis=1 if rows_first else 0, block_size=fmt.block
        )
        self.head.setdefault(owner, []).append(made)
        return out

    def _integers(self, codes: npt.NDArray[np.uint8], bits: int, name: str, owner: int, *, symmetric: bool) -> None:
        from onnx import TensorProto, helper

        values = signed(codes, bits) if symmetric else codes
        kinds = {
            (4, True): TensorProto.INT4,
            (4, False): TensorProto.UINT4,
            (8, True): TensorProto.INT8,
            (8, False): TensorProto.UINT8,
        }
        if (bits, symmetric) not in kinds:
            raise UnsupportedError(
                f"standard ONNX has no integers of {bits} bits that runtimes read", remedy="Use 4 bits."
            )
        if bits == 4:  # noqa: PLR2004
            raw = pack_codes(values.reshape(-1).view(np.uint8) & np.uint8(15), bits).tobytes()
        else:
            raw = values.tobytes()
        self.graphs[owner].initializer.append(
            helper.make_tensor(name, kinds[bits, symmetric], codes.shape, raw, raw=True)
        )
