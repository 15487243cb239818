"""Interpret the ATen graph of a traced network with labels in place of numbers; see `coupling`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.networks.coupled import Axes, Coupling, Size, Slot, Work
from edgekit.networks.export import INNER
from edgekit.networks.labels import PLAIN, Ids, Labels

if TYPE_CHECKING:
    import torch


POINTWISE = "where"
"""An operator whose rule holds for everything that torch tags as pointwise."""

_CASTS = frozenset({"to", "_to_copy", "alias", "detach", "clone", "contiguous", "lift_fresh_copy"})
"""Operators that give on what they are given."""

_TURNS: dict[str, Callable[[torch.fx.Node, int, int], int]] = {
    "t": lambda _node, axis, rank: rank - 1 - axis,
    "numpy_T": lambda _node, axis, rank: rank - 1 - axis,
    "permute": lambda node, axis, rank: int(node.args[1][axis]) % rank,  # type: ignore[index, arg-type]
    "transpose": lambda node, axis, rank: _swapped(axis, int(node.args[1]) % rank, int(node.args[2]) % rank),  # type: ignore[arg-type]
}
"""Operators that turn axes: which axis of their argument an axis of their result is."""


def _swapped(axis: int, one: int, other: int) -> int:
    return {one: other, other: one}.get(axis, axis)


@dataclass(kw_only=True)
class Trace:
    """The state of one interpretation."""

    coupling: Coupling
    choices: Mapping[str, int]
    across_norms: bool
    slots: dict[str, str] = field(default_factory=dict)
    fed_by: set[str] = field(default_factory=set)
    stored_labels: int = 0
    node: torch.fx.Node = None  # type: ignore[assignment]

    @property
    def labels(self) -> Labels:
        """Return the classes."""
        return self.coupling.labels

    @property
    def module(self) -> str:
        """Return the path of the module whose code holds the current node."""
        stack = self.node.meta.get("nn_module_stack") or {}
        path = str(list(stack.values())[-1][0]) if stack else ""
        return path.partition("@")[0].removeprefix(INNER).removeprefix(".")

    def shape(self, output: int | None = None) -> tuple[int, ...]:
        """Return the shape of the current node's value, or of one of its values: the first, where none is said."""
        value = self.node.meta["val"]
        one = value[output or 0] if isinstance(value, (tuple, list)) else value
        return tuple(int(size) for size in one.shape)

    def why(self, text: str) -> str:
        """Word a reason: what happens, and in which module."""
        return f"{text} in '{self.module}'" if self.module else text

    def tie(self, first: Ids, second: Ids) -> None:
        """Tie labels at the current node."""
        self.labels.tie(first, second, self.why(f"{name_of(self.node)} ties it to what stays"))

    def keep(self, labels: Ids, text: str) -> None:
        """Keep labels at the current node."""
        self.labels.keep(labels, self.why(text))

    def live(self, labels: Ids) -> bool:
        """Say whether any of the labels is not kept."""
        return not bool(self.labels.kept(labels).all())

    def loose(self, count: int) -> Ids:
        """Return labels for an axis along which all values are equal: no tensor that is stored has them yet."""
        return self.labels.fresh(count)

    def is_loose(self, labels: Ids) -> bool:
        """Say whether labels stand in no tensor that is stored."""
        return bool(self.labels.kept(labels).all() or (self.labels.free(labels) >= self.stored_labels).all())

    def fed(self, value: Any) -> bool:
        """Say whether a node's values come from the data, not only from sizes and what is stored."""
        return hasattr(value, "name") and value.name in self.fed_by

    def sources(self, value: Any, labels: Ids) -> list[Slot]:
        """Return the axes of stored tensors that a computed weight has from there, index by index."""
        seen: set[str] = set()
        found: list[Slot] = []
        wanted, queue = self.labels.find(labels), [value]
        while queue:
            node = queue.pop()
            if not hasattr(node, "all_input_nodes") or node.name in seen:
                continue
            seen.add(node.name)
            queue += node.all_input_nodes
            for slot, own in self.coupling.axes.items() if node.name in self.slots else ():
                if slot.tensor == self.slots[node.name] and np.array_equal(self.labels.find(own), wanted):
                    found.append(slot)
        return found

    def slot(self, value: Any, axis: int) -> Slot | None:
        """Return which axis of which stored tensor an axis of an argument is; None for what is computed.

        Casts and transpositions between the stored tensor and the operator are seen through.
        """
        while hasattr(value, "op") and value.name not in self.slots and value.op == "call_function":
            name, rank = name_of(value), len(getattr(value.meta.get("val"), "shape", ()))
            axis = axis % max(rank, 1)
            if name in _TURNS and value.args:
                axis = _TURNS[name](value, axis, rank)
            elif name not in _CASTS or not value.args:
                return None
            value = value.args[0]
        stored = self.slots.get(value.name, "") if hasattr(value, "name") else ""
        return Slot(stored, axis % max(len(self.weight(stored)), 1)) if stored else None

    def stored(self, value: Any) -> str:
        """Return the name in the state of the tensor that an argument is, as it is stored; empty for all others."""
        return self.slots.get(value.name, "") if hasattr(value, "name") else ""

    def work(self, value: Any, read: Axes, *, macs: int, kind: str = "compute") -> None:
        """Note what a layer with a weight does."""
        if slot := self.slot(value, 0):
            sizes = (self.shape(), tuple(map(len, read)), tuple(map(len, self.weight(slot.tensor))))
            done = Work(macs, sum(map(math.prod, sizes)), kind)
            self.coupling.work.setdefault(slot.tensor, []).append(done)

    def weight(self, name: str) -> Axes:
        """Return the axes of a tensor of the state."""
        return [labels for slot, labels in self.coupling.axes.items() if slot.tensor == name]

    def size(self, labels: Ids, value: Any) -> None:
        """Note a size that stands in the code."""
        if isinstance(value, int) and value > 0 and self.live(labels):
            self.coupling.sizes.append(Size(self.module, labels, value))


