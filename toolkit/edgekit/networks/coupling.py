"""Which channels of a network stand or fall together, read off its traced graph.

The module is exported (`torch.export`, static shapes, evaluation mode) and its ATen graph is interpreted with labels
in place of numbers: a tensor is a list of axes, an axis is one label per index. Axes of parameters get labels of their
own; an operator ties the labels of what it combines (a residual add ties index by index, a flatten repeats a label for
every pixel, grouped-query attention ties the queries of a group through the repeated key). Labels that reach an
output, an axis of the data, a normalization or an operator that is not understood are kept, and say why: what is kept
is never wrong. Tied weights and modules that are called twice need no rule: they are one tensor, so one set of labels.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edgekit.errors import UnsupportedError
from edgekit.networks.export import INNER
from edgekit.networks.labels import PLAIN, Ids, Labels
from edgekit.networks.network import Network, evaluating, flatten

if TYPE_CHECKING:
    import torch

Axes = list[Ids]
"""A tensor while it is interpreted: one array of labels per axis."""


POINTWISE = "where"
"""An operator whose rule holds for everything that torch tags as pointwise."""


class Slot(NamedTuple):
    """One axis of one tensor of the state."""

    tensor: str
    axis: int


class Size(NamedTuple):
    """A size that the code of a module gives as a number: it changes with the labels of the axis that it measures."""

    module: str
    labels: Ids
    value: int


class Work(NamedTuple):
    """What a layer does for the example inputs: multiply-accumulates, elements it moves, how it computes."""

    macs: int
    moved: int
    kind: str


class Split(NamedTuple):
    """An axis that a reshape splits into `parts`; one of the parts carries the channels."""

    kind: str
    parts: int
    carried: Ids


@dataclass(kw_only=True)
class Coupling:
    """What was learned about a network.

    Attributes:
        labels: the classes.
        axes: slot -> one label per index.
        makes: slots whose indices are channels that a linear or convolutional layer computes.
        reads: slots whose indices are channels that such a layer sums over.
        grouped: weight of a convolution with groups -> whether its groups are removed whole (else: all get thinner).
        blocks: normalization weight -> channels per group, for GroupNorm.
        sizes: sizes written in code.
        work: weight -> what its layer does, once per call.
        splits: node -> how its axis was split.
        inexact: labels that are normalized over, when that was allowed: without them the others change.
        unknown: operator that is not understood, with its module -> how many channels are kept because of it.
    """

    labels: Labels = field(default_factory=Labels)
    axes: dict[Slot, Ids] = field(default_factory=dict)
    makes: set[Slot] = field(default_factory=set)
    reads: set[Slot] = field(default_factory=set)
    grouped: dict[str, bool] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)
    sizes: list[Size] = field(default_factory=list)
    splits: dict[str, Split] = field(default_factory=dict)
    work: dict[str, list[Work]] = field(default_factory=dict)
    inexact: list[Ids] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)

    def freedom(self) -> tuple[int, int]:
        """Return how many made channels are free, and how many classes they are."""
        made = [self.labels.free(self.axes[slot]) for slot in sorted(self.makes)]
        flat = np.concatenate(made) if made else np.zeros(0, np.int64)
        return int((flat != PLAIN).sum()), len(np.unique(flat[flat != PLAIN]))


@dataclass(kw_only=True)
class Trace:
    """The state of one interpretation."""

    coupling: Coupling
    choices: Mapping[str, int]
    across_norms: bool
    slots: dict[str, str] = field(default_factory=dict)
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
        """Return the shape of the current node's value, or of one of its values."""
        value = self.node.meta["val"]
        return tuple(int(size) for size in (value if output is None else value[output]).shape)

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

    def slot(self, value: Any) -> str:
        """Return the name in the state of the tensor that an argument is; empty for what is computed."""
        return self.slots.get(value.name, "") if hasattr(value, "name") else ""

    def work(self, value: Any, read: Axes, *, macs: int, kind: str = "compute") -> None:
        """Note what a layer with a weight does."""
        if name := self.slot(value):
            sizes = (self.shape(), tuple(map(len, read)), tuple(map(len, self.weight(name))))
            done = Work(macs, sum(map(math.prod, sizes)), kind)
            self.coupling.work.setdefault(name, []).append(done)

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


