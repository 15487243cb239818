"""What Qualcomm's compiler is known to get wrong, rewritten to what it gets right; the values stay the same.

`x * HardSigmoid(x)` with slope 1/6 and offset 1/2 is taken for a HardSwish while the product stays, so that it gives
x * x * HardSigmoid(x). It happens when the product reads x first; reading the HardSigmoid first it is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.graphs.edit import graphs_in, is_standard

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
