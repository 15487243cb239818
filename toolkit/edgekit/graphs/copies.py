"""Copies of models that leave large constants behind.

protobuf gives memory back only with the whole message: a constant that was copied and then deleted stays as long as the
copy does. So what will be replaced should not come along.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


def copy_without(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Copy a model; of the main graph's initializers with these names only name, type and shape come along.

    The graph is not valid before all of them are gone.
    """
    import onnx

    made = onnx.ModelProto()
    _merge(made, model, besides="graph")
    _merge(made.graph, model.graph, besides="initializer")
    for tensor in model.graph.initializer:
        copy = made.graph.initializer.add()
        if tensor.name in names:
            copy.name, copy.data_type = tensor.name, tensor.data_type
            copy.dims.extend(tensor.dims)
        else:
            copy.CopyFrom(tensor)
    return made


def _merge(target: Any, source: Any, *, besides: str) -> None:
    for field, value in source.ListFields():
        if field.name == besides:
            continue
        held = getattr(target, field.name)
        if hasattr(held, "MergeFrom"):
            held.MergeFrom(value)
        else:
            setattr(target, field.name, value)
