"""A float graph whose products read activations, and weights, as they would be quantized: to judge equalization by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.edit import GraphIndex, attribute_of, sort_nodes
from edgekit.graphs.storage import value_of
from edgekit.numerics.affine import dequantize_weight, quantize_weight, weight_scales

if TYPE_CHECKING:
    import onnx

    from edgekit.graphs.equalize_sites import Site
    from edgekit.numerics.equalize import Precision

_BYTE = 255
_MATRIX = 2


@dataclass(frozen=True)
class Switched:
    """A session with some inputs that stay the same for every sample."""

    session: Any
    fixed: dict[str, npt.NDArray[np.bool_]]

    def run(self, names: Sequence[str], feed: dict[str, Any]) -> Any:
        """Run with the fixed inputs too."""
        return self.session.run(names, {**feed, **self.fixed})

    def get_inputs(self) -> Any:
        """Return the inputs that are not fixed."""
        return [item for item in self.session.get_inputs() if item.name not in self.fixed]

    def get_outputs(self) -> Any:
        """Return the outputs."""
        return self.session.get_outputs()


def with_grids(
    model: onnx.ModelProto, sites: Sequence[Site], precision: Precision | None = None, folder: Path | None = None
) -> tuple[onnx.ModelProto, list[str]]:
    """Return the graph with a switch for each tensor that sites' products read: they then read it on its own grid.

    Args:
        model: the float graph.
        sites: whose products count.
        precision: also put their weights on grids so; activations of more than 8 bits stay float.
        folder: where external data lies.

    Returns:
        The graph and the names of its new inputs, booleans.
    """
    from onnx import TensorProto, helper

    made = type(model)()
    made.CopyFrom(model)
    index = GraphIndex(made.graph)
    names = {reader.name for site in sites for reader in site.readers}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in made.graph.node:
        if node.name in names:
            readers.setdefault(node.input[0], []).append(node)
    if precision is not None:
        for nodes in readers.values():
            for node in nodes:
                _round(index.initializers[node.input[1]], node, precision.bits, folder)
        if precision.levels > _BYTE:
            return made, []
    switches: list[str] = []
    for tensor, nodes in readers.items():
        integers = index.fresh_name(tensor + "_on_grid")
        outputs = [integers, integers + "_scale", integers + "_zero_point"]
        floats, switch, read = integers + "_float", integers + "_switch", integers + "_read"
        switches.append(switch)
        made.graph.input.append(helper.make_tensor_value_info(switch, TensorProto.BOOL, []))
        made.graph.node.extend(
            [
                helper.make_node("DynamicQuantizeLinear", [tensor], outputs),
                helper.make_node("DequantizeLinear", outputs, [floats]),
                helper.make_node("Where", [switch, floats, tensor], [read]),
            ]
        )
        for node in nodes:
            node.input[0] = read
    sort_nodes(made.graph)
    return made, switches


def _round(tensor: onnx.TensorProto, node: onnx.NodeProto, bits: int, folder: Path | None) -> None:
    """Put a weight on the grid of a scale for each output."""
    import onnx

    values = np.asarray(value_of(tensor, folder), np.float32)
    transposed = node.op_type == "Gemm" and attribute_of(node, "transB", 0)
    axis = 0 if values.ndim > _MATRIX or transposed else 1
    scales = weight_scales(values, axis, bits=bits)
    rounded = dequantize_weight(quantize_weight(values, scales, axis, bits=bits), scales, axis)
    tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, tensor.name))
