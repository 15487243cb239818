"""How each row of the bar is measured: candidates by edgekit, by onnxruntime, and by peers in their environments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench_inputs import Task, effnet, minilm
from quantize_kept import Figures, Kept
from quantize_measure import (
    MODEL,
    MissingError,
    answers,
    build,
    cost,
    environment,
    judge,
    latencies,
    peer,
    save_samples,
    slug,
)
from work_order import Work

CALIBRATORS = ("minmax", "percentile", "mse", "entropy", "auto")
THEIR_CALIBRATORS = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}

Make = Callable[[Path], Work]


def load(name: str, options: argparse.Namespace) -> Task:
    """Return a model with its work."""
    if name == "effnet":
        return effnet(options.inputs, options.limit)
    return minilm(options.inputs, options.minilm, options.limit)


def _ours(task: Task, options: argparse.Namespace, recipe: str = "int8", profile: str = "host") -> Make:
    return lambda folder: build(task, "edgekit", folder, options, recipe=recipe, profile=profile)


def _compared(
    kept: Kept, task: Task, keep: Path, makes: dict[str, Make], options: argparse.Namespace, *, timed: bool
) -> None:
    """Make candidates, the first is ours, and judge them; their latencies in one go."""
    original = Path(makes["edgekit"](keep / "edgekit")["original"])
    floats: list[Any] = []

    def figures(name: str, make: Make) -> dict[str, Figures]:
        folder = keep / slug(name)
        told = make(folder)
        if not floats:
            floats.append(answers(task, original))
        row = judge(task, name, folder / MODEL, floats[0], told, 0.0)
        kept.about = f"float {100 * (task.decide(floats[0]) == task.labels).mean():.2f} %, {len(floats[0])} rows"
        keys = ("drop", "error", "agreement", "cosine", "sqnr", "megabytes", "cpu_seconds", "peak_mb")
        return {name: {key: getattr(row, key) for key in keys}}

    for name, make in makes.items():
        kept.once(name, partial(figures, name, make))
    names = [name for name in makes if name in kept.figures]

    def ratios() -> dict[str, Figures]:
        found = latencies(task, original, [keep / slug(name) / MODEL for name in names], options.pairs)
        return {name: {"latency": ratio} for name, ratio in zip(names, found, strict=True)}

    if timed:
        kept.once(f"latency of {', '.join(names)}, {options.pairs} pairs", ratios)


def _static(name: str, task: Task, options: argparse.Namespace, keep: Path, **work: Any) -> Make:
    """Return what lets a peer quantize the model that our candidate was made of, on the same samples."""

    def make(folder: Path) -> Work:
        samples = keep / "calibration.npz"
        if not samples.exists():
            save_samples(task.calibration, samples)
        model = (keep / "edgekit" / "original.onnx").resolve()
        order = {"way": "static", "model": str(model), "calibration": str(samples.resolve()), **work}
        return peer(name, options, folder, order)

    return make


def _onnxruntime(task: Task, options: argparse.Namespace, keep: Path) -> Make:
    original = str((keep / "edgekit" / "original.onnx").resolve())
    return lambda folder: build(task, "onnxruntime", folder, options, original=original)


def cpu_int8(kept: Kept, options: argparse.Namespace, keep: Path) -> None:
    """INT8 on the CPU: our recipes, onnxruntime at its best for the model, NNCF at its best for it."""
    task, place = load(kept.row, options), keep / kept.row
    convolutional = {"preset": "mixed", "model_type": None}
    if kept.row == "effnet":
        theirs = {
            "nncf": _static("nncf", task, options, place, full_bias=False, **convolutional),
            "nncf, full bias correction": _static("nncf", task, options, place, full_bias=True, **convolutional),
        }
    else:
        order = {"preset": None, "model_type": "transformer", "full_bias": False}
        theirs = {"nncf, transformer": _static("nncf", task, options, place, **order)}
    makes = {"edgekit": _ours(task, options), "onnxruntime": _onnxruntime(task, options, place), **theirs}
    makes["edgekit mixed"] = _ours(task, options, "mixed")
    _compared(kept, task, place, makes, options, timed=True)


def tensorrt(kept: Kept, options: argparse.Namespace, keep: Path) -> None:
    """The graph for TensorRT: accuracy on the CPU, and what TensorRT-RTX's parser and builder refuse."""
    from edgekit_exporters.tensorrt.rtx import check_with_rtx

    task, place = load("effnet", options), keep / "tensorrt"
    makes = {"edgekit": _ours(task, options, profile="jetson")}
    for method in ("max", "entropy"):
        makes[f"modelopt {method}"] = _static("modelopt", task, options, place, method=method)
    _compared(kept, task, place, makes, options, timed=False)

    def checked(name: str) -> dict[str, Figures]:
        shape = [1, *next(iter(task.calibration.sample(0).values())).shape[1:]]
        found = check_with_rtx(place / slug(name) / MODEL, build=True, shapes={"x": [shape] * 3})
        if any(finding.severity == "warning" for finding in found):
            raise MissingError(found[0].text)
        return {name: {"refused": float(sum(finding.severity == "error" for finding in found))}}

    for name in makes:
        if name in kept.figures:
            kept.once(f"{name}: TensorRT-RTX", partial(checked, name))


