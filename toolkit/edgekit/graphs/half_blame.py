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

MOST_ALONE = 64
"""Nodes that are measured alone: of larger models those whose own results lose most."""


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
    names = search.computing(plan)
    if len(names) > MOST_ALONE:
        names = [name for name, _ in search.ranked(plan)[:MOST_ALONE]]
    others = frozenset(search.computing(plan)) - {*names}
    told = f"{len(others)} nodes that round more finely on their own are not measured alone" if others else ""

    def opened(chosen: frozenset[str]) -> Any:
        model = emulated(search.source, search.types, replace(plan, half=chosen))
        return open_graph(model, search.source.folder, threads=search.threads)

    return blame(
        {name: (ops[name], "float16") for name in names},
        stage="fp16",
        alone=lambda name: opened(frozenset({name})),
        together=lambda chosen: opened(chosen | others),
        reference=search.reference,
        aim=aim,
        checkpoint=Checkpoint(scratch / "blame.jsonl"),
        tell=tell,
        told=told,
    )
