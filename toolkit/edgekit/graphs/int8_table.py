"""The decisions of an int8 plan as a table: every weight, bias and activation, and why it is as it is."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from edgekit.graphs.decisions import Decision, What, float_decision
from edgekit.graphs.edit import GraphIndex
from edgekit.graphs.int8_plan import Mode, Plan, Planner
from edgekit.graphs.int8_write import Writer, bias_of
from edgekit.graphs.qdq import in_integers, why_float
from edgekit.graphs.weights import Operand
from edgekit.numerics.affine import Grid

if TYPE_CHECKING:
    import onnx

_REST, _STORED = "_rest_QuantizeLinear", "_integers"  # how `int8_whole` names what it adds
_TABLE = "_table"
_BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32}
_SEVEN = 7


def int8_decisions(
    plan: Plan, planner: Planner, writer: Writer, written: onnx.ModelProto | None = None
) -> list[Decision]:
    """Return a decision for every weight and grid of a plan, and for every product that stays float.

    Args:
        plan: what was decided.
        planner: who decided it.
        writer: who writes it, and knows along which axis a stored weight has its scales.
        written: what was written; None: just the plan. What `int8_whole` put on grids beyond the plan is told too.
    """
    rows = _Table(plan, planner, writer).rows()
    if written is None:
        return list(rows)
    bytes_ = {tensor.name for tensor in written.graph.initializer if tensor.data_type == tensor.UINT8}
    return [*(_unsigned(row, bytes_) for row in rows), *_rest(written, planner)]


def _unsigned(row: Decision, stored: Container[str]) -> Decision:
    """Tell of a table that `int8_tables` lets count from 128."""
    if row.what != "weight" or f"{row.tensor}_quantized" not in stored:
        return row
    why = row.why.replace(f"{row.granularity} int8", f"{row.granularity} uint8", 1) + ", counted from 128"
    return msgspec.structs.replace(row, type="uint8", why=why)


def _rest(written: onnx.ModelProto, planner: Planner) -> Iterator[Decision]:
    """Yield what was put on grids so that nothing between integer products is float: activations and constants."""
    index = GraphIndex(written.graph, planner.weights.folder)
    for node in written.graph.node:
        tensor, _, mark = node.name.partition(_REST)
        if node.op_type == "QuantizeLinear" and not mark and tensor != node.name:
            maker = planner.index.producers.get(tensor)
            if maker is None and tensor.endswith(_TABLE):
                tensor = tensor.removesuffix(_TABLE)
                maker = planner.index.producers.get(tensor)
            where = ("", "Input") if maker is None else (maker.name, maker.op_type)
            yield _on_grid(index, node, tensor, "activation", where)
        stored, mark, _ = node.input[0].partition(_STORED) if node.input else ("", "", "")
        readers = index.consumers.get(node.output[0], []) if node.output else []
        if node.op_type == "DequantizeLinear" and mark and node.input[0] in index.initializers and readers:
            kind = str(np.asarray(index.value(node.input[0])).dtype)
            what: What = "bias" if kind == "int32" else "weight"
            yield _on_grid(index, node, stored, what, (readers[0].name, readers[0].op_type))


def _on_grid(index: GraphIndex, node: onnx.NodeProto, tensor: str, what: What, where: tuple[str, str]) -> Decision:
    point = np.asarray(index.value(node.input[2]))
    kind = str(point.dtype)
    return Decision(
        node=where[0],
        op=where[1],
        tensor=tensor,
        what=what,
        bits=point.dtype.itemsize * 8,
        type=kind,
        scheme=_scheme(Grid(scale=1.0, zero_point=int(point.reshape(())), dtype=kind)),
        granularity="per-tensor",
        mode="static",
        why=f"{what} per-tensor {kind}: so that nothing between integer products is float",
    )


class _Table:
    """One table being made."""

    def __init__(self, plan: Plan, planner: Planner, writer: Writer) -> None:
        self.plan, self.planner, self.writer = plan, planner, writer
        self.name = planner.dialect.name
        self.inner = {node.name for graph in planner.weights.graphs[1:] for node in graph.node}
        self.compute = planner.computes
        self.users: dict[tuple[int, str], list[Operand]] = {}
        for operand in planner.weights.operands:
            self.users.setdefault(operand.key, []).append(operand)
        self.dynamic: set[str] = set()

    def rows(self) -> Iterator[Decision]:
        """Yield the decisions: inputs of the model, then node by node what it reads and what it makes."""
        for value in self.planner.index.graph.input:
            yield from self._grid("", "Input", value.name)
        for graph in self.planner.weights.graphs:
            for node in graph.node:
                yield from self._node(node)

    def _node(self, node: onnx.NodeProto) -> Iterator[Decision]:
        mode: Mode = self.plan.modes.get(node.name, "float")
        operands = self.planner.operands.get(node.name, [])
        if mode == "dynamic" and node.input[0] not in self.dynamic:
            self.dynamic.add(node.input[0])
            yield self._integer(node, node.input[0], "activation", "uint8", "per-tensor", mode)
        for operand in operands:
            yield self._weight(node, operand, mode)
        yield from self._bias(node, mode)
        if node.name in self.compute and not operands and mode == "float":
            yield float_decision(node.name, node.op_type, node.input[0], "activation", self._why_float(node))
        elif not operands and self.plan.modes.get(node.name) == "float":
            yield float_decision(node.name, node.op_type, node.output[0], "activation", self._why_float(node))
        for name in node.output:
            yield from self._grid(node.name, node.op_type, name)

    def _why_float(self, node: onnx.NodeProto) -> str:
        return why_float(node, self.plan, self.planner, inner=node.name in self.inner)

    def _weight(self, node: onnx.NodeProto, operand: Operand, mode: Mode) -> Decision:
        if mode == "float":
            return float_decision(node.name, node.op_type, operand.tensor, "weight", self._why_float(node))
        axis = self.writer.scale_axis(self.users[operand.key])
        granularity = "per-tensor" if axis is None else "per-channel"
        note = self.plan.reasons.get(node.name, "")
        if mode == "weights" and node.op_type == "Gather":
            how = "looked up as integers" if self.planner.dialect.integer_gather else "dequantized, then looked up"
            note = "; ".join(filter(None, (how, note)))
        elif mode == "weights" and in_integers(self.plan, self.planner, node.name):
            note = "the runtime's kernel rounds the activations to 8 bits itself"
        elif mode == "weights":
            note = f"its products are float: {self._why_float(node)}"
        bits = self.writer.weight_bits(operand)
        if bits == _SEVEN:
            note = "; ".join(filter(None, ("7 of the 8 bits, for this CPU's products", note)))
        kind = "int8" if bits >= _SEVEN else f"int{bits}"
        return self._integer(node, operand.tensor, "weight", kind, granularity, mode, note=note, bits=bits)

    def _bias(self, node: onnx.NodeProto, mode: Mode) -> Iterator[Decision]:
        name = bias_of(node)
        if node.name not in self.compute or not name or name not in self.planner.index.initializers:
            return
        if mode == "static" and self.planner.dialect.quantize_bias:
            weights = [operand for operand in self.planner.operands.get(node.name, ()) if operand.position == 1]
            axis = self.writer.scale_axis(self.users[weights[0].key]) if weights else None
            granularity = "per-tensor" if axis is None else "per-channel"
            note = "scale of the input times scale of the weight"
            yield self._integer(node, name, "bias", "int32", granularity, mode, note=note)
        elif mode != "float":
            how = f"the {self.name} dialect adds it to float products" if mode == "static" else "it is added in float"
            yield float_decision(node.name, node.op_type, name, "bias", how)

    def _grid(self, node: str, op: str, tensor: str) -> Iterator[Decision]:
        grid = self.plan.grids.get(tensor)
        if grid is not None:
            carried = node in self.plan.carried
            read = "between integer nodes it stays integer" if carried else "integer products read it"
            if not carried and tensor in self.plan.produced and not self._is_read(tensor):
                read = "the product gives it out as integers"
            yield Decision(
                node=node,
                op=op,
                tensor=tensor,
                what="activation",
                bits=_BITS[grid.dtype],
                type=grid.dtype,
                scheme=_scheme(grid),
                granularity="per-tensor",
                mode="static",
                why=f"activation per-tensor {grid.dtype}: {read}",
            )
        elif tensor in self.plan.dead:
            yield float_decision(node, op, tensor, "activation", "it is 0 in every calibration sample")

    def _is_read(self, tensor: str) -> bool:
        readers = self.planner.index.consumers.get(tensor, [])
        return any(node.name in self.compute and self.plan.modes.get(node.name) == "static" for node in readers)

    def _integer(
        self,
        node: onnx.NodeProto,
        tensor: str,
        what: What,
        kind: str,
        granularity: str,
        mode: str,
        *,
        note: str = "",
        bits: int = 0,
    ) -> Decision:
        if what == "activation":
            note = "its range is taken at run time"
        return Decision(
            node=node.name,
            op=node.op_type,
            tensor=tensor,
            what=what,
            bits=bits or _BITS[kind],
            type=kind,
            scheme="asymmetric" if what == "activation" else "symmetric",
            granularity=granularity,
            mode=mode,
            why=f"{what} {granularity} {kind}" + (f": {note}" if note else ""),
        )


def _scheme(grid: Grid) -> str:
    middle = {"uint8": 128, "uint16": 1 << 15}.get(grid.dtype, 0)
    return "symmetric" if grid.zero_point == middle else "asymmetric"
