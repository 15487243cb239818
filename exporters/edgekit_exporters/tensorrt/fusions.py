"""What keeps TensorRT from running a quantized layer as one int8 kernel: Q/DQ pairs that stand in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgekit.events import Finding
from edgekit.graphs.edit import GraphIndex, graphs_in, is_standard
from edgekit.graphs.rules import Subject

if TYPE_CHECKING:
    import onnx

_PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_ACTIVATIONS = (
    "Relu",
    "Clip",
    "LeakyRelu",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Tanh",
    "PRelu",
    "Elu",
    "BatchNormalization",
)
_MOVE = "Put the pair behind it: edgekit's int8 stage does, from the float model."


def fusion_findings(subject: Subject) -> Iterator[Finding]:
    """Report the Q/DQ pairs that cost a kernel of their own, and the products that miss one for int8."""
    for graph in graphs_in(subject.model.graph):
        index = GraphIndex(graph, subject.folder)
        for node in graph.node:
            if is_standard(node, *_ACTIVATIONS):
                yield from _split_activation(subject, index, node)
            elif is_standard(node, "Add"):
                yield from _both_branches(subject, index, node)
            if is_standard(node, *_PRODUCTS):
                yield from _half_quantized(subject, index, node)


def _source(index: GraphIndex, name: str) -> onnx.NodeProto | None:
    """Return the node whose output a Q/DQ pair quantizes before `name`; None when no pair makes it."""
    dequantize = index.producers.get(name)
    if dequantize is None or not is_standard(dequantize, "DequantizeLinear"):
        return None
    quantize = index.producers.get(dequantize.input[0])
    if quantize is None or not is_standard(quantize, "QuantizeLinear"):
        return None
    return index.producers.get(quantize.input[0])


def _split_activation(subject: Subject, index: GraphIndex, node: onnx.NodeProto) -> Iterator[Finding]:
    before = _source(index, node.input[0])
    if before is not None and is_standard(before, *_PRODUCTS):
        text = (
            f"node '{node.name}' ({node.op_type}) is split from '{before.name}' ({before.op_type}) by a Q/DQ pair: "
            "they run as two kernels"
        )
        yield subject.finding("warning", "split-activation", node.name, text, _MOVE)


def _both_branches(subject: Subject, index: GraphIndex, node: onnx.NodeProto) -> Iterator[Finding]:
    sources = [_source(index, name) for name in node.input]
    products = [source for source in sources if source is not None and is_standard(source, *_PRODUCTS)]
    paired = [name for name in node.input if _is_pair(index, name)]
    if products and len(paired) == len(node.input):
        text = (
            f"node '{node.name}' (Add): both branches are quantized, so it cannot be fused into '{products[0].name}' "
            f"({products[0].op_type})"
        )
        remedy = f"Leave the output of '{products[0].name}' unquantized: one quantized branch is enough."
        yield subject.finding("warning", "both-branches", node.name, text, remedy)


def _is_pair(index: GraphIndex, name: str) -> bool:
    dequantize = index.producers.get(name)
    if dequantize is None or not is_standard(dequantize, "DequantizeLinear"):
        return False
    quantize = index.producers.get(dequantize.input[0])
    return quantize is not None and is_standard(quantize, "QuantizeLinear")


def _half_quantized(subject: Subject, index: GraphIndex, node: onnx.NodeProto) -> Iterator[Finding]:
    """Report a product of which one operand is 8-bit and the other is not; weights alone may be 4-bit."""
    import onnx

    sides = []
    for name in node.input[:2]:
        maker = index.producers.get(name)
        while maker is not None and is_standard(maker, "Transpose", "Reshape"):
            maker = index.producers.get(maker.input[0])
        if maker is None or not is_standard(maker, "DequantizeLinear"):
            sides.append("float")
            continue
        stored = index.constant(maker.input[0])
        sides.append("int4" if stored is not None and stored.data_type == onnx.TensorProto.INT4 else "int8")
    if sorted(sides) == ["float", "int8"]:
        text = f"node '{node.name}' ({node.op_type}): only one operand is quantized, so it runs in floating point"
        remedy = "Quantize both operands, or neither."
        yield subject.finding("warning", "half-quantized", node.name, text, remedy)
