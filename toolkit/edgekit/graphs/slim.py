"""The child's part of simplifying: onnxslim on one file, with what it must not touch set apart and put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.errors import EdgekitError, InputError
from edgekit.graphs.edit import (
    RANDOM_OPS,
    constant_tensor,
    drop_inputs_of_constants,
    load_model,
    name_nodes,
    save_model,
    sort_nodes,
)
from edgekit.graphs.freeze import record_shapes
from edgekit.graphs.shapes import analyze
from edgekit.graphs.storage import graphs_in, is_external

if TYPE_CHECKING:
    import onnx

ALWAYS_SKIPPED = ("FusionGemm",)
"""Puts a Reshape on both sides of every MatMul of a transformer."""


def patterns() -> list[str]:
    """Return the names of onnxslim's rewrites that are used."""
    from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

    return [name for name in DEFAULT_FUSION_PATTERNS if name not in ALWAYS_SKIPPED]


def slim_file(
    source: str, target: str, skip: Sequence[str], *, fuse: bool = True, fold_limit: int | None = None
) -> dict[str, Any]:
    """Simplify a model file with onnxslim: constants folded, dead and duplicate nodes dropped, patterns rewritten.

    Large weights kept in another file are set apart as inputs meanwhile, so that they are never in memory. Inputs,
    outputs, and what identifies the model stay as they are.

    Args:
        source: the model file.
        target: the file to write (with its own external data).
        skip: names of rewrites that are left out (see `patterns`).
        fuse: rewrite patterns at all.
        fold_limit: bytes of the largest constant that is folded; None for any, 0 for none at all.

    Returns:
        `patterns`: the rewrites that were on.

    Raises:
        InputError: onnxslim fails, or its result has other inputs or outputs.
    """
    import onnxslim

    before = load_model(Path(source))
    apart = _set_apart(before)
    work = type(before)()
    work.CopyFrom(before)
    for graph in graphs_in(work.graph):
        del graph.value_info[:]
        _spell_out(graph)
    off = [] if fuse else ["graph_fusion"]
    if fold_limit == 0:
        off.append("constant_folding")
    if any(node.op_type in RANDOM_OPS for graph in graphs_in(work.graph) for node in graph.node):
        off += ["constant_folding", "subexpression_elimination"]  # it would draw once and for all
    with _foreign("onnxslim fails"), contextlib.redirect_stdout(None):
        after = onnxslim.slim(
            work,
            skip_fusion_patterns=[*ALWAYS_SKIPPED, *skip],
            skip_optimizations=off,
            size_threshold=fold_limit,
        )
    _put_back(before, after, apart)
    with _foreign("what onnxslim made is no valid graph"):
        record_shapes(after.graph, analyze(after, Path(source).parent), outputs=False)
    save_model(after, Path(target), source=Path(source).parent)
    return {"patterns": [] if not fuse else [name for name in patterns() if name not in skip]}


@contextlib.contextmanager
def _foreign(what: str) -> Iterator[None]:
    """Turn whatever onnxslim, or onnx on its result, raises into an InputError: neither has errors of its own."""
    try:
        yield
    except EdgekitError:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        raise InputError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from None


def _spell_out(graph: onnx.GraphProto) -> None:
    """Write constants that are given as plain numbers (`value_floats`) as tensors: onnxslim reads them as float64."""
    from onnx import helper

    for node in graph.node:
        tensor = constant_tensor(node)
        if tensor is not None and node.attribute[0].name != "value":
            made = helper.make_attribute("value", tensor)
            del node.attribute[:]
            node.attribute.append(made)


def _set_apart(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Turn external weights into inputs; return them."""
    apart = []
    for index in range(len(model.graph.initializer) - 1, -1, -1):
        tensor = model.graph.initializer[index]
        if is_external(tensor):
            copy = type(tensor)()
            copy.CopyFrom(tensor)
            apart.append(copy)
            value = model.graph.input.add()
            value.name = tensor.name
            value.type.tensor_type.elem_type = tensor.data_type
            for dim in tensor.dims:
                value.type.tensor_type.shape.dim.add().dim_value = dim
            del model.graph.initializer[index]
    return apart[::-1]


def _put_back(before: onnx.ModelProto, after: onnx.ModelProto, apart: list[onnx.TensorProto]) -> None:
    """Restore the signature and identity of a model, and the weights that were set apart and are still read."""
    if [value.name for value in before.graph.output] != [value.name for value in after.graph.output]:
        raise InputError("onnxslim changes the outputs")
    used = {name for graph in graphs_in(after.graph) for node in graph.node for name in node.input}
    after.graph.initializer.extend(tensor for tensor in apart if tensor.name in used)
    for side in ("input", "output"):
        values = getattr(after.graph, side)
        del values[:]
        values.extend(getattr(before.graph, side))
    drop_inputs_of_constants(after.graph)
    for index in range(len(after.graph.input) - 1, -1, -1):
        if after.graph.input[index].name in {tensor.name for tensor in apart}:
            del after.graph.input[index]
    after.graph.name = before.graph.name
    after.producer_name, after.producer_version = before.producer_name, before.producer_version
    after.ir_version = before.ir_version
    del after.metadata_props[:]
    after.metadata_props.extend(before.metadata_props)
    del after.opset_import[:]
    after.opset_import.extend(before.opset_import)
    sort_nodes(after.graph)
    name_nodes(after)
