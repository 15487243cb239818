"""Bits and blocks matrix by matrix: by what rounding each one costs the outputs, measured, for the bytes there are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.errors import UsageError
from edgekit.graphs.block_choice import BlockJob, BlockTrial
from edgekit.graphs.block_plan import BlockWeight, matrix_of
from edgekit.graphs.block_swap import SwapModel, few_judged
from edgekit.graphs.sensitivity import Checkpoint, measure
from edgekit.numerics.blockwise import BlockFormat, Floats, quantize_rtn
from edgekit.numerics.gptq import output_error
from edgekit.numerics.knapsack import Assignment, least_cost, least_loss
from edgekit.numerics.output_distance import decibels

Key = tuple[int, str]
Choices = Mapping[Key, tuple[BlockFormat, ...]]

_TRIES = 3
_TIGHTER = 0.7
_STAGE = "quantize-int4"
_WIDE = 8
_ROWS = 256  # of a matrix that are rounded to compare formats


@dataclass(frozen=True, kw_only=True)
class Mix:
    """What mixed formats came to.

    Attributes:
        trial: the better of the mixed and the uniform model.
        facts: `kept`, `why`, `bits_before`, `bits_after` (a weight, scales included), `before_db` and `after_db` on the
            samples that methods are compared on, `predicted_db`, `exact` and `bound_db` of the assignment, `formats`
            (how many matrices have which).
    """

    trial: BlockTrial
    facts: dict[str, Any]


def mix(
    job: BlockJob, trial: BlockTrial, choices: Choices, *, mean_bits: float | None, aim: float | None, scratch: Path
) -> Mix:
    """Choose the format of every matrix anew.

    Every matrix is rounded alone, as `trial` has it, and the noise of the outputs measured; in another format it is
    taken to change as the error of the layer's own outputs does. The noise of several adds up. The assignment is exact
    for that model (see `knapsack`), and the result is measured.

    Args:
        job: the model being quantized; it needs samples.
        trial: the model in uniform formats, by the chosen method.
        choices: weight key -> formats that it may have, its present one among them.
        mean_bits: bits that a weight may take on average, scales and zero points included; None: as few as `aim` takes.
        aim: ratio of the outputs in dB that is enough; None: as good as `mean_bits` allows.
        scratch: a folder for what is measured, so that a kill loses nothing.

    Raises:
        UsageError: no formats are that small.
    """
    if all(owner for owner, _ in choices):
        why = "all matrices stand in branches and loop bodies, where none can be measured alone"
        return Mix(trial=trial, facts={"kept": False, "why": why})
    table = _Table(job, trial, choices, scratch)
    total = sum(weight.elements for weight in table.weights)
    budget = None if mean_bits is None else mean_bits * total / 8
    scale, best = table.scale, None
    for _ in range(_TRIES):
        assignment = table.assign(budget, aim, scale)
        made = table.tried(assignment)
        if best is None or made.score > best[1].score:
            best = assignment, made
        if aim is None or made.score >= aim:
            break
        scale /= _TIGHTER
    assert best is not None
    return table.judged(*best, grown=budget is None or budget >= table.bytes_of(trial), total=total)


class _Table:
    """The costs and noises of every choice."""

    def __init__(self, job: BlockJob, trial: BlockTrial, choices: Choices, scratch: Path) -> None:
        self.job, self.trial = job, trial
        model = SwapModel(job)
        self.weights = [weight for weight in job.plan.weights if weight.key in model.weights]
        self.inner = [weight for weight in job.plan.weights if weight.key not in model.weights]
        self.choices = {weight.key: choices[weight.key] for weight in self.weights}
        names = {f"{owner}:{name}": (owner, name) for owner, name in self.choices}
        reference = few_judged(job)

        def alone(name: str) -> Any:
            key = names[name]
            return model.opened({key: trial.solved.codes[key]}, trial.solved.factors)

        def whole(_: str) -> Any:
            return model.opened({key: trial.solved.codes[key] for key in self.choices}, trial.solved.factors)

        kept = Checkpoint(scratch / "sensitivity.jsonl")
        losses = measure(list(names), alone, reference, kept, lambda i, n: job.tell("sensitivity", i, n))
        together = measure(["all"], whole, reference, kept)["all"].noise
        self.noise = {names[name]: loss.noise for name, loss in losses.items()}
        added = sum(self.noise.values())
        self.scale = float(np.clip(together / added, 0.1, 10.0)) if added else 1.0
        self.errors = self._errors()

    def _errors(self) -> dict[Key, list[float]]:
        """Return how much noise each choice makes, relative to the present format: the error of the layer's outputs."""
        left = {weight.key: weight for weight in self.weights}
        found: dict[Key, list[float]] = {}
        for grams in self.job.each_gram():
            for weight in list(left.values()):
                gram = None if weight.is_table else grams.get(self.job.input_of(weight))
                if gram is not None:
                    found[weight.key] = self._changed(left.pop(weight.key), gram)
                    self.job.tell("formats", len(found), len(self.weights))
        for weight in left.values():
            found[weight.key] = self._changed(weight, None)
            self.job.tell("formats", len(found), len(self.weights))
        return found

    def _changed(self, weight: BlockWeight, gram: Floats | None) -> list[float]:
        matrix = matrix_of(self.job.weights, weight)
        part = matrix[:: max(matrix.shape[0] // _ROWS, 1)]
        choices = self.choices[weight.key]
        raw = [_error(part, fmt, gram) for fmt in choices]
        now = raw[choices.index(self.trial.formats[weight.key])]
        if now > 0:
            return [self.noise[weight.key] * error / now for error in raw]
        power = _error(part, None, gram) or 1.0
        return [error / power for error in raw]

    def assign(self, budget: float | None, aim: float | None, scale: float) -> Assignment:
        """Return the choice of each matrix: least noise within the bytes, or the fewest bytes for the aim."""
        items = [
            [
                (float(fmt.size(weight.rows, weight.depth)), error * scale)
                for fmt, error in zip(self.choices[weight.key], self.errors[weight.key], strict=True)
            ]
            for weight in self.weights
        ]
        found = least_cost(items, 10 ** (-aim / 10)) if aim is not None else None
        if found is not None and (budget is None or found.cost <= budget):
            return found
        if budget is None:
            budget = sum(max(cost for cost, _ in options) for options in items)
        found = least_loss(items, budget)
        if found is None:
            least = sum(min(cost for cost, _ in options) for options in items)
            total = sum(weight.elements for weight in self.weights)
            raise UsageError(
                f"mean_bits {8 * budget / total:g} is less than the smallest formats take: {8 * least / total:.2f}",
                where=_STAGE,
                remedy="Allow more bits, or give smaller tables with embedding_bits = 4.",
            )
        return found

    def tried(self, assignment: Assignment) -> BlockTrial:
        """Return the model with these formats, written and run."""
        chosen = zip(self.weights, assignment.options, strict=True)
        formats = {weight.key: self.choices[weight.key][place] for weight, place in chosen}
        return self.job.reformed(self.trial, formats)

    def bytes_of(self, trial: BlockTrial) -> int:
        """Return the bytes of the matrices that are chosen for."""
        return sum(trial.formats[weight.key].size(weight.rows, weight.depth) for weight in self.weights)

    def judged(self, assignment: Assignment, made: BlockTrial, *, grown: bool, total: int) -> Mix:
        """Keep the mixed model, unless it may be as large as the uniform one and is not better."""
        kept = not grown or made.score > self.trial.score or self.bytes_of(made) < self.bytes_of(self.trial)
        counts: dict[str, int] = {}
        for weight in self.weights:
            fmt = made.formats[weight.key]
            name = f"{fmt.bits} bits, block {fmt.block}"
            counts[name] = counts.get(name, 0) + 1
        noise = sum(
            self.errors[weight.key][place] for weight, place in zip(self.weights, assignment.options, strict=True)
        )
        facts = {
            "kept": kept,
            "why": _why(kept=kept, grown=grown),
            "bits_before": round(8 * self.bytes_of(self.trial) / total, 3),
            "bits_after": round(8 * self.bytes_of(made) / total, 3),
            "before_db": round(self.trial.score, 2),
            "after_db": round(made.score, 2),
            "predicted_db": round(decibels(1.0, noise * self.scale), 2),
            "exact": assignment.exact,
            "formats": dict(sorted(counts.items())),
        }
        reasons = {
            weight.key: f"as it was before, alone it left {decibels(1.0, self.noise[weight.key]):.1f} dB"
            for weight in self.weights
            if made.formats[weight.key] != self.trial.formats[weight.key]
        }
        return Mix(trial=replace(made, reasons=reasons) if kept else self.trial, facts=facts)


def _why(*, kept: bool, grown: bool) -> str:
    if not kept:
        return "the uniform model is as good"
    return "the outputs lie nearer for the bytes" if grown else "the uniform model takes more bits than were asked"


def _error(matrix: Floats, fmt: BlockFormat | None, gram: Floats | None) -> float:
    """Return the squared error of a layer's outputs when its matrix is rounded to nearest (None: is 0 everywhere).

    Without `gram` it is that of the matrix.
    """
    near = np.zeros_like(matrix) if fmt is None else quantize_rtn(matrix, fmt).dequantized()
    if gram is None:
        return float(np.square(matrix - near, dtype=np.float64).sum())
    return output_error(matrix, near, gram)


def formats_to_choose(
    weights: Sequence[BlockWeight],
    formats: Mapping[Key, BlockFormat],
    pinned: Collection[Key],
    *,
    symmetric: bool = False,
) -> dict[Key, tuple[BlockFormat, ...]]:
    """Return the formats that each matrix may have: 4 bits in blocks of 16 to 128, 8 bits in blocks of 32 to 128.

    Blocks divide the depth of a matrix.

    Args:
        weights: the matrices.
        formats: weight key -> its present format, which is always among them.
        pinned: keys of matrices that keep it, because the recipe says so.
        symmetric: whether no block may have a zero point.
    """
    found: dict[Key, tuple[BlockFormat, ...]] = {}
    for weight in weights:
        now = formats[weight.key]
        options = [now]
        divided = any(weight.depth % block == 0 for _, block in _CHOICES)
        for bits, block in () if weight.key in pinned else _CHOICES:
            both = (True, False) if bits == now.bits == _WIDE else (False,)
            for even in (True,) if symmetric else (fine_enough(weight, bits, block),) if weight.is_table else both:
                made = replace(now, bits=bits, block=block, symmetric=even)
                whole = weight.depth % block == 0 or not divided
                if made not in options and whole:  # a filled-up last block takes bytes for nothing
                    options.append(made)
        found[weight.key] = tuple(options)
    return found


def fine_enough(weight: BlockWeight, bits: int, block: int) -> bool:
    """Say whether a matrix loses less by symmetric blocks than zero points would take in bytes.

    A table that the last layer shares loses twice.
    """
    return bits == _WIDE and block <= (32 if weight.is_table and weight.products else 64)


_CHOICES = ((4, 16), (4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128))
