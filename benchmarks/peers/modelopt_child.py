"""Quantizes one model with ModelOpt for TensorRT; runs in an environment of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from modelopt.onnx.quantization import quantize
from work_order import Work, answer, samples


def static(work: Work) -> None:
    """Write QDQ in INT8, everything else in float32; `method` is how it finds ranges."""
    out = Path(work["out"])
    source = shutil.copyfile(work["model"], out.with_name("source.onnx"))  # ModelOpt overwrites what it is given
    feeds = samples(work["calibration"])
    quantize(
        str(source),
        quantize_mode="int8",
        calibration_data={name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]},
        calibration_method=work["method"],
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=str(out),
        log_level="ERROR",
    )
    source.unlink()


if __name__ == "__main__":
    answer({"static": static})
