"""How large the sums inside a node become: a result that fits in float16 may come from a sum that does not.

onnxruntime's CPU computes float16 nodes in float32, so running there shows nothing. Sums are bounded instead: the sum
of magnitudes bounds every partial sum in every order.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.graphs.calibrate import open_graph, run
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.edit import GraphIndex, attribute_of, is_standard

if TYPE_CHECKING:
    import onnx

    from edgekit.data import Samples

_PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum")
_SUMS = ("ReduceSum", "CumSum", "ReduceL1")
_SQUARES = ("ReduceSumSquare", "ReduceL2")
_NORMS = ("LayerNormalization", "InstanceNormalization", "GroupNormalization")


def largest_sums(
    source: Canonical,
    samples: Samples,
    indices: Sequence[int],
    *,
    floats: Container[str],
    shapes: Mapping[str, tuple[int, ...]],
    threads: int,
) -> dict[str, float]:
    """Bound the partial sums of the main graph's nodes on some samples.

    Args:
        source: the model.
        samples: the samples.
        indices: which of them to run.
        floats: its float32 tensors; sums of other types are not looked at.
        shapes: tensor name -> shape, for averages over windows.
        threads: CPU threads.

    Returns:
        Node name -> largest sum of magnitudes that it makes; for normalizations the largest square.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(source.model)
    twins = _Twins(copy, source)
    for node in list(copy.graph.node):
        if node.input and node.input[0] in floats:
            twins.add(node, shapes)
    del copy.graph.output[:]
    if not twins.outputs:
        return {}
    copy.graph.node.extend(twins.nodes)
    for output in twins.outputs.values():
        copy.graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, []))
    session = open_graph(copy, source.folder, threads=threads)
    largest = dict.fromkeys(twins.outputs, 0.0)
    for index in indices:
        found = run(session, samples.sample(index), sample=samples.ids[index])
        for name, output in twins.outputs.items():
            value = float(np.max(found[output], initial=0.0)) * twins.factors.get(name, 1.0)
            largest[name] = max(largest[name], value)
    return largest


class _Twins:
    """Builds, for each node that sums, a twin over magnitudes."""

    def __init__(self, model: onnx.ModelProto, source: Canonical) -> None:
        self.index = GraphIndex(model.graph, source.folder)
        self.nodes: list[onnx.NodeProto] = []
        self.outputs: dict[str, str] = {}
        self.factors: dict[str, float] = {}
        self._magnitudes: dict[str, str] = {}

    def add(self, node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if is_standard(node, *_PRODUCTS, *_SUMS, "GlobalAveragePool", "AveragePool"):
            floats = len(node.input) if node.op_type in _PRODUCTS else 1
            inputs = [self._magnitude(name) if i < floats and name else name for i, name in enumerate(node.input)]
            self._twin(node, node.op_type, inputs)
            if node.op_type == "GlobalAveragePool":
                self.factors[node.name] = float(np.prod(shapes.get(node.input[0], (1,))[2:]))
            if node.op_type == "AveragePool":
                self.factors[node.name] = float(np.prod(attribute_of(node, "kernel_shape", [1])))
        elif is_standard(node, "ReduceMean"):
            # ReduceL1 sums magnitudes and has had the form of ReduceMean in every opset
            self._twin(node, "ReduceL1", list(node.input))
        elif is_standard(node, *_SQUARES):
            self._twin(node, "ReduceSumSquare", list(node.input))
        elif is_standard(node, *_NORMS):
            peak = self._reduced(self._magnitude(node.input[0]), node.name)
            square = self.index.fresh_name(peak + "/square")
            self._append("Mul", [peak, peak], square)
            self.outputs[node.name] = square

    def _magnitude(self, name: str) -> str:
        if name not in self._magnitudes:
            self._magnitudes[name] = self.index.fresh_name(name + "/magnitude")
            self._append("Abs", [name], self._magnitudes[name])
        return self._magnitudes[name]

    def _twin(self, node: onnx.NodeProto, op: str, inputs: list[str]) -> None:
        import onnx

        out = self.index.fresh_name(node.output[0] + "/sum")
        twin = onnx.NodeProto()
        twin.CopyFrom(node)
        twin.op_type, twin.name = op, out
        del twin.input[:], twin.output[:]
        twin.input.extend(inputs)
        twin.output.append(out)
        self.nodes.append(twin)
        self.outputs[node.name] = self._reduced(out, node.name)

    def _reduced(self, name: str, node: str) -> str:
        largest = self.index.fresh_name(f"{name}/{node}/largest")
        self._append("ReduceMax", [name], largest, keepdims=0)
        return largest

    def _append(self, op: str, inputs: list[str], output: str, **attributes: Any) -> None:
        import onnx

        self.nodes.append(onnx.helper.make_node(op, inputs, [output], name=output, **attributes))
