"""Rules of the coupling for recurrent layers and cells: LSTM, GRU, RNN.

Units of the state are channels: unit `i` of a layer stands at one row of every gate and at one column of the weight
that reads the state. All layers and directions of one module have one `hidden_size`, so they lose the same units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgekit.networks.coupled import Axes
from edgekit.networks.coupling_trace import Arguments, Trace, name_of
from edgekit.networks.labels import Ids

_MATRIX = 2


def layers(trace: Trace, given: Arguments) -> list[Axes] | None:
    """Interpret a layer or several, in one direction or two; packed sequences and projected states are not known."""
    nodes = list(given.raw.get("params") or ())
    x, weights = given.axes("input"), [given.look(node) for node in nodes]
    directions, depth = 1 + bool(given["bidirectional"]), int(given["num_layers"] or 0)
    each = 4 if given["has_biases"] else 2
    if x is None or not depth or len(nodes) != each * directions * depth or any(axes is None for axes in weights):
        return None
    units: Ids | None = None
    given_on = x[-1]
    steps = math.prod(len(axis) for axis in x[:-1])
    for layer in range(depth):
        for direction in range(directions):
            at = each * (layer * directions + direction)
            units = _gates(trace, nodes[at : at + each], weights[at : at + each], given_on, units, steps)  # type: ignore[arg-type]
        assert units is not None
        given_on = np.tile(units, directions)
    assert units is not None
    _states(trace, given, units)
    for axis in x[:-1]:
        trace.keep(axis, f"{name_of(trace.node)} runs along it")
    shapes = [trace.shape(output) for output in range(1, len(trace.node.meta["val"]))]
    last: list[Axes] = [[*(np.zeros(size, np.int64) for size in shape[:-1]), units] for shape in shapes]
    return [[*x[:-1], given_on], *last]


def cell(trace: Trace, given: Arguments) -> Any:
    """Interpret one step."""
    x = given.axes("input")
    nodes = [given.raw[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh") if given.raw.get(name) is not None]
    weights = [given.look(node) for node in nodes]
    if x is None or any(axes is None for axes in weights):
        return None
    units = _gates(trace, nodes, weights, x[-1], None, math.prod(len(axis) for axis in x[:-1]))  # type: ignore[arg-type]
    _states(trace, given, units)
    found: Axes = [*x[:-1], units]
    value = trace.node.meta["val"]
    return [found for _ in value] if isinstance(value, (tuple, list)) else found


def _gates(
    trace: Trace, nodes: Sequence[Any], weights: Sequence[Axes], read: Ids, units: Ids | None, steps: int
) -> Ids:
    """Tie the rows of every gate with the units of the state, and the columns with what is read; return the units."""
    own = weights[1][1]
    units = own if units is None else units
    trace.tie(units, own)
    for node, axes in zip(nodes, weights, strict=True):
        trace.tie(units[None], axes[0].reshape(-1, len(units)))
        slots = [trace.slot(node, axis) for axis in range(len(axes))]
        if len(axes) < _MATRIX:
            continue
        trace.coupling.makes.update(slot for slot in slots[:1] if slot)
        trace.coupling.reads.update(slot for slot in slots[1:] if slot)
        trace.work(node, axes, macs=steps * math.prod(map(len, axes)))
    trace.tie(read, weights[0][1])
    return units


def _states(trace: Trace, given: Arguments, units: Ids) -> None:
    """Tie the states that it starts with."""
    stated = given.raw.get("hx")
    nodes = stated if isinstance(stated, (tuple, list)) else [stated]
    for node in nodes:
        if (axes := given.look(node)) is not None:
            trace.tie(axes[-1], units)
