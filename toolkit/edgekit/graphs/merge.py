"""Rewrites of linear layers: two in a row into one, several that read the same into one, a batch norm into one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.cost import Cost, Row
from edgekit.graphs.edit import GraphIndex, attribute_of, drop_dead, is_standard, opset_of
from edgekit.graphs.fusion import Group
from edgekit.graphs.linear import Linear, find_linear
from edgekit.graphs.roofline import kernel_seconds
from edgekit.graphs.scope import Scope
from edgekit.profile import Profile

if TYPE_CHECKING:
    import onnx

_SPLIT_INPUT = 13
"""Opset in which Split takes its sizes as an input."""


def merge_consecutive(model: onnx.ModelProto, folder: Path) -> int:
    """Merge each pair of linear layers with nothing between them, where that saves work; return how many.

    With weights [K, H] and [H, N] the pair costs K x H + H x N multiply-accumulates a row and its product K x N: a
    low-rank pair stays. The middle must be read by the second layer alone and be no output; the weights must belong
    to the pair alone, or the model would grow.
    """
    merged = 0
    while _merge_one_pair(model.graph, folder):
        merged += 1
    return merged


def _merge_one_pair(graph: onnx.GraphProto, folder: Path) -> bool:
    index = GraphIndex(graph, folder)
    for node in graph.node:
        first = find_linear(index, node)
        after = index.only_consumer(first.output) if first is not None else None
        second = find_linear(index, after) if after is not None else None
        if first is None or second is None or second.source != first.output or not saves_work(first, second):
            continue
        if not _owns_weight(first) or not _owns_weight(second):
            continue
        weight = first.weight.astype(np.float64) @ second.weight.astype(np.float64)
        bias = None
        if first.bias is not None or second.bias is not None:
            bias = np.zeros(weight.shape[1])
            if first.bias is not None:
                bias = bias + first.bias.astype(np.float64) @ second.weight.astype(np.float64)
            if second.bias is not None:
                bias = bias + second.bias
        gemm = first.is_gemm or second.is_gemm
        _replace(index, [first, second], first.source, second.output, weight, bias, second.weight.dtype, gemm=gemm)
        return True
    return False


def saves_work(first: Linear, second: Linear) -> bool:
    """Tell whether the product of two layers' weights is no more work than the two."""
    (depth, middle), width = first.weight.shape, second.weight.shape[1]
    return bool(depth * width <= depth * middle + middle * width)


def _owns_weight(layer: Linear) -> bool:
    return layer.nodes[0].input[1] in layer.stored


def _replace(
    index: GraphIndex,
    layers: Sequence[Linear],
    source: str,
    output: str,
    weight: npt.NDArray[Any],
    bias: npt.NDArray[Any] | None,
    dtype: np.dtype[Any],
    *,
    gemm: bool,
) -> None:
    """Put one linear layer in the place of several."""
    import onnx

    graph, base = index.graph, layers[0].nodes[0].name or "linear"
    last = max(_position(graph, node) for layer in layers for node in layer.nodes)
    names = [index.fresh_name(f"{base}_weight")]
    graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(weight.astype(dtype)), names[0]))
    if bias is not None:
        names.append(index.fresh_name(f"{base}_bias"))
        graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(bias.astype(dtype)), names[1]))
    if gemm:
        made = [onnx.helper.make_node("Gemm", [source, *names], [output], name=base)]
    elif bias is None:
        made = [onnx.helper.make_node("MatMul", [source, names[0]], [output], name=base)]
    else:
        middle = index.fresh_name(f"{base}_product")
        made = [
            onnx.helper.make_node("MatMul", [source, names[0]], [middle], name=base),
            onnx.helper.make_node("Add", [middle, names[1]], [output], name=index.fresh_name(f"{base}_add")),
        ]
    _exchange(graph, [node for layer in layers for node in layer.nodes], made, last)


def _position(graph: onnx.GraphProto, node: onnx.NodeProto) -> int:
    return next(index for index, item in enumerate(graph.node) if item.output[0] == node.output[0])


def _exchange(
    graph: onnx.GraphProto, old: Sequence[onnx.NodeProto], new: Sequence[onnx.NodeProto], position: int
) -> None:
    """Remove nodes and put others where the one at `position` stood."""
    gone = {node.output[0] for node in old}
    nodes = []
    for index, node in enumerate(graph.node):
        if node.output[0] not in gone:
            nodes.append(type(node).FromString(node.SerializeToString()))
        if index == position:
            nodes.extend(new)
    del graph.node[:]
    graph.node.extend(nodes)
    drop_dead(graph)


def merge_parallel(model: onnx.ModelProto, folder: Path, cost: Cost, profile: Profile) -> int:
    """Merge linear layers that read the same tensor (Q, K and V) into one and a Split, where the device gains by it.

    The merged layer reads its input once and is one launch; the Split is another and moves all outputs again. The
    roofline of the profile decides, for the shapes that were counted.

    Returns:
        How many layers were merged away.
    """
    if opset_of(model) < _SPLIT_INPUT:
        return 0
    merged = 0
    while found := _parallel(GraphIndex(model.graph, folder), cost, profile):
        merged += len(found) - 1
        _merge_group(GraphIndex(model.graph, folder), found)
    return merged


