"""The child's part of reading an untrusted `.onnx`: parse, check, bring into one form, write, load. See `files`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit.artifact import MAIN
from edgekit.errors import EdgekitError, InputError, UnsupportedError
from edgekit.events import Finding
from edgekit.graphs import storage
from edgekit.graphs.child import Limits, confine
from edgekit.graphs.edit import drop_inputs_of_constants, load_model, name_nodes, opset_of, save_model, sort_nodes
from edgekit.graphs.facts import (
    check_signature,
    facts_of,
    foreign_operators,
    random_findings,
    rare_types,
    training_nodes,
)
from edgekit.graphs.normal import inline_functions, make_dense, settle_dims, settle_outputs
from edgekit.graphs.sessions import open_session
from edgekit.graphs.versions import OLDEST_OPSET, WANTED_OPSET, check_versions, lower_signed, raise_opset

if TYPE_CHECKING:
    import onnx

MAX_PROTOBUF = (1 << 31) - 1
_CONSTANTS_APART = 4
"""First IR version in which an initializer need not be a graph input."""
_DAMAGED = "Export or download it again; onnx.checker.check_model says more."


def intake(source: str, limits: dict[str, Any]) -> dict[str, Any]:
    """Read the model at `source` into the current folder, under limits that follow its true size.

    Args:
        source: path of the untrusted model; never written to.
        limits: the user's limits (see `child.Limits`).
    """
    return take_in(Path(source), Path(), lambda size: confine(vars(Limits(**limits).for_size(size))))


def take_in(path: Path, out: Path, allow: Callable[[int], None]) -> dict[str, Any]:
    """Read a model and write `model.onnx` (and its data) to the folder `out`.

    Args:
        path: the untrusted model.
        out: an empty folder.
        allow: called with the model's size in bytes, weights in other files included, as soon as it is known.

    Returns:
        The artifact's facts, `findings` and `external` included.

    Raises:
        InputError: it is no ONNX model, damaged, unsafe or newer than what is installed.
        UnsupportedError: it has inputs or operators that edgekit or onnxruntime cannot handle.
    """
    target = out / MAIN
    findings: list[Finding] = []
    model = parse(path)
    findings += check_versions(model)
    total, external = check_storage(model, path.parent)
    allow(total + path.stat().st_size)
    changed = normalize(model, findings)
    check_signature(model)
    findings += foreign_operators(model)
    try:
        save_model(model, target, source=path.parent)
    except (ValueError, TypeError) as error:  # protobuf refuses strings that are not UTF-8 and sizes over 2 GiB
        raise InputError(f"the model cannot be written again: {error}", remedy=_DAMAGED) from None
    check(target)
    load(target)
    findings += raise_opset(target) + lower_signed(target)
    findings += training_nodes(load_model(target)) + random_findings(load_model(target))
    facts, more = facts_of(target)
    if changed:
        facts["renamed_nodes"] = changed
    return facts | {"external": external, "findings": msgspec.to_builtins([*findings, *more])}


def parse(path: Path) -> onnx.ModelProto:
    """Parse a file as an ONNX model, weights in other files left there; InputError when it is none."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types

    try:
        size = path.stat().st_size
        if size > MAX_PROTOBUF:
            raise InputError(
                f"{size} bytes are more than a protobuf can hold ({MAX_PROTOBUF})",
                remedy="Save the model with external data: onnx.save(..., save_as_external_data=True).",
            )
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", remedy="Check the path and its permissions.") from None
    model: onnx.ModelProto | None = None
    with contextlib.suppress(DecodeError):
        model = onnx.ModelProto.FromString(data)
    if model is None or not model.HasField("graph") or not model.ir_version:
        raise InputError(f"is not an ONNX model: {_what_it_is(data)}", remedy=_DAMAGED)
    check_text(model)
    return model


def check_text(message: Any) -> None:
    """Refuse text that is not UTF-8 anywhere in a protobuf message: some libraries take it, others crash on it.

    Raises:
        InputError: names the field.
    """
    for field, value in message.ListFields():
        items = [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value
        if field.type == field.TYPE_MESSAGE:
            for item in items:
                check_text(item)
        elif field.type == field.TYPE_STRING and not all(isinstance(item, str) for item in items):
            raise InputError("holds text that is not UTF-8", where=f"field '{field.full_name}'", remedy=_DAMAGED)


def _what_it_is(data: bytes) -> str:
    head = data[:512]
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer (run 'git lfs pull' to get the file itself)"
    if head.startswith(b"PK\x03\x04"):
        return "it is a zip archive"
    if head.startswith(b"\x89HDF"):
        return "it is an HDF5 file"
    if head[4:8] in {b"TFL3", b"ORTM"}:
        return "it is a TensorFlow Lite or onnxruntime flatbuffer"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):  # noqa: PLR2004 - printable ASCII
        return "it is text"
    return "it does not parse as one; it is cut short, damaged or of another format"


