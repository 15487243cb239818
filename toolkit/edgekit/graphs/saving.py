"""Writing models so that the same model gives the same bytes, with weights too large for a protobuf beside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.errors import InputError
from edgekit.graphs.storage import (
    Reference,
    copy_range,
    element_bits,
    graphs_in,
    is_external,
    open_external,
    reference_of,
    tensor_bytes,
    tensors_in,
    value_of,
)

if TYPE_CHECKING:
    import onnx

EXTERNAL_THRESHOLD = 1 << 30
"""Bytes of weights above which a model is written with external data: a protobuf cannot exceed 2 GiB."""

DATA_SUFFIX = ".data"
INLINE_BELOW = 1024
"""Smaller tensors stay in the protobuf: shape inference must see the values of shapes and axes."""

_ALIGNMENT = 4096
_CHUNK = 8 << 20


def load_model(path: Path) -> onnx.ModelProto:
    """Parse a model file; external data stays where it is (see `value_of` and `save_model`)."""
    import onnx

    return onnx.load_model(os.fspath(path), load_external_data=False)


def save_model(model: onnx.ModelProto, path: Path, *, source: Path | None = None) -> None:
    """Write a model; the same model gives the same bytes, wherever its weights lay before.

    Weights of more than `EXTERNAL_THRESHOLD` bytes in all go to one file beside it (`path` + `.data`), which is
    streamed, never held in memory; else everything is in the one file. The model's tensors are changed to match.

    Args:
        model: the model; its external tensors point into `source`.
        path: the file to write.
        source: the folder that external tensors point into; may not be the folder of `path` then.
    """
    if sum(tensor_bytes(tensor) for tensor in tensors_in(model)) > EXTERNAL_THRESHOLD:
        _lift_large_constants(model)
        _write_external(model, path, source)
    else:
        for tensor in tensors_in(model):
            if is_external(tensor):
                _read_in(tensor, source)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _write_external(model: onnx.ModelProto, path: Path, source: Path | None) -> None:
    data = path.with_name(path.name + DATA_SUFFIX)
    target = os.open(data, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        position = 0
        for tensor in (tensor for graph in graphs_in(model.graph) for tensor in graph.initializer):
            size = tensor_bytes(tensor)
            if size < INLINE_BELOW or not element_bits(tensor.data_type):
                continue
            position = -(-position // _ALIGNMENT) * _ALIGNMENT
            _append(tensor, source, target, position)
            _refer(tensor, data.name, position, size)
            position += size
    finally:
        os.close(target)
    for tensor in tensors_in(model):
        if is_external(tensor) and reference_of(tensor).location != data.name:
            _read_in(tensor, source)


def _append(tensor: onnx.TensorProto, source: Path | None, target: int, position: int) -> None:
    if is_external(tensor):
        reference = reference_of(tensor)
        if source is None:
            raise InputError("external data is not at hand", where=f"tensor '{tensor.name}'", remedy="Name its folder.")
        with open_external(source, reference, tensor=tensor.name) as descriptor:
            copy_range(descriptor, reference.offset, reference.length, target, position)
        return
    raw = tensor.raw_data if tensor.HasField("raw_data") else _raw_bytes(tensor)
    view = memoryview(raw)
    if len(view) != tensor_bytes(tensor):
        raise InputError("the values do not fill its dims", where=f"tensor '{tensor.name}'", remedy="Export it again.")
    done = 0
    while done < len(view):
        done += os.pwrite(target, view[done : done + _CHUNK], position + done)


def _raw_bytes(tensor: onnx.TensorProto) -> bytes:
    import onnx

    return bytes(onnx.numpy_helper.from_array(value_of(tensor)).raw_data)


def _refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    import onnx

    dims, data_type, name, doc = list(tensor.dims), tensor.data_type, tensor.name, tensor.doc_string
    tensor.Clear()
    tensor.dims.extend(dims)
    tensor.data_type, tensor.name = data_type, name
    if doc:
        tensor.doc_string = doc
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def _read_in(tensor: onnx.TensorProto, source: Path | None) -> None:
    import onnx

    if source is None:
        raise InputError("external data is not at hand", where=f"tensor '{tensor.name}'", remedy="Name its folder.")
    reference = reference_of(tensor)
    with open_external(source, reference, tensor=tensor.name) as descriptor:
        tensor.raw_data = _pread_all(descriptor, reference)
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]
    tensor.ClearField("data_location")


def _pread_all(descriptor: int, reference: Reference) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(reference.offset)
        return file.read(reference.length)


def _lift_large_constants(model: onnx.ModelProto) -> None:
    """Turn large Constant nodes into initializers: runtimes read external data of initializers only."""
    for graph in graphs_in(model.graph):
        lifted = []
        for index, node in enumerate(graph.node):
            if node.op_type != "Constant" or node.domain not in {"", "ai.onnx"} or len(node.attribute) != 1:
                continue
            attribute = node.attribute[0]
            if attribute.name == "value" and tensor_bytes(attribute.t) >= INLINE_BELOW:
                tensor = graph.initializer.add()
                tensor.CopyFrom(attribute.t)
                tensor.name = node.output[0]
                lifted.append(index)
        for index in reversed(lifted):
            del graph.node[index]


def model_bytes(path: Path) -> int:
    """Return the bytes of a model file and its external data."""
    data = path.with_name(path.name + DATA_SUFFIX)
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def copy_model(source: Path, target: Path) -> None:
    """Copy a model file and its external data, which keeps its name only when the model's does."""
    target.parent.mkdir(parents=True, exist_ok=True)
    data = source.with_name(source.name + DATA_SUFFIX)
    if not data.exists() or source.name == target.name:
        shutil.copyfile(source, target)
        if data.exists():
            _copy_sparse(data, target.with_name(target.name + DATA_SUFFIX))
        return
    save_model(load_model(source), target, source=source.parent)


def _copy_sparse(source: Path, target: Path) -> None:
    with source.open("rb") as old, target.open("wb") as new:
        copy_range(old.fileno(), 0, source.stat().st_size, new.fileno(), 0)
