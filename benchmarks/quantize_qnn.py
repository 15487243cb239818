"""Quantizers for the HTP side by side: edgekit and AIMET-ONNX, judged on Qualcomm's simulator in one run.

    python benchmarks/quantize_qnn.py [--peers DIR] [--iterations N] [--only NAME ...]

DIR is what `python benchmarks/peers/venvs.py DIR --only aimet` built. Without it only edgekit's rows are printed. Needs
the extra `qnn`.

- models: the depthwise CNN of samples/vision (trained), and a small ViT (seeded, two encoders).
- both quantizers see the same 64 calibration samples; AIMET with its configuration for the HTP (v75), min-max ranges,
  and for w4a16 also AdaRound.
- dB: the float model's outputs over their difference to what the compiled QDQ graph gives in the simulator (8 Gen 3),
  over 32 other samples; `CPU` is the same for onnxruntime's CPU kernels.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from quantize_measure import MODEL, made
from venvs import interpreter

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

Feeds = list[dict[str, Any]]
PROFILE = "snapdragon-8-gen3"
CALIBRATION, EVALUATION = 64, 32
ROWS: dict[str, dict[str, Any]] = {
    "edgekit w8a8": {"precision": "w8a8"},
    "edgekit w8a8, learned rounding": {"precision": "w8a8", "rounding": "learned"},
    "edgekit w4a16": {"precision": "w4a16"},
    "edgekit w4a16, learned rounding": {"precision": "w4a16", "rounding": "learned"},
    "aimet w8a8": {"param": "int8", "activation": "int8", "iterations": 0},
    "aimet w4a16": {"param": "int4", "activation": "int16", "iterations": 0},
    "aimet w4a16, AdaRound": {"param": "int4", "activation": "int16", "iterations": None},
}


def depthwise_cnn() -> tuple[onnx.ModelProto, Feeds]:
    """Return the vision sample's network for one image, and images."""
    from edgekit.graphs.freeze import freeze

    folder = ROOT / "samples" / "vision"
    model = onnx.load(folder / "model.onnx")
    freeze(model, {"batch": 1}, folder)
    with np.load(folder / "data" / "calibration.npz") as held:
        images = held["x"][: CALIBRATION + EVALUATION].astype(np.float32).reshape(-1, 1, 1, 28, 28)
    return model, [{"x": (image / 255 - np.float32(0.2860)) / np.float32(0.3530)} for image in images]


def small_vit() -> tuple[onnx.ModelProto, Feeds]:
    """Return a seeded vision transformer and pictures."""
    from htp_networks import ARCHITECTURES, pictures

    model, feeds = ARCHITECTURES["vision_transformer"]()
    (name, first), *_ = feeds[0].items()
    made = pictures(*first.shape, count=CALIBRATION + EVALUATION, seed=1)
    return model, [{name: next(iter(feed.values()))} for feed in made]


def by_edgekit(model: onnx.ModelProto, feeds: Feeds, options: dict[str, Any], folder: Path) -> onnx.ModelProto:
    """Run the exporter's graph passes, equalize and quantize-int8."""
    import house
    from contract import onnx_artifact
    from edgekit.exporter import load_exporter
    from edgekit.plan import make_stage
    from edgekit.profile import load_profile
    from edgekit.stage import Context, Inputs

    profile, exporter = load_profile(PROFILE), load_exporter("qnn")
    stages = [(spec.name, spec.options) for spec in exporter.prepare(profile)]
    equalize = {"precision": options["precision"]}
    for number, (name, chosen) in enumerate([*stages, ("equalize", equalize), ("quantize-int8", options)]):
        place = folder / f"stage{number}"
        shutil.rmtree(place, ignore_errors=True)
        artifact = onnx_artifact(model, place / "in")
        for part in ("out", "scratch"):
            (place / part).mkdir()
        given = Inputs(
            artifact=artifact,
            folder=place / "in",
            profile=profile,
            data=house.dataset(feeds * 2),  # half of which is for calibration
            dialect=exporter.dialect(profile),
        )
        make_stage(name, chosen, "benchmark").run(given, place / "out", Context(scratch=place / "scratch"))
        model = onnx.load(place / "out" / "model.onnx")
    return model


