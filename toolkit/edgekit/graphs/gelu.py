"""x * (1 + erf(x / sqrt 2)) / 2 as one operator: accelerators have a kernel for it, few have one for Erf.

Exporters write it in many orders of the factors; all are recognized by what is multiplied, not by the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgekit.graphs.edit import GraphIndex, drop_dead, is_standard, opset_of, sort_nodes

if TYPE_CHECKING:
    import onnx

STANDARD_SINCE = 20
"""Opset from which Gelu is standard; before, onnxruntime has it in its own domain."""
CONTRIB = "com.microsoft"

_TOLERANCE = 1e-4


@dataclass(frozen=True)
class _Found:
    """Where a Gelu ends and what it reads."""

    node: onnx.NodeProto
    x: str


def fuse_gelu(model: onnx.ModelProto) -> list[str]:
    """Replace every Gelu that is written out in the main graph; return the names of the nodes that ended them."""
    from onnx import helper

    index = GraphIndex(model.graph)
    found = [match for node in model.graph.node if is_standard(node, "Erf") and (match := _match(index, node))]
    if not found:
        return []
    domain = "" if opset_of(model) >= STANDARD_SINCE else CONTRIB
    places = {node.output[0]: position for position, node in enumerate(model.graph.node)}
    for match in found:
        made = helper.make_node("Gelu", [match.x], [match.node.output[0]], name=match.node.name, domain=domain)
        model.graph.node[places[match.node.output[0]]].CopyFrom(made)
    if domain and all(entry.domain != domain for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(domain, 1))
    drop_dead(model.graph)
    sort_nodes(model.graph)
    return [match.node.name or match.x for match in found]


def _match(index: GraphIndex, erf: onnx.NodeProto) -> _Found | None:
    """Return the Gelu around an Erf; None when it is none, or when something else reads its inside."""
    x = _scaled(index, erf.input[0], np.sqrt(0.5))
    plus = index.only_consumer(erf.output[0])
    if x is None or plus is None or not is_standard(plus, "Add") or _other(index, plus, erf.output[0], 1.0) is None:
        return None
    bell = plus.output[0]
    product = index.only_consumer(bell)
    if product is None or not is_standard(product, "Mul"):
        return None
    beside = product.input[1 if product.input[0] == bell else 0]
    if beside != x and _scaled(index, beside, 0.5) == x:
        return _Found(_copy(product), x)
    last = index.only_consumer(product.output[0])
    if last is None or not is_standard(last, "Mul", "Div"):
        return None
    halved_last = beside == x and _scaled(index, last.output[0], 0.5) == product.output[0]
    both = {x, product.output[0]} == set(last.input)
    halved_first = _is(index, beside, 0.5) and is_standard(last, "Mul") and both
    return _Found(_copy(last), x) if halved_last or halved_first else None


def _scaled(index: GraphIndex, name: str, factor: float) -> str | None:
    """Return t when `name` is t * factor or t / (1 / factor)."""
    node = index.producers.get(name)
    if node is None:
        return None
    if is_standard(node, "Div"):
        return node.input[0] if _is(index, node.input[1], 1 / factor) else None
    return _other(index, node, "", factor) if is_standard(node, "Mul") else None


def _other(index: GraphIndex, node: onnx.NodeProto, known: str, value: float) -> str | None:
    """Return the input of a node whose other input is a constant of this value; it must be `known` if that is given."""
    for position in (0, 1):
        name = node.input[1 - position]
        if _is(index, node.input[position], value) and (not known or name == known):
            return str(name)
    return None


def _is(index: GraphIndex, name: str, value: float) -> bool:
    found = index.value(name)
    return found is not None and found.size == 1 and bool(np.isclose(float(found.reshape(())), value, rtol=_TOLERANCE))


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
