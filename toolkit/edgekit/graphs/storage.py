"""Where the numbers of a model lie: tensor sizes, values, and external data that is never trusted."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError

if TYPE_CHECKING:
    import onnx

_CHUNK = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Where an external tensor's bytes lie: a path relative to the model's folder, byte offset and length."""

    location: str
    offset: int
    length: int


def element_bits(data_type: int) -> int:
    """Return the bits that one element of an ONNX data type takes in memory (4 for INT4); 0 for strings."""
    import onnx

    narrow = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2, "STRING": 0, "UNDEFINED": 0}
    try:
        name = onnx.TensorProto.DataType.Name(data_type)
    except ValueError:
        raise InputError(
            f"unknown tensor type {data_type}",
            remedy="The model is damaged, or newer than the installed onnx package.",
        ) from None
    if name in narrow:
        return narrow[name]
    return int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize) * 8


def packed_bytes(data_type: int, elements: int) -> int:
    """Return the bytes of `elements` densely packed elements."""
    return (element_bits(data_type) * elements + 7) // 8


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes that a tensor's dims and type ask for, whatever it really stores; strings as they are."""
    import onnx

    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    return packed_bytes(tensor.data_type, element_count(tensor.dims))


def element_count(dims: Iterable[int]) -> int:
    """Multiply dims as Python integers, which do not overflow."""
    count = 1
    for dim in dims:
        count *= dim
    return count


def is_external(tensor: onnx.TensorProto) -> bool:
    """Tell whether a tensor's bytes lie in another file."""
    import onnx

    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def reference_of(tensor: onnx.TensorProto) -> Reference:
    """Read an external tensor's reference; InputError when it is not one that the ONNX format allows."""
    found = {entry.key: entry.value for entry in tensor.external_data}
    where = f"tensor '{tensor.name}'"
    remedy = "Export the model again; its external data entry is not what the ONNX format allows."
    location = found.get("location", "")
    if not location or "\0" in location:
        raise InputError("external data without a location", where=where, remedy=remedy)
    needed = tensor_bytes(tensor)
    numbers = {}
    for key, default in (("offset", 0), ("length", needed)):
        text = found.get(key, "") or str(default)
        if not text.isascii() or not text.isdigit() or len(text) > 18:  # noqa: PLR2004 - below 2**63
            raise InputError(f"external data {key} '{text[:40]}' is not a byte count", where=where, remedy=remedy)
        numbers[key] = int(text)
    if numbers["length"] != needed:
        raise InputError(
            f"external data has {numbers['length']} bytes where {needed} are needed", where=where, remedy=remedy
        )
    return Reference(location=location, offset=numbers["offset"], length=needed)


@contextlib.contextmanager
def open_external(folder: Path, reference: Reference, *, tensor: str = "") -> Iterator[int]:
    """Open the file that a reference names, as a descriptor; nothing outside `folder` is ever opened.

    Raises:
        InputError: the location leaves the folder (absolute, `..`, or by a symbolic link), does not exist, is not a
            regular file, or is too short.
    """
    where = f"tensor '{tensor}'" if tensor else ""
    location = Path(reference.location)
    if location.is_absolute() or ".." in location.parts or "\\" in reference.location:
        raise InputError(
            f"external data '{reference.location}' points outside the model's folder",
            where=where,
            remedy="Put the data file beside the model and save the model again.",
        )
    base = os.path.realpath(folder)
    path = os.path.realpath(Path(base) / location)
    if os.path.commonpath([base, path]) != base:
        raise InputError(
            f"external data '{reference.location}' is a link that leaves the model's folder",
            where=where,
            remedy="Replace the link by the file itself.",
        )
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InputError(
            f"external data file '{reference.location}' is missing",
            where=where,
            remedy="Copy it beside the model: a model with external data is more than one file.",
        ) from None
    except OSError as error:
        raise InputError(
            f"external data file '{reference.location}' cannot be read: {error.strerror}",
            where=where,
            remedy="Check it.",
        ) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(
                f"external data '{reference.location}' is not a regular file",
                where=where,
                remedy="Replace it by a file.",
            )
        if reference.offset + reference.length > status.st_size:
            raise InputError(
                f"external data '{reference.location}' has {status.st_size} bytes, but bytes {reference.offset} to "
                f"{reference.offset + reference.length} are needed",
                where=where,
                remedy="The file is cut short or belongs to another model: copy it again.",
            )
        yield descriptor
    finally:
        os.close(descriptor)


def copy_range(source: int, start: int, length: int, target: int, position: int) -> None:
    """Copy bytes between descriptors in chunks; holes of a sparse source stay holes."""
    end = start + length
    shift = position - start
    at = start
    while at < end:
        try:
            data = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            break
        if data >= end:
            break
        stop = min(os.lseek(source, data, os.SEEK_HOLE), end)
        while data < stop:
            chunk = os.pread(source, min(_CHUNK, stop - data), data)
            if not chunk:
                raise InputError(
                    "external data shrank while it was read", remedy="Let nothing write to it and try again."
                )
            data += os.pwrite(target, chunk, data + shift)
        at = stop
    if os.fstat(target).st_size < position + length:
        os.ftruncate(target, position + length)


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and every graph inside it (branches and loop bodies), outermost first."""
    yield graph
    for node in graph.node:
        for inner in subgraphs_of(node):
            yield from graphs_in(inner)


def subgraphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that a node holds as attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def tensors_in(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor a model stores, in file order: initializers and attributes, of inner graphs too."""
    for graph in _all_graphs(model):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
            yield sparse.indices
        yield from _attribute_tensors(graph.node)
    for function in model.functions:
        yield from _attribute_tensors(function.node)


def _all_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield from graphs_in(model.graph)
    for function in model.functions:
        for node in function.node:
            for inner in subgraphs_of(node):
                yield from graphs_in(inner)


def _attribute_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield attribute.sparse_tensor.values
                yield attribute.sparse_tensor.indices


def value_of(tensor: onnx.TensorProto, folder: Path | None = None) -> npt.NDArray[Any]:
    """Return a tensor's values; external ones are mapped read-only, not read.

    Args:
        tensor: the tensor.
        folder: the model's folder, for external data.

    Raises:
        InputError: the stored values do not fit the tensor's dims and type, or external data cannot be read.
    """
    import onnx

    where = f"tensor '{tensor.name}'"
    try:
        if not is_external(tensor):
            return np.asarray(onnx.numpy_helper.to_array(tensor))
        if folder is None:
            raise InputError("external data is not at hand", where=where, remedy="Load the model from its folder.")
        reference = reference_of(tensor)
        with open_external(folder, reference, tensor=tensor.name) as descriptor:
            if element_bits(tensor.data_type) % 8 == 0 and reference.length:
                dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
                with os.fdopen(os.dup(descriptor), "rb") as file:
                    return np.memmap(file, dtype=dtype, mode="r", offset=reference.offset, shape=tuple(tensor.dims))
            dense = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims)
            dense.raw_data = os.pread(descriptor, reference.length, reference.offset)
            return np.asarray(onnx.numpy_helper.to_array(dense))
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise InputError(
            f"the values do not fit its dims and type: {error}", where=where, remedy="Export it again."
        ) from None
