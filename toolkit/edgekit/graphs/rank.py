"""Fewer axes for a Transpose between two Reshapes: axes that stay together move as one.

Windows of attention and the (un)shuffling of pixels are written with 6 axes, of which a device may take 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgekit.graphs.edit import GraphIndex, attribute_of, drop_dead, is_standard

if TYPE_CHECKING:
    import onnx

    from edgekit.graphs.scope import Scope


def merge_axes(model: onnx.ModelProto, folder: Path, scope: Scope, most: int) -> int:
    """Merge axes around every Transpose of more than `most`, where that brings it to `most`; return how many.

    The tensor before it must come from a Reshape that it alone reads, and all that read it must be Reshapes; then only
    their shapes are known to the graph, and the order of the numbers stays.

    Args:
        model: changed in place.
        folder: where its external data lies.
        scope: what is known of its tensors, see `shapes.analyze`; all sizes must be.
        most: axes that the device takes.
    """
    from onnx import helper, numpy_helper

    graph, index = model.graph, GraphIndex(model.graph, folder)
    settled: set[str] = set()
    done = 0

    def settle(reshape: onnx.NodeProto, sizes: list[int]) -> None:
        name = index.fresh_name(f"{reshape.output[0]}_shape")
        graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), name))
        reshape.input[1] = name
        settled.add(reshape.output[0])

    for node in list(graph.node):
        sizes = scope.static(node.input[0]) if is_standard(node, "Transpose") else None
        if sizes is None or len(sizes) <= most:
            continue
        before, after = index.producers.get(node.input[0]), index.consumers.get(node.output[0], [])
        ends = [scope.static(reader.output[0]) for reader in after if _reshapes(reader, node)]
        if before is None or not is_standard(before, "Reshape") or index.only_consumer(node.input[0]) is None:
            continue
        if not after or len(ends) < len(after) or None in ends or node.output[0] in index.outputs:
            continue
        order = attribute_of(node, "perm", list(range(len(sizes)))[::-1])
        fewer, moved = merged(sizes, order)
        if len(fewer) > most:
            continue
        settle(before, fewer)
        for reader, end in zip(after, ends, strict=True):
            asked = index.value(reader.input[1])
            if reader.output[0] not in settled and (asked is None or 0 in asked):  # 0 is the size that was there
                settle(reader, list(end or ()))
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("perm", moved))
        done += 1
    if done:
        drop_dead(graph)
        del graph.value_info[:]
    return done


def merged(sizes: Sequence[int], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the sizes and the order of a Transpose with as few axes as say the same.

    Args:
        sizes: of the axes before it.
        order: the axis that each axis behind it was.
    """
    left = [axis for axis in order if sizes[axis] != 1]
    kept = sorted(left)
    places = [kept.index(axis) for axis in left]  # as if axes of size 1 were not there
    groups: list[list[int]] = []
    for place in places:
        if groups and groups[-1][-1] + 1 == place:
            groups[-1].append(place)
        else:
            groups.append([place])
    first = sorted(groups)
    return [math.prod(sizes[kept[place]] for place in group) for group in first] or [1], [
        first.index(group) for group in groups
    ] or [0]


def _reshapes(reader: onnx.NodeProto, node: onnx.NodeProto) -> bool:
    return is_standard(reader, "Reshape") and reader.input[0] == node.output[0]
