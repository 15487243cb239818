"""Quantizes the weights of a language model in a process of its own: edgekit's stages and onnxruntime's quantizer."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from bench_inputs import ArraySamples
from work_order import Work, answer


def edgekit(work: Work) -> Work:
    """Run a stage with the work order's options as a build would; its facts."""
    from edgekit.artifact import MAIN, Artifact
    from edgekit.data import Dataset
    from edgekit.exporter import load_exporter
    from edgekit.graphs.facts import facts_of
    from edgekit.profile import load_profile
    from edgekit.stage import Context, Inputs
    from edgekit.stages.quantize_int4 import QuantizeInt4
    from edgekit.stages.quantize_int8 import QuantizeInt8

    out, options = Path(work["out"]).parent, work["options"]
    with np.load(work["windows"], allow_pickle=False) as held:
        rows = held["calib"]
    scratch = out / "scratch"  # stays when this is killed: the stage goes on with it
    scratch.mkdir(exist_ok=True)
    profile = load_profile("host")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MAIN).symlink_to(Path(work["model"]).resolve())
        facts, _ = facts_of(Path(folder) / MAIN)
        empty = ArraySamples({"input_ids": rows[:0]}, "none")
        data = Dataset(
            id="sotu",
            calibration=ArraySamples({"input_ids": rows}, "row"),
            training=empty,
            evaluation=empty,
            preprocessing={},
            labels=(),
            findings=(),
        )
        inputs = Inputs(
            artifact=Artifact(kind="onnx", files={MAIN: "0" * 64}, facts=facts),
            folder=Path(folder),
            profile=profile,
            data=data,
            dialect=load_exporter(profile.runtime).dialect(profile),
        )
        stage = QuantizeInt8 if "mode" in options else QuantizeInt4
        told = stage(**options).run(inputs, out, Context(scratch=scratch, threads=work["threads"]))
    return {"facts": {"quantization": told["quantization"]}}


def onnxruntime(work: Work) -> None:
    """Quantize with onnxruntime's MatMulNBitsQuantizer, block 32, accuracy level 4."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        HQQWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    options: dict[str, Any] = dict(work["options"])
    if options.pop("method") == "hqq":
        config: Any = HQQWeightOnlyQuantConfig(block_size=32, **options)
    else:
        config = DefaultWeightOnlyQuantConfig(block_size=32, accuracy_level=4, **options)
    quantizer = MatMulNBitsQuantizer(onnx.load(work["model"]), algo_config=config)
    logging.getLogger("onnxruntime.quantization").setLevel(logging.WARNING)
    quantizer.process()
    quantizer.model.save_model_to_file(work["out"])


if __name__ == "__main__":
    answer({"edgekit": edgekit, "onnxruntime": onnxruntime})
