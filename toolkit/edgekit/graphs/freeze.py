"""Fixing dynamic axes and folding what becomes constant by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.artifact import TensorSpec
from edgekit.errors import UsageError, did_you_mean
from edgekit.graphs.edit import drop_dead, is_standard
from edgekit.graphs.facts import spec_of
from edgekit.graphs.scope import Scope, Shape
from edgekit.graphs.shape_text import ShapeRange
from edgekit.graphs.shapes import analyze
from edgekit.graphs.storage import graphs_in

if TYPE_CHECKING:
    import onnx

_MAX_FOLDED = 1 << 12


def axis_sizes(
    specs: list[TensorSpec], ranges: Mapping[str, ShapeRange]
) -> tuple[dict[str, int], dict[str, ShapeRange]]:
    """Work out which axes become fixed, and hold the asked shapes against the declared ones.

    An axis that has one name in several inputs has one size in all of them.

    Args:
        specs: the model's inputs.
        ranges: input name -> asked range.

    Returns:
        Axis name -> fixed size, and the ranges whose axes stay dynamic.

    Raises:
        UsageError: an unknown input, another rank, a fixed axis that is asked to be of another size, one axis name
            with two sizes.
    """
    known = {spec.name: spec for spec in specs}
    found: dict[str, tuple[int, int]] = {}
    for name, asked in ranges.items():
        where = f"--shape {name}"
        if name not in known:
            raise UsageError(f"the model has no input '{name}'", where=where, remedy=did_you_mean(name, list(known)))
        declared = known[name].shape
        if len(declared) != len(asked.min):
            raise UsageError(
                f"has rank {len(declared)}: {list(declared)}", where=where, remedy=f"Give {len(declared)} sizes."
            )
        for axis, (dim, low, high) in enumerate(zip(declared, asked.min, asked.max, strict=True)):
            if isinstance(dim, int) and not dim == low == high:
                raise UsageError(
                    f"axis {axis} is fixed at {dim}", where=where, remedy=f"Write {dim} there, or export it dynamic."
                )
            if isinstance(dim, str) and found.setdefault(dim, (low, high)) != (low, high):
                raise UsageError(
                    f"axis {axis} ('{dim}') would have two sizes: {found[dim][0]} and {low}",
                    where=where,
                    remedy=f"'{dim}' names one axis: give the same size wherever it stands.",
                )
    fixed = {dim: low for dim, (low, high) in found.items() if low == high}
    moving = {name: asked for name, asked in ranges.items() if asked.min != asked.max}
    return fixed, moving


def freeze(model: onnx.ModelProto, sizes: Mapping[str, int], folder: Path) -> None:
    """Fix axes by name, infer all shapes anew and fold shape arithmetic; outputs get their real shapes.

    Args:
        model: the model to change; its inputs' axes are fixed or named.
        sizes: axis name -> size.
        folder: where its external data lies.

    Raises:
        InputError: the sizes do not go together; names the node.
    """
    for graph in graphs_in(model.graph):
        del graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    scope = analyze(model, folder)
    fold_known(model.graph, scope)
    drop_dead(model.graph)
    record_shapes(model.graph, scope)


def fold_known(graph: onnx.GraphProto, scope: Scope) -> int:
    """Replace nodes whose outputs are small known constants by initializers; return how many."""
    import onnx

    outputs = {value.name for value in graph.output}
    present = {tensor.name for tensor in graph.initializer}
    folded = 0
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        names = [name for name in node.output if name]
        small = all(name in scope.values and scope.values[name].size <= _MAX_FOLDED for name in names)
        if not names or not small or outputs & set(names) or is_standard(node, "DequantizeLinear"):
            continue
        for name in names:
            if name not in present:
                graph.initializer.append(onnx.numpy_helper.from_array(scope.values[name], name=name))
        del graph.node[index]
        folded += 1
    return folded


def record_shapes(graph: onnx.GraphProto, scope: Scope, *, outputs: bool = True) -> None:
    """Write inferred types into the graph: value infos for what its nodes make, and the axes of its outputs.

    Args:
        graph: the graph.
        scope: what is known of it.
        outputs: fix the axes of outputs that turned out to be of a fixed size.
    """
    declared = {value.name for value in (*graph.input, *graph.output)}
    del graph.value_info[:]
    for name in (name for node in graph.node for name in node.output if name and name not in declared):
        if name in scope.types and scope.shape(name) is not None:
            value = graph.value_info.add()
            value.name = name
            value.type.CopyFrom(scope.types[name])
    for value in graph.output if outputs else ():
        shape: Shape | None = scope.shape(value.name)
        dims = value.type.tensor_type.shape.dim
        if shape is None or len(shape) != len(dims):
            continue
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(size, int):
                dim.dim_value = size


def signature_of_inputs(model: onnx.ModelProto) -> list[TensorSpec]:
    """Return the input specs of a model."""
    return [spec_of(value) for value in model.graph.input]
