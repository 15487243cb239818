"""Quantizes one model in a process of its own for `quantize.py`, and tells what that took (one JSON line)."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from bench_inputs import ArraySamples, Task, effnet, minilm
from work_order import Work, answer, cpu


def edgekit(work: Work) -> Work:
    """Run the recipe's stages as `edgekit build` does; all but simplifying is timed."""
    from edgekit.artifact import MAIN
    from edgekit.data import Dataset
    from edgekit.exporter import load_exporter
    from edgekit.pipeline import Pipeline
    from edgekit.plan import Alternatives, Given, Rounds, make_plan
    from edgekit.profile import load_profile
    from edgekit.recipe import load_recipe
    from edgekit.sources import ingest
    from edgekit.store import Store

    task, out, profile = given(work), Path(work["out"]), load_profile(work["profile"])
    exporter = load_exporter(profile.runtime)
    nothing = ArraySamples({"x": task.calibration.sample(0)[next(iter(task.calibration.sample(0)))][:0]}, "none")
    data = Dataset(
        id=task.calibration.digest(),
        calibration=task.calibration,
        training=nothing,
        evaluation=nothing,
        preprocessing={},
        labels=(),
        findings=(),
    )
    with tempfile.TemporaryDirectory() as scratch, Store(Path(scratch)) as store:
        source = ingest(str(task.model), store)
        plan = make_plan(
            load_recipe(work["recipe"]),
            profile,
            exporter,
            Given(model=str(task.model), kind=source.kind, data=True, teacher=False),
        )
        pipeline = Pipeline(store=store, profile=profile, dialect=exporter.dialect(profile), data=data)
        made = pipeline.capture(plan, source)
        original = out.with_name("original.onnx")
        shutil.copyfile(store.folder(made.id) / MAIN, original)
        used = 0.0
        for entry in plan.entries:
            assert not isinstance(entry, Rounds | Alternatives)
            started = cpu()
            made = pipeline.run_stage(entry, made)
            print(f"{entry.name}: {cpu() - started:.1f} CPU s", file=sys.stderr)
            used += 0.0 if entry.name == "simplify" else cpu() - started
        shutil.copyfile(store.folder(made.id) / MAIN, out)
        facts = {name: made.facts.get(name) for name in ("coverage", "quantization", "equalization", "rounding")}
    return {"cpu_seconds": used, "original": str(original), "facts": facts}


def onnxruntime(work: Work) -> Work:
    """Quantize with onnxruntime's own quantizer, in the form that is its best on this model."""
    import onnxruntime.quantization as q

    task = given(work)
    started = cpu()
    if task.name == "minilm":
        q.quantize_dynamic(work["original"], work["out"], per_channel=True, weight_type=q.QuantType.QInt8)
    else:
        q.quantize_static(
            work["original"],
            work["out"],
            _Reader(task.calibration),
            quant_format=q.QuantFormat.QDQ,
            per_channel=True,
            activation_type=q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
            calibrate_method=q.CalibrationMethod[work.get("method", "MinMax")],
        )
    return {"cpu_seconds": cpu() - started, "original": work["original"], "facts": {}}


def given(work: Work) -> Task:
    """Return the model with its work; evaluation is the parent's."""
    inputs = Path(work["inputs"])
    return effnet(inputs, 1) if work["task"] == "effnet" else minilm(inputs, Path(work["minilm"]), 1)


class _Reader:
    """Calibration rows, one by one, as onnxruntime wants them."""

    def __init__(self, samples: ArraySamples) -> None:
        self._rows = iter(samples.sample(i) for i in range(len(samples)))

    def get_next(self) -> Any:
        """Return the next row or None."""
        return next(self._rows, None)


if __name__ == "__main__":
    answer({"edgekit": edgekit, "onnxruntime": onnxruntime})
