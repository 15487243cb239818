"""Quantizes one model with AIMET-ONNX for `quantize_qnn.py`; runs in an environment of its own."""

from __future__ import annotations

import onnx
from aimet_onnx import QuantizationSimModel, apply_adaround
from work_order import Work, answer, samples


def htp(work: Work) -> None:
    """Write a QDQ graph in AIMET's configuration for the HTP; AdaRound where it gets iterations."""
    feeds = samples(work["calibration"])
    sim = QuantizationSimModel(
        onnx.load(work["model"]),
        param_type=work["param"],
        activation_type=work["activation"],
        config_file="htp_v75",
        providers=["CPUExecutionProvider"],
    )
    if work["iterations"]:
        apply_adaround(sim, feeds, num_iterations=work["iterations"])
    sim.compute_encodings(feeds)
    onnx.save(sim.to_onnx_qdq(export_int32_bias=True, prequantize_constants=True), work["out"])


if __name__ == "__main__":
    answer({"htp": htp})
