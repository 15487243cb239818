"""What channels cost: multiply-accumulates and predicted milliseconds of the layers that make and read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit.networks.coupled import Coupling, Slot, Work
from edgekit.networks.coupling_trace import name_of
from edgekit.networks.prune_groups import Group
from edgekit.numerics.importance import Places

if TYPE_CHECKING:
    import torch


_RECURRENT = frozenset(
    f"{kind}{ending}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for ending in ("", "_cell")
)
"""Operators of recurrent layers and cells."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What a device reaches, from its profile's roofline: operations per second by kind of layer, bytes per second.

    Attributes:
        compute: of dense layers.
        depthwise: of depthwise convolutions.
        grouped: of other convolutions with groups.
        bandwidth: bytes per second.
        bytes: of one element.
    """

    compute: float
    depthwise: float
    grouped: float
    bandwidth: float
    bytes: int

    def milliseconds(self, work: Work) -> float:
        """Return how long a layer takes: arithmetic or memory traffic, whichever is longer."""
        rate = {"depthwise": self.depthwise, "grouped": self.grouped}.get(work.kind, self.compute)
        return 1e3 * max(2 * work.macs / rate, work.moved * self.bytes / self.bandwidth)


def channel_cost(group: Group, coupling: Coupling, rates: Rates | None) -> float:
    """Return what one channel of a group costs in the layers that make or read it: milliseconds, MACs without rates.

    A layer's cost is shared out among the indices of the axis that the channel stands on.
    """
    total = 0.0
    for slot in {*group.makes, *group.reads, *_depthwise(group, coupling)}:
        share = group.places[slot].shape[1] / len(coupling.axes[slot])
        for work in coupling.work.get(slot.tensor, ()):
            total += share * (rates.milliseconds(work) if rates else work.macs)
    return total


def _depthwise(group: Group, coupling: Coupling) -> list[Slot]:
    """Return the slots of convolutions whose groups go whole: they neither make nor read channels, but pass them on."""
    return [slot for slot in group.places if slot.axis == 0 and coupling.grouped.get(slot.tensor)]


def macs_after(coupling: Coupling, gone: Sequence[tuple[Group, Places]]) -> float:
    """Return the share of the multiply-accumulates of layers with weights that is left without channels."""
    left: dict[str, dict[int, int]] = {}
    for group, channels in gone:
        for slot, places in group.places.items():
            lost = places.shape[1] * channels.shape[-1]
            axes = left.setdefault(slot.tensor, {})
            axes[slot.axis] = axes.get(slot.axis, len(coupling.axes[slot])) - lost
    before = after = 0.0
    for name, works in coupling.work.items():
        macs = float(sum(work.macs for work in works))
        share = 1.0
        for axis, count in left.get(name, {}).items():
            share *= count / next(len(labels) for slot, labels in coupling.axes.items() if slot == (name, axis))
        before, after = before + macs, after + macs * share
    return after / before if before else 1.0


def count_macs(program: torch.export.ExportedProgram) -> int:
    """Count the multiply-accumulates of a traced network: linear layers, convolutions, products, attention."""
    total = 0
    for node in program.graph.nodes:
        value = node.meta.get("val") if node.op == "call_function" else None
        if value is not None and name_of(node) in _RECURRENT:
            total += _recurrent_macs(node)
            continue
        shapes = [_shape(argument) for argument in node.args if _shape(argument)]
        if value is None or not hasattr(value, "shape") or len(shapes) < 2:  # noqa: PLR2004 - a product has two sides
            continue
        name, out = name_of(node), _size(value.shape)
        if name == "linear":
            total += out * shapes[1][1]
        elif name.startswith("conv"):
            total += (_size(shapes[0]) if "transpose" in name else out) * _size(shapes[1][1:])
        elif name in ("addmm", "baddbmm"):
            total += out * shapes[1][-1]
        elif name in ("matmul", "mm", "bmm"):
            total += out * shapes[0][-1]
        elif name == "scaled_dot_product_attention":
            query, key = shapes[0], shapes[1]
            total += _size(query[:-1]) * key[-2] * (query[-1] + int(value.shape[-1]))
    return total


def _recurrent_macs(node: torch.fx.Node) -> int:
    """Count what recurrent layers or one cell multiply: every matrix once a step and sample."""
    given: Sequence[Any] = node.args[2:4] if name_of(node).endswith("_cell") else node.args[2]  # type: ignore[assignment]
    matrices = [_shape(weight) for weight in given if len(_shape(weight)) == 2]  # noqa: PLR2004 - biases are vectors
    return _size(_shape(node.args[0])[:-1]) * sum(map(_size, matrices))


def _shape(argument: object) -> tuple[int, ...]:
    meta: Mapping[str, object] = getattr(argument, "meta", {})
    return tuple(int(size) for size in getattr(meta.get("val"), "shape", ()))


def _size(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= int(size)
    return total
