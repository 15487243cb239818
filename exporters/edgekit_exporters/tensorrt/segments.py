"""How a network that runs on two units falls into segments, and how often it changes over between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgekit.graphs.edit import is_standard

if TYPE_CHECKING:
    import onnx

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Operators that move nothing: whatever unit they are given to, no tensor is copied for them."""

_NEUTRAL = (*VIEWS, "QuantizeLinear", "DequantizeLinear", "Constant")


class Segments:
    """The segments of a graph: sets of connected nodes on one unit that can run without waiting for the other.

    A node's depth is the number of changes on the way to it from the inputs (the most, over all ways); connected nodes
    of one unit and one depth are a segment. Views and Q/DQ belong to whatever reads and writes them.

    Attributes:
        switches: how often a segment hands tensors to one on the other unit: changes of unit along a chain.
    """

    def __init__(self, graph: onnx.GraphProto, units: Mapping[str, str]) -> None:
        """Divide a graph, sorted as ONNX wants it; `units`: node name -> unit, neutral nodes aside."""
        self._parents: dict[int, int] = {}
        made: dict[str, set[int]] = {}
        self._units: list[str] = []
        depths: list[int] = []
        crossings: set[tuple[int, int]] = set()
        for node in graph.node:
            before = set().union(*(made.get(name, set()) for name in node.input))
            if is_standard(node, *_NEUTRAL) or node.name not in units:
                made.update(dict.fromkeys(node.output, before))
                continue
            number, unit = len(self._units), units[node.name]
            self._units.append(unit)
            depths.append(max((depths[i] + (self._units[i] != unit) for i in before), default=0))
            self._parents[number] = number
            for other in before:
                if self._units[other] != unit:
                    crossings.add((other, number))
                elif depths[other] == depths[number]:
                    self._parents[self._root(other)] = self._root(number)
            made.update({name: {number} for name in node.output})
        self.switches = len({(self._root(a), self._root(b)) for a, b in crossings})

    def count(self, unit: str) -> int:
        """Return the number of segments on a unit."""
        return sum(self._root(i) == i and self._units[i] == unit for i in range(len(self._units)))

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            number = self._parents[number]
        return number
