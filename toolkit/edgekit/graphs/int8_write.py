"""Writes a quantization plan into a graph: Q/DQ pairs, int8 weights, int32 biases, dynamic products."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.dialect import Dialect
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.edit import GraphIndex, attribute_of, drop_dead, graphs_in, opset_of, sort_nodes
from edgekit.graphs.int8_nodes import dynamic_product, looked_up, looked_up_rows, pair
from edgekit.graphs.int8_plan import PRODUCTS, Plan
from edgekit.graphs.int8_rounding import Rounder, Scales, in_half, narrow, tables_of
from edgekit.graphs.weights import Operand, Weights
from edgekit.numerics.affine import (
    Grid,
    empty_slices,
    quantize_bias,
    scales_for_bias,
)

if TYPE_CHECKING:
    import onnx

_Axis = Callable[[Sequence[Operand]], int | None]

WIDE_FROM = 21  # opset from which the default domain quantizes to 16 bits
CONTRIB = "com.microsoft"
_NIBBLE = 4
_BIAS = 2  # position of a Conv's and a Gemm's bias


class Writer:
    """Writes plans for one model; weights that come out the same are rounded once."""

    def __init__(self, source: Canonical, weights: Weights, dialect: Dialect) -> None:
        """Prepare to write `source`, whose weight operands are `weights`."""
        self._source = source
        self._dialect = dialect
        self._ops = {node.name: node.op_type for graph in weights.graphs for node in graph.node}
        self._rounder = Rounder(weights, bits=dialect.weight_bits, tables=tables_of(weights, self._ops))

    def scale_axis(self, operands: Sequence[Operand]) -> int | None:
        """Return the axis along which a stored weight (given by all its uses) has its scales; None: one scale.

        It is what its products want; lookups take any.
        """
        axes = {operand.axis for operand in operands if self._ops[operand.node] != "Gather"}
        if len(axes) > 1 or not self._dialect.per_channel:
            return None
        products = [operand for operand in operands if self._ops[operand.node] in (self._dialect.ops or PRODUCTS)]
        if not self._dialect.stored_per_channel and not products:
            return None
        return axes.pop() if axes else self._rounder.table_axis(operands[0])

    def weight_bits(self, operand: Operand) -> int:
        """Return the bits that a weight is stored in."""
        return self._rounder.bits_of(operand)

    def write(self, plan: Plan) -> onnx.ModelProto:
        """Return a new model. Constants that stay float and lie in external files stay references to them."""
        return _Draft(self._source, self._dialect, plan, self._rounder, self.scale_axis).finished()


def bias_of(node: onnx.NodeProto) -> str:
    """Return the name of a node's bias; empty when it has none."""
    return node.input[_BIAS] if node.op_type in {"Conv", "Gemm"} and len(node.input) > _BIAS else ""


def _int4() -> Any:
    import ml_dtypes

    return ml_dtypes.int4


