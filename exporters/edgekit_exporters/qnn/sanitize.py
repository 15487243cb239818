"""What Qualcomm's compiler is known to get wrong or refuse, rewritten to what it takes; the values stay the same.

`x * HardSigmoid(x)` with slope 1/6 and offset 1/2 is taken for a HardSwish while the product stays, so that it gives
x * x * HardSigmoid(x). It happens when the product reads x first; reading the HardSigmoid first it is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgekit.graphs.edit import attribute_of, graphs_in, is_standard

if TYPE_CHECKING:
    import onnx


def order_gates(model: onnx.ModelProto) -> list[str]:
    """Let every product of a tensor with its own HardSigmoid read the HardSigmoid first; return the changed nodes."""
    changed = []
    for graph in graphs_in(model.graph):
        gates = {node.output[0]: node.input[0] for node in graph.node if is_standard(node, "HardSigmoid")}
        for node in graph.node:
            if is_standard(node, "Mul") and gates.get(node.input[1]) == node.input[0]:
                node.input[0], node.input[1] = node.input[1], node.input[0]
                changed.append(node.name or node.output[0])
    return changed


def plain_gathers(model: onnx.ModelProto) -> list[str]:
    """Turn every GatherND that reads all elements in their order into the Reshape that it is; return the nodes.

    PyTorch's exporter writes masks of attention so, and the HTP has no GatherND of booleans.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {value.name: value.type for value in (*graph.input, *graph.value_info)}
    makers = {name: node for node in graph.node for name in node.output}
    changed = []
    for node in graph.node:
        if not is_standard(node, "GatherND") or attribute_of(node, "batch_dims", 0) or node.input[1] not in constants:
            continue
        indices = numpy_helper.to_array(constants[node.input[1]])
        shape = _shape_of(node.input[0], shapes, makers)
        if shape is None or indices.shape[-1] != len(shape) or indices[..., 0].size != np.prod(shape):
            continue
        flat = np.ravel_multi_index(tuple(indices.reshape(-1, len(shape)).T % np.array(shape)[:, None]), shape)
        if not np.array_equal(flat, np.arange(flat.size)):
            continue
        name = f"{node.output[0]}_shape"
        graph.initializer.append(numpy_helper.from_array(np.array(indices.shape[:-1], np.int64), name))
        node.CopyFrom(helper.make_node("Reshape", [node.input[0], name], list(node.output), name=node.name))
        changed.append(node.name or node.output[0])
    return changed


def _shape_of(name: str, shapes: Any, makers: Any) -> tuple[int, ...] | None:
    """Return a tensor's fixed shape, looked up through Casts and Q/DQ; None when it is not known."""
    while name not in shapes:
        maker = makers.get(name)
        if maker is None or maker.op_type not in {"Cast", "Identity", "QuantizeLinear", "DequantizeLinear"}:
            return None
        name = maker.input[0]
    kind = shapes[name].tensor_type
    sizes = tuple(int(dim.dim_value) for dim in kind.shape.dim) if kind.HasField("shape") else ()
    return sizes if sizes and all(sizes) else None
