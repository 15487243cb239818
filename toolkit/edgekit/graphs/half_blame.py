"""What every node of a float16 model costs: nodes rounded to float16 one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgekit.graphs.blame import Blame, blame
from edgekit.graphs.calibrate import open_graph
from edgekit.graphs.half_plan import HalfPlan
from edgekit.graphs.half_search import HalfSearch
from edgekit.graphs.half_write import emulated
from edgekit.graphs.sensitivity import Checkpoint


def half_blame(
    search: HalfSearch, plan: HalfPlan, *, aim: float, scratch: Path, tell: Callable[[int, int], None]
) -> Blame:
    """Measure what rounding every node's inputs and results to float16 costs.

    Nodes that only move values cost nothing of their own: what they move was rounded where it was made.

    Args:
        search: the model, and the original's outputs on the samples to judge by.
        plan: the nodes that are in float16, before any is kept in float32 for the outputs' sake.
        aim: ratio of the outputs in dB that is asked for.
        scratch: a folder for what is measured, so that a kill loses nothing.
        tell: gets measurements done and in all.
    """
    ops = {node.name: node.op_type for node in search.source.model.graph.node}

    def opened(names: frozenset[str]) -> Any:
        model = emulated(search.source, search.types, replace(plan, half=names))
        return open_graph(model, search.source.folder, threads=search.threads)

    return blame(
        {name: (ops[name], "float16") for name in search.computing(plan)},
        stage="fp16",
        alone=lambda name: opened(frozenset({name})),
        together=opened,
        reference=search.reference,
        aim=aim,
        checkpoint=Checkpoint(scratch / "blame.jsonl"),
        tell=tell,
    )
