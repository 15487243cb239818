"""Measure a vision sample with onnxruntime alone: the figures in its README, and what edgekit has to beat.

    python -m samples.measure vision | vision_effnet

Float against onnxruntime's own static int8 on all 10,000 test images, one thread, in one process by turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime import quantization

from samples.vision import fashion_mnist

HERE = Path(__file__).resolve().parent
Floats = npt.NDArray[np.float32]
OPS = ["Conv", "MatMul", "Gemm"]
SCHEMES = {
    "u8s8 per channel": {"activation_type": quantization.QuantType.QUInt8},
    "s8s8 symmetric, as TensorRT takes it": {
        "activation_type": quantization.QuantType.QInt8,
        "op_types_to_quantize": OPS,
        "extra_options": {
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "OpTypesToExcludeOutputQuantization": OPS,
        },
    },
}


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Calibration images, 16 at a time."""

    def __init__(self, prepare: Callable[[npt.NDArray[np.uint8]], Floats], images: npt.NDArray[np.uint8]) -> None:
        self.chunks = iter([prepare(images[start : start + 16]) for start in range(0, len(images), 16)])

    def get_next(self) -> dict[str, Floats] | None:
        """Return the next feed."""
        chunk = next(self.chunks, None)
        return None if chunk is None else {"x": chunk}


def preparation(sample: str) -> Callable[[npt.NDArray[np.uint8]], Floats]:
    """Return what turns images uint8 `[n, 28, 28]` into the sample's input."""
    if sample == "vision":
        return fashion_mnist.normalize
    from samples.vision_effnet.fetch import prepare

    return lambda images: np.stack([prepare(image) for image in images])


def session(model: Path) -> onnxruntime.InferenceSession:
    """Open a model on one CPU thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def models(float_model: Path, calibration: Callable[[], Reader], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of the float model and of each int8 scheme."""
    yield "float32", float_model
    for number, (name, options) in enumerate(SCHEMES.items()):
        file = folder / f"{number}.onnx"
        weight = quantization.QuantType.QInt8
        quantization.quantize_static(float_model, file, calibration(), per_channel=True, weight_type=weight, **options)
        yield name, file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sample", choices=["vision", "vision_effnet"])
    sample = parser.parse_args().sample
    prepare = preparation(sample)
    kept = np.load(HERE / "vision" / "data" / "calibration.npz")
    images, classes = fashion_mnist.load("t10k")
    with tempfile.TemporaryDirectory() as folder:
        found = dict(models(HERE / sample / "model.onnx", lambda: Reader(prepare, kept["x"]), Path(folder)))
        sessions = {name: session(file) for name, file in found.items()}
        sizes = {name: file.stat().st_size for name, file in found.items()}
    right: dict[str, list[npt.NDArray[np.bool_]]] = {name: [] for name in sessions}
    for start in range(0, len(images), 100):
        x = prepare(images[start : start + 100])
        for name, runner in sessions.items():
            right[name].append(runner.run(None, {"x": x})[0].argmax(1) == classes[start : start + 100])
    hits = {name: np.concatenate(parts) for name, parts in right.items()}
    times: dict[str, list[float]] = {name: [] for name in sessions}
    x = prepare(images[:1])
    for turn in range(220):
        for name, runner in sessions.items():
            start = time.perf_counter()
            runner.run(None, {"x": x})
            if turn >= 20:
                times[name].append((time.perf_counter() - start) * 1000)
    base = hits["float32"]
    print(f"{'':38}  accuracy  drop +- SE, points  bytes     ms, batch 1")
    for name, hit in hits.items():
        difference = base.astype(float) - hit
        error = difference.std() / np.sqrt(len(difference))
        drop = f"{100 * difference.mean():5.2f} +- {100 * error:.2f}"
        middle = statistics.median(times[name])
        print(f"{name:38}  {100 * hit.mean():6.2f} %  {drop:18}  {sizes[name]:8}  {middle:.3f}")


if __name__ == "__main__":
    main()
