"""Tries quantization plans by running them, and leaves nodes float until every output keeps its information."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgekit.graphs.calibrate import Reference, open_graph
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.int8_plan import Mode, Plan, Planner, demoted
from edgekit.graphs.int8_write import Writer
from edgekit.graphs.probes import local_ratios, probed, twin_name
from edgekit.graphs.weights import Weights
from edgekit.numerics.affine import dequantize_weight, quantize_weight, weight_scales
from edgekit.numerics.output_distance import EXACT_DB, OutputDistance, decibels
from edgekit.numerics.ranges import Method, RangeMeter

if TYPE_CHECKING:
    from edgekit.data import Samples

COLUMN_FLOOR = 0.5
"""A column below this ratio (dB) carries no more information than zeros would."""

LEAST_EQUAL = 0.8
"""Share of equal elements below which an integer output counts as broken."""

_RANK = {"float": 0, "weights": 1, "dynamic": 2, "static": 2}
_PROBES = 8
_CARRY_GAIN = 3.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A plan that was written and run.

    Attributes:
        plan: the plan.
        distances: output name -> its distance from the original.
    """

    plan: Plan
    distances: Mapping[str, OutputDistance]

    @property
    def score(self) -> float:
        """The lowest signal-to-noise ratio of a floating-point output, in dB."""
        ratios = [found.sqnr for found in self.distances.values() if not found.incomparable and found.samples]
        return min(ratios, default=EXACT_DB)

    def faults(self, floor: float) -> list[str]:
        """Name what is wrong with the outputs, in one sentence each; empty when nothing is."""
        wrong = []
        for name, found in self.distances.items():
            if found.incomparable.startswith("it has"):
                wrong.append(f"output '{name}': {found.incomparable}")
            elif found.sqnr < floor:
                wrong.append(f"output '{name}' has {found.sqnr:.1f} dB, below {floor:g} dB")
            elif found.equal < LEAST_EQUAL:
                wrong.append(f"output '{name}': only {found.equal:.0%} of its integers are right")
            else:
                wrong += [f"output '{name}': {column}" for column in found.lost_columns(COLUMN_FLOOR)[:3]]
        return wrong


