"""Clips as Max and Min, for a compiler that takes their lower bound for 0 in integer graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgekit.graphs.edit import GraphIndex, graphs_in, is_standard, sort_nodes

if TYPE_CHECKING:
    import onnx

_BOTH = 2


def split_clips(model: onnx.ModelProto, folder: Path | None = None) -> list[str]:
    """Write every Clip with a constant lower bound other than 0 as Max, then Min; return the names of these nodes.

    A Min before a Max, which compilers turn into a Clip, changes places with it. Clips between 0 and a bound (ReLU6)
    stay: they are right, and fused into what stands before them. So do those of integers, which no grid is put on.

    Args:
        model: changed in place.
        folder: where its external data lies.
    """
    done = []
    for graph in graphs_in(model.graph):
        index = GraphIndex(graph, folder)
        for node in list(graph.node):
            done += _clip(graph, index, node) if is_standard(node, "Clip") else _pair(index, node)
    sort_nodes(model.graph)
    return done


def _clip(graph: onnx.GraphProto, index: GraphIndex, node: onnx.NodeProto) -> list[str]:
    from onnx import helper

    low, high = (node.input[place] if len(node.input) > place else "" for place in (1, 2))
    values = [index.value(name) for name in (low, high)]
    if (low and values[0] is None) or (high and values[1] is None) or (low and not np.any(values[0])):
        return []
    if any(value is not None and value.dtype.kind in "iu" for value in values):
        return []
    bounds = [
        (operator, name)
        for operator, name, value in zip(("Max", "Min"), (low, high), values, strict=True)
        if value is not None and not np.all(np.isinf(value))
    ]
    if not bounds:
        return []
    read, made = node.input[0], []
    for number, (operator, name) in enumerate(bounds):
        last = number == len(bounds) - 1
        out = node.output[0] if last else index.fresh_name(f"{node.output[0]}_{operator.lower()}")
        made.append(helper.make_node(operator, [read, name], [out], name=node.name if last else out))
        read = out
    place = next(i for i, other in enumerate(graph.node) if other.output[:1] == node.output[:1])
    graph.node[place].CopyFrom(made[-1])
    graph.node.extend(made[:-1])
    return [made[-1].name]


def _pair(index: GraphIndex, node: onnx.NodeProto) -> list[str]:
    """Let a Min and the Max that alone reads it change places, where both have a scalar and the Max's is not 0."""
    if not is_standard(node, "Min") or len(node.input) != _BOTH:
        return []
    after = index.only_consumer(node.output[0])
    if after is None or not is_standard(after, "Max") or len(after.input) != _BOTH:
        return []
    high, low = _scalar(index, node), _scalar(index, after)
    if high is None or low is None or low[1] == 0 or low[1] > high[1]:
        return []
    node.op_type, after.op_type = "Max", "Min"
    node.input[high[0]], after.input[low[0]] = after.input[low[0]], node.input[high[0]]
    return [after.name]


def _scalar(index: GraphIndex, node: onnx.NodeProto) -> tuple[int, float] | None:
    """Return which of two inputs is a constant of one number, and that number; None for neither or both."""
    values = [index.value(name) for name in node.input]
    found = [(place, value.item()) for place, value in enumerate(values) if value is not None and value.size == 1]
    return found[0] if len(found) == 1 else None
