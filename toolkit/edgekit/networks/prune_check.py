"""Prove a pruned network: it must give what the original gives when nothing reads the channels that went."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from edgekit.networks.coupled import Slot
from edgekit.networks.network import Network
from edgekit.networks.prune_apply import tensors_of

if TYPE_CHECKING:
    import torch

TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
"""Largest difference relative to an output's largest magnitude: sums in another order, nothing else."""

_FEW = 4

Outputs = list[dict[str, "torch.Tensor"]]


class Snapshot:
    """A module's tensors and numbers, to undo a trial."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parts = [
            (part, dict(part.__dict__), dict(part._parameters), dict(part._buffers), dict(part._modules))  # noqa: SLF001
            for part in module.modules()
        ]

    def restore(self) -> None:
        """Put everything back."""
        for part, attributes, parameters, buffers, modules in self._parts:
            part.__dict__.update(attributes)
            part._parameters.update(parameters)  # noqa: SLF001
            part._buffers.update(buffers)  # noqa: SLF001
            part._modules.update(modules)  # noqa: SLF001


@contextlib.contextmanager
def unread(module: torch.nn.Module, reads: Mapping[Slot, Sequence[int]]) -> Iterator[None]:
    """Put zeros where weights read the given indices; the values come back afterwards."""
    import torch

    state = tensors_of(module)
    saved = []
    with torch.no_grad():
        for slot, indices in reads.items():
            weight, at = state[slot.tensor], torch.tensor(list(indices))
            saved.append((weight, slot.axis, at, weight.index_select(slot.axis, at).clone()))
        for weight, axis, at, _ in saved:
            weight.index_fill_(axis, at, 0)
        try:
            yield
        finally:
            for weight, axis, at, values in reversed(saved):
                weight.index_copy_(axis, at, values)


@contextlib.contextmanager
def doubled(module: torch.nn.Module, *, wanted: bool) -> Iterator[None]:
    """Turn the floats of a module into float64, and back afterwards: exact for every narrower type."""
    import torch

    named = _floats(module)
    kinds = {id(value): value.dtype for value in named.values()}
    names = {name: value.dtype for name, value in named.items()}
    try:
        for value in {id(value): value for value in named.values()}.values() if wanted else ():
            value.data = value.data.to(torch.float64)
        yield
    finally:
        for name, value in _floats(module).items():  # a tensor that was cut is a new one of the same name
            value.data = value.data.to(kinds.get(id(value), names.get(name, value.dtype)))


def _floats(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: value for name, value in tensors if value.is_floating_point()}


def run_all(network: Network, *, double: bool) -> Outputs:
    """Run a network at every set of sizes that it is checked at; its tensors must have the type asked for.

    Example inputs of one value throughout (zeros) would prove little: seeded noise takes their place.
    """
    found: Outputs = []
    for sizes in network.checks:
        feed = {name: _varied(value) for name, value in network.feed({**network.sizes, **sizes}).items()}
        if double:
            feed = {name: value.double() if value.is_floating_point() else value for name, value in feed.items()}
        found.append(network.run(feed))
    return found


def _varied(value: torch.Tensor) -> torch.Tensor:
    import torch

    if not value.is_floating_point() or value.numel() < _FEW or bool((value != value.flatten()[0]).any()):
        return value
    return torch.randn(value.shape, generator=torch.Generator().manual_seed(0)).to(value.dtype)


def difference(wanted: Outputs, found: Outputs) -> float:
    """Return the largest difference relative to an output's largest magnitude; infinite where shapes differ.

    Values that are not finite must be the same on both sides: some models give NaN for padding.
    """
    worst = 0.0
    for one, other in zip(wanted, found, strict=True):
        if one.keys() != other.keys():
            return float("inf")
        for name, value in one.items():
            if value.shape != other[name].shape:
                return float("inf")
            one_side, two = value.double(), other[name].double()
            alike = (one_side == two) | (one_side.isnan() & two.isnan())  # infinities and NaN may be the network's own
            if not bool((alike | (one_side.isfinite() & two.isfinite())).all()):
                return float("inf")
            apart = (one_side - two).abs().masked_fill(alike, 0).max().item() if value.numel() else 0.0
            finite = one_side[one_side.isfinite()]
            scale = finite.abs().max().item() if finite.numel() else 0.0
            worst = max(worst, apart / scale if scale else float(apart > 0))
    return worst