@dataclass(frozen=True, kw_only=True)
class Search:
    """Tries plans of one model against one reference.

    Attributes:
        source: the model in canonical form.
        planner: makes the plans.
        writer: writes them.
        reference: the original's outputs on the samples to judge by.
        samples: where those samples come from.
        meters: tensor statistics.
        threads: CPU threads.
        pinned: nodes whose mode the recipe names: they are not lowered.
        covers: whether a plan's coverage is enough.
        tell: called before each trial.
    """

    source: Canonical
    planner: Planner
    writer: Writer
    reference: Reference
    samples: Samples
    meters: Mapping[str, RangeMeter]
    threads: int
    pinned: frozenset[str] = frozenset()
    covers: Callable[[Plan], bool] = lambda _plan: True
    tell: Callable[[], None] = lambda: None

    def attempt(
        self, modes: Mapping[str, Mode], reasons: Mapping[str, str], method: Method, *, carry: bool = True
    ) -> Trial:
        """Plan, write, load and run."""
        self.tell()
        plan = self.planner.plan(modes, reasons, self.meters, method, carry=carry)
        session = open_graph(self.writer.write(plan), self.source.folder, threads=self.threads)
        return Trial(plan=plan, distances=self.reference.distances(session))

    def settle(self, trial: Trial, method: Method, *, floor: float, aim: float) -> Trial:
        """Leave as few nodes float as it takes to clear a trial of faults, the locally worst first.

        First the operators between quantized nodes go back to float, then integer products (their weights stay in
        8 bits), then stored weights. When no output is below `floor`, products are still given up for `aim`, as far
        as coverage stays enough. Returns the last trial, whose faults may remain when nothing helps.
        """
        carry = True
        if trial.faults(floor) and trial.plan.carried:
            bare = self.attempt(trial.plan.modes, trial.plan.reasons, method, carry=False)
            if not bare.faults(floor) or bare.score > trial.score + _CARRY_GAIN:
                trial, carry = bare, False
        if not trial.faults(aim):
            return trial
        lower = _Lowering(self, method, carry)
        order = self._rank_products(trial.plan)
        if trial.faults(floor):
            trial = self._repair(trial, order, lower, floor)
        if not trial.faults(floor) and trial.faults(aim):
            trial = lower.least(trial, order, aim, to="weights", covering=self.covers)
        return trial

    def _repair(self, trial: Trial, order: Sequence[tuple[str, float]], lower: _Lowering, floor: float) -> Trial:
        """Clear a trial of faults: with products in float on stored weights, else with the weights in float too."""
        stored = lower.least(trial, order, floor, to="weights")
        if not stored.faults(floor):
            return stored
        whole = lower.least(trial, order, floor, to="float")
        if whole.faults(floor):
            return lower.least(whole, self._rank_weights(whole.plan), floor, to="float")
        given_up = [name for name, _ in order if whole.plan.modes.get(name) == "float"]
        half = lower.lowered(trial, [(name, ratio) for name, ratio in order if name in given_up], floor, to="weights")
        rank = [item for item in self._rank_weights(half.plan) if item[0] in given_up]
        best = lower.least(half, rank, floor, to="float") if half.faults(floor) else half
        return whole if best.faults(floor) else best

    def _rank_weights(self, plan: Plan) -> list[tuple[str, float]]:
        """Order the nodes with stored weights by how much their weights' rounding changes them, worst first."""
        ratios: dict[str, float] = {}
        for operand in self.planner.weights.operands:
            if plan.modes.get(operand.node) != "weights":
                continue
            values = np.asarray(self.planner.weights.values(operand), np.float32)
            scales = weight_scales(values, operand.axis)
            error = dequantize_weight(quantize_weight(values, scales, operand.axis), scales, operand.axis) - values
            ratio = decibels(
                float(np.square(values, dtype=np.float64).sum()), float(np.square(error, dtype=np.float64).sum())
            )
            ratios[operand.node] = min(ratio, ratios.get(operand.node, EXACT_DB))
        return sorted(ratios.items(), key=lambda item: (item[1], item[0]))

    def _rank_products(self, plan: Plan) -> list[tuple[str, float]]:
        """Order the integer products by the error each makes on its own, fed with the original's activations."""
        names = [
            node.name for node in self.planner.compute_nodes() if plan.modes.get(node.name) in {"static", "dynamic"}
        ]
        if not names:
            return []
        model, probes = probed(self.source.model, names)
        weights = Weights(model.graph, self.source.folder)
        dialect = replace(self.planner.dialect, quantize_outputs=False, carry=())
        planner = Planner(model, weights, dialect)
        modes: dict[str, Mode] = dict.fromkeys(planner.operands, "float")
        modes |= {twin_name(name): plan.modes[name] for name in names}
        bare = planner.plan(modes, {}, self.meters, "minmax", carry=False)
        bare = replace(bare, grids={name: plan.grids.get(name, grid) for name, grid in bare.grids.items()})
        source = Canonical(model=model, folder=self.source.folder, findings=())
        written = Writer(source, weights, dialect).write(bare)
        indices = self.reference.indices[:: max(len(self.reference.indices) // _PROBES, 1)]
        return local_ratios(written, source.folder, probes, self.samples, indices, threads=self.threads)


@dataclass(frozen=True)
class _Lowering:
    """Finds how many nodes of a ranking must be lowered."""

    search: Search
    method: Method
    carry: bool

    def least(
        self,
        trial: Trial,
        order: Sequence[tuple[str, float]],
        bound: float,
        *,
        to: Mode,
        covering: Callable[[Plan], bool] | None = None,
    ) -> Trial:
        """Lower the smallest number of nodes of `order` (worst first) to a mode that clears the faults at `bound`.

        When lowering all of them does not, the trial with all of them lowered is returned; with `covering`, only
        numbers whose plan it accepts are tried, and `trial` itself is returned when none of them is enough.
        """
        order = [
            item
            for item in order
            if item[0] not in self.search.pinned and _RANK[trial.plan.modes.get(item[0], "float")] > _RANK[to]
        ]
        most = len(order)
        if covering is not None:
            most = next((k for k in range(most, 0, -1) if covering(self._plan(trial, order[:k], bound, to))), 0)
        if not most:
            return trial
        best = self.lowered(trial, order[:most], bound, to=to)
        if best.faults(bound):
            return best if covering is None else trial
        few, many = 0, most
        while many - few > 1:
            middle = (few + many) // 2
            tried = self.lowered(trial, order[:middle], bound, to=to)
            if tried.faults(bound):
                few = middle
            else:
                many, best = middle, tried
        return best

    def lowered(self, trial: Trial, nodes: Sequence[tuple[str, float]], bound: float, *, to: Mode) -> Trial:
        """Run a trial's plan with some nodes lowered."""
        plan = self._plan(trial, nodes, bound, to)
        return self.search.attempt(plan.modes, plan.reasons, self.method, carry=self.carry)

    def _plan(self, trial: Trial, nodes: Sequence[tuple[str, float]], bound: float, to: Mode) -> Plan:
        fault = trial.faults(bound)[0]
        modes, reasons = demoted(trial.plan, self.search.planner, _reasons(nodes, fault), to=to)
        return replace(trial.plan, modes=modes, reasons=reasons)


def _reasons(nodes: Sequence[tuple[str, float]], fault: str) -> dict[str, str]:
    return {name: f"{fault} while it is quantized (its own output then has {ratio:.1f} dB)" for name, ratio in nodes}