def trace_program(network: Network) -> torch.export.ExportedProgram:
    """Export a module with static shapes, in evaluation mode, on its example inputs.

    Raises:
        UnsupportedError: torch cannot trace it; names the module and the line that it stopped at.
    """
    import torch

    if network.program is not None:
        raise UnsupportedError(
            "an exported program has its sizes written into its graph: its channels cannot be removed",
            where="program.pt2",
            remedy="Give the model as python:module:factory or as a Hugging Face directory.",
        )
    feed = network.feed(network.sizes)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), evaluating(network.module):
            return torch.export.export(_wrapped(network), (), feed, strict=False)
    except Exception as error:
        reason = " ".join(str(error).split())[:400]
        raise UnsupportedError(
            f"the network cannot be traced: {type(error).__name__}: {reason}",
            where=type(network.module).__name__,
            remedy="Write decisions that depend on values with `torch.where`, or leave out the pruning stage.",
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def couple(network: Network, *, across_norms: bool = False) -> Coupling:
    """Trace a network and return its coupling, with the splits of reshaped axes that leave most channels free.

    Args:
        network: in any mode; unchanged.
        across_norms: let channels go that LayerNorm normalizes over, though what it gives for the others changes.

    Raises:
        UnsupportedError: the network cannot be traced.
    """
    program = trace_program(network)
    state = set(network.module.state_dict())
    choices: dict[str, int] = {}
    best = _interpret(program, state, choices, across_norms=across_norms)
    kinds = sorted({split.kind for split in best.splits.values()})
    for kind in kinds:
        nodes = [node for node, split in best.splits.items() if split.kind == kind]
        for part in range(1, max((best.splits[node].parts for node in nodes), default=1)):
            tried = {**choices, **dict.fromkeys(nodes, part)}
            other = _interpret(program, state, tried, across_norms=across_norms)
            if other.freedom() > best.freedom():
                best, choices = other, tried
    return best


def _interpret(
    program: torch.export.ExportedProgram, state: set[str], choices: Mapping[str, int], *, across_norms: bool
) -> Coupling:
    from edgekit.networks.coupling_ops import OPERATORS  # its rules need the classes of this file

    trace = Trace(coupling=Coupling(), choices=choices, across_norms=across_norms)
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    values: dict[str, Any] = {}
    for node in program.graph.nodes:
        trace.node = node
        if node.op == "placeholder":
            values[node.name] = _placed(trace, stored.get(node.name, "").removeprefix(f"{INNER}."), state)
        elif node.op == "output":
            for argument in node.all_input_nodes:
                for axis in _leaves(values[argument.name]):
                    trace.labels.keep(axis, "it reaches an output of the network")
        elif node.op == "call_function":
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
        found = handle(trace, Arguments(trace, values)) if node.meta.get("val") is not None else []
        if found is not None:
            _check(trace, found)
            return found
    inputs = [axis for argument in node.all_input_nodes for axis in _leaves(values[argument.name])]
    flat = np.concatenate(inputs) if inputs else np.zeros(0, np.int64)
    count = int((trace.labels.free(flat) != PLAIN).sum())
    if count and node.meta.get("val") is not None:
        text = trace.why(f"'{name_of(node)}' is not understood")
        trace.labels.keep(flat, text)
        trace.coupling.unknown[text] = trace.coupling.unknown.get(text, 0) + count
    return _plain(node.meta.get("val"))


def _is_pointwise(node: torch.fx.Node) -> bool:
    import torch

    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _check(trace: Trace, found: Any) -> None:
    """Compare what an operator's rule gave with the shape that torch computed."""
    value = trace.node.meta.get("val", ())
    value = () if value is None else value
    pairs = zip(found, value, strict=True) if isinstance(value, (tuple, list)) else [(found, value)]
    for axes, tensor in pairs:
        if [len(axis) for axis in axes] != list(tensor.shape):
            text = f"{trace.node.target}: axes {[len(axis) for axis in axes]} for shape {list(tensor.shape)}"
            raise AssertionError(text)


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


def _wrapped(network: Network) -> torch.nn.Module:
    """Return a module that takes the named inputs and returns the tensors of the output."""
    import torch

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, INNER, network.module)

        def forward(self, **feed: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = network.call(feed) if network.call else getattr(self, INNER)(**feed)
            return tuple(flatten(found, taken=set(feed)).values())

    wrapper = Wrapper()
    wrapper.training = False
    return wrapper