def name_of(node: torch.fx.Node) -> str:
    """Return an operator's name without its namespace and overload: `conv2d`, `add`."""
    target = node.target
    overload: Any = target
    text = overload.name() if hasattr(target, "overloadpacket") else getattr(target, "__name__", str(target))
    name = text.rpartition("::")[2].partition(".")[0]
    return name if name.startswith("__") else name.removesuffix("_")


def interpret(
    program: torch.export.ExportedProgram, state: set[str], choices: Mapping[str, int], *, across_norms: bool
) -> Coupling:
    """Interpret a traced network.

    Args:
        program: its graph.
        state: names of its parameters and buffers.
        choices: split of an axis (node and axis) -> which part carries the channels; the first where none is said.
        across_norms: channels that are normalized over may go.
    """
    from edgekit.networks.coupling_ops import OPERATORS  # its rules need the classes of this file

    trace = Trace(coupling=Coupling(), choices=choices, across_norms=across_norms)
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    values: dict[str, Any] = {}
    for node in program.graph.nodes:
        trace.node = node
        if node.op == "placeholder":
            if node.name not in stored:
                trace.fed_by.add(node.name)
            values[node.name] = _placed(trace, stored.get(node.name, "").removeprefix(f"{INNER}."), state)
            trace.stored_labels = trace.labels.count
        elif node.op == "output":
            for argument in node.all_input_nodes:
                for axis in _leaves(values[argument.name]):
                    trace.labels.keep(axis, "it reaches an output of the network")
        elif node.op == "call_function":
            if any(argument.name in trace.fed_by for argument in node.all_input_nodes):
                trace.fed_by.add(node.name)
            values[node.name] = _applied(trace, OPERATORS, values)
        else:  # get_attr: constants and graphs of higher-order operators
            values[node.name] = _plain(node.meta.get("val"))
    return trace.coupling


