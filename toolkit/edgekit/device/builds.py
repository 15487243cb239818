"""How an engine is to be built, and which TensorRT can do that. Standard library, Python 3.8.

On Orin's DLA TensorRT up to 10.7 knows no explicit quantization: Q/DQ would run on the GPU. There INT8 takes the float
graph, and the scale of every tensor in a calibration cache ("implicit quantization", gone with TensorRT 11), as
NVIDIA's Q/DQ translator writes it (Deep-Learning-Accelerator-SW/tools/qdq-translator; JetPack 6 or later).
"""

import hashlib
import json
import os
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

Shapes = Dict[str, Sequence[Sequence[int]]]
"""Input -> (min, opt, max)."""

NO_DLA = ((10, 8), (11, 4, 1))
"""From the first of these versions on there is none, until the second."""
CALIBRATES = ((8, 6), (11,))
"""The versions, the second aside, whose builder completes a calibration cache for the DLA."""
_SIX_DIGITS = 10


class Calibration(NamedTuple):
    """Implicit quantization for the DLA: the float graph's file, tensor -> scale, and the nodes that stay half."""

    model: str
    scales: Dict[str, float]
    half: List[str]


class Build(NamedTuple):
    """How an engine is to be built.

    Attributes:
        shapes: input -> (min, opt, max) for dynamic inputs.
        dla_core: the DLA core to build for, layers that it does not take go to the GPU; None: the GPU.
        explicit: whether the graph has Q/DQ.
        calibration: instead of the graph, for the DLA; None: the graph as it is.
        sparse: whether kernels for weights in the pattern 2:4 may be chosen.
    """

    shapes: Optional[Shapes] = None
    dla_core: Optional[int] = None
    explicit: bool = False
    calibration: Optional[Calibration] = None
    sparse: bool = False

    @property
    def calibrated(self) -> bool:
        """Whether it is implicit quantization."""
        return self.calibration is not None

    def source(self, model: str) -> str:
        """Return the graph that is built: that of the calibration, else the model."""
        return model if self.calibration is None else self.calibration.model

    def key(self) -> Dict[str, Any]:
        """Return all of it that an engine depends on, as JSON values."""
        text = "" if self.calibration is None else json.dumps(self.calibration[1:], sort_keys=True)
        return {
            "shapes": {name: [list(shape) for shape in triple] for name, triple in (self.shapes or {}).items()},
            "dla_core": self.dla_core,
            "calibration": hashlib.sha256(text.encode()).hexdigest() if text else None,
            "sparse": self.sparse,
        }


def build_of(job: Dict[str, Any], model: str) -> Build:
    """Return what a job asks for; its calibration's files lie beside the model. ValueError when they are none."""
    asked, calibration = job.get("calibration"), None
    if asked and job.get("dla_core") is not None:
        folder = os.path.dirname(model)
        with open(os.path.join(folder, os.path.basename(str(asked["scales"]))), encoding="utf-8") as file:
            told = json.load(file)
        graph = os.path.join(folder, os.path.basename(str(asked["model"])))
        scales = {str(name): float(scale) for name, scale in told["scales"].items()}
        calibration = Calibration(graph, scales, [str(name) for name in told["half"]])
    return Build(
        job.get("shapes"), job.get("dla_core"), bool(job.get("explicit")), calibration, bool(job.get("sparse"))
    )


def numbers(version: str) -> Tuple[int, ...]:
    """Return (10, 3, 0) for `10.3.0`: at most three numbers; ValueError when they are none."""
    return tuple(int(word) for word in version.split(".")[:3])


def check(version: str, build: Build) -> None:
    """Raise RuntimeError when a TensorRT cannot build for the DLA what is asked, with what to do."""
    found = numbers(version)
    if build.dla_core is None:
        return
    if NO_DLA[0] <= found < NO_DLA[1]:
        text = "TensorRT {} drives no DLA: JetPack 6 does, and JetPack 7.2.2 or later on AGX Orin"
        raise RuntimeError(text.format(version))
    if build.calibrated and not CALIBRATES[0] <= found < CALIBRATES[1]:
        why = "has no calibration any more" if found >= CALIBRATES[1] else "does not complete scales for the DLA"
        text = "TensorRT {} {}: leave `dla_calibration` out of the profile, or use JetPack 6 (TensorRT 8.6 to 10.7)"
        raise RuntimeError(text.format(version, why))
    if build.explicit and not build.calibrated and found < CALIBRATES[1]:
        text = (
            "TensorRT {} runs no Q/DQ on the DLA, all of it would run on the GPU: set `dla_calibration = true` in the "
        )
        raise RuntimeError((text + "profile, or use JetPack 7.2.2 or later on AGX Orin").format(version))


def cache_text(version: str, scales: Dict[str, float]) -> str:
    """Return a calibration cache as TensorRT reads it.

    The first line names the exact version (8.6.1 -> 8601, 10.3.0 -> 100300) and the calibrator, the one that the DLA
    wants; then a line for each tensor with its scale (the largest absolute value / 127), the bits of a float32 in hex.
    """
    found = (*numbers(version), 0, 0)
    base = 100 if found[0] >= _SIX_DIGITS else 10
    lines = ["TRT-{}-EntropyCalibration2".format((found[0] * base + found[1]) * 100 + found[2])]
    for name, scale in sorted(scales.items()):
        (bits,) = struct.unpack("<I", struct.pack("<f", scale))
        lines.append("{}: {:x}".format(name, bits))
    return "\n".join(lines) + "\n"


def calibrator(trt: Any, text: str) -> Any:
    """Return a calibrator for TensorRT's Python that gives a cache and no data."""

    class Cached(trt.IInt8EntropyCalibrator2):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, _names: Any) -> None:
            return None

        def read_calibration_cache(self) -> bytes:
            return text.encode("utf-8")

        def write_calibration_cache(self, _cache: Any) -> None:
            return None

    return Cached()
