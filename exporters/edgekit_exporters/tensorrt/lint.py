"""TensorRT's rules for a graph, without TensorRT: what its parser refuses or silently changes, found beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.artifact import Artifact
from edgekit.events import Finding
from edgekit.graphs.edit import GraphIndex, graphs_in, is_standard
from edgekit.graphs.rules import (
    Subject,
    domain_findings,
    rank_findings,
    shape_findings,
    type_findings,
    values_of,
    version_findings,
)
from edgekit.graphs.storage import value_of
from edgekit.profile import Profile
from edgekit_exporters.tensorrt.dla import dla_findings
from edgekit_exporters.tensorrt.rtx import check_with_rtx, is_installed

if TYPE_CHECKING:
    import onnx

UNSUPPORTED = frozenset(
    """AffineGrid Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress
    ConcatFromSequence ConvInteger CumProd DFT DeformConv Det DynamicQuantizeLinear ImageDecoder MatMulInteger
    MaxRoiPool MaxUnpool MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement
    OptionalHasElement QLinearConv QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty
    SequenceErase SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat
    StringNormalizer StringSplit SwiGLU TfIdfVectorizer Unique""".split()  # noqa: SIM905 - words, not punctuation
)
"""Standard operators that the parser of TensorRT-RTX 1.7 does not know (asked of it one by one)."""

KNOWN_FOREIGN = frozenset({"MatMulNBits", "GroupQueryAttention", "RotaryEmbedding", "SkipSimplifiedLayerNormalization"})
"""Operators of com.microsoft that its parser knows."""

_PAIRS = ("QuantizeLinear", "DequantizeLinear")
_REFUSED_TYPES = {
    "STRING": "TensorRT has no strings",
    "DOUBLE": "TensorRT has no float64",
    "COMPLEX": "TensorRT has no complex numbers",
    "FLOAT8": "Orin has no FP8 units",
    "FLOAT4": "Orin has no FP4 units",
    "BFLOAT16": "the GPU of Orin computes it, but float16 is what engines are built for here",
}
_INT32 = np.iinfo(np.int32)
_REQUANTIZE = "Quantize the float model for this profile: edgekit build MODEL --profile NAME --recipe int8 --data DIR"


def lint(artifact: Artifact, folder: Path, profile: Profile) -> list[Finding]:
    """Apply all rules; see `TensorRTExporter.lint`."""
    subject = Subject(artifact, folder, profile, "trt")
    found = version_findings(subject) + rank_findings(subject)
    found += domain_findings(subject, KNOWN_FOREIGN) + list(_operators(subject))
    found += type_findings(subject, _REFUSED_TYPES)
    found += list(_quantization(subject))
    if not profile.graph.int64:
        found += list(_wide_integers(subject))
    found += shape_findings(subject, "an engine is built for a range of shapes, and none is given")
    settings = profile.settings.get("tensorrt", {})
    if settings.get("dla", False):
        found += dla_findings(subject)
    how = settings.get("rtx_check", "parse")
    if how != "off" and is_installed():
        found += check_with_rtx(folder / "model.onnx", build=how == "build")
    return found


def _operators(subject: Subject) -> Iterator[Finding]:
    for node in subject.nodes:
        if is_standard(node, *UNSUPPORTED):
            text = f"node '{node.name}': TensorRT has no {node.op_type}"
            quantized = node.op_type.startswith("QLinear") or node.op_type.endswith(("Integer", "QuantizeLinear"))
            remedy = _REQUANTIZE if quantized else "Export the model without it."
            yield subject.finding("error", "operator", node.name, text, remedy)
        elif is_standard(node, "If", "Loop", "Scan"):
            text = f"node '{node.name}' ({node.op_type}) keeps the engine from being captured in a CUDA graph"
            yield subject.finding("note", "control-flow", node.name, text, "Export the model without control flow.")
        elif is_standard(node, "NonZero", "NonMaxSuppression"):
            text = f"node '{node.name}' ({node.op_type}) makes shapes that depend on data: the engine waits for them"
            yield subject.finding("note", "data-dependent", node.name, text, "Do this step outside the network.")


def _quantization(subject: Subject) -> Iterator[Finding]:
    import onnx

    for graph in graphs_in(subject.model.graph):
        index = GraphIndex(graph, subject.folder)
        kinds = _kinds(index)
        for node in graph.node:
            if not is_standard(node, *_PAIRS):
                continue
            zero_point = index.value(node.input[2]) if len(node.input) > 2 and node.input[2] else None  # noqa: PLR2004
            stored = index.constant(node.input[0])
            kind = kinds.get(node.output[0] if node.op_type == "QuantizeLinear" else node.input[0], "")
            if stored is not None and node.op_type == "DequantizeLinear":
                kind = onnx.TensorProto.DataType.Name(stored.data_type).lower()
            elif zero_point is not None:
                kind = zero_point.dtype.name
            yield from _pair(subject, node, kind or "uint8", zero_point, is_weight=stored is not None)
            scale = index.constant(node.input[1])
            if scale is not None and scale.data_type == onnx.TensorProto.FLOAT16:
                text = (
                    f"node '{node.name}': its scale is float16, which fails on Orin (TensorRT 10.16); float32 is needed"
                )
                yield subject.finding("error", "half-scale", node.name, text, _REQUANTIZE)


def _kinds(index: GraphIndex) -> dict[str, str]:
    """Return the integer type of every quantized tensor: that of its QuantizeLinear's zero point, uint8 without one."""
    kinds = {}
    for node in index.graph.node:
        if is_standard(node, "QuantizeLinear"):
            point = index.value(node.input[2]) if len(node.input) > 2 and node.input[2] else None  # noqa: PLR2004
            kinds[node.output[0]] = "uint8" if point is None else point.dtype.name
    return kinds


