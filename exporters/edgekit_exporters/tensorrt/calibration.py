"""Implicit quantization for the DLA: a graph with Q/DQ as a float graph and the scale of every tensor.

TensorRT up to 10.7 takes no Q/DQ on Orin's DLA; it takes the scales in a calibration cache. Which tensors then have
one, and what a builder does with them, follows NVIDIA's Q/DQ translator (Deep-Learning-Accelerator-SW).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.errors import UnsupportedError
from edgekit.events import Finding
from edgekit.graphs.edit import GraphIndex, attribute_of, drop_dead, is_standard, rename_tensor
from edgekit.graphs.rules import Subject

if TYPE_CHECKING:
    import onnx

KEEPING = frozenset({"Relu", "Clip", "MaxPool", "Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity"})
"""Operators behind which a tensor's scale serves as well as before them."""
PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")

_TOP = 127
_CLOSE = 1e-3
_SCALE = 1
_UNSAFE = re.compile(r"[^\w./-]")
_SIX_DIGITS = 10


@dataclass
class Implicit:
    """A graph for implicit quantization.

    Attributes:
        model: the float graph: weights are those that the integers stand for.
        scales: tensor -> scale.
        half: nodes that stay half: products whose input the plan left float.
        lacking: nodes that write a tensor without a scale: the DLA runs them in half.
        regrown: nodes with a weight for which TensorRT's own scale (largest value / 127) differs from ours.
    """

    model: onnx.ModelProto
    scales: dict[str, float] = field(default_factory=dict)
    half: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    regrown: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """Return what the device runner reads."""
        return {"scales": self.scales, "half": self.half}


def has_pairs(model: onnx.ModelProto) -> bool:
    """Say whether activations of a graph go through Q/DQ."""
    return any(is_standard(node, "QuantizeLinear") for node in model.graph.node)


def implicit(model: onnx.ModelProto, folder: Path) -> Implicit:
    """Turn a graph with Q/DQ into a float graph with scales; the model is changed in place.

    Raises:
        UnsupportedError: a pair that is no symmetric int8, which names the node.
    """
    found = Implicit(model)
    graph = model.graph
    index = GraphIndex(graph, folder)
    quantized = {node.output[0]: node for node in graph.node if is_standard(node, "QuantizeLinear")}
    whole: set[str] = set()
    for node in [node for node in graph.node if is_standard(node, "DequantizeLinear")]:
        if index.constant(node.input[0]) is not None:
            _float_weight(found, node, index)
        elif node.input[0] in quantized:
            source = quantized[node.input[0]]
            name = source.input[0]
            scale = _scale_of(node, index)
            found.scales[name] = max(scale, found.scales.get(name, 0.0))
            whole |= {user.name for user in index.consumers.get(node.output[0], [])}
            _bypass(graph, node, name)
        else:
            raise _odd(node, "it reads neither a stored weight nor a QuantizeLinear")
    drop_dead(graph)
    index = GraphIndex(graph, folder)
    for node in graph.node:
        if is_standard(node, *PRODUCTS) and node.name not in whole:
            if _UNSAFE.search(node.name):  # such a name has no place in trtexec's list
                node.name = index.fresh_name(_UNSAFE.sub("_", node.name))
            found.half.append(node.name)
    _spread(found, index)
    _join(found, index)
    found.lacking = [
        node.name
        for node in graph.node
        if not is_standard(node, "Constant") and any(name not in found.scales for name in node.output if name)
    ]
    return found


def cache_text(version: str, scales: Mapping[str, float]) -> str:
    """Return the calibration cache of a TensorRT (`8.6.2`, `10.3.0`): see `edgekit/device/builds.py`."""
    major, minor, patch = (int(word) for word in version.split("."))
    number = (major * (100 if major >= _SIX_DIGITS else 10) + minor) * 100 + patch
    rows = (f"{name}: {struct.unpack('<I', struct.pack('<f', scale))[0]:x}" for name, scale in sorted(scales.items()))
    return "\n".join([f"TRT-{number}-EntropyCalibration2", *rows]) + "\n"


def calibration_findings(subject: Subject) -> list[Finding]:
    """Say what a DLA build with Q/DQ needs, and what a calibration would lose."""
    if not has_pairs(subject.model):
        return []
    if not subject.profile.settings.get("tensorrt", {}).get("dla_calibration", False):
        text = (
            "TensorRT up to 10.7 takes no Q/DQ on the DLA: all of it would run on the GPU, so its commands are left out"
        )
        remedy = "Set `dla_calibration = true` beside `dla`, or use TensorRT 11.4.1 (AGX Orin, JetPack 7.2.2 or later)."
        return [subject.finding("warning", "dla-explicit", "", text, remedy)]
    from edgekit.graphs.edit import load_model

    try:
        made = implicit(load_model(subject.folder / "model.onnx"), subject.folder)
    except UnsupportedError as error:
        return [subject.finding("error", "dla-calibration", error.where, error.text, error.remedy)]
    text = f"the DLA gets {len(made.scales)} scales by a calibration cache, which only TensorRT 8.6 to 10.7 takes"
    found = [subject.finding("note", "dla-calibration", "", text)]
    if made.lacking:
        text = f"{_some(made.lacking)} write tensors without a scale: the DLA runs them in float16"
        remedy = "Quantize more of the network, or leave it: float16 costs time, not accuracy."
        found.append(subject.finding("warning", "dla-half", made.lacking[0], text, remedy))
    for name in made.regrown:
        text = f"node '{name}': TensorRT scales its weights by their largest value, not as they were quantized"
        remedy = "The accuracy told on this machine is that of the graph: measure on the device."
        found.append(subject.finding("warning", "dla-weights", name, text, remedy))
    return found


