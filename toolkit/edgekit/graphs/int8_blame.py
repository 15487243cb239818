"""What every layer of an int8 model costs: layers quantized one by one, in the form that was chosen for the whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgekit.graphs.blame import MOST_JUDGED, Blame, blame
from edgekit.graphs.calibrate import open_graph, spread
from edgekit.graphs.int8_choice import Job
from edgekit.graphs.int8_plan import Mode, Plan
from edgekit.graphs.int8_search import Search
from edgekit.graphs.sensitivity import Checkpoint
from edgekit.numerics.ranges import Method


class Parts:
    """Models in which only some layers of a plan are quantized.

    Attributes:
        layers: node name -> operator type and mode of the layers that the plan quantizes.
    """

    def __init__(self, search: Search, plan: Plan, method: Method) -> None:
        """Remember the plan of the whole."""
        self._search, self._plan, self._method = search, plan, method
        planner = search.planner
        ops = {node.name: node.op_type for graph in planner.weights.graphs for node in graph.node}
        known = {name for name in ops if name in planner.operands or name in planner.computes}
        self.layers = {
            name: (op, plan.modes[name])
            for name, op in ops.items()
            if name in known and plan.modes.get(name, "float") != "float"
        }

    def plan(self, modes: dict[str, Mode]) -> Plan:
        """Return a plan with the modes of some layers; all others stay float."""
        full: dict[str, Mode] = dict.fromkeys(self._plan.modes, "float")
        return self._search.planner.plan(full | modes, {}, self._search.meters, self._method)

    def opened(self, modes: dict[str, Mode]) -> Any:
        """Return a session of such a plan."""
        search = self._search
        return open_graph(search.writer.write(self.plan(modes)), search.source.folder, threads=search.threads)


def int8_blame(job: Job, *, rounding: str, scratch: Path, tell: Callable[[int, int], None]) -> Blame:
    """Measure what every layer costs, before any is left float for the outputs' sake.

    Args:
        job: the model being quantized.
        rounding: how the stage rounds; layers are measured with weights rounded to nearest.
        scratch: a folder for what is measured, so that a kill loses nothing.
        tell: gets measurements done and in all.
    """
    choice = job.choose()
    search = job.search_on(spread(len(job.samples), MOST_JUDGED))
    modes, reasons = job.modes(choice.form)
    whole = search.attempt(modes, reasons, choice.method).plan
    parts = Parts(search, whole, choice.method)
    return blame(
        parts.layers,
        stage="quantize-int8",
        alone=lambda name: parts.opened({name: whole.modes[name]}),
        together=lambda names: parts.opened({name: whole.modes[name] for name in names}),
        reference=search.reference,
        aim=job.wishes.aim,
        checkpoint=Checkpoint(scratch / "blame.jsonl"),
        tell=tell,
        told="weights are rounded to nearest here" if rounding == "learned" else "",
    )
