"""Bringing a graph into the one form that everything after the intake relies on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgekit.errors import InputError
from edgekit.graphs.storage import graphs_in, tensor_bytes, value_of

if TYPE_CHECKING:
    import onnx

_MAX_DENSE = 1 << 28


def inline_functions(model: onnx.ModelProto) -> None:
    """Replace calls of the model's local functions by their bodies.

    Raises:
        InputError: they cannot be inlined (recursion, missing opsets).
    """
    import onnx.inliner

    if not model.functions:
        return
    try:
        inlined = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # noqa: BLE001 - the C++ inliner raises RuntimeError and others without a common base
        raise InputError(
            f"its local functions cannot be inlined: {' '.join(str(error).split())[:300]}",
            remedy="Export it without functions.",
        ) from None
    model.CopyFrom(inlined)


def make_dense(graph: onnx.GraphProto) -> list[str]:
    """Turn sparse initializers (COO) into ordinary ones; return their names.

    Raises:
        InputError: indices out of range, or a dense tensor of more than 256 MiB.
    """
    import onnx

    made = []
    for inner in graphs_in(graph):
        for sparse in inner.sparse_initializer:
            name, dims = sparse.values.name, list(sparse.dims)
            where = f"tensor '{name}'"
            shape = onnx.TensorProto(dims=dims, data_type=sparse.values.data_type)
            if any(dim < 0 for dim in dims) or tensor_bytes(shape) > _MAX_DENSE:
                raise InputError(
                    f"a sparse weight of dims {dims} is too large", where=where, remedy="Store it densely."
                )
            dense = np.zeros(dims, dtype=onnx.helper.tensor_dtype_to_np_dtype(sparse.values.data_type))
            try:
                values, indices = value_of(sparse.values), value_of(sparse.indices)
                flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), tuple(dims))
                np.put(dense, flat, values, mode="raise")
            except (ValueError, IndexError, TypeError) as error:
                raise InputError(
                    f"a sparse weight is damaged: {error}", where=where, remedy="Export it again."
                ) from None
            inner.initializer.append(onnx.numpy_helper.from_array(dense, name=name))
            made.append(name)
        del inner.sparse_initializer[:]
    return made


def settle_dims(graph: onnx.GraphProto) -> None:
    """Make every axis of inputs and outputs fixed or named.

    Axes named by digits (`"224"`) are fixed; negative sizes are dynamic; a dynamic axis without a name is called
    `TENSOR_dimN`. So is one whose name has no letter or digit: `?` says that a size is not known, not that two are
    the same.

    Raises:
        InputError: an input has no shape at all.
    """
    taken = {
        dim.dim_param
        for value in (*graph.input, *graph.output)
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    }
    for value in graph.input:
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            raise InputError(
                "has no declared shape",
                where=f"input '{value.name}'",
                remedy="Export the model with the input's rank.",
            )
    for value in (*graph.input, *graph.output):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param.isascii() and dim.dim_param.isdigit() and 0 < len(dim.dim_param) < 10:  # noqa: PLR2004
                dim.dim_value = int(dim.dim_param)
            elif dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")
            elif dim.dim_param and not any(letter.isalnum() for letter in dim.dim_param):
                dim.ClearField("dim_param")
            if not dim.HasField("dim_value") and not dim.dim_param:
                dim.dim_param = _free(f"{value.name}_dim{axis}", taken)


def _free(base: str, taken: set[str]) -> str:
    name = base
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def settle_outputs(model: onnx.ModelProto) -> None:
    """Give outputs that have no declared type or rank the inferred ones.

    Raises:
        InputError: an output's rank cannot be told.
    """
    import onnx

    vague = [value for value in model.graph.output if not value.type.tensor_type.HasField("shape")]
    vague = [value for value in vague if value.type.WhichOneof("value") in {None, "tensor_type"}]
    if not vague:
        return
    inferred: dict[str, onnx.ValueInfoProto] = {}
    reason = "shape inference does not reach it"
    try:
        found = onnx.shape_inference.infer_shapes(model, data_prop=True)
        inferred = {value.name: value for value in found.graph.output}
    except Exception as error:  # noqa: BLE001 - the C++ inference has no common base of errors
        reason = " ".join(str(error).split())[:200]
    for value in vague:
        known = inferred.get(value.name)
        if known is None or not known.type.tensor_type.HasField("shape"):
            raise InputError(
                f"has no declared rank, and {reason}",
                where=f"output '{value.name}'",
                remedy="Export the model with declared output shapes.",
            )
        value.type.CopyFrom(known.type)