def by_aimet(
    model: onnx.ModelProto, feeds: Feeds, options: dict[str, Any], folder: Path, python: Path, iterations: int
) -> onnx.ModelProto:
    """Quantize in the peer's own environment."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "float.onnx")
    np.savez(
        folder / "feeds.npz", allow_pickle=False, **{name: np.stack([f[name] for f in feeds]) for name in feeds[0]}
    )
    work = {
        "way": "htp",
        "model": str((folder / "float.onnx").resolve()),
        "calibration": str((folder / "feeds.npz").resolve()),
        **options,
        "iterations": iterations if options["iterations"] is None else options["iterations"],
    }
    made(folder, HERE / "peers" / "aimet_child.py", work, python)
    return onnx.load(folder / MODEL)


def on_htp(model: onnx.ModelProto, feeds: Feeds, folder: Path) -> list[dict[str, Any]]:
    """Compile a QDQ graph and run it in the simulator."""
    from contract import onnx_artifact
    from edgekit.exporter import load_exporter
    from edgekit.profile import load_profile
    from edgekit.target import Bundle
    from edgekit.targets import open_target

    profile, exporter = load_profile(PROFILE), load_exporter("qnn")
    shutil.rmtree(folder / "compiled", ignore_errors=True)
    artifact = onnx_artifact(model, folder / "compiled" / "in")
    (folder / "compiled" / "out").mkdir()
    facts = exporter.compile(artifact, folder / "compiled" / "in", profile, folder / "compiled" / "out")
    target = open_target("htp-sim", profile)
    return list(target.run(Bundle(folder=folder / "compiled" / "out", facts=facts), feeds))


def on_cpu(model: onnx.ModelProto, feeds: Feeds) -> list[dict[str, Any]]:
    """Run a graph on onnxruntime's CPU kernels."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(None, feed), strict=True)) for feed in feeds]


def decibels(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> float:
    """Return the ratio of the first output to its difference, in dB."""
    pairs = zip(expected, found, strict=True)
    sides = [(next(iter(a.values())).astype(np.float64), next(iter(b.values()))) for a, b in pairs]
    noise = sum(float(((a - b.reshape(a.shape)) ** 2).sum()) for a, b in sides)
    return float(10 * np.log10(sum(float((a**2).sum()) for a, _ in sides) / max(noise, 1e-30)))


def ratios(model: onnx.ModelProto, feeds: Feeds, expected: list[dict[str, Any]], folder: Path) -> tuple[float, float]:
    """Return the dB of a QDQ graph in the simulator and on the CPU."""
    return decibels(expected, on_htp(model, feeds, folder)), decibels(expected, on_cpu(model, feeds))


NETWORKS: dict[str, Callable[[], tuple[onnx.ModelProto, Feeds]]] = {
    "depthwise CNN": depthwise_cnn,
    "small ViT": small_vit,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--iterations", type=int, default=10000, help="AdaRound's steps a layer")
    parser.add_argument("--only", nargs="*", default=[], help="rows")
    options = parser.parse_args()
    for title, make in NETWORKS.items():
        model, feeds = make()
        calibration, evaluation = feeds[:CALIBRATION], feeds[CALIBRATION:]
        expected = on_cpu(model, evaluation)
        print(f"\n{title}\n| quantizer | float vs HTP, dB | float vs CPU, dB |\n|---|---|---|", flush=True)
        for name, row in ROWS.items():
            if (options.only and name not in options.only) or ("aimet" in name and not options.peers):
                continue
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                if "aimet" in name:
                    python = interpreter(options.peers, "aimet")
                    quantized = by_aimet(model, calibration, row, folder, python, options.iterations)
                else:
                    quantized = by_edgekit(model, calibration, row, folder)
                htp, cpu = ratios(quantized, evaluation, expected, folder)
            print(f"| {name} | {htp:.1f} | {cpu:.1f} |", flush=True)


if __name__ == "__main__":
    main()
