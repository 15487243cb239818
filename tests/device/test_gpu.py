"""The engine path for real: built and run by TensorRT on an NVIDIA GPU. `pytest -m gpu`, where `tensorrt` is installed.

It needs nothing else: the CUDA runtime comes with `tensorrt` from pip, or with the system.
No machine with an NVIDIA GPU has run this file yet.
"""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import onnx
import onnxruntime
import pytest

import architectures
import house
from contract import run_stage
from edgekit.exporter import load_exporter
from edgekit.profile import Graph
from edgekit.stages.fp16 import Fp16
from edgekit.stages.quantize_int8 import QuantizeInt8

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("tensorrt") is None, reason="needs tensorrt and an NVIDIA GPU"),
]


def orin():
    return house.profile(runtime="tensorrt", graph=Graph(max_opset=19, max_ir=10))


def made(precision, name, tmp_path):
    model, feeds = architectures.ARCHITECTURES[name]()
    if precision == "float":
        return model, feeds
    stage = QuantizeInt8() if precision == "int8" else Fp16()
    rules = load_exporter("tensorrt").dialect(orin())
    return run_stage(stage, model, tmp_path, data=house.dataset(feeds), dialect=rules)[1], feeds


def save_feeds(path, feeds):
    np.savez(path, **{f"{i}:{name}": array for i, feed in enumerate(feeds) for name, array in feed.items()})


@pytest.mark.parametrize("name", ["ResNet", "squeeze and excite", "YOLO", "U-Net", "ViT", "BERT", "MLP"])
@pytest.mark.parametrize(("precision", "share"), [("float", 0.01), ("fp16", 0.05), ("int8", 0.1)])
def test_an_engine_gives_what_the_graph_says(name, precision, share, tmp_path, runner, job, result):
    """Outputs are within a share of their range of onnxruntime's on the CPU, for the same graph."""
    model, feeds = made(precision, name, tmp_path)
    onnx.save(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    expected = [dict(zip(names, session.run(None, feed), strict=True)) for feed in feeds[:4]]
    save_feeds(tmp_path / "in.npz", feeds[:4])
    save_feeds(tmp_path / "want.npz", expected)
    reach = max(float(np.abs(array).max()) for outputs in expected for array in outputs.values())
    asked = {"runtime": "tensorrt", "expected": ["want.npz"], "tolerance": {"absolute": share * reach, "relative": 0}}
    status, log = runner("golden", job(**asked))
    assert status == 0, log
    told = result()
    assert told["fallback"] is None, "the engine itself must run"
    assert told["engine"]["runtime"] == "tensorrt"
    assert told["matches"], told["outputs"]


def test_an_engine_is_built_once_and_timed(tmp_path, runner, job, result):
    model, feeds = made("int8", "ResNet", tmp_path)
    onnx.save(model, tmp_path / "model.onnx")
    save_feeds(tmp_path / "in.npz", feeds[:1])
    for _ in range(2):
        status, log = runner("measure", job(runtime="tensorrt", runs=300))
        assert status == 0, log
        told = result()
        assert told["fallback"] is None
        assert told["latency"]["n"] >= 300
        assert 0 < told["latency"]["p50"]["low"] <= told["latency"]["p99"]["high"]
    (engine,) = tmp_path.glob("*.engine")
    about = json.loads(engine.with_suffix(".engine.json").read_text())
    assert about["tensorrt"] == told["engine"]["version"]
    engine.write_bytes(b"an engine of another version")
    assert runner("measure", job(runtime="tensorrt", runs=100))[0] == 0
    assert result()["fallback"] is None, "it is built again"
