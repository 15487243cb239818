"""Quantizes one model with AIMET-ONNX for `quantize_qnn.py`; runs in an environment of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from aimet_onnx import QuantizationSimModel, apply_adaround


def main() -> None:
    work = json.loads(sys.argv[1])
    folder = Path(work["folder"])
    with np.load(folder / "feeds.npz") as held:
        arrays = {name: held[name] for name in held.files}
    feeds = [{name: array[i] for name, array in arrays.items()} for i in range(len(next(iter(arrays.values()))))]
    sim = QuantizationSimModel(
        onnx.load(folder / "float.onnx"),
        param_type=work["param"],
        activation_type=work["activation"],
        config_file="htp_v75",
        providers=["CPUExecutionProvider"],
    )
    if work["iterations"]:
        apply_adaround(sim, feeds, num_iterations=work["iterations"])
    sim.compute_encodings(feeds)
    made = sim.to_onnx_qdq(export_int32_bias=True, prequantize_constants=True)
    onnx.save(made, folder / "aimet.onnx")


if __name__ == "__main__":
    main()
