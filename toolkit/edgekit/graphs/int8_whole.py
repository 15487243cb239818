"""Puts what a quantized graph still computes in float on grids too, for accelerators that are made for integers.

Products are on integers already (`int8_write`). Between them stand additions, activations, norms and softmaxes whose
tensors are float: on an accelerator each is a conversion there and back, on one without floats it is refused. Here
every float tensor of the main graph gets a grid of its own, and every constant beside one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.calibrate import collect, open_graph
from edgekit.graphs.edit import GraphIndex, is_standard, opset_of, reads, sort_nodes
from edgekit.graphs.int8_choice import Job
from edgekit.graphs.int8_masks import lower_masks
from edgekit.graphs.int8_nodes import pair
from edgekit.graphs.int8_regions import SAME_GRID
from edgekit.graphs.int8_search import Search, Trial
from edgekit.graphs.int8_tables import unsigned_tables
from edgekit.graphs.int8_write import CONTRIB, WIDE_FROM
from edgekit.numerics.affine import BOUNDS, Grid, activation_grid, is_dead

if TYPE_CHECKING:
    import onnx

    from edgekit.numerics.ranges import RangeMeter

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
FLOAT_ONLY = frozenset({"LSTM", "GRU", "RNN", "Cast", "If", "Loop", "Scan"})
"""Operators whose tensors stay float: there is no integer form of them."""

_FUSED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm")  # their biases count in steps of the product, if at all
_PLAIN = {"Clip": (0,), "Resize": (0,), "Pad": (0,), "Pow": (0,), "ReduceMean": (0,), "ReduceSum": (0,), "Expand": (0,)}
_DEAD_RANGE = 1.0
_MAY_COST = 3.0
"""Decibels that the whole graph on integers may cost."""


def off_grid(model: onnx.ModelProto) -> list[str]:
    """Return the tensors of the main graph that are on no grid, in order: those of them that are float need a range."""
    index = GraphIndex(model.graph)
    names = [value.name for value in model.graph.input if value.name not in index.initializers]
    names += [name for node in model.graph.node if not is_q(node) for name in node.output if name]
    return [name for name in names if _wants_grid(index, name)]


def complete(
    model: onnx.ModelProto, folder: Path, meters: Mapping[str, RangeMeter], dtype: str, *, domain: str
) -> onnx.ModelProto:
    """Return a copy of a quantized graph in which every float tensor with a range lies on a grid.

    Args:
        model: what `int8_write.Writer` wrote.
        folder: where its external data lies.
        meters: ranges of what `off_grid` names; tensors without a finite one stay float.
        dtype: integer type of activations.
        domain: domain of Q and DQ for it.
    """
    return _Completion(model, folder, meters, dtype, domain).finished()


def whole_graph(
    job: Job, search: Search, trial: Trial, model: onnx.ModelProto
) -> tuple[onnx.ModelProto, Trial, dict[str, Any]]:
    """Complete what a job wrote, run it, and keep it when it costs little, or when the chip has no floats.

    Returns:
        The graph, how far its outputs are from the original's, and facts: `whole` with `kept`, `tensors` (how many
        were put on grids), `mixed_db` and `whole_db`.
    """
    dialect = job.planner.dialect
    left = off_grid(model)
    statistics = collect(
        model, job.source.folder, job.samples, left, held_out=set(), threads=job.threads, histogram=False
    )
    wide = dialect.activation in {"int16", "uint16"} and opset_of(model) < WIDE_FROM
    domain = CONTRIB if wide else ""
    made = complete(model, job.source.folder, statistics.all(), dialect.activation, domain=domain)
    session = open_graph(made, job.source.folder, threads=job.threads)
    completed = replace(trial, distances=search.reference.distances(session))
    enough = min(job.wishes.aim, trial.score - _MAY_COST)
    kept = dialect.whole == "must" or (completed.score >= enough and not completed.faults(job.wishes.floor))
    facts = {
        "kept": kept,
        "tensors": len(statistics.all()),
        "mixed_db": round(trial.score, 2),
        "whole_db": round(completed.score, 2),
    }
    return (made, completed, {"whole": facts}) if kept else (model, trial, {"whole": facts})


class _Completion:
    """One graph being completed."""

    def __init__(
        self, model: onnx.ModelProto, folder: Path, meters: Mapping[str, RangeMeter], dtype: str, domain: str
    ) -> None:
        import onnx

        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.index = GraphIndex(self.model.graph, folder)
        self.meters, self.dtype, self.domain = meters, dtype, domain
        self._values: dict[str, float] = {}
        self.grids = dict(self._known_grids())
        self.made: list[onnx.NodeProto] = []
        self.constants: dict[tuple[str, str, float | None], tuple[str, float]] = {}
        self.floors: dict[str, float] = {}
        self.tables: dict[str, tuple[str, str]] = {}
        self.ranges = {name: (meter.low, meter.high) for name, meter in meters.items() if meter.count and meter.finite}

    def finished(self) -> onnx.ModelProto:
        self.floors = lower_masks(self.index, self.ranges, self._spans())
        self._lay_tables()
        for value in self.model.graph.input:
            self._put(value.name)
        for node in list(self.model.graph.node):
            for name in node.output:
                self._put(name)
        for node in list(self.model.graph.node):
            if not is_q(node) and node.op_type not in (*FLOAT_ONLY, *_PRODUCTS) and self._on_grids(node):
                self._constants_of(node)
        self.model.graph.node.extend(self.made)
        sort_nodes(self.model.graph)
        del self.model.graph.value_info[:]
        used = {name for node in self.model.graph.node for name in reads(node)} | self.index.outputs
        for tensor in [tensor for tensor in self.model.graph.initializer if tensor.name not in used]:
            self.model.graph.initializer.remove(tensor)  # constants whose form on a grid is read instead
        return self.model

    def _known_grids(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yield what is on a grid of activations already: tensor -> names of scale and zero point."""
        for node in self.model.graph.node:
            if node.op_type == DEQUANTIZE and len(node.input) > 2:  # noqa: PLR2004 - with a zero point
                point = self.index.value(node.input[2])
                if point is not None and point.size == 1 and point.dtype.name == self.dtype:
                    self._values[node.input[1]] = float(np.asarray(self.index.value(node.input[1])).reshape(()))
                    yield node.output[0], (node.input[1], node.input[2])

    def _lay_tables(self) -> None:
        """Let what is looked up in a table of bytes lie on the table's own grid first, whatever activations have."""
        for node, scale in unsigned_tables(self.model.graph, self.index):
            self._values[node.input[1]] = scale
            (self.grids if self.dtype == "uint8" else self.tables)[node.output[0]] = (node.input[1], node.input[2])

    def _put(self, name: str) -> None:
        """Put a tensor on a grid: those who read it as float read what lies on the grid."""
        if name not in self.ranges or not _wants_grid(self.index, name):
            return
        if (there := self._on_grid_already(name)) and name not in self.index.outputs:
            for node in self.index.consumers.get(name, []):
                if not is_q(node):
                    _rename(node.input, name, there)
            return
        low, high = self.ranges[name]
        if is_dead(low, high):
            low, high = 0.0, _DEAD_RANGE
        maker = self.index.producers.get(name)
        moves = maker is not None and (maker.op_type in SAME_GRID or maker.op_type == "Gather")
        grid = self.grids.get(maker.input[0]) if maker is not None and moves else None
        grid = grid or self._parameters(activation_grid(low, high, self.dtype, symmetric=False), name)
        users = [node for node in self.index.consumers.get(name, []) if not is_q(node)]
        if name in self.index.outputs:
            inner = self.index.fresh_name(name + "_float")
            assert maker is not None
            _rename(maker.output, name, inner)
            for node in self.index.consumers.get(name, []):
                _rename(node.input, name, inner) if is_q(node) else None
            source, result = inner, name
        else:
            source, result = name, self.index.fresh_name(name + "_on_grid")
            for node in users:
                _rename(node.input, name, result)
        self.grids[result] = grid
        table = self.tables.get(maker.input[0]) if maker is not None and maker.op_type == "Gather" else None
        if table is not None and name not in self.index.outputs:
            raw, source = self.index.fresh_name(name + "_bytes"), self.index.fresh_name(name + "_looked_up")
            self.made += pair(name + "_table_rest", name, raw, source, table, domain="")
        integers = self.index.fresh_name(name + "_integers")
        self.made += pair(name + "_rest", source, integers, result, grid, domain=self.domain)

    def _on_grid_already(self, name: str) -> str:
        """Return what a product reads of a tensor from its grid; a second grid would keep the two apart."""
        for node in self.index.consumers.get(name, []):
            if node.op_type == QUANTIZE and node.input[0] == name:
                for reader in self.index.consumers.get(node.output[0], []):
                    if reader.op_type == DEQUANTIZE and reader.output[0] in self.grids:
                        return str(reader.output[0])
        return ""

    def _spans(self) -> dict[str, tuple[float, float]]:
        """Return what the grids that are there already reach from and to."""
        least, most = BOUNDS[self.dtype]
        found = {}
        for name, (scale, zero_point) in self.grids.items():
            step, point = self._values[scale], self.index.value(zero_point)
            if point is not None:
                zero = int(point.reshape(()))
                found[name] = ((least - zero) * step, (most - zero) * step)
        return found

    def _on_grids(self, node: onnx.NodeProto) -> bool:
        """Say whether all float tensors that a node reads and makes lie on grids."""
        computed = [name for name in node.input if name and self.index.constant(name) is None]
        return bool(computed) and all(self._from_grid(name) for name in computed)

    def _from_grid(self, name: str) -> bool:
        if name in self.grids:
            return True
        maker = self.index.producers.get(name)
        return maker is not None and is_q(maker)

    def _constants_of(self, node: onnx.NodeProto) -> None:
        """Let a node read its float constants from a grid."""
        if is_standard(node, "LayerNormalization"):
            self._norm(node)
            return
        for position, name in enumerate(node.input):
            values = self.index.value(name) if name and not self._skips(node, position) else None
            if values is None or values.dtype != np.float32 or not values.size or not np.isfinite(values).all():
                continue
            node.input[position] = self._constant(name, values, self.dtype, self.floors.get(node.output[0]))[0]

    def _norm(self, node: onnx.NodeProto) -> None:
        """Quantize a norm's scale to uint8 with one step, and its bias to int32 in steps of input times scale.

        In any other form the norm is computed in float, and what Qualcomm's compiler makes of a float norm before a
        product on 16-bit integers is wrong.
        """
        from onnx import helper

        values = self.index.value(node.input[1])
        grid = self.grids.get(node.input[0])
        step = self._values.get(grid[0]) if grid else None
        if values is None or values.dtype != np.float32 or step is None:
            return
        node.input[1], size = self._constant(node.input[1], values, "uint8")
        bias = self.index.value(node.input[2]) if len(node.input) > 2 else None  # noqa: PLR2004 - the bias
        if bias is None or bias.dtype != np.float32:
            return
        steps = np.float32(step * size)
        name, stored = node.input[2], self.index.fresh_name(node.input[2] + "_integers")
        node.input[2] = out = self.index.fresh_name(f"{name}_for_{node.name}")
        least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        self._add(np.clip(np.rint(bias.astype(np.float64) / steps), least, most).astype(np.int32), stored)
        self._add(np.asarray(steps), out + "_scale")
        self._add(np.asarray(0, np.int32), out + "_zero_point")
        made = helper.make_node(DEQUANTIZE, [stored, out + "_scale", out + "_zero_point"], [out], name=out)
        self.made.append(made)

    def _skips(self, node: onnx.NodeProto, position: int) -> bool:
        return node.op_type in _PLAIN and position not in _PLAIN[node.op_type]

    def _constant(
        self, name: str, values: npt.NDArray[Any], dtype: str, floor: float | None = None
    ) -> tuple[str, float]:
        """Return a constant's name on a grid, and the grid's step; what is below `floor` is raised to it."""
        from onnx import helper

        key = (name, dtype, floor)
        if key not in self.constants:
            values = values if floor is None else np.maximum(values, np.float32(floor))
            low, high = float(values.min()), float(values.max())
            low, high = (0.0, _DEAD_RANGE) if is_dead(low, high) else (low, high)
            grid = activation_grid(low, high, dtype, symmetric=False)
            least, most = BOUNDS[dtype]
            integers = np.clip(np.rint(values / np.float32(grid.scale)) + grid.zero_point, least, most).astype(dtype)
            stored, out = self.index.fresh_name(name + "_integers"), self.index.fresh_name(name + "_on_grid")
            self._add(integers, stored)
            wide = dtype != "uint8"
            self.made.append(
                helper.make_node(
                    DEQUANTIZE,
                    [stored, *self._parameters(grid, name)],
                    [out],
                    name=out,
                    domain=self.domain if wide else "",
                )
            )
            self.constants[key] = out, grid.scale
        return self.constants[key]

    def _parameters(self, grid: Grid, name: str) -> tuple[str, str]:
        scale, point = self.index.fresh_name(name + "_rest_scale"), self.index.fresh_name(name + "_rest_zero_point")
        self._add(np.asarray(grid.scale, np.float32), scale)
        self._values[scale] = grid.scale
        self._add(np.asarray(grid.zero_point, grid.dtype), point)
        return scale, point

    def _add(self, values: npt.NDArray[Any], name: str) -> None:
        import onnx

        self.model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, order="C"), name))


def is_q(node: onnx.NodeProto) -> bool:
    """Say whether a node is a Q or DQ, of whichever domain."""
    return node.op_type in {QUANTIZE, DEQUANTIZE}


def _wants_grid(index: GraphIndex, name: str) -> bool:
    """Say whether a float tensor is read, or given out, as float and is not fused into what stands around it."""
    maker, users = index.producers.get(name), index.consumers.get(name, [])
    if maker is not None and (is_q(maker) or maker.op_type in FLOAT_ONLY):
        return False
    readers = [node for node in users if not is_q(node)]
    if not readers and name not in index.outputs:
        return False
    if any(node.op_type in FLOAT_ONLY for node in readers):
        return False
    only = index.only_consumer(name)
    fused = maker is not None and is_standard(maker, *_FUSED) and only is not None and is_standard(only, "Relu", "Clip")
    return not fused


def _rename(names: Any, old: str, new: str) -> None:
    for position, name in enumerate(names):
        if name == old:
            names[position] = new