def _parallel(index: GraphIndex, cost: Cost, profile: Profile) -> list[Linear]:
    rows = {row.node: row for row in cost.rows}
    groups: dict[tuple[str, str, bool], list[Linear]] = {}
    for node in index.graph.node:
        layer = find_linear(index, node)
        if layer is not None and not layer.is_gemm and _owns_weight(layer) and node.name in rows:
            groups.setdefault((layer.source, layer.weight.dtype.name, layer.bias is None), []).append(layer)
    for layers in groups.values():
        if len(layers) > 1 and _gains([rows[layer.nodes[0].name] for layer in layers], cost, profile):
            return layers
    return []


def _gains(rows: Sequence[Row], cost: Cost, profile: Profile) -> bool:
    """Compare the layers one by one with the merged layer and its Split."""
    source = cost.sizes.get(rows[0].reads[0], 0)
    outputs = sum(row.output_bytes for row in rows)
    weights = sum(row.weight_reads for row in rows)
    apart = sum(
        kernel_seconds(Group(rows=[row], read_bytes=source + row.weight_reads, written_bytes=row.output_bytes), profile)
        for row in rows
    )
    merged = kernel_seconds(Group(rows=list(rows), read_bytes=source + weights, written_bytes=outputs), profile)
    split = kernel_seconds(Group(rows=[], read_bytes=outputs, written_bytes=outputs), profile)
    return merged + split < apart


def _merge_group(index: GraphIndex, layers: Sequence[Linear]) -> None:
    import onnx

    base = layers[0].nodes[0].name or "linear"
    joined = index.fresh_name(f"{base}_joined")
    weight = np.concatenate([layer.weight for layer in layers], axis=1)
    bias = (
        None if layers[0].bias is None else np.concatenate([layer.bias for layer in layers if layer.bias is not None])
    )
    sizes = index.fresh_name(f"{base}_sizes")
    widths = np.array([layer.weight.shape[1] for layer in layers], np.int64)
    split = onnx.helper.make_node(
        "Split", [joined, sizes], [layer.output for layer in layers], name=index.fresh_name(f"{base}_split"), axis=-1
    )
    first = min(_position(index.graph, node) for layer in layers for node in layer.nodes)
    placeholder = index.graph.node[first].output[0]
    _replace_group(index, layers, joined, weight, bias, split, placeholder)
    index.graph.initializer.append(onnx.numpy_helper.from_array(widths, sizes))


def _replace_group(
    index: GraphIndex,
    layers: Sequence[Linear],
    joined: str,
    weight: npt.NDArray[Any],
    bias: npt.NDArray[Any] | None,
    split: onnx.NodeProto,
    first: str,
) -> None:
    """Put the merged layer and its Split where the first of the layers stood: all their inputs are there already."""
    import onnx

    graph, base = index.graph, layers[0].nodes[0].name or "linear"
    name = index.fresh_name(f"{base}_weight")
    graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(weight), name))
    if bias is None:
        made = [onnx.helper.make_node("MatMul", [layers[0].source, name], [joined], name=base)]
    else:
        vector, middle = index.fresh_name(f"{base}_bias"), index.fresh_name(f"{base}_product")
        graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(bias), vector))
        made = [
            onnx.helper.make_node("MatMul", [layers[0].source, name], [middle], name=base),
            onnx.helper.make_node("Add", [middle, vector], [joined], name=index.fresh_name(f"{base}_add")),
        ]
    position = next(at for at, node in enumerate(graph.node) if node.output[0] == first)
    _exchange(graph, [node for layer in layers for node in layer.nodes], [*made, split], position)


def fold_batch_norm(model: onnx.ModelProto, folder: Path, scope: Scope) -> int:
    """Fold each BatchNormalization that follows a linear layer of rank-2 output into its weights; return how many.

    Convolutions are onnxslim's; this is for what it leaves. Follows the definition of BatchNormalization: y = (x -
    mean) / sqrt(var + epsilon) x scale + b.
    """
    folded = 0
    while _fold_one_norm(model.graph, folder, scope):
        folded += 1
    return folded


def _fold_one_norm(graph: onnx.GraphProto, folder: Path, scope: Scope) -> bool:
    index = GraphIndex(graph, folder)
    for node in graph.node:
        layer = find_linear(index, node)
        norm = index.only_consumer(layer.output) if layer is not None else None
        if layer is None or norm is None or not is_standard(norm, "BatchNormalization"):
            continue
        shape = scope.shape(layer.output)
        plain = not attribute_of(norm, "training_mode", 0) and len([name for name in norm.output if name]) == 1
        values = [index.value(name) for name in norm.input[1:]]
        rank = 0 if shape is None else len(shape)
        if not plain or rank != 2 or not _owns_weight(layer):  # noqa: PLR2004 - rows and features
            continue
        scale, shift, mean, variance = (None if value is None else value.astype(np.float64) for value in values)
        if scale is None or shift is None or mean is None or variance is None:
            continue
        factor = scale / np.sqrt(variance + attribute_of(norm, "epsilon", 1e-5))
        bias = ((0 if layer.bias is None else layer.bias.astype(np.float64)) - mean) * factor + shift
        ending = Linear(
            nodes=(norm,), source=layer.output, output=norm.output[0], weight=layer.weight, bias=None, stored=()
        )
        _replace(
            index,
            [layer, ending],
            layer.source,
            norm.output[0],
            layer.weight.astype(np.float64) * factor,
            bias,
            layer.weight.dtype,
            gemm=layer.is_gemm,
        )
        return True
    return False
