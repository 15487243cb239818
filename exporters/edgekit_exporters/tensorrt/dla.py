"""Which layers Orin's DLA takes, and how often a network would change over between it and the GPU.

By NVIDIA's operator matrix for Orin (Deep-Learning-Accelerator-SW, DLA 3.12-3.14) and the layer restrictions of
TensorRT's documentation. Later releases take more: what is called off the DLA here may run there one day.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from edgekit.events import Finding
from edgekit.exporter import Placed
from edgekit.graphs.edit import GraphIndex, attribute_of, is_standard
from edgekit.graphs.rules import Subject
from edgekit_exporters.tensorrt.segments import Segments

if TYPE_CHECKING:
    import onnx

Shape = Sequence[int | str]
Rule = Callable[["onnx.NodeProto", Mapping[str, Shape], GraphIndex], str]
"""Says why the DLA does not take a node of its operator; empty when it does."""

_RANK = 4
_KERNEL, _STRIDE, _PADDING, _CHANNELS = 32, 8, 31, 8192
_WINDOW, _POOL_STRIDE, _POOL_PADDING = 8, 16, 7
_SOFTMAX = 1024
_NEAREST, _LINEAR = 32, 4
_WEIGHT, _SCALES = 1, 2


def why_off(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    """Say why the DLA does not take a node; empty when it does."""
    if node.op_type not in _RULES or not is_standard(node, node.op_type):
        return "the DLA has no such layer"
    ranks = {len(shapes[name]) for name in (*node.input[:1], *node.output[:1]) if name in shapes}
    if ranks - {_RANK} and node.op_type not in {"Gemm", "MatMul"}:
        return f"the DLA works on 4 axes, this node on {max(ranks - {_RANK})}"
    return _RULES[node.op_type](node, shapes, index)


def dla_findings(subject: Subject, placed: Sequence[Placed]) -> list[Finding]:
    """Report the nodes off the DLA, and the changes between DLA and GPU along the graph."""
    settings = subject.profile.settings.get("tensorrt", {})
    if not settings.get("dla_cores", 0):
        text = f"{subject.profile.title} has no DLA"
        return [
            subject.finding("error", "no-dla", "", text, "Leave `dla` out of the profile: the GPU runs everything.")
        ]
    off = [one for one in placed if one.on == "GPU"]
    if not off:
        return []
    segments = Segments(subject.model.graph, {one.node: one.on for one in placed})
    remedy = "Replace it, or build for the GPU."
    found = [
        subject.finding("warning", "dla", one.node, f"node '{one.node}' ({one.op}) is off the DLA: {one.why}", remedy)
        for one in off
    ]
    nodes, pieces = f"{len(off)} node{'s' if len(off) > 1 else ''}", segments.count("DLA")
    text = (
        f"{nodes} off the DLA, {segments.switches} device switches ({pieces} DLA segments); each copies its tensors, "
        "so the DLA's peak rate says nothing about the latency"
    )
    return [*found, subject.finding("warning", "dla-switches", "", text, "Build for the GPU, or remove these nodes.")]


def _always(_node: onnx.NodeProto, _shapes: Mapping[str, Shape], _index: GraphIndex) -> str:
    return ""


def _beyond(node: onnx.NodeProto, **limits: tuple[int, int]) -> str:
    """Name the first attribute with a value outside its limits."""
    for name, (least, most) in limits.items():
        values = list(attribute_of(node, name, []))
        if any(not least <= value <= most for value in values):
            return f"{name} {values} beyond {least}..{most}"
    return ""


def _channels(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> str:
    sizes = [shapes[name][1] for name in (node.input[0], node.output[0]) if len(shapes.get(name, ())) > 1]
    wide = [size for size in sizes if isinstance(size, int) and size > _CHANNELS]
    return f"{wide[0]} channels, more than {_CHANNELS}" if wide else ""


def _conv(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    del index
    limits = {"strides": (1, _STRIDE), "pads": (0, _PADDING), "dilations": (1, _KERNEL)}
    kernel = [size for size in shapes.get(node.input[_WEIGHT], ())[2:] if isinstance(size, int)]
    if any(size > _KERNEL for size in kernel):
        return f"kernel {kernel} beyond 1..{_KERNEL}"
    return _beyond(node, **limits) or _channels(node, shapes)


def _conv_transpose(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    if attribute_of(node, "group", 1) != 1:
        return "the DLA has no grouped deconvolution"
    if (
        _beyond(node, pads=(0, 0))
        or _beyond(node, output_padding=(0, 0))
        or attribute_of(node, "auto_pad", b"")
        in {
            b"SAME_UPPER",
            b"SAME_LOWER",
        }
    ):
        return "the DLA's deconvolution has no padding"
    return _beyond(node, dilations=(1, 1)) or _conv(node, shapes, index)


def _pool(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    del shapes, index
    limits = {"kernel_shape": (1, _WINDOW), "strides": (1, _POOL_STRIDE), "pads": (0, _POOL_PADDING)}
    return _beyond(node, **limits, dilations=(1, 1))


def _channel_axis(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    del shapes, index
    axis = int(attribute_of(node, "axis", 1))
    return "" if axis in {1, 1 - _RANK} else f"the DLA concatenates channels, not axis {axis}"


def _softmax(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    del index
    axis, shape = int(attribute_of(node, "axis", -1)), shapes.get(node.input[0], ())
    if axis in {0, -_RANK}:
        return "the DLA takes no softmax over the batch"
    size = shape[axis] if shape else ""
    return f"a softmax over {size} values, more than {_SOFTMAX}" if isinstance(size, int) and size > _SOFTMAX else ""


def _constant_operand(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    del shapes
    name = node.input[_WEIGHT]
    maker = index.producers.get(name)
    stored = maker.input[0] if maker is not None and is_standard(maker, "DequantizeLinear") else name
    return "" if index.constant(stored) is not None else "the DLA multiplies by constants only"


def _clip(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    del shapes
    low = index.value(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    return "" if low is not None and float(low.ravel()[0]) == 0 else "the DLA clips from 0 upwards only"


def _resize(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    del index
    before, after = shapes.get(node.input[0], ()), shapes.get(node.output[0], ())
    mode = attribute_of(node, "mode", b"nearest").decode()
    most = {"nearest": _NEAREST, "linear": _LINEAR}.get(mode, 0)
    if not most:
        return f"the DLA has no resizing of mode {mode}"
    known = [(a, b) for a, b in zip(before, after, strict=False) if isinstance(a, int) and isinstance(b, int) and a]
    wrong = [f"{a} to {b}" for a, b in known if b % a or not 1 <= b // a <= most]
    return f"the DLA enlarges by whole factors up to {most}, not {wrong[0]}" if wrong else ""


def _static_slice(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    if any(index.constant(name) is None for name in node.input[1:] if name):
        return "its bounds are computed at run time"
    before, after = shapes.get(node.input[0], ("",)), shapes.get(node.output[0], ("",))
    return "" if before[:1] == after[:1] else "the DLA does not cut the batch"


def _window(node: onnx.NodeProto, shapes: Mapping[str, Shape], index: GraphIndex) -> str:
    del shapes, index
    size = int(attribute_of(node, "size", 0))
    return "" if size in {3, 5, 7, 9} else f"a window of {size}, not 3, 5, 7 or 9"


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Abs", "BatchNormalization"), _always),
    **dict.fromkeys(("Add", "Sub", "Mul", "Max", "Sum"), _always),
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    **dict.fromkeys(("Gemm", "MatMul", "PRelu"), _constant_operand),
    **dict.fromkeys(("Slice", "Split"), _static_slice),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Clip": _clip,
    "Concat": _channel_axis,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "LRN": _window,
    "Softmax": _softmax,
}
