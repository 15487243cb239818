"""Which parts of a graph the ONNX specification lets be float16."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.graphs.edit import opset_of

if TYPE_CHECKING:
    import onnx

HALF_MAX = 65504.0
"""The largest float16."""

SMALLEST_USEFUL = 2.0**-19
"""Below, float16 has fewer than 6 significant bits."""

MOST_EXACT = 2048
"""Up to here float16 holds every integer."""

FOLLOWERS = frozenset(
    {
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Slice",
        "Identity",
        "Split",
        "Expand",
        "Tile",
        "Gather",
    }
    | {"DepthToSpace", "SpaceToDepth", "Dropout"}
)
"""Operators that only move values: they take the type that these come in, without a Cast of their own."""

_FLOAT_FUNCTIONS = frozenset({"MeanVarianceNormalization"})

_HALF = "tensor(float16)"
_SINGLE = "tensor(float)"


@functools.cache
def _signature(op: str, opset: int) -> tuple[tuple[bool, ...], tuple[bool, ...], bool, bool] | None:
    """Return which inputs and outputs may be float16, and whether the last of each repeats."""
    import onnx

    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return None
    allowed = {item.type_param_str: _HALF in item.allowed_type_strs for item in schema.type_constraints}

    def may(items: Any) -> tuple[bool, ...]:
        return tuple(allowed.get(item.type_str, item.type_str == _HALF) for item in items)

    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return (
        may(schema.inputs),
        may(schema.outputs),
        bool(schema.inputs) and schema.inputs[-1].option == variadic,
        bool(schema.outputs) and schema.outputs[-1].option == variadic,
    )


class HalfTypes:
    """Answers for one model.

    Attributes:
        floats: names of the main graph's float32 tensors, initializers included.
    """

    def __init__(self, model: onnx.ModelProto, types: Mapping[str, str]) -> None:
        """Remember the opset and the types.

        Args:
            model: the model in canonical form.
            types: tensor name -> type as onnxruntime writes it (`tensor(float)`).
        """
        from onnx import TensorProto

        self._opset = opset_of(model)
        self._others = {name for name, kind in types.items() if not kind.startswith("tensor(")}
        self.floats = {name for name, kind in types.items() if kind == _SINGLE}
        self.floats |= {item.name for item in model.graph.initializer if item.data_type == TensorProto.FLOAT}
        self.floats |= {item.name for item in model.graph.input if item.type.tensor_type.elem_type == TensorProto.FLOAT}

    def inputs(self, node: onnx.NodeProto) -> list[int]:
        """Return the positions of a node's float32 inputs that become float16 when it computes in float16."""
        found = self._allowed(node)
        if found is None:
            return []
        return [
            position
            for position, name in enumerate(node.input)
            if name in self.floats and _at(found[0], position, repeats=found[2]) and not _exempt(node, position)
        ]

    def outputs(self, node: onnx.NodeProto) -> list[str]:
        """Return a node's float32 outputs."""
        return [name for name in node.output if name in self.floats]

    def refusal(self, node: onnx.NodeProto) -> str:
        """Say why a node cannot compute in float16 by its form; empty when it can."""
        found = self._allowed(node)
        if reason := self._oddity(node):
            return reason
        if found is None:
            return "its operator is not in the opset"
        needed = [position for position, name in enumerate(node.output) if name in self.floats]
        makes_type = bool(needed) and not self.inputs(node) and node.op_type not in {"Cast", "ConstantOfShape"}
        if makes_type or not all(_at(found[1], position, repeats=found[3]) for position in needed):
            return "the ONNX specification has no float16 for it"
        return ""

    def _oddity(self, node: onnx.NodeProto) -> str:
        """Say what of a node's form, other than its operator's types, keeps it from float16."""
        from onnx import AttributeProto

        graphs = {AttributeProto.GRAPH, AttributeProto.GRAPHS}
        named = any(attribute.name == "dtype" for attribute in node.attribute)
        statistics = node.op_type == "LayerNormalization" and len([name for name in node.output if name]) > 1
        oddities = {
            "it holds a subgraph": any(attribute.type in graphs for attribute in node.attribute),
            f"it is of the domain '{node.domain}'": bool(node.domain),
            "it works on sequences": any(name in self._others for name in (*node.input, *node.output)),
            "its definition holds float32 constants": node.op_type in _FLOAT_FUNCTIONS,
            "its type is an attribute": named or statistics,
        }
        return next((reason for reason, holds in oddities.items() if holds), "")

    def _allowed(self, node: onnx.NodeProto) -> tuple[tuple[bool, ...], tuple[bool, ...], bool, bool] | None:
        return None if node.domain else _signature(node.op_type, self._opset)


def _at(allowed: tuple[bool, ...], position: int, *, repeats: bool) -> bool:
    if position < len(allowed):
        return allowed[position]
    return repeats and bool(allowed) and allowed[-1]


def _exempt(node: onnx.NodeProto, position: int) -> bool:
    """Say whether an input is a region or scale that stays float32 although the specification would let it be half."""
    return node.op_type in {"Resize", "Upsample"} and position > 0