class _Draft:
    """One model being written."""

    def __init__(self, source: Canonical, dialect: Dialect, plan: Plan, rounder: Rounder, scale_axis: _Axis) -> None:
        import onnx

        self.plan, self.dialect, self.rounder, self.scale_axis = plan, dialect, rounder, scale_axis
        self.weights = rounder.weights
        self.model = onnx.ModelProto()
        self.model.CopyFrom(source.model)
        self.graphs = list(graphs_in(self.model.graph))
        self.index = GraphIndex(self.model.graph, source.folder)
        self.nodes = {node.name: node for graph in self.graphs for node in graph.node}
        self.homes = {node.name: home for home, graph in enumerate(self.graphs) for node in graph.node}
        self.before: dict[str, list[onnx.NodeProto]] = {}
        self.after: dict[str, list[onnx.NodeProto]] = {}
        self.instead: dict[str, list[onnx.NodeProto]] = {}
        self.heads: list[list[onnx.NodeProto]] = [[] for _ in self.graphs]
        self.wide = dialect.activation in {"int16", "uint16"} and opset_of(self.model) < WIDE_FROM

    def finished(self) -> onnx.ModelProto:
        stored = self._store_weights()
        for operand, (name, scales, axis) in stored.items():
            self._rewire(operand, name, scales, axis)
        self._quantize_activations()
        self._place()
        drop_dead(self.model.graph)
        del self.model.graph.value_info[:]
        if self.wide:
            self._import(CONTRIB, 1)
        self.model.ir_version = min(self.model.ir_version, self.dialect.max_ir)
        return self.model

    def _import(self, domain: str, version: int) -> None:
        if all(entry.domain != domain for entry in self.model.opset_import):
            entry = self.model.opset_import.add()
            entry.domain, entry.version = domain, version

    # --- weights -----------------------------------------------------------------------------------------------------

    def _store_weights(self) -> dict[Operand, tuple[str, Scales, int | None]]:
        """Add the int8 initializers; return for every operand its integers' name, their scales and scale axis."""
        users: dict[tuple[int, str], list[Operand]] = {}
        for operand in self.weights.operands:
            users.setdefault(operand.key, []).append(operand)
        stored: dict[Operand, tuple[str, Scales, int | None]] = {}
        for operands in users.values():
            if all(self.plan.modes.get(operand.node, "float") == "float" for operand in operands):
                continue
            axis = self.scale_axis(operands)
            scales = self._scales(operands, axis)
            if all(self._by_rows(operand, axis) for operand in operands):
                scales = in_half(scales)
            name = self.index.fresh_name(operands[0].tensor + "_quantized")
            graph = self.graphs[operands[0].owner]
            kind = np.int8 if self.rounder.bits_of(operands[0]) > _NIBBLE else _int4()
            self._constant(self.rounder.rounded(operands[0], scales, axis).astype(kind), name, graph)
            self._constant(scales, name + "_scale", graph)
            self._constant(np.zeros(scales.shape, kind), name + "_zero_point", graph)
            stored |= {
                operand: (name, scales, axis)
                for operand in operands
                if self.plan.modes.get(operand.node, "float") != "float"
            }
        return stored

    def _scales(self, operands: list[Operand], axis: int | None) -> Scales:
        """Return the scales of a stored weight that suit it and every bias that is counted in them."""
        scales = self.rounder.scales(operands[0], axis)
        free = empty_slices(self.weights.values(operands[0]), axis)
        fitted = np.where(free, np.finfo(np.float32).tiny, scales).astype(np.float32)
        for operand in operands:
            fitted = self._with_bias(operand, fitted, axis)
        return np.where(free & (fitted <= np.finfo(np.float32).tiny), scales, fitted).astype(np.float32)

    def _with_bias(self, operand: Operand, scales: Scales, axis: int | None) -> Scales:
        bias = self._bias_of(operand)
        if bias is None:
            return scales
        grid = self._input_grid(self.nodes[operand.node])
        if operand.axis != axis:
            axis, scales = None, scales.max(keepdims=True).reshape(())
        return scales_for_bias(scales, self.weights.values(operand), axis, bias, grid.scale)

    def _bias_of(self, operand: Operand) -> npt.NDArray[np.floating] | None:
        """Return the bias that becomes int32 with this operand's scales, or None."""
        node = self.nodes[operand.node]
        static = self.plan.modes.get(node.name) == "static" and operand.position == 1
        name = bias_of(node) if static and self.dialect.quantize_bias else ""
        return self.index.value(name) if name else None

    def _input_grid(self, node: onnx.NodeProto) -> Grid:
        return self.plan.grids[node.input[0]]

    def _rewire(self, operand: Operand, name: str, scales: Scales, axis: int | None) -> None:
        """Let an operand's node read the stored integers, in the form that its mode wants."""
        node = self.nodes[operand.node]
        bias = self._bias_of(operand)
        if self.plan.modes.get(node.name) == "dynamic":
            self._dynamic(node, operand, name)
        elif node.op_type == "Gather" and self.dialect.integer_gather:
            self._gather(node, operand, name, scales, axis)
        else:
            inside = operand.owner == self.homes[node.name]  # runtimes fuse no pair that lies in two graphs
            place = self.before.setdefault(node.name, []) if inside else self.heads[operand.owner]
            read = self._dequantized(node, name, axis, place)
            if operand.perm:
                read = self._transposed(read, operand.perm, place)
            node.input[operand.position] = read
        if bias is not None:
            steps = (scales * np.float32(self._input_grid(node).scale)).astype(np.float32)
            self._quantize_bias(node, bias, np.broadcast_to(steps, (bias.size,)) if axis is not None else steps)

    def _dequantized(self, node: onnx.NodeProto, name: str, axis: int | None, steps: list[onnx.NodeProto]) -> str:
        import onnx

        out = self.index.fresh_name(f"{name}_for_{node.name}")
        inputs = [name, name + "_scale", name + "_zero_point"]
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        domain = CONTRIB if self.wide and self.dialect.weight == "int4" else ""  # `wide`: the opset is before int4, too
        made = onnx.helper.make_node("DequantizeLinear", inputs, [out], name=out, domain=domain, **attributes)
        steps.append(made)
        return out

    def _transposed(self, name: str, perm: Iterable[int], steps: list[onnx.NodeProto]) -> str:
        import onnx

        out = self.index.fresh_name(name + "_transposed")
        made = onnx.helper.make_node("Transpose", [name], [out], name=out, perm=list(perm))
        steps.append(made)
        return out

    def _quantize_bias(self, node: onnx.NodeProto, bias: npt.NDArray[np.floating], steps: Scales) -> None:
        import onnx

        base = self.index.fresh_name(f"{node.input[_BIAS]}_quantized")
        self._constant(quantize_bias(bias.ravel(), steps), base)
        self._constant(steps, base + "_scale")
        self._constant(np.zeros(steps.shape, np.int32), base + "_zero_point")
        out = self.index.fresh_name(f"{base}_for_{node.name}")
        inputs = [base, base + "_scale", base + "_zero_point"]
        attributes: dict[str, Any] = {"axis": 0} if steps.ndim else {}
        made = onnx.helper.make_node("DequantizeLinear", inputs, [out], name=out, **attributes)
        self.before.setdefault(node.name, []).append(made)
        node.input[_BIAS] = out

    def _along(self, operand: Operand) -> int:
        """Return the axis that a lookup is made along."""
        return int(attribute_of(self.nodes[operand.node], "axis", 0) % len(self.weights.tensor(operand).dims))

    def _by_rows(self, operand: Operand, axis: int | None) -> bool:
        """Say whether a weight is looked up as integers, whose scales are looked up beside them."""
        gather = self.dialect.integer_gather and self.nodes[operand.node].op_type == "Gather"
        return gather and axis is not None and self._along(operand) == axis

    def _gather(self, node: onnx.NodeProto, operand: Operand, name: str, scales: Scales, axis: int | None) -> None:
        """Look up integers, then dequantize only what was looked up."""
        rank, along = len(self.weights.tensor(operand).dims), self._along(operand)
        rows, output = self.index.fresh_name(node.output[0] + "_rows"), node.output[0]
        node.input[0], node.output[0] = name, rows
        if axis is None or axis != along:
            made = looked_up(rows, output, name, None if axis is None else axis - rank if axis > along else axis)
        else:
            column = self.index.fresh_name(name + "_row_scale")
            shape = [-1 if i == along else 1 for i in range(rank)]
            stored = narrow(scales)
            self._constant(stored.reshape(shape), column, self.graphs[operand.owner])
            made = looked_up_rows(rows, output, column, node.input[1], along, half=stored.dtype == np.float16)
        self.after.setdefault(node.name, []).extend(made)

    def _dynamic(self, node: onnx.NodeProto, operand: Operand, name: str) -> None:
        """Write a product whose activations get their scale at run time, in the form that runtimes fuse."""
        from onnx import helper

        x = node.input[0]
        made = [n for n in self._after(x) if n.op_type == "DynamicQuantizeLinear" and n.input[0] == x]
        base = made[0].name if made else self.index.fresh_name(x + "_dynamic")
        if not made:
            outputs = [base, base + "_scale", base + "_zero_point"]
            self._after(x).append(helper.make_node("DynamicQuantizeLinear", [x], outputs, name=base))
        perm = operand.perm or (0, 1)
        if attribute_of(node, "transB", 0):
            perm = perm[::-1]
        bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
        out = self.index.fresh_name(node.name + "_product")
        self.instead[node.name] = dynamic_product(out, base, name, node.output[0], bias, swap=perm == (1, 0))

    # --- activations -------------------------------------------------------------------------------------------------

    def _quantize_activations(self) -> None:
        domain = CONTRIB if self.wide else ""
        parameters: dict[Grid, tuple[str, str]] = {}
        for name, grid in self.plan.grids.items():
            scale, zero_point = self._grid_constants(name, grid, parameters)
            steps = self._after(name)
            integers = self.index.fresh_name(name + "_quantized")
            source, result = name, self.index.fresh_name(name + "_dequantized")
            if name in self.plan.produced:
                source, result = self.index.fresh_name(name + "_float"), name
                self._rename_output(name, source)
            steps[:0] = pair(name, source, integers, result, (scale, zero_point), domain=domain)
            if result != name:
                for node, position in self.plan.reads:
                    if self.nodes[node].input[position] == name:
                        self.nodes[node].input[position] = result

    def _grid_constants(self, name: str, grid: Grid, known: dict[Grid, tuple[str, str]]) -> tuple[str, str]:
        if grid not in known:
            base = self.index.fresh_name(name + "_scale")
            self._constant(np.asarray(grid.scale, np.float32), base)
            point = self.index.fresh_name(name + "_zero_point")
            self._constant(np.asarray(grid.zero_point, grid.dtype), point)
            known[grid] = base, point
        return known[grid]

    def _rename_output(self, old: str, new: str) -> None:
        node = self.index.producers[old]
        for position, name in enumerate(node.output):
            if name == old:
                node.output[position] = new

    def _after(self, tensor: str) -> list[onnx.NodeProto]:
        maker = self.index.producers.get(tensor)
        return self.heads[0] if maker is None else self.after.setdefault(maker.name, [])

    # --- placing -----------------------------------------------------------------------------------------------------

    def _constant(self, values: npt.NDArray[Any], name: str, graph: onnx.GraphProto | None = None) -> None:
        import onnx

        (graph or self.model.graph).initializer.append(onnx.numpy_helper.from_array(np.array(values, order="C"), name))

    def _place(self) -> None:
        for graph, head in zip(reversed(self.graphs), reversed(self.heads), strict=True):
            nodes = list(head)
            for node in graph.node:
                nodes += self.before.get(node.name, [])
                nodes += self.instead.get(node.name, [node])
                nodes += self.after.get(node.name, [])
            copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
            del graph.node[:]
            graph.node.extend(copies)
        sort_nodes(self.model.graph)
        self._drop_unread()

    def _drop_unread(self) -> None:
        """Remove float constants of inner graphs that nothing reads any more."""
        read = {name for graph in graphs_in(self.model.graph) for node in graph.node for name in node.input}
        read |= {value.name for graph in graphs_in(self.model.graph) for value in graph.output}
        for graph in graphs_in(self.model.graph):
            for position in range(len(graph.initializer) - 1, -1, -1):
                if graph.initializer[position].name not in read:
                    del graph.initializer[position]
