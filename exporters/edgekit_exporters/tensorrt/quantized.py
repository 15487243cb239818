"""TensorRT's rules for quantized graphs: which Q/DQ pairs and which stored integers it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.events import Finding
from edgekit.graphs.edit import GraphIndex, graphs_in, is_standard
from edgekit.graphs.rules import Subject

if TYPE_CHECKING:
    import onnx

REQUANTIZE = "Quantize the float model for this profile: edgekit build MODEL --profile NAME --recipe int8 --data DIR"

_PAIRS = ("QuantizeLinear", "DequantizeLinear")
_SCALE, _ZERO_POINT = 1, 2


def quantization_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what TensorRT refuses, or silently reads otherwise, of a graph's Q/DQ nodes and integer constants."""
    for graph in graphs_in(subject.model.graph):
        index = GraphIndex(graph, subject.folder)
        kinds = _kinds(index)
        for node in graph.node:
            if is_standard(node, *_PAIRS):
                yield from _pair(subject, node, index, kinds)
                yield from _scale(subject, node, index)
            else:
                yield from _lone_constants(subject, node, index)


def _kinds(index: GraphIndex) -> dict[str, str]:
    """Return the integer type of every quantized tensor: that of its QuantizeLinear's zero point, uint8 without one."""
    kinds = {}
    for node in index.graph.node:
        if is_standard(node, "QuantizeLinear"):
            point = _zero_point(node, index)
            kinds[node.output[0]] = "uint8" if point is None else point.dtype.name
    return kinds


def _zero_point(node: onnx.NodeProto, index: GraphIndex) -> Any:
    return index.value(node.input[_ZERO_POINT]) if len(node.input) > _ZERO_POINT and node.input[_ZERO_POINT] else None


def _pair(subject: Subject, node: onnx.NodeProto, index: GraphIndex, kinds: dict[str, str]) -> Iterator[Finding]:
    """Check the type and the zero point of one Q or DQ node."""
    import onnx

    stored = index.constant(node.input[0]) if node.op_type == "DequantizeLinear" else None
    zero_point = _zero_point(node, index)
    kind = kinds.get(node.output[0] if node.op_type == "QuantizeLinear" else node.input[0], "")
    if stored is not None:
        kind = onnx.TensorProto.DataType.Name(stored.data_type).lower()
    elif zero_point is not None:
        kind = zero_point.dtype.name
    kind = kind or "uint8"
    what = "weight" if stored is not None else "activation"
    where = f"node '{node.name}'"
    if zero_point is not None and bool(np.any(zero_point)):
        values = np.unique(zero_point)
        shown = str(int(values[0])) if values.size == 1 else f"{int(values.min())}..{int(values.max())}"
        text = f"{where}: zero_point {shown} ({kind}); TensorRT takes only symmetric quantization, zero point 0"
        yield subject.finding("error", "asymmetric", node.name, text, REQUANTIZE)
    elif kind == "uint8":
        text = f"{where}: a uint8 {what} is read as int8, so values above 127 would saturate"
        yield subject.finding("error", "uint8", node.name, text, REQUANTIZE)
    if kind == "int32":
        text = f"{where}: dequantizes an int32 bias, which TensorRT refuses; biases stay float32"
        yield subject.finding("error", "int32-bias", node.name, text, REQUANTIZE)
    if kind in {"int16", "uint16"}:
        text = f"{where}: a {kind} {what}; TensorRT quantizes to 8 bits"
        yield subject.finding("error", "16-bit", node.name, text, REQUANTIZE)
    if kind == "uint4":
        text = f"{where}: a uint4 {what}; TensorRT takes 4-bit weights as signed int4 with zero point 0"
        yield subject.finding("error", "uint4", node.name, text, REQUANTIZE)
    if kind.startswith("float8"):
        text = f"{where}: an FP8 {what}; Orin has no FP8 units"
        yield subject.finding("error", "fp8", node.name, text, REQUANTIZE)
    if stored is not None and not stored.dims and kind in {"int8", "int4"}:
        text = (
            f"{where}: a quantized scalar '{node.input[0]}': TensorRT reshapes it before it dequantizes it, and fails"
        )
        remedy = "Keep scalars in floating point: only the inputs of Conv, MatMul and Gemm are worth quantizing."
        yield subject.finding("error", "quantized-constant", node.name, text, remedy)


def _scale(subject: Subject, node: onnx.NodeProto, index: GraphIndex) -> Iterator[Finding]:
    """Check the scale of one Q or DQ node."""
    import onnx

    stored = index.constant(node.input[_SCALE])
    if stored is None:
        return
    if stored.data_type == onnx.TensorProto.FLOAT16:
        text = f"node '{node.name}': its scale is float16, which fails on Orin (TensorRT 10.16); float32 is needed"
        yield subject.finding("error", "half-scale", node.name, text, REQUANTIZE)
    values = np.asarray(index.value(node.input[_SCALE]))
    wrong = values[~(np.isfinite(values.astype(np.float64)) & (values > 0))]
    if wrong.size:
        text = f"node '{node.name}': scale {float(wrong.ravel()[0])} of '{node.input[_SCALE]}'; scales must be above 0"
        yield subject.finding("error", "scale", node.name, text, REQUANTIZE)


def _lone_constants(subject: Subject, node: onnx.NodeProto, index: GraphIndex) -> Iterator[Finding]:
    """Check that no node but a DequantizeLinear reads stored int8 or int4 values."""
    import onnx

    quantized = {onnx.TensorProto.INT8, onnx.TensorProto.INT4}
    for name in node.input:
        stored = index.constant(name) if name else None
        if stored is not None and stored.data_type in quantized:
            kind = onnx.TensorProto.DataType.Name(stored.data_type).lower()
            text = f"node '{node.name}' ({node.op_type}) reads the {kind} constant '{name}'; only DequantizeLinear may"
            remedy = f"Let a DequantizeLinear read '{name}', and this node what that gives."
            yield subject.finding("error", "quantized-constant", node.name, text, remedy)
