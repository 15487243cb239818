"""Raising the opset of a graph without touching its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.errors import UnsupportedError
from edgekit.graphs.edit import drop_inputs_of_constants, opset_of
from edgekit.graphs.storage import tensor_bytes

if TYPE_CHECKING:
    import onnx

_LARGE = 1024


def at_least(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return a model of an opset or later; large constants do not pass through onnx's converter.

    Raises:
        UnsupportedError: the converter fails, or changes inputs or outputs.
    """
    import onnx

    before = opset_of(model)
    if before >= opset:
        return model
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    graph = bare.graph
    held = [tensor for tensor in graph.initializer if tensor_bytes(tensor) >= _LARGE]
    kept = [tensor for tensor in graph.initializer if tensor_bytes(tensor) < _LARGE]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    given = [value.name for value in graph.input]
    for tensor in held:
        graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    try:
        raised = onnx.version_converter.convert_version(bare, opset)
    except Exception as error:  # noqa: BLE001 - the converter's C++ errors have no common base
        raise UnsupportedError(
            f"opset {before} cannot be raised to {opset}: {' '.join(str(error).split())[:200]}",
            where="opset_import",
            remedy=f"Export the model with opset {opset}.",
        ) from None
    large = {tensor.name for tensor in held}
    raised.graph.initializer.extend(held)
    drop_inputs_of_constants(raised.graph)
    names = [value.name for value in (*raised.graph.input, *raised.graph.output)]
    if names != [*given, *(value.name for value in model.graph.output)] or large & set(given):
        raise UnsupportedError(f"onnx's converter to opset {opset} changes inputs or outputs", where="opset_import")
    for ours, theirs in ((model.graph.input, raised.graph.input), (model.graph.output, raised.graph.output)):
        for old, made in zip(ours, theirs, strict=True):
            made.CopyFrom(old)
    raised.ir_version = max(model.ir_version, onnx.helper.find_min_ir_version_for(raised.opset_import))
    return raised
