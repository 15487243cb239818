"""Average pooling whose window is wider than its input: Qualcomm's compiler takes some of it and gives noise.

A window that covers the whole input is a GlobalAveragePool, which is right; what is left is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.graphs.edit import attribute_of, graphs_in, is_standard

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

Shape = tuple[int | str, ...]


def wide_pools(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> list[onnx.NodeProto]:
    """Return the AveragePools with a window that is wider than their input on some axis."""
    nodes = [node for graph in graphs_in(model.graph) for node in graph.node if is_standard(node, "AveragePool")]
    return [node for node in nodes if any(wide > size for wide, size in _windows(node, shapes))]


def global_pools(model: onnx.ModelProto) -> list[str]:
    """Turn every wide AveragePool that averages the whole input into the GlobalAveragePool that it is; return them."""
    import onnx

    if not any(is_standard(node, "AveragePool") for graph in graphs_in(model.graph) for node in graph.node):
        return []
    shapes = known_shapes(model)
    changed = []
    for node in wide_pools(model, shapes):
        if not covers_all(node, shapes):
            continue
        whole = onnx.helper.make_node("GlobalAveragePool", list(node.input), list(node.output), name=node.name)
        node.CopyFrom(whole)
        changed.append(node.name or node.output[0])
    return changed


def covers_all(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> bool:
    """Say whether a pool's one window holds all of its input, and counts nothing else."""
    made, windows = shapes.get(node.output[0], ()), _windows(node, shapes)
    if not windows or made[2:] != (1,) * len(windows) or attribute_of(node, "count_include_pad", 0):
        return False
    if attribute_of(node, "auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET"):
        return False
    if any(one != 1 for one in attribute_of(node, "dilations", [1])):
        return False
    before = list(attribute_of(node, "pads", [0] * 2 * len(windows)))[: len(windows)]
    return all(wide - pad >= size for (wide, size), pad in zip(windows, before, strict=True))


def known_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """Return the shapes that onnx infers."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    found: dict[str, Shape] = {}
    for graph in graphs_in(inferred.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            kind = value.type.tensor_type
            if kind.HasField("shape"):
                found[value.name] = tuple(dim.dim_value or dim.dim_param for dim in kind.shape.dim)
    return found


def _windows(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> list[tuple[int, int]]:
    """Return kernel and input of each axis; none where the input is not known."""
    sizes = shapes.get(node.input[0], ())[2:]
    kernel = list(attribute_of(node, "kernel_shape", []))
    if len(kernel) != len(sizes):
        return []
    return [(wide, size) for wide, size in zip(kernel, sizes, strict=True) if isinstance(size, int)]
