"""Writing a graph in an older operator set, or without some operators: runtimes read less than exporters write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from edgekit.errors import UnsupportedError
from edgekit.graphs.edit import constant_tensor, graphs_in, is_standard, name_nodes, opset_of, sort_nodes

if TYPE_CHECKING:
    import onnx

SIGNED_OPSET = 20
"""onnxruntime on x86 makes signed activations unsigned and does not load graphs of newer opsets in which it has moved
their QuantizeLinear (onnxruntime#25526)."""

_CHANGED_MEANING = {"GroupNormalization": 21}
"""Operator -> opset since which the same node means something else."""

_RENAMED = {"GridSample": ("mode", {"linear": "bilinear", "cubic": "bicubic"})}
"""Operator -> attribute and its values that have another name in the version before."""


def is_signed(model: onnx.ModelProto) -> bool:
    """Say whether a graph quantizes to signed integers of 8 bits."""
    from onnx import TensorProto

    constants = {tensor.name: tensor for graph in graphs_in(model.graph) for tensor in graph.initializer}
    constants |= {node.output[0]: held for node in _standard(model) if (held := constant_tensor(node)) is not None}
    signed = {name for name, tensor in constants.items() if tensor.data_type == TensorProto.INT8}
    return any(node.op_type == "QuantizeLinear" and signed & set(node.input[2:]) for node in _standard(model))


def lower_opset(model: onnx.ModelProto, limit: int) -> onnx.ModelProto:
    """Return the model in opset `limit`; operators that are newer are written as the ones that they consist of.

    A node stays as it is where the older version of its operator has all that it uses: inputs, outputs, and attributes
    other than at their defaults. Whether the older version also takes its types, only a runtime can tell.

    Args:
        model: a whole model, checked, of an opset above `limit`; it is not changed.
        limit: the opset to reach.

    Raises:
        UnsupportedError: a node cannot be said in that opset; names it and what it uses.
    """
    before = opset_of(model)
    made: Any = type(model)()
    made.CopyFrom(model)
    while apart := [node for node in _standard(made) if _is_apart(node, before, limit)]:
        count = len(_standard(made))
        made = _written_out(made, apart, before)
        if len(_standard(made)) == count:
            break
    name_nodes(made)
    for node in _standard(made):
        _lower(node, before, limit)
    for entry in made.opset_import:
        if entry.domain in {"", "ai.onnx"}:
            entry.version = limit
    sort_nodes(made.graph)
    lowered: onnx.ModelProto = made
    return lowered


def expand(model: onnx.ModelProto, operators: Iterable[str]) -> tuple[onnx.ModelProto, list[str]]:
    """Write some operators as those that ONNX defines them by; return the model and the names of these nodes.

    Args:
        model: a whole model, checked; it is not changed.
        operators: names of standard operators. Those that are no functions in the model's opset stay (some are
            from opset 18 on).
    """
    wanted, opset = set(operators), opset_of(model)
    made: Any = type(model)()
    made.CopyFrom(model)
    nodes = [node for node in _standard(made) if node.op_type in wanted and _is_function(_schema(node.op_type, opset))]
    if not nodes:
        return made, []
    names = [node.name for node in nodes]
    made = _written_out(made, nodes, opset)
    left = {node.name for node in _standard(made) if node.op_type in wanted}
    name_nodes(made)
    sort_nodes(made.graph)
    return made, [name for name in names if name not in left]


def _is_function(schema: Any) -> bool:  # onnx's type stubs do not know all of it
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def _written_out(model: onnx.ModelProto, nodes: list[onnx.NodeProto], opset: int) -> Any:
    """Replace every node of the operators of some nodes by what its operator is defined as."""
    from onnx import helper, inliner, shape_inference

    for node in nodes:  # definitions read attributes that are left out as if they had no default
        schema = _schema(node.op_type, opset)
        assert schema is not None
        there = {attribute.name for attribute in node.attribute}
        node.attribute.extend(
            known.default_value
            for name, known in schema.attributes.items()
            if name not in there and known.default_value.type
        )
    names = [("", name) for name in sorted({node.op_type for node in nodes})]
    for graph in graphs_in(model.graph):  # definitions may depend on types, of constants too
        graph.value_info.extend(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in graph.initializer
        )
    with contextlib.suppress(Exception):  # what cannot be inferred may not be needed
        model = shape_inference.infer_shapes(model)
    try:
        made = inliner.inline_selected_functions(model, names, inline_schema_functions=True)
    except Exception as error:  # noqa: BLE001 - the inliner's C++ errors have no common base
        raise UnsupportedError(
            f"{', '.join(name for _, name in names)} cannot be written out: {' '.join(str(error).split())[:200]}",
            where=nodes[0].name,
            remedy="Export the model with an older opset, or without these operators.",
        ) from None
    for graph in graphs_in(made.graph):
        del graph.value_info[:]  # shapes are inferred anew where they are needed
    return made


def _standard(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for graph in graphs_in(model.graph) for node in graph.node if is_standard(node, node.op_type)]


def _is_apart(node: onnx.NodeProto, before: int, limit: int) -> bool:
    """Say whether a node must be written as other ones: its operator is newer, or meant something else."""
    if limit < _CHANGED_MEANING.get(node.op_type, 0) <= before:
        return True
    return _is_function(_schema(node.op_type, before)) and _fault(node, before, limit) is not None


def _lower(node: onnx.NodeProto, before: int, limit: int) -> None:
    """Bring one node to the older version of its operator."""
    fault = _fault(node, before, limit)
    if fault is not None:
        raise UnsupportedError(
            f"node '{node.name}' ({node.op_type}) cannot be written in opset {limit}: {fault}",
            where=node.name,
            remedy=f"Export the model with opset {limit} or lower.",
        )
    new, old = _schema(node.op_type, before), _schema(node.op_type, limit)
    if new is None or old is None or new.since_version == old.since_version:
        return
    key, names = _RENAMED.get(node.op_type, ("", {}))
    for position in range(len(node.attribute) - 1, -1, -1):
        attribute = node.attribute[position]
        if attribute.name not in old.attributes:
            del node.attribute[position]
        elif attribute.name == key:
            text = attribute.s.decode()
            attribute.s = names.get(text, text).encode()


def _fault(node: onnx.NodeProto, before: int, limit: int) -> str | None:
    """Say what of a node the older version of its operator does not have; None where it has all."""
    new, old = _schema(node.op_type, before), _schema(node.op_type, limit)
    if new is None:
        return None  # unknown operators are told elsewhere
    if old is None:
        return f"the operator is of opset {new.since_version}"
    if new.since_version == old.since_version:
        return None
    for what, count, most in (
        ("inputs", _used(node.input), old.max_input),
        ("outputs", _used(node.output), old.max_output),
    ):
        if count > most:
            return f"it has {count} {what}, there are at most {most}"
    for attribute in node.attribute:
        if attribute.name not in old.attributes and not _is_default(attribute, new):
            return f"there is no attribute '{attribute.name}'"
    lost = [name for name in old.attributes if name not in new.attributes]
    return f"there '{lost[0]}' is an attribute" if lost else None


def _used(names: Any) -> int:
    """Count inputs or outputs up to the last that is there."""
    return max((position + 1 for position, name in enumerate(names) if name), default=0)


def _is_default(attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema) -> bool:
    from onnx import helper

    known = schema.attributes.get(attribute.name)
    if known is None or not known.default_value.type:
        return False
    return bool(helper.get_attribute_value(attribute) == helper.get_attribute_value(known.default_value))


def _schema(operator: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the version of a standard operator that an opset has."""
    from onnx import defs

    try:
        return defs.get_schema(operator, opset, "")
    except defs.SchemaError:
        return None
