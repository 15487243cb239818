"""Mask constants such as -1e9 and -3.4e38: no float16 holds them, and attention works as well with smaller ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgekit.graphs.edit import GraphIndex, is_standard
from edgekit.graphs.half_types import HALF_MAX
from edgekit.graphs.storage import element_count

if TYPE_CHECKING:
    import onnx

MASK = 16384.0
"""Magnitude that masks are lowered to: two of them added still fit, and exp(-16384) is 0 in every type."""

_MOST = 1 << 20
_THROUGH = frozenset(
    {"Mul", "Add", "Sub", "Where", "Expand", "Unsqueeze", "Squeeze", "Reshape", "Concat", "Slice", "Transpose", "Max"}
    | {"Identity", "Cast", "Min", "ScatterND", "Tile", "Trilu", "ConstantOfShape"}
)
_ENDS = ("Softmax", "LogSoftmax")


def softened(model: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, dict[str, float]]:
    """Return a copy whose mask constants have the magnitude `MASK`, and their names with the old magnitudes.

    A mask constant has finite values out of float16's range and reaches nothing but Softmax. The caller must compare
    both models: a row that is masked altogether gives something else when its scores are no longer swallowed.
    """
    import onnx

    index = GraphIndex(model.graph, folder)
    found: dict[str, float] = {}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or element_count(tensor.dims) > _MOST:
            continue
        values = index.value(tensor.name)
        if values is None:
            continue
        large = np.isfinite(values) & (np.abs(values) > HALF_MAX)
        if large.any() and _ends_in_softmax(index, tensor.name, {}):
            found[tensor.name] = float(np.abs(values[large]).max())
            lowered = np.where(large, np.sign(values) * np.float32(MASK), values).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(lowered, tensor.name))
    return copy, found


def _ends_in_softmax(index: GraphIndex, name: str, known: dict[str, bool]) -> bool:
    if name in known:
        return known[name]
    known[name] = True
    users = index.consumers.get(name, [])
    fine = bool(users) and name not in index.outputs
    for node in users:
        if is_standard(node, *_ENDS):
            continue
        passes = is_standard(node, *_THROUGH) and len(node.output) == 1
        fine = fine and passes and _ends_in_softmax(index, node.output[0], known)
    known[name] = fine
    return fine


def describe(found: Mapping[str, float]) -> str:
    """Name the constants and what they were."""
    return ", ".join(f"'{name}' (magnitude {old:.3g})" for name, old in found.items())
