"""The one form of a graph that quantization and casting work on: float32, opset 13 or later, plain weights."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError, UnsupportedError
from edgekit.events import Finding
from edgekit.graphs.edit import (
    GraphIndex,
    attribute_of,
    constant_tensor,
    drop_dead,
    drop_inputs_of_constants,
    free_names_of,
    graphs_in,
    is_standard,
    load_model,
    name_nodes,
    opset_of,
    sort_nodes,
    subgraphs_of,
)
from edgekit.graphs.gemms import plain_gemms, set_attribute
from edgekit.graphs.lower import lower_opset
from edgekit.graphs.normal import inline_functions
from edgekit.graphs.widen import widen

if TYPE_CHECKING:
    import onnx

LEAST_OPSET = 13
"""The first opset with scales per channel."""

KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"})

_CONSTANTS_APART = 4  # first IR version in which an initializer need not be an input
_SCAN_WITHOUT_BATCH = 9  # opset from which Scan has no batch axis
_ASYMMETRIC_BEFORE = 11  # opset from which Resize knows coordinate transformations
_FOLDED = ("Cast", "Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "ConstantOfShape")


@dataclass(frozen=True, kw_only=True)
class Canonical:
    """A model in canonical form.

    Attributes:
        model: the graph; weights may lie in external files of `folder`.
        folder: the folder of the file it was read from.
        findings: what was changed and is worth knowing.
    """

    model: onnx.ModelProto
    folder: Path
    findings: tuple[Finding, ...]


def canonical(path: Path, *, most: int | None = None) -> Canonical:
    """Read a model and bring it into canonical form; the file is not changed.

    Functions are inlined, node names made unique, initializers taken out of the inputs, Constant nodes and what Cast,
    Transpose or Reshape make of constants become initializers, weights lie in the one graph that reads them, half and
    bfloat16 arithmetic becomes float32, Gemm loses its factors, and an opset below 13 is raised.

    Args:
        path: the model.
        most: the opset that a newer model is lowered to, where it can be said in that; None: it stays.

    Raises:
        InputError: an opset or IR that is newer than this edgekit reads, or that cannot be raised to 13.
        UnsupportedError: an operator of a domain that no runtime here knows.
    """
    model = load_model(path)
    _check_versions(model)
    inline_functions(model)
    if drop_inputs_of_constants(model.graph):
        model.ir_version = max(model.ir_version, _CONSTANTS_APART)
    for graph in graphs_in(model.graph):
        for node in graph.node:
            node.domain = "" if node.domain == "ai.onnx" else node.domain
    name_nodes(model)
    _check_domains(model)
    findings: list[Finding] = []
    if opset_of(model) < LEAST_OPSET:
        model = _raised(model, findings)
    if most is not None and opset_of(model) > most:
        with contextlib.suppress(UnsupportedError):
            model = lower_opset(model, most)
    for graph in graphs_in(model.graph):
        _lift_constants(graph)
        sort_nodes(graph)
        _fold_weights(graph, path.parent)
    for graph in graphs_in(model.graph):
        _move_inward(graph)
    findings += widen(model, path.parent)
    for graph in graphs_in(model.graph):
        plain_gemms(model.graph, graph, path.parent)
    name_nodes(model)
    drop_dead(model.graph)
    return Canonical(model=model, folder=path.parent, findings=tuple(findings))


def _check_versions(model: onnx.ModelProto) -> None:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if opset_of(model) > newest:
        raise InputError(
            f"opset {opset_of(model)} is newer than the maximum supported, {newest}",
            where="opset_import",
            remedy=f"Export the model with opset {newest} or lower.",
        )
    if model.ir_version > onnx.IR_VERSION:
        raise InputError(
            f"IR version {model.ir_version} is newer than the maximum supported, {onnx.IR_VERSION}",
            where="ir_version",
            remedy="Save the model with an older onnx package.",
        )


def _check_domains(model: onnx.ModelProto) -> None:
    for graph in graphs_in(model.graph):
        for node in graph.node:
            if node.domain not in KNOWN_DOMAINS:
                raise UnsupportedError(
                    f"the operator {node.domain}::{node.op_type} is not known to onnxruntime: the model cannot be run",
                    where=f"node '{node.name}'",
                    remedy="Replace it by standard operators, or export it as a function of the model.",
                )


def _raised(model: onnx.ModelProto, findings: list[Finding]) -> onnx.ModelProto:
    import onnx
    from onnx import version_converter

    before = opset_of(model)
    if before < _SCAN_WITHOUT_BATCH and any(is_standard(node, "Scan") for node in model.graph.node):
        raise InputError(
            f"opset {before} cannot be raised to {LEAST_OPSET}, the first with scales per channel: its Scan has a "
            "batch axis, which the converter leaves in",
            where="opset_import",
            remedy=f"Export the model with opset {LEAST_OPSET} or later (17 is safe).",
        )
    # the converter leaves out that Upsample and the first Resize count pixels from their corners
    from_corner = {node.output[0] for node in model.graph.node if is_standard(node, "Upsample", "Resize")}
    try:
        converted = version_converter.convert_version(model, LEAST_OPSET)
        onnx.checker.check_model(converted)
    except Exception as error:  # noqa: BLE001 - the converter's C++ errors have no common base
        raise InputError(
            f"opset {before} cannot be raised to {LEAST_OPSET}, the first with scales per channel: "
            f"{str(error).strip().splitlines()[0][:200]}",
            where="opset_import",
            remedy=f"Export the model with opset {LEAST_OPSET} or later (17 is safe).",
        ) from None
    if before < _ASYMMETRIC_BEFORE:
        for node in converted.graph.node:
            if is_standard(node, "Resize") and node.output[0] in from_corner:
                set_attribute(node, "coordinate_transformation_mode", "asymmetric")
                set_attribute(node, "nearest_mode", "floor")
    name_nodes(converted)
    text = f"opset {before} was raised to {LEAST_OPSET}, the first with scales per channel"
    findings.append(Finding(severity="note", node="", rule="opset-raised", text=text))
    return converted


def _lift_constants(graph: onnx.GraphProto) -> None:
    """Turn Constant nodes into initializers of the same graph."""
    outputs = {value.name for value in graph.output}
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        tensor = constant_tensor(node)
        if tensor is None or node.output[0] in outputs:
            continue
        held = graph.initializer.add()
        held.CopyFrom(tensor)
        held.name = node.output[0]
        del graph.node[index]


def _move_inward(graph: onnx.GraphProto) -> None:
    """Let an inner graph hold the weights that it alone reads: runtimes fuse what they find beside the product."""
    readers: dict[str, list[onnx.GraphProto | None]] = {value.name: [None] for value in graph.output}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(None)
        for inner in subgraphs_of(node):
            for name in set(free_names_of(inner)):
                readers.setdefault(name, []).append(inner)
    for position in range(len(graph.initializer) - 1, -1, -1):
        tensor = graph.initializer[position]
        found = readers.get(tensor.name, [])
        if len(found) == 1 and found[0] is not None and len(tensor.dims) > 1:
            found[0].initializer.add().CopyFrom(tensor)
            del graph.initializer[position]


def _fold_weights(graph: onnx.GraphProto, folder: Path) -> None:
    """Compute what stands between a constant and its reader, unless that would store a shared constant twice."""
    import onnx

    constants = {tensor.name for tensor in graph.initializer}
    for index in range(len(graph.node)):
        node = graph.node[index]
        if not is_standard(node, *_FOLDED) or not node.input or node.input[0] not in constants:
            continue
        around = GraphIndex(graph, folder)
        source = around.initializers.get(node.input[0])
        alone = len(around.consumers.get(node.input[0], [])) == 1 and node.input[0] not in around.outputs
        if source is None or node.output[0] in around.outputs or not (alone or _shrinks(node)):
            continue
        others = [around.value(name) for name in node.input[1:] if name]
        values = around.value(node.input[0])
        result = None if values is None else _computed(node, values, others)
        if result is not None:
            graph.initializer.append(onnx.numpy_helper.from_array(result, node.output[0]))
            constants.add(node.output[0])
            if alone:
                graph.initializer.remove(source)
            node.Clear()
    kept = [node for node in graph.node if node.op_type]
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)


def _shrinks(node: onnx.NodeProto) -> bool:
    return node.op_type in {"Identity", "Cast", "ConstantOfShape"}


def _computed(node: onnx.NodeProto, values: npt.NDArray[Any], others: list[Any]) -> npt.NDArray[Any] | None:
    import onnx

    if any(other is None for other in others):
        return None
    if node.op_type == "Identity":
        return np.array(values)
    if node.op_type == "Cast":
        to = attribute_of(node, "to")
        wide = to in {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE} and values.dtype.kind in "fV"
        return values.astype(onnx.helper.tensor_dtype_to_np_dtype(to)) if wide else None
    if node.op_type == "ConstantOfShape":
        fill = attribute_of(node, "value")
        value = np.zeros(1, np.float32) if fill is None else onnx.numpy_helper.to_array(fill)
        return np.full(tuple(values), value.ravel()[0], value.dtype) if value.dtype.kind == "f" else None
    if values.dtype.kind not in "fV" and values.dtype.name != "bfloat16":
        return None
    return _rearranged(node, values, others)


def _rearranged(node: onnx.NodeProto, values: npt.NDArray[Any], others: list[Any]) -> npt.NDArray[Any] | None:
    axes = tuple(int(axis) for axis in others[0]) if others else None
    if node.op_type == "Transpose":
        return np.ascontiguousarray(values.transpose(attribute_of(node, "perm", list(range(values.ndim))[::-1])))
    if node.op_type == "Flatten":
        axis = attribute_of(node, "axis", 1) % (values.ndim + 1)
        return values.reshape(int(np.prod(values.shape[:axis])), -1)
    if node.op_type == "Squeeze":
        return np.squeeze(values, axes)
    if axes is None or (node.op_type == "Reshape" and 0 in axes and attribute_of(node, "allowzero", 0)):
        return None
    if node.op_type == "Unsqueeze":
        return np.expand_dims(values, axes)
    return values.reshape([values.shape[i] if dim == 0 else dim for i, dim in enumerate(axes)])