def calibration(kept: Kept, options: argparse.Namespace, keep: Path) -> None:
    """CPU time and peak memory of every way to choose ranges; accuracy is not looked at."""
    task, place = effnet(options.inputs, 1), keep / "calibration"
    kept.about = f"{len(task.calibration)} rows; one process each"

    def took(name: str, find: Callable[[], Work]) -> dict[str, Figures]:
        values = cost(find())
        base = kept.figures.get("onnxruntime minmax", values)["cpu_seconds"]
        return {name: values | {"ratio": values["cpu_seconds"] / base}}

    def ours(method: str) -> Work:
        folder = place / method
        folder.mkdir(parents=True, exist_ok=True)
        recipe = folder / "recipe.toml"
        stages = f'[[stage]]\nuse = "simplify"\n\n[[stage]]\nuse = "quantize-int8"\nmethod = "{method}"\n'
        recipe.write_text(stages, encoding="utf-8")
        return _ours(task, options, str(recipe.resolve()))(folder)

    original = str(options.inputs.resolve() / "effnet96_fp32.onnx")
    for method, theirs in THEIR_CALIBRATORS.items():
        name, order = f"onnxruntime {method}", {"original": original, "method": theirs}
        find = partial(build, task, "onnxruntime", place / slug(name), options, **order)
        kept.once(name, partial(took, name, find))
    for method in CALIBRATORS:
        kept.once(f"edgekit {method}", partial(took, f"edgekit {method}", partial(ours, method)))
    for side, methods in (("onnxruntime", THEIR_CALIBRATORS), ("edgekit", CALIBRATORS)):
        found = [kept.figures[f"{side} {method}"] for method in methods]
        most = max(values["peak_mb"] for values in found)
        kept.figures[f"{side}: minmax, the largest"] = {"ratio": found[0]["ratio"], "peak_mb": most}
    kept.save()


def qnn(kept: Kept, options: argparse.Namespace, keep: Path) -> None:
    """Both networks on the HTP simulator, every row of `quantize_qnn.py`."""
    from quantize_qnn import CALIBRATION, NETWORKS, ROWS, Feeds, by_aimet, by_edgekit, on_cpu, ratios

    def found(title: str, name: str, model: Any, feeds: Feeds) -> dict[str, Figures]:
        folder = keep / "qnn" / slug(f"{title} {name}")
        if name.startswith("aimet"):
            python = environment("aimet", options)
            done = by_aimet(model, feeds[:CALIBRATION], ROWS[name], folder, python, options.iterations)
        else:
            done = by_edgekit(model, feeds[:CALIBRATION], ROWS[name], folder)
        expected = on_cpu(model, feeds[CALIBRATION:])
        htp, cpu = ratios(done, feeds[CALIBRATION:], expected, folder)
        return {f"{title}: {name}": {"htp": htp, "cpu": cpu}}

    kept.about = "the first output over its difference to the float model's, in dB: HTP simulator and CPU kernels"
    for title, make in NETWORKS.items():
        model, feeds = make()
        for name in ROWS:
            kept.once(f"{title}: {name}", partial(found, title, name, model, feeds))