def _placed(trace: Trace, name: str, state: set[str]) -> Any:
    """Give a parameter or a floating buffer of the state its labels; everything else is plain."""
    value: Any = trace.node.meta.get("val")
    if name not in state or not value.dtype.is_floating_point:
        return _plain(value)
    trace.slots[trace.node.name] = name
    axes = [trace.labels.fresh(int(size)) for size in value.shape]
    trace.coupling.axes.update({Slot(name, axis): labels for axis, labels in enumerate(axes)})
    return axes


def _applied(trace: Trace, table: Mapping[str, Callable[..., Any]], values: dict[str, Any]) -> Any:
    node = trace.node
    if node.target is operator.getitem:
        return values[node.args[0].name][node.args[1]]  # type: ignore[union-attr, index]
    handle = table.get(name_of(node))
    if handle is None and _is_pointwise(node):
        handle = table[POINTWISE]
    if handle is not None:
        found = _tried(trace, handle, values) if node.meta.get("val") is not None else []
        if found is not None:
            return found
    inputs = [axis for argument in node.all_input_nodes for axis in _leaves(values[argument.name])]
    flat = np.concatenate(inputs) if inputs else np.zeros(0, np.int64)
    free = trace.labels.free(flat)
    count = int(((free != PLAIN) & (free < trace.stored_labels)).sum())
    text = trace.why(f"'{name_of(node)}' is not understood")
    if node.meta.get("val") is not None:
        trace.labels.keep(flat, text)
    if count and node.meta.get("val") is not None:
        trace.coupling.unknown[text] = trace.coupling.unknown.get(text, 0) + count
    return _plain(node.meta.get("val"))


def _is_pointwise(node: torch.fx.Node) -> bool:
    import torch

    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _tried(trace: Trace, handle: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Return what an operator's rule gives; None where the rule does not apply or gives other shapes than torch."""
    try:
        found = handle(trace, Arguments(trace, values))
    except (AssertionError, IndexError, KeyError, TypeError, ValueError):  # a use of the operator that it does not know
        return None
    value = trace.node.meta["val"]
    if found is None or not (hasattr(value, "shape") or isinstance(value, (tuple, list))):
        return found
    pairs = list(zip(found, value, strict=False)) if isinstance(value, (tuple, list)) else [(found, value)]
    whole = not isinstance(value, (tuple, list)) or len(found) == len(value)
    right = all([len(axis) for axis in axes] == list(tensor.shape) for axes, tensor in pairs)
    return found if whole and right else None


class Arguments:
    """The arguments of the current node by the names of the operator's schema; tensors as axes of labels."""

    def __init__(self, trace: Trace, values: Mapping[str, Any]) -> None:
        node, target = trace.node, trace.node.target
        schema = target._schema.arguments if hasattr(target, "_schema") else []  # noqa: SLF001 - torch has no other way
        names = [argument.name for argument in schema]
        self.raw: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        self.defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
        self._values = values

    def __getitem__(self, name: str) -> Any:
        """Return a plain argument, or its default."""
        return self.raw.get(name, self.defaults.get(name))

    def axes(self, name: str) -> Axes | None:
        """Return a tensor argument; None when it is absent."""
        return self.look(self.raw.get(name))

    def look(self, value: Any) -> Axes | None:
        """Return what an argument that is a node was interpreted as."""
        return self._values[value.name] if hasattr(value, "name") and hasattr(value, "op") else None

    def tensors(self) -> list[Axes]:
        """Return every tensor argument, in order."""
        found = [self.look(value) for value in self.raw.values()]
        return [axes for axes in found if axes is not None]


def _leaves(value: Any) -> list[Ids]:
    if isinstance(value, np.ndarray):
        return [value]
    return [leaf for part in value or () for leaf in _leaves(part)]


def _plain(value: Any) -> Any:
    """Return the axes of a value of the data."""
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return [np.zeros(int(size), np.int64) for size in getattr(value, "shape", ())]