def _pair(subject: Subject, node: onnx.NodeProto, kind: str, zero_point: Any, *, is_weight: bool) -> Iterator[Finding]:
    """Check one Q or DQ node."""
    what = "weight" if is_weight else "activation"
    shifted = zero_point is not None and bool(np.any(zero_point))
    if shifted:
        values = np.unique(zero_point)
        shown = str(int(values[0])) if values.size == 1 else f"{int(values.min())}..{int(values.max())}"
        text = (
            f"node '{node.name}': zero_point {shown} ({kind}); TensorRT takes only symmetric quantization, zero point 0"
        )
        yield subject.finding("error", "asymmetric", node.name, text, _REQUANTIZE)
    elif kind == "uint8":
        text = f"node '{node.name}': a uint8 {what} is read as int8, so values above 127 would saturate"
        yield subject.finding("error", "uint8", node.name, text, _REQUANTIZE)
    if kind == "int32":
        text = f"node '{node.name}': dequantizes an int32 bias, which TensorRT refuses; biases stay float32"
        yield subject.finding("error", "int32-bias", node.name, text, _REQUANTIZE)
    if kind in {"int16", "uint16"}:
        text = f"node '{node.name}': a {kind} {what}; TensorRT quantizes to 8 bits"
        yield subject.finding("error", "16-bit", node.name, text, _REQUANTIZE)


def _wide_integers(subject: Subject) -> Iterator[Finding]:
    """Name int64 constants that do not fit int32, where that loses something: a Slice's open end does not."""
    import onnx

    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in subject.nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for name, tensor in values_of(subject):
        if tensor.data_type != onnx.TensorProto.INT64:
            continue
        values = np.asarray(value_of(tensor, subject.folder))
        wide = values[(values > _INT32.max) | (values < _INT32.min)]
        for node in readers.get(name, []) if wide.size else ():
            if is_standard(node, "Slice") and name in list(node.input)[1:]:
                continue
            text = f"node '{node.name}': int64 value {int(wide.ravel()[0])} of '{name}' does not fit int32"
            yield subject.finding("error", "int64", node.name, text, "Keep such values out of the network.")
