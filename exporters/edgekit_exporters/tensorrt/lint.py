"""TensorRT's rules for a graph, without TensorRT: what its parser refuses or silently changes, found beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgekit.artifact import Artifact
from edgekit.events import Finding
from edgekit.graphs.edit import is_standard
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
from edgekit_exporters.tensorrt.calibration import calibration_findings
from edgekit_exporters.tensorrt.dla import dla_findings
from edgekit_exporters.tensorrt.fusions import fusion_findings
from edgekit_exporters.tensorrt.placement import place
from edgekit_exporters.tensorrt.quantized import REQUANTIZE, quantization_findings
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

KNOWN_FOREIGN = frozenset({"GroupQueryAttention", "RotaryEmbedding", "SkipSimplifiedLayerNormalization"})
"""Operators of com.microsoft that its parser knows. MatMulNBits it knows by name only: it has no kernels for it."""

_REFUSED_TYPES = {
    "STRING": "TensorRT has no strings",
    "DOUBLE": "TensorRT has no float64",
    "COMPLEX": "TensorRT has no complex numbers",
    "FLOAT8": "Orin has no FP8 units, and int8 is what engines are built for here",
    "FLOAT4": "Orin has no FP4 units, and int8 is what engines are built for here",
    "BFLOAT16": "the GPU of Orin computes it, but float16 is what engines are built for here",
    "INT16": "TensorRT has no 16-bit integers",
    "UINT16": "TensorRT has no 16-bit integers",
    "UINT4": "TensorRT takes 4-bit weights as signed int4 only",
}
_INT32 = np.iinfo(np.int32)


def lint(artifact: Artifact, folder: Path, profile: Profile) -> list[Finding]:
    """Apply all rules; see `TensorRTExporter.lint`."""
    subject = Subject(artifact, folder, profile, "trt")
    found = version_findings(subject) + rank_findings(subject)
    found += domain_findings(subject, KNOWN_FOREIGN) + list(_operators(subject))
    found += type_findings(subject, _REFUSED_TYPES)
    found += list(quantization_findings(subject))
    if not profile.graph.int64:
        found += list(_wide_integers(subject))
    found += shape_findings(subject, "an engine is built for a range of shapes, and none is given")
    settings = profile.settings.get("tensorrt", {})
    found += list(fusion_findings(subject))
    if settings.get("dla", False):
        found += dla_findings(subject, place(subject, found)) + calibration_findings(subject)
    how = settings.get("rtx_check", "parse")
    if how != "off" and is_installed():
        found += check_with_rtx(folder / "model.onnx", build=how == "build")
    return found


def _operators(subject: Subject) -> Iterator[Finding]:
    for node in subject.nodes:
        if is_standard(node, *UNSUPPORTED):
            text = f"node '{node.name}': TensorRT has no {node.op_type}"
            quantized = node.op_type.startswith("QLinear") or node.op_type.endswith(("Integer", "QuantizeLinear"))
            remedy = REQUANTIZE if quantized else "Export the model without it."
            yield subject.finding("error", "operator", node.name, text, remedy)
        elif is_standard(node, "If", "Loop", "Scan"):
            text = f"node '{node.name}' ({node.op_type}) keeps the engine from being captured in a CUDA graph"
            yield subject.finding("note", "control-flow", node.name, text, "Export the model without control flow.")
        elif is_standard(node, "NonZero", "NonMaxSuppression"):
            text = f"node '{node.name}' ({node.op_type}) makes shapes that depend on data: the engine waits for them"
            yield subject.finding("note", "data-dependent", node.name, text, "Do this step outside the network.")


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
