"""The decisions of a float16 plan as a table: every constant and every node's results, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.graphs.canonical import Canonical
from edgekit.graphs.decisions import Decision, What, float_decision
from edgekit.graphs.half_plan import HalfPlan
from edgekit.graphs.half_types import HalfTypes
from edgekit.graphs.half_write import LEAST_STORED
from edgekit.graphs.storage import element_count

if TYPE_CHECKING:
    import onnx


def half_decisions(source: Canonical, types: HalfTypes, plan: HalfPlan) -> list[Decision]:
    """Return a decision for every float tensor that a node of the main graph makes, and for its constants.

    Args:
        source: the float model in canonical form.
        types: its types.
        plan: what was decided.
    """
    tensors = {tensor.name: tensor for tensor in source.model.graph.initializer if tensor.name in types.floats}
    table = _Table(types, plan, tensors)
    return [decision for node in source.model.graph.node for decision in table.rows(node)]


@dataclass(frozen=True)
class _Table:
    types: HalfTypes
    plan: HalfPlan
    tensors: Mapping[str, onnx.TensorProto]

    def rows(self, node: onnx.NodeProto) -> Iterator[Decision]:
        wanted = set(self.types.inputs(node)) if node.name in self.plan.half else set()
        for position, name in enumerate(node.input):
            if name in self.tensors:
                yield self._constant(node, name, asked=position in wanted)
        for name in self.types.outputs(node):
            yield self._made(node, name)

    def _constant(self, node: onnx.NodeProto, name: str, *, asked: bool) -> Decision:
        if name in self.plan.wide:
            return float_decision(node.name, node.op_type, name, "weight", f"it has {self.plan.wide[name]}")
        if asked:
            return _half(node, name, "weight", "weight float16")
        if element_count(self.tensors[name].dims) >= LEAST_STORED:
            return _half(node, name, "weight", f"weight float16, cast back: its node is float32: {self._why(node)}")
        return float_decision(node.name, node.op_type, name, "weight", self._why(node))

    def _made(self, node: onnx.NodeProto, name: str) -> Decision:
        if node.name in self.plan.half:
            return _half(node, name, "activation", "activation float16: its range fits")
        return float_decision(node.name, node.op_type, name, "activation", self._why(node))

    def _why(self, node: onnx.NodeProto) -> str:
        return self.plan.reasons.get(node.name, "it only moves values that are float32")


def _half(node: onnx.NodeProto, tensor: str, what: What, why: str) -> Decision:
    return Decision(
        node=node.name, op=node.op_type, tensor=tensor, what=what, bits=16, type="float16", mode="half", why=why
    )
