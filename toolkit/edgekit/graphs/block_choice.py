"""Chooses how the matrices of a model are quantized block-wise: by what the outputs lose on held-out samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from edgekit.data import Samples
from edgekit.dialect import Dialect
from edgekit.graphs.block_grams import Gram, Grams
from edgekit.graphs.block_plan import BlockPlan, BlockWeight
from edgekit.graphs.block_solve import METHODS, NEED_DATA, Method, Solved, Solver, inputs_of
from edgekit.graphs.block_write import FUSED_ACCURACY, Form, write_blocks
from edgekit.graphs.calibrate import Reference, open_graph, spread
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.edit import GraphIndex
from edgekit.graphs.weights import Weights
from edgekit.numerics.blockwise import BlockFormat, Floats
from edgekit.numerics.output_distance import EXACT_DB, OutputDistance

if TYPE_CHECKING:
    import onnx

MOST_JUDGED = 16
"""Held-out samples on which methods are compared."""

WORTH_TWO_PARTS = 1.0
"""Decibels that the outputs must come nearer for activations to be multiplied in two parts."""

_HELD_EVERY = 5
_WIDE = 8


@dataclass(frozen=True, kw_only=True)
class BlockTrial:
    """A method that was tried: the model it gives, and the distance of every output from the original.

    `activation_bits` are those that products of accuracy level 4 see. `reasons` says of matrices whose format is not
    the asked one why it is another.
    """

    method: Method
    model: onnx.ModelProto
    solved: Solved
    formats: Mapping[tuple[int, str], BlockFormat]
    distances: Mapping[str, OutputDistance]
    activation_bits: int = 8
    reasons: Mapping[tuple[int, str], str] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The lowest signal-to-noise ratio of an output, in dB; minus infinity when one cannot be compared."""
        if any(found.incomparable for found in self.distances.values()):
            return float("-inf")
        return min((found.sqnr for found in self.distances.values() if found.samples), default=EXACT_DB)


