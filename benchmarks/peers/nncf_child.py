"""Quantizes one model with NNCF, the ways that peers are measured in; runs in an environment of its own."""

from __future__ import annotations

import nncf
import onnx
from onnx import numpy_helper
from work_order import Work, answer, samples


def static(work: Work) -> None:
    """Quantize weights and activations; `preset`, `model_type` and `full_bias` as the work order has them."""
    feeds = samples(work["calibration"])
    made = nncf.quantize(
        onnx.load(work["model"]),
        nncf.Dataset(feeds),
        preset=nncf.QuantizationPreset(work["preset"]) if work["preset"] else None,
        model_type=nncf.ModelType(work["model_type"]) if work["model_type"] else None,
        fast_bias_correction=not work["full_bias"],
        subset_size=len(feeds),
    )
    onnx.save(made, work["out"])


def weights(work: Work) -> None:
    """Weights alone in 4 bits: symmetric, groups of 32, AWQ, scale estimation; embedding and last layer in 8."""
    model = onnx.load(work["model"])
    _untie(model.graph)
    made = nncf.compress_weights(
        model,
        mode=nncf.CompressWeightsMode.INT4_SYM,
        group_size=32,
        awq=True,
        scale_estimation=True,
        dataset=nncf.Dataset(samples(work["calibration"])),
    )
    onnx.save(made, work["out"])


def _untie(graph: onnx.GraphProto) -> None:
    """Give a last layer that transposes the embedding a weight of its own: NNCF fails on the shared one."""
    held = {tensor.name: tensor for tensor in graph.initializer}
    for node in [n for n in graph.node if n.op_type == "Transpose" and n.input[0] in held]:
        array = numpy_helper.to_array(held[node.input[0]]).T.copy()
        graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        graph.node.remove(node)


if __name__ == "__main__":
    answer({"static": static, "weights": weights})
