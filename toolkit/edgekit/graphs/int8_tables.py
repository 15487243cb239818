"""Tables of embeddings on the grids of a graph that is whole on integers: what is looked up lies on the table's grid.

A table is stored in int8 around zero, and activations in unsigned integers; an accelerator without floats looks up only
what it need not convert. The same integers count from 128 here, so no value changes and no byte is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from onnx import numpy_helper

from edgekit.graphs.edit import GraphIndex, is_standard

if TYPE_CHECKING:
    import onnx

_MIDDLE = 128
_SCALE, _POINT = 1, 2


def unsigned_tables(graph: onnx.GraphProto, index: GraphIndex) -> Iterator[tuple[onnx.NodeProto, float]]:
    """Let every table in int8 with one scale, read by Gathers alone, be uint8; yield the DQ behind it and its scale."""
    for dequantize in [node for node in graph.node if node.op_type == "DequantizeLinear"]:
        readers = index.consumers.get(dequantize.output[0], [])
        looked_up = [node for node in readers if is_standard(node, "Gather") and node.input[0] == dequantize.output[0]]
        if not readers or len(looked_up) != len(readers) or index.consumers[dequantize.input[0]] != [dequantize]:
            continue
        values, scale = index.value(dequantize.input[0]), index.value(dequantize.input[_SCALE])
        point = index.value(dequantize.input[_POINT]) if len(dequantize.input) > _POINT else np.int8(0)
        if values is None or values.dtype != np.int8 or scale is None or scale.size != 1:
            continue
        if point is None or np.asarray(point).any():
            continue
        stored = index.initializers.get(dequantize.input[0])
        if stored is None:
            continue
        zero = index.fresh_name(dequantize.output[0] + "_middle")
        stored.CopyFrom(numpy_helper.from_array((values.astype(np.int16) + _MIDDLE).astype(np.uint8), stored.name))
        graph.initializer.append(numpy_helper.from_array(np.array(_MIDDLE, np.uint8), zero))
        inputs = [stored.name, dequantize.input[_SCALE], zero]
        del dequantize.input[:]
        dequantize.input.extend(inputs)
        yield dequantize, float(np.asarray(scale).reshape(()))