def _float_weight(found: Implicit, node: onnx.NodeProto, index: GraphIndex) -> None:
    """Put the floats that a stored weight stands for in the place of its DequantizeLinear."""
    import onnx

    stored, scale = index.value(node.input[0]), index.value(node.input[_SCALE])
    zero = index.value(node.input[2]) if len(node.input) > _SCALE + 1 and node.input[2] else None
    if stored is None or scale is None or stored.dtype != np.int8 or (zero is not None and np.any(zero)):
        raise _odd(node, "only symmetric int8 has a place in a calibration")
    if attribute_of(node, "block_size", 0):
        raise _odd(node, "the DLA has no scales for blocks")
    axis = int(attribute_of(node, "axis", 1)) % max(stored.ndim, 1)
    shape = [-1 if i == axis and scale.ndim else 1 for i in range(stored.ndim)]
    values = (stored.astype(np.float32) * scale.astype(np.float32).reshape(shape if scale.ndim else ())).astype(
        np.float32
    )
    others = tuple(i for i in range(stored.ndim) if i != axis or not scale.ndim)
    own = np.abs(stored.astype(np.int16)).max(axis=others) / _TOP
    if np.any((own > 0) & (np.abs(own - 1) > _CLOSE)):
        users = [user.name for user in index.consumers.get(node.output[0], [])]
        found.regrown += users[:1]
    graph = index.graph
    graph.initializer.append(onnx.numpy_helper.from_array(values, node.output[0]))
    graph.node.remove(node)


def _bypass(graph: onnx.GraphProto, node: onnx.NodeProto, name: str) -> None:
    """Let everyone who reads a DequantizeLinear read what was quantized; an output of the graph keeps its name."""
    import onnx

    told = node.output[0]
    position = list(graph.node).index(node)
    graph.node.remove(node)
    if any(value.name == told for value in graph.output):
        graph.node.insert(position, onnx.helper.make_node("Identity", [name], [told], name=f"{node.name}_float"))
        return
    rename_tensor(graph, told, name)


def _scale_of(node: onnx.NodeProto, index: GraphIndex) -> float:
    scale = index.value(node.input[_SCALE])
    zero = index.value(node.input[2]) if len(node.input) > _SCALE + 1 and node.input[2] else None
    if scale is None or scale.size != 1 or zero is None or zero.dtype != np.int8 or np.any(zero):
        raise _odd(node, "only symmetric int8 with one scale per tensor has a place in a calibration")
    return float(scale.ravel()[0])


def _spread(found: Implicit, index: GraphIndex) -> None:
    """Give scales to tensors that hold the values of one with a scale, later ones first, then back to earlier ones."""
    for nodes in (list(index.graph.node), list(index.graph.node)[::-1]):
        for node in nodes:
            names = [name for name in (*node.input[:1], *node.output[:1]) if name]
            known = [found.scales[name] for name in names if name in found.scales]
            if is_standard(node, *KEEPING) and known and index.constant(node.input[0]) is None:
                for name in names:
                    found.scales.setdefault(name, known[0])
            elif is_standard(node, "Concat"):
                inputs = [found.scales[name] for name in node.input if name in found.scales]
                if inputs:
                    found.scales.setdefault(node.output[0], max(inputs))


def _join(found: Implicit, index: GraphIndex) -> None:
    """Give 1 to what a convolution hands to an Add without Q/DQ: the DLA's compiler then fuses the two.

    It takes that as `no scale`: the sum is made of the accumulated values, as in the graph with Q/DQ.
    """
    for node in index.graph.node:
        if not is_standard(node, "Conv") or node.output[0] in found.scales or node.name in found.half:
            continue
        user = index.only_consumer(node.output[0])
        if user is None or not is_standard(user, "Add"):
            continue
        others = [name for name in user.input if name != node.output[0]]
        if len(others) == 1 and others[0] in found.scales and user.output[0] in found.scales:
            found.scales[node.output[0]] = 1.0


def _odd(node: onnx.NodeProto, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"node '{node.name}': {why}",
        where=node.name,
        remedy="Quantize the float model for this profile, or leave `dla_calibration` out.",
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return f"{len(names)} nodes ({shown}{', ...' if len(names) > 3 else ''})"  # noqa: PLR2004 - as many as are shown
