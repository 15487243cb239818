"""Tries quantization plans by running them, and leaves nodes float until every output keeps its information."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.graphs.calibrate import Reference, open_graph, run
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.edit import GraphIndex
from edgekit.graphs.int8_plan import Mode, Plan, Planner, demoted
from edgekit.graphs.int8_write import Writer
from edgekit.graphs.weights import Weights
from edgekit.numerics.affine import dequantize_weight, quantize_weight, weight_scales
from edgekit.numerics.output_distance import EXACT_DB, OutputDistance, decibels
from edgekit.numerics.ranges import Method, RangeMeter

if TYPE_CHECKING:
    import onnx

    from edgekit.data import Samples

COLUMN_FLOOR = 3.0
"""A column below this ratio (dB) carries more error than information."""

LEAST_EQUAL = 0.8
"""Share of equal elements below which an integer output counts as broken."""

_PROBES = 4
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
            trial = lower.least(trial, order, floor)
        if trial.faults(floor):
            trial = lower.least(trial, self._rank_weights(trial.plan), floor)
        if not trial.faults(floor) and trial.faults(aim):
            trial = lower.least(trial, order, aim, covering=self.covers)
        return trial

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
        model, outputs = probed(self.source.model, names)
        weights = Weights(model.graph, self.source.folder)
        dialect = replace(self.planner.dialect, quantize_outputs=False, carry=())
        planner = Planner(model, weights, dialect)
        modes: dict[str, Mode] = dict.fromkeys(planner.operands, "float")
        modes |= {_probe_name(name): plan.modes[name] for name in names}
        probe_plan = planner.plan(modes, {}, self.meters, "minmax", carry=False)
        probe_plan = replace(
            probe_plan, grids={name: plan.grids.get(name, grid) for name, grid in probe_plan.grids.items()}
        )
        source = Canonical(model=model, folder=self.source.folder, findings=())
        written = Writer(source, weights, dialect).write(probe_plan)
        session = open_graph(written, self.source.folder, threads=self.threads)
        sums = dict.fromkeys((name for pair in outputs.values() for name in pair), 0.0)
        for index in self.reference.indices[:: max(len(self.reference.indices) // _PROBES, 1)]:
            found = run(session, self.samples.sample(index), sample=self.samples.ids[index])
            for name in sums:
                sums[name] += float(np.asarray(found[name]).sum())
        ratios = [(name, decibels(sums[signal], sums[noise])) for name, (signal, noise) in outputs.items()]
        return sorted(ratios, key=lambda item: (item[1], item[0]))


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
        covering: Callable[[Plan], bool] | None = None,
    ) -> Trial:
        """Lower the smallest number of nodes of `order` (worst first) that clears the faults at `bound`.

        When lowering all of them does not, the trial with all of them lowered is returned; with `covering`, only
        numbers whose plan it accepts are tried, and `trial` itself is returned when none of them is enough.
        """
        fault = trial.faults(bound)[0]
        order = [(name, ratio) for name, ratio in order if self.search.planner.lowers(trial.plan, name)]
        most = len(order)
        if covering is not None:
            most = next((k for k in range(len(order), 0, -1) if covering(self._plan(trial, order[:k], fault))), 0)
        if not most:
            return trial
        best = self._lowered(trial, order[:most], fault)
        if best.faults(bound):
            return best if covering is None else trial
        few, many = 0, most
        while many - few > 1:
            middle = (few + many) // 2
            tried = self._lowered(trial, order[:middle], fault)
            if tried.faults(bound):
                few = middle
            else:
                many, best = middle, tried
        return best

    def _plan(self, trial: Trial, nodes: Sequence[tuple[str, float]], fault: str) -> Plan:
        modes, reasons = demoted(trial.plan, self.search.planner, _reasons(nodes, fault))
        return replace(trial.plan, modes=modes, reasons=reasons)

    def _lowered(self, trial: Trial, nodes: Sequence[tuple[str, float]], fault: str) -> Trial:
        plan = self._plan(trial, nodes, fault)
        return self.search.attempt(plan.modes, plan.reasons, self.method, carry=self.carry)


def _reasons(nodes: Sequence[tuple[str, float]], fault: str) -> dict[str, str]:
    return {name: f"{fault} while it is quantized (its own output then has {ratio:.1f} dB)" for name, ratio in nodes}


def _probe_name(node: str) -> str:
    return node + "/probe"


def probed(model: onnx.ModelProto, names: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, tuple[str, str]]]:
    """Return a copy in which chosen nodes have a twin, and outputs that tell how far the twin's result lies away.

    Returns:
        The model, and node name -> (output with the sum of squares of its result, the same of the difference).
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    index = GraphIndex(copy.graph)
    outputs: dict[str, tuple[str, str]] = {}
    wanted = set(names)
    extra: list[Any] = []
    for node in copy.graph.node:
        if node.name not in wanted:
            continue
        twin = onnx.NodeProto()
        twin.CopyFrom(node)
        twin.name = _probe_name(node.name)
        twin.output[0] = index.fresh_name(node.output[0] + "/probe")
        difference, signal, noise = (
            index.fresh_name(twin.output[0] + end) for end in ("/difference", "/signal", "/noise")
        )
        extra += [
            twin,
            onnx.helper.make_node("Sub", [node.output[0], twin.output[0]], [difference], name=difference),
            onnx.helper.make_node("ReduceSumSquare", [node.output[0]], [signal], name=signal, keepdims=0),
            onnx.helper.make_node("ReduceSumSquare", [difference], [noise], name=noise, keepdims=0),
        ]
        outputs[node.name] = signal, noise
    copy.graph.node.extend(extra)
    for name in (name for pair in outputs.values() for name in pair):
        copy.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []))
    return copy, outputs