@dataclass(frozen=True, kw_only=True)
class BlockJob:
    """One model being quantized.

    Attributes:
        source: the float model in canonical form.
        weights: its weight operands.
        plan: what is quantized.
        samples: calibration samples; None when there is no data.
        original: opens a session of the caller's model.
        dialect: the runtime's rules.
        form: how weights are written.
        formats: weight key -> how it is stored.
        accuracy_level: see `MatMulNBits`.
        activation_bits: of products at accuracy level 4: 8 as the kernels round them, 16 as two parts of 8; None: 16
            where all weights have 8 and it brings the outputs nearer by `WORTH_TWO_PARTS`.
        act_order: see `quantize_gptq`.
        threads: CPU threads.
        tell: gets a label, steps done and steps in all (0: unknown).
    """

    source: Canonical
    weights: Weights
    plan: BlockPlan
    samples: Samples | None
    original: Callable[[], object]
    dialect: Dialect
    form: Form
    formats: Mapping[tuple[int, str], BlockFormat]
    accuracy_level: int
    act_order: bool
    threads: int
    activation_bits: int | None = None
    tell: Callable[[str, int, int], None] = lambda _label, _done, _total: None

    def choose(self, wish: str) -> tuple[BlockTrial, dict[str, float], str]:
        """Try the methods that come into question.

        Args:
            wish: a method, or `auto`: all of them, on held-out samples.

        Returns:
            The best trial, the score of each method in dB, and why it was chosen.
        """
        if wish != "auto" or self.samples is None:
            method = next((name for name in METHODS if name == wish), METHODS[0])
            trial = self._lightened(self.attempt(method))
            why = "as asked" if wish != "auto" else "no data, so the weights' own rounding error decides"
            return trial, self._scores([trial]), why
        best: BlockTrial | None = None
        scores: dict[str, float] = {}
        for method in METHODS:
            if method in NEED_DATA and not self._depths():
                continue
            trial = self.attempt(method)
            scores |= self._scores([trial])
            if best is None or trial.score > best.score:
                best = trial
        assert best is not None
        best = self._lightened(best)
        count = len(self.judged)
        kind = "held-out calibration sample" if self._count > 1 else "calibration sample (the only one)"
        why = f"its outputs lie nearest to the original's on {count} {kind}{'s' * (count > 1)}: " + ", ".join(
            f"{name} {score:.1f} dB" for name, score in scores.items()
        )
        return best, scores, why

    def _scores(self, trials: list[BlockTrial]) -> dict[str, float]:
        return {} if self.samples is None else {trial.method: round(trial.score, 2) for trial in trials}

    def attempt(self, method: Method) -> BlockTrial:
        """Quantize with one method, write, load and run."""
        solved = self._solver(self.plan.weights, self.formats, method).solve(method)
        return self._written(method, self.formats, solved, self._first_bits)

    @property
    def _first_bits(self) -> int:
        """The bits of activations that methods are compared with."""
        if self.accuracy_level != FUSED_ACCURACY or self.form != "matmulnbits":
            return 8
        if self.activation_bits is not None:
            return self.activation_bits
        return 16 if all(fmt.bits == _WIDE for fmt in self.formats.values()) else 8

    def _lightened(self, trial: BlockTrial) -> BlockTrial:
        """Return a trial with activations in 8 bits, which is faster, unless that costs what was paid for."""
        if trial.activation_bits == 8 or self.activation_bits is not None or self.samples is None:  # noqa: PLR2004
            return trial
        plain = self._written(trial.method, trial.formats, trial.solved, 8)
        return plain if plain.score > trial.score - WORTH_TWO_PARTS else trial

    def reformed(self, trial: BlockTrial, formats: Mapping[tuple[int, str], BlockFormat]) -> BlockTrial:
        """Return a trial with some matrices in other formats, written and run.

        Beside matrices of fewer bits, those of 8 are rounded to nearest: theirs is not the noise that counts.

        Args:
            trial: a trial; codes whose format stays are kept.
            formats: weight key -> its format.
        """
        full = {**trial.formats, **formats}
        changed = [weight for weight in self.plan.weights if full[weight.key] != trial.formats[weight.key]]
        codes, errors = dict(trial.solved.codes), dict(trial.solved.errors)
        mixed = any(fmt.bits != _WIDE for fmt in full.values())
        for wide in (False, True):
            part = tuple(weight for weight in changed if (full[weight.key].bits == _WIDE) == wide)
            if part:
                method: Method = "rtn" if (wide and mixed) or trial.method == "awq" else trial.method
                solved = self._solver(part, full, method, trial.solved.factors).solve(method)
                codes |= solved.codes
                errors |= solved.errors
        solved = Solved(codes=codes, factors=trial.solved.factors, errors=errors)
        return self._written(trial.method, full, solved, trial.activation_bits)

    def _written(
        self, method: Method, formats: Mapping[tuple[int, str], BlockFormat], solved: Solved, activation_bits: int
    ) -> BlockTrial:
        model = write_blocks(
            self.source,
            self.plan.weights,
            solved,
            self.dialect,
            form=self.form,
            accuracy_level=self.accuracy_level,
            halved=activation_bits == 16,  # noqa: PLR2004
        )
        session = open_graph(model, self.source.folder, threads=self.threads)
        distances = {} if self.samples is None else self._reference.distances(session)
        return BlockTrial(
            method=method,
            model=model,
            solved=solved,
            formats=formats,
            distances=distances,
            activation_bits=activation_bits,
        )

    def _solver(
        self,
        plan: tuple[BlockWeight, ...],
        formats: Mapping[tuple[int, str], BlockFormat],
        method: Method,
        given: Mapping[str, Floats] | None = None,
    ) -> Solver:
        done = iter(range(1, len(plan) + 1))
        return Solver(
            weights=self.weights,
            plan=plan,
            index=self._index,
            grams=self._grams if self._depths() else None,
            formats=formats,
            act_order=self.act_order,
            given=given,
            tell=lambda: self.tell(f"quantize ({method})", next(done), len(plan)),
        )

    # --- samples -----------------------------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> GraphIndex:
        return GraphIndex(self.source.model.graph, self.source.folder)

    def input_of(self, weight: BlockWeight) -> str:
        """Return the tensor that a matrix's products all read; empty when they differ, or stand in an inner graph."""
        return self._inputs[weight.key]

    @cached_property
    def _inputs(self) -> dict[tuple[int, str], str]:
        return inputs_of(self.plan.weights, self._index)

    def each_gram(self) -> Iterator[dict[str, Gram]]:
        """Yield `X^T X` of the matrices' inputs, group by group; nothing without samples."""
        if self._depths():
            yield from self._grams.each()

    @property
    def _count(self) -> int:
        return 0 if self.samples is None else len(self.samples)

    @property
    def held(self) -> list[int]:
        """The samples that no statistics are taken of; a single sample serves both ends."""
        if self._count < _HELD_EVERY:
            return [self._count - 1] if self._count else []
        return list(range(_HELD_EVERY - 1, self._count, _HELD_EVERY))

    @property
    def judged(self) -> list[int]:
        """The held-out samples that methods are compared on."""
        return [self.held[place] for place in spread(len(self.held), MOST_JUDGED)]

    @cached_property
    def session(self) -> object:
        """A session of the caller's model, opened once: it holds all weights."""
        return self.original()

    def release(self) -> None:
        """Let go of the session and the sums, which hold more than the model; they come again when asked for."""
        for held in ("session", "_reference", "_grams"):
            self.__dict__.pop(held, None)

    @cached_property
    def _reference(self) -> Reference:
        assert self.samples is not None
        return Reference(self.session, self.samples, self.judged)

    def _depths(self) -> dict[str, int]:
        if self.samples is None:
            return {}
        found = {self.input_of(weight): weight.depth for weight in self.plan.weights if weight.products}
        return {name: depth for name, depth in found.items() if name and self._index.constant(name) is None}

    @cached_property
    def _grams(self) -> Grams:
        assert self.samples is not None
        held = set(self.held) if self._count > 1 else set()
        return Grams(
            self.source.model,
            self.source.folder,
            self.samples,
            [number for number in range(self._count) if number not in held],
            self._depths(),
            threads=self.threads,
            tell=lambda done, total: self.tell("calibrate", done, total),
        )


def mean_bits(plan: BlockPlan, solved: Solved) -> float:
    """Return the bits that a quantized weight takes on average, scales and zero points included."""
    total = sum(weight.elements for weight in plan.weights)
    return float(np.round(8 * sum(codes.size for codes in solved.codes.values()) / max(total, 1), 3))