def check_storage(model: onnx.ModelProto, folder: Path) -> tuple[int, list[str]]:
    """Check that every tensor's dims, type and place of storage make sense.

    Returns:
        The bytes of all tensors, and the files besides the model's that hold some, relative to its folder.

    Raises:
        InputError: names the tensor.
    """
    import onnx

    total, files = 0, set[str]()
    for tensor in storage.tensors_in(model):
        where = f"tensor '{tensor.name}'"
        if any(dim < 0 for dim in tensor.dims):
            raise InputError(f"has negative dims {list(tensor.dims)}", where=where, remedy=_DAMAGED)
        size = storage.tensor_bytes(tensor)
        if storage.is_external(tensor):
            if tensor.data_type == onnx.TensorProto.STRING:
                raise InputError("strings cannot be external data", where=where, remedy=_DAMAGED)
            reference = storage.reference_of(tensor)
            with storage.open_external(folder, reference, tensor=tensor.name):
                files.add(reference.location)
        elif size > MAX_PROTOBUF or (tensor.HasField("raw_data") and len(tensor.raw_data) != size):
            raise InputError(f"its dims {list(tensor.dims)[:8]} do not fit its values", where=where, remedy=_DAMAGED)
        total += size
    return total, sorted(files)


def normalize(model: onnx.ModelProto, findings: list[Finding]) -> dict[str, str]:
    """Bring a model into the one form that everything after relies on.

    No local functions, no sparse initializers, no initializers among the inputs, nodes in execution order and with
    unique names, every axis fixed or named.

    Returns:
        New node name -> old one, for nodes whose name was a duplicate.
    """
    inline_functions(model)
    made = make_dense(model.graph)
    if made:
        findings.append(_note("sparse-initializer", made[0], f"{len(made)} sparse weights were stored densely"))
    for graph in storage.graphs_in(model.graph):
        dropped = drop_inputs_of_constants(graph) if graph is model.graph else []
        if dropped:
            model.ir_version = max(model.ir_version, _CONSTANTS_APART)
            findings.append(
                _note("initializer-input", "", f"{len(dropped)} weights were listed as inputs; they are constants now")
            )
    sort_nodes(model.graph)
    renamed = name_nodes(model)
    duplicates = {new: old for new, old in renamed.items() if old}
    if duplicates:
        new, old = next(iter(duplicates.items()))
        findings.append(
            _note("node-names", new, f"{len(duplicates)} nodes had the name of another node ('{old}') and got new ones")
        )
    settle_outputs(model)
    settle_dims(model.graph)
    return duplicates


def _note(rule: str, node: str, text: str) -> Finding:
    return Finding(severity="note", node=node, rule=rule, text=text)


def load(path: Path) -> None:
    """Load a model file in onnxruntime, as a check.

    Raises:
        UnsupportedError: there is no kernel for something in it; names what is rare in it: types, an old opset.
        InputError: it does not load.
    """
    try:
        open_session(path)
    except UnsupportedError as error:
        model = load_model(path)
        rare, opset = rare_types(model), opset_of(model)
        if opset < OLDEST_OPSET:
            remedy = f"Export the model with opset {WANTED_OPSET} or newer, or convert it: onnx.version_converter."
            text = f"{error.text}; opset {opset} is older than onnxruntime has kernels for ({OLDEST_OPSET})"
            raise UnsupportedError(text, where=error.where, remedy=remedy) from None
        if not rare:
            raise
        text = f"{error.text}; the model uses {', '.join(rare)}"
        raise UnsupportedError(text, where=error.where, remedy=error.remedy) from None


def check(path: Path) -> None:
    """Hold a model file against the ONNX specification.

    Raises:
        InputError: with what the checker says.
    """
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except EdgekitError:
        raise
    except Exception as error:  # noqa: BLE001 - the checker raises its own error, ValueError, RuntimeError and more
        text = " ".join(str(error).split())[:500]
        kind = UnsupportedError if "No Op registered" in text and "domain_version" not in text else InputError
        raise kind(f"the model breaks the ONNX specification: {text}", remedy=_DAMAGED) from None
