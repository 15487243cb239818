"""Codes that a graph copies, or unpacks from bytes by itself with BitShift (see `graphs.block_filters`).

A module that learns these codes carries them unpacked: the nodes that unpack them go, and what read their result reads
the initializer. What follows (zero points, scales, the shape of the filters) is computed as it stands in the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from edgekit.networks.graph_layout import Node

Array = npt.NDArray[Any]

_BYTE = 8
_AXES = 3  # rows, blocks, bytes


def without_copies(nodes: list[Node], constants: Collection[str], outputs: Collection[str]) -> list[Node]:
    """Leave out every Identity of a constant: what reads it reads the constant."""
    copies = {
        node.outputs[0]: node.inputs[0]
        for node in nodes
        if node.op == "Identity" and node.inputs[0] in constants and node.outputs[0] not in outputs
    }
    return [
        replace(node, inputs=tuple(copies.get(name, name) for name in node.inputs))
        for node in nodes
        if node.outputs[0] not in copies
    ]


def without_unpacking(
    nodes: list[Node], arrays: Mapping[str, Array], outputs: Collection[str]
) -> tuple[list[Node], dict[str, int]]:
    """Leave out the nodes that unpack codes.

    Args:
        nodes: of the graph, in order.
        arrays: initializer -> values.
        outputs: of the graph.

    Returns:
        The other nodes, and the bits of every initializer `[rows, blocks, bytes]` whose codes they read unpacked, as
        `[rows, blocks, codes]`. What does not follow the pattern to the letter stays as it is; where bytes or what
        comes of them on the way are read otherwise too, all do.
    """
    makers = {name: node for node in nodes for name in node.outputs}
    found: dict[str, tuple[str, int, set[str]]] = {}
    for node in nodes:
        if node.op == "Reshape" and (codes := _unpacked(node, makers, arrays)):
            found[node.outputs[0]] = codes
    inner = {name for _, _, names in found.values() for name in names}
    kept = [node for node in nodes if not set(node.outputs) & (inner | found.keys())]
    read = {name for node in kept for name in node.inputs} | set(outputs)
    if read & (inner | {name for name, _, _ in found.values()}) or set(outputs) & found.keys():
        return nodes, {}
    stored = {out: name for out, (name, _, _) in found.items()}
    renamed = [replace(node, inputs=tuple(stored.get(name, name) for name in node.inputs)) for node in kept]
    return renamed, {name: bits for name, bits, _ in found.values()}


def _unpacked(
    reshape: Node, makers: Mapping[str, Node], arrays: Mapping[str, Array]
) -> tuple[str, int, set[str]] | None:
    """Return the bytes that a Reshape ends the unpacking of, the bits of a code, and the values on the way."""
    joint = makers.get(reshape.inputs[0])
    if joint is None or joint.op != "Concat" or joint.attributes.get("axis") != -1:
        return None
    bits, names, stored = _BYTE // len(joint.inputs), {joint.outputs[0]}, set[str]()
    for place, name in enumerate(joint.inputs):
        part = makers.get(name)
        if part is None or part.op != "Unsqueeze" or not _holds(arrays, part.inputs[1], -1):
            return None
        way = _shifted(part.inputs[0], bits, place, makers, arrays)
        if way is None:
            return None
        names |= {name, *way[:-1]}
        stored.add(way[-1])
    source = stored.pop()
    held, wanted = arrays.get(source), arrays.get(reshape.inputs[1])
    if stored or held is None or held.dtype != np.uint8 or held.ndim != _AXES or wanted is None:
        return None
    codes = held.shape[2] * _BYTE // bits
    fits = wanted.tolist() in ([*held.shape[:2], -1], [*held.shape[:2], codes])
    return (source, bits, names) if fits else None


def _shifted(
    name: str, bits: int, place: int, makers: Mapping[str, Node], arrays: Mapping[str, Array]
) -> list[str] | None:
    """Return the values from the codes at a place of each byte back to the bytes, these included."""
    way = [name]
    for direction, count in (("RIGHT", _BYTE - bits), ("LEFT", _BYTE - bits * (place + 1))):
        if not count:
            continue
        node = makers.get(way[-1])
        if node is None or not _shifts(node, direction, count, arrays):
            return None
        way.append(node.inputs[0])
    return way


def _shifts(node: Node, direction: str, count: int, arrays: Mapping[str, Array]) -> bool:
    told = node.attributes.get("direction", b"")
    same = (told.decode() if isinstance(told, bytes) else told) == direction
    return node.op == "BitShift" and same and _holds(arrays, node.inputs[1], count)


def _holds(arrays: Mapping[str, Array], name: str, value: int) -> bool:
    found = arrays.get(name)
    return found is not None and found.size == 1 and int(found.reshape(())) == value
