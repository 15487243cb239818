"""The two models and their data that `quantize.py` measures on: the same inputs for every quantizer."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 96

Feed = dict[str, npt.NDArray[np.generic]]
Floats = npt.NDArray[np.float32]


class ArraySamples:
    """Samples of arrays in memory, one row each: what edgekit calls `Samples`."""

    def __init__(self, arrays: Feed, prefix: str) -> None:
        """Keep `arrays` (name -> `[n, ...]`)."""
        self._arrays = arrays
        self.ids: Sequence[str] = [f"{prefix}[{i}]" for i in range(len(next(iter(arrays.values()))))]
        self.labels: npt.NDArray[np.generic] | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)

    def sample(self, index: int) -> Feed:
        """Return one row with its batch axis."""
        return {name: array[index : index + 1] for name, array in self._arrays.items()}

    def batches(self, size: int) -> Iterator[Feed]:
        """Yield consecutive rows."""
        for start in range(0, len(self), size):
            yield {name: array[start : start + size] for name, array in self._arrays.items()}

    def digest(self) -> str:
        """Return the sha256 of all rows."""
        found = hashlib.sha256()
        for name, array in sorted(self._arrays.items()):
            found.update(name.encode() + str(array.dtype).encode() + np.ascontiguousarray(array).tobytes())
        return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Task:
    """One model with its work.

    Attributes:
        name: `effnet` or `minilm`.
        model: what edgekit is given: an ONNX file or a Hugging Face directory.
        calibration: rows to calibrate on.
        evaluation: rows to judge on.
        labels: the right answers of `evaluation`.
        answer: outputs of a batch -> what is judged, one row each.
        decide: those rows -> answers.
        batch: rows at once; 1 where activations get their range at run time, which depends on the batch.
    """

    name: str
    model: Path
    calibration: ArraySamples
    evaluation: ArraySamples
    labels: npt.NDArray[np.generic]
    answer: Callable[[Feed, Floats], Floats]
    decide: Callable[[Floats], npt.NDArray[np.generic]]
    batch: int


def normalized(gray: Floats) -> Floats:
    """Return the network's input `[n, 3, 96, 96]` of gray images in [0, 1], `[n, 96, 96]`."""
    mean, std = (np.asarray(values, np.float32).reshape(1, 3, 1, 1) for values in (MEAN, STD))
    return ((gray[:, None].repeat(3, axis=1) - mean) / std).astype(np.float32)


def resized(images: npt.NDArray[np.uint8]) -> Floats:
    """Resize gray images `[n, 28, 28]` bilinearly to `[n, 96, 96]` in [0, 1]; pixel centers as torch has them."""
    places = np.clip((np.arange(SIZE) + 0.5) * (images.shape[1] / SIZE) - 0.5, 0, images.shape[1] - 1)
    low = np.minimum(places.astype(np.int64), images.shape[1] - 2)
    share = (places - low).astype(np.float32)
    matrix = np.zeros((SIZE, images.shape[1]), np.float32)
    matrix[np.arange(SIZE), low] = 1 - share
    matrix[np.arange(SIZE), low + 1] += share
    found: Floats = np.einsum("yi,nij,xj->nyx", matrix, images.astype(np.float32) / 255, matrix, optimize=True)
    return found


def effnet(folder: Path, limit: int | None) -> Task:
    """EfficientNet-Lite0 at 96 px with a head for Fashion-MNIST; judged on its 10,000 test images."""
    from samples.vision import fashion_mnist

    images, classes = fashion_mnist.load("t10k")
    images, classes = images[:limit], classes[:limit]
    kept = np.load(folder / "effnet96_calibration.npz")
    return Task(
        name="effnet",
        model=folder / "effnet96_fp32.onnx",
        calibration=ArraySamples({"x": normalized(kept["g"])}, "calibration"),
        evaluation=_Pictures(images),
        labels=classes,
        answer=lambda _feed, output: output,
        decide=lambda rows: rows.argmax(axis=1),
        batch=20,
    )


class _Pictures(ArraySamples):
    """Test images, resized when they are asked for: 1.1 GB otherwise."""

    def __init__(self, images: npt.NDArray[np.uint8]) -> None:
        super().__init__({"x": images}, "test")

    def sample(self, index: int) -> Feed:
        return {"x": normalized(resized(self._arrays["x"][index : index + 1].astype(np.uint8)))}

    def batches(self, size: int) -> Iterator[Feed]:
        for feed in super().batches(size):
            yield {"x": normalized(resized(feed["x"].astype(np.uint8)))}


def minilm(folder: Path, model: Path, limit: int | None) -> Task:
    """all-MiniLM-L6-v2 with a logistic head on VADER movie sentences; judged on 5,000 of them."""
    calibration, evaluation = (np.load(folder / f"minilm_{split}.npz") for split in ("calibration", "evaluation"))
    names = ("input_ids", "attention_mask", "token_type_ids")
    weight, bias = evaluation["W"], evaluation["b"]

    def embedded(feed: Feed, output: Floats) -> Floats:
        mask = feed["attention_mask"][..., None].astype(np.float32)
        pooled = (output * mask).sum(axis=1) / mask.sum(axis=1)
        found: Floats = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return found

    return Task(
        name="minilm",
        model=model,
        calibration=ArraySamples({name: calibration[name] for name in names}, "calibration"),
        evaluation=ArraySamples({name: evaluation[name][:limit] for name in names}, "evaluation"),
        labels=evaluation["y"][:limit],
        answer=embedded,
        decide=lambda rows: rows @ weight + bias > 0,
        batch=1,
    )
