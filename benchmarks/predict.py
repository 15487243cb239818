"""How far predicted latencies are off: on this machine, where all is measured in the same run, and on Jetson Orin.

    python benchmarks/predict.py [ROUNDS]

This machine: the workouts of `edgekit profiles calibrate` and 24 networks take turns, one thread, processor time of
each run (other work on the machine waits for its turn without being counted). The constants are fitted to the workouts
alone, then the networks are predicted. Jetson: see `jetson/fit.py`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "jetson")]

import fit as jetson  # noqa: E402
import yolo  # noqa: E402

import networks  # noqa: E402
from edgekit.graphs.calibration import Timed, fit_machine, milliseconds  # noqa: E402
from edgekit.graphs.cost import cost_of  # noqa: E402
from edgekit.graphs.fusion import ONNXRUNTIME, fuse  # noqa: E402
from edgekit.graphs.roofline import constants_of  # noqa: E402
from edgekit.graphs.work import Work, work_of  # noqa: E402
from edgekit.graphs.workouts import workouts  # noqa: E402
from edgekit.profile import load_profile  # noqa: E402

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
STORED = ("resnet50", "squeezenet", "densenet121", "inception_v1", "inception_v2", "shufflenet", "bvlc_alexnet")
"""Networks of the ONNX project's tests, with published shapes."""

DRAWN = {
    "mobilenetv2-224": lambda: networks.inverted(224, networks.MOBILE2),
    "efficientnet-lite0-160": lambda: networks.inverted(160, networks.LITE0),
    "mobilenet-se-128": lambda: networks.inverted(128, networks.MOBILE2, squeeze=True),
    "resnet18-160": lambda: networks.resnet18(160),
    "convnext-128": lambda: networks.convnext(128),
    "unet-128": lambda: networks.unet(128),
    "text-encoder-128": lambda: networks.encoder(128, 384, 6),
    "text-encoder-32": lambda: networks.encoder(32, 256, 4),
    "vit-224": lambda: networks.vision_transformer(224, 192, 6),
    "lstm": lambda: networks.lstm(64, 128),
    "perceptron": lambda: networks.perceptron(512),
    "yolo11n-320": lambda: yolo.yolo11("n", 320, 9),
    "yolov8n-256": lambda: yolo.yolov8n(256, 9),
    "bert-64": lambda: networks.encoder(64, 768, 3),
}
INT8 = ("mobilenetv2-224", "resnet18-160", "yolov8n-256", "unet-128", "text-encoder-128", "efficientnet-lite0-160")


@dataclass
class Turn:
    """A network that waits for its turns."""

    name: str
    session: Any
    feed: dict[str, Any]
    work: Work
    network: bool = False
    seconds: list[float] = field(default_factory=list)


class Noise(CalibrationDataReader):
    """Two random inputs to calibrate on."""

    def __init__(self, path: Path) -> None:
        self.feeds = iter([feed_of(open_session(path), seed) for seed in (1, 2)])

    def get_next(self) -> dict[str, Any] | None:
        """Return the next feed, None at the end."""
        return next(self.feeds, None)


def open_session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feed_of(session: Any, seed: int = 0) -> dict[str, Any]:
    rng, feed = np.random.default_rng(seed), {}
    for spec in session.get_inputs():
        shape = [dim if isinstance(dim, int) and dim > 0 else 1 for dim in spec.shape]
        whole = "int64" in spec.type
        feed[spec.name] = rng.integers(0, 100, shape) if whole else rng.standard_normal(shape).astype(np.float32)
    return feed


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of every network that is predicted."""
    paths = {name: LIGHT / f"light_{name}.onnx" for name in STORED}
    paths["samples/vision"] = HERE.parent / "samples" / "vision" / "model.onnx"
    for name, draw in DRAWN.items():
        place = folder / name
        place.mkdir()
        pencil, outputs = draw()
        paths[name] = pencil.save(place, outputs)
    yield from paths.items()
    for name in (*INT8, "samples/vision"):
        target = folder / f"{Path(name).name}-int8.onnx"
        if "text" in name:
            quantize_dynamic(str(paths[name]), str(target), weight_type=QuantType.QInt8)
        else:
            types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
            reader = Noise(paths[name])
            quantize_static(
                str(paths[name]), str(target), reader, quant_format=QuantFormat.QDQ, per_channel=True, **types
            )
        yield f"{name}-int8", target


def turn_of(name: str, path: Path, *, network: bool = False) -> Turn:
    session = open_session(path)
    return Turn(name, session, feed_of(session), work_of(fuse(cost_of(path), ONNXRUNTIME)), network)


def take_turns(turns: list[Turn], rounds: int) -> None:
    for _ in range(rounds):
        for turn in turns:
            turn.session.run(None, turn.feed)
            until, count = time.process_time() + 0.05, 0
            while count < 3 or (count < 40 and time.process_time() < until):
                before = time.process_time()
                turn.session.run(None, turn.feed)
                turn.seconds.append(time.process_time() - before)
                count += 1


def here(rounds: int) -> None:
    """Measure, calibrate and predict on this machine."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        known = []
        for workout in workouts("uint8"):
            path = folder / f"workout-{workout.name}.onnx"
            path.write_bytes(workout.model.SerializeToString())
            known.append(turn_of(workout.name, path, network=workout.network))
        turns = [turn_of(name, path) for name, path in models(folder)]
        take_turns([*known, *turns], rounds)
    timed = [Timed(name=t.name, network=t.network, work=t.work, ms=1e3 * float(np.median(t.seconds))) for t in known]
    machine = fit_machine(timed, constants_of(load_profile("host")))
    for item in timed:
        print(f"  workout {item.name:18} {item.ms:8.3f} ms, predicted {machine.ratios[item.name] - 1:+.0%}")
    ratios = []
    for turn in turns:
        ms, predicted = 1e3 * float(np.median(turn.seconds)), milliseconds(turn.work, machine.constants)
        ratios.append(predicted / ms)
        print(f"{turn.name:28} {ms:8.3f} ms, predicted {predicted:8.3f} ({ratios[-1] - 1:+.0%})")
    off = np.abs(np.array(ratios) - 1)
    covered = np.mean(np.abs(np.log(ratios)) <= np.log(machine.spread))
    print(f"{len(off)} networks here: median {np.median(off):.1%}, mean {off.mean():.1%}, largest {off.max():.0%}")
    print(f"the interval (x {machine.spread:.2f}, from {machine.networks} workouts left out) covers {covered:.0%}")


def main() -> None:
    here(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
    print()
    jetson.main()


if __name__ == "__main__":
    main()
