"""Which part of a network Orin's DLA takes, and how often it would change over to the GPU."""

from __future__ import annotations

from itertools import pairwise

from edgekit.events import Finding
from edgekit.graphs.edit import is_standard
from edgekit.graphs.rules import Subject

ON_DLA = (
    *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Relu", "Sigmoid"),
    *("Tanh", "Clip", "LeakyRelu", "PRelu", "Add", "Sub", "Mul", "Div", "Max", "Min", "Concat", "BatchNormalization"),
    *("LRN", "Softmax", "Slice", "Resize", "Abs", "ReduceMax"),
)
"""Operators of CNNs that the DLA runs (TensorRT's developer guide, "DLA Supported Layers")."""

_NEUTRAL = ("QuantizeLinear", "DequantizeLinear", "Constant", "Identity")


def dla_findings(subject: Subject) -> list[Finding]:
    """Report the nodes off the DLA, the segments that it runs, and the changes between DLA and GPU along the graph."""
    nodes = [node for node in subject.model.graph.node if not is_standard(node, *_NEUTRAL)]
    places = ["DLA" if is_standard(node, *ON_DLA) else "GPU" for node in nodes]
    off = [node for node, place in zip(nodes, places, strict=True) if place == "GPU"]
    if not off:
        return []
    switches = sum(a != b for a, b in pairwise(places))
    segments = sum(place == "DLA" and (i == 0 or places[i - 1] == "GPU") for i, place in enumerate(places))
    found = [
        subject.finding(
            "warning",
            "dla",
            node.name,
            f"node '{node.name}' ({node.op_type}) runs on the GPU: the DLA has no such layer",
            "Replace it, or build for the GPU.",
        )
        for node in off
    ]
    text = (
        f"{len(off)} nodes off the DLA: {segments} DLA segments, {switches} device switches; each copies its tensors, "
        "so the DLA's peak rate says nothing about the latency"
    )
    return [*found, subject.finding("warning", "dla-switches", "", text, "Build for the GPU, or remove these nodes.")]
