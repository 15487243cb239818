"""Learned rounding and bias correction, the last step of int8 quantization: kept where held-out samples come closer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgekit.graphs.calibrate import open_graph, spread
from edgekit.graphs.int8_choice import Job, held_out
from edgekit.graphs.int8_search import Search, Trial
from edgekit.graphs.learned_rounding import Rounder

if TYPE_CHECKING:
    import onnx

LEAST_SAMPLES = 10
"""Calibration samples from which rounding is learned: fewer say too little about inputs to come."""

MOST_WORK = 2_000_000_000_000
"""Multiply-accumulates of all samples that are learned from, minutes of a core: large models take fewer samples."""

MOST_BYTES = 1 << 30
"""Size of a quantized graph above which its rounding stays: learning holds it twice."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What may be learned: the `weights`' integers, and `biases` that follow what is left of the mean error."""

    weights: bool
    biases: bool

    @property
    def any(self) -> bool:
        """Whether anything is learned."""
        return self.weights or self.biases


@dataclass(frozen=True, kw_only=True)
class Improved:
    """A written plan after learned rounding or bias correction.

    Attributes:
        model: the better of both models.
        trial: its plan and distances.
        facts: `kept`, `why`, `before_db` and `after_db` (lowest ratio of an output on held-out samples), `samples`
            that were learned from or judged by, `products` and `moved` (integers that are not the nearest).
    """

    model: onnx.ModelProto
    trial: Trial
    facts: dict[str, Any]


def improve(job: Job, trial: Trial, search: Search, learning: Learning, tell: Callable[[int, int], None]) -> Improved:
    """Write a trial's plan as it is and with what is learned, and keep what lies nearer to the original.

    Nearer on samples that were not learned from, which may be few, and on those that `search` judges by.
    """
    model = job.writer.write(trial.plan)
    work = macs_of_all(job)
    chosen = spread(len(job.samples), int(MOST_WORK // max(work, 1)))
    held = sorted(held_out(len(job.samples)) & set(chosen)) or chosen[-1:]
    why = ""
    if job.seeded or len(job.samples) < LEAST_SAMPLES:
        why = f"needs {LEAST_SAMPLES} calibration samples or more"
    elif len(chosen) < LEAST_SAMPLES or model.ByteSize() > MOST_BYTES:
        why = f"the model is too large: {work:.3g} multiply-accumulates a sample, {model.ByteSize() / 1e6:.0f} MB"
    if why:
        return Improved(model=model, trial=trial, facts={"kept": False, "why": why})
    learned = type(model).FromString(model.SerializeToString())
    rounder = Rounder(
        source=job.source.model,
        folder=job.source.folder,
        quantized=learned,
        samples=job.samples,
        fit=[index for index in chosen if index not in held],
        held=held,
        bits=job.planner.dialect.weight_bits,
        weights=learning.weights,
        biases=learning.biases,
        threads=job.threads,
        tell=tell,
    )
    found = rounder.learn()
    if not found:
        return Improved(model=model, trial=trial, facts={"kept": False, "why": "no product that may change"})
    judge = job.search_on(held)
    before, after = (
        Trial(plan=trial.plan, distances=judge.reference.distances(_opened(job, candidate)))
        for candidate in (model, learned)
    )
    whole = Trial(plan=trial.plan, distances=search.reference.distances(_opened(job, learned)))
    nearer = after.score > before.score and len(after.faults(0.0)) <= len(before.faults(0.0))
    kept = nearer and whole.score >= trial.score
    if kept:
        why = "nearer to the original on held-out samples"
    else:
        why = "nearer on held-out samples, not on all" if nearer else "not nearer on held-out samples"
    facts = {
        "kept": kept,
        "why": why,
        "before_db": round(before.score, 2),
        "after_db": round(after.score, 2),
        "samples": len(chosen),
        "products": len(found),
        "moved": sum(item.moved for item in found),
    }
    if not kept:
        return Improved(model=model, trial=trial, facts=facts)
    return Improved(model=learned, trial=whole, facts=facts)


def macs_of_all(job: Job) -> float:
    """Return the multiply-accumulates of the whole graph for one sample."""
    return sum(job.macs.values())


def _opened(job: Job, model: onnx.ModelProto) -> Any:
    return open_graph(model, job.source.folder, threads=job.threads)
