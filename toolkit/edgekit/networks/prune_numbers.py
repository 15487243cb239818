"""The numbers in a module's code that name sizes: which attributes follow when channels go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.networks.coupled import Coupling, Size, Slot
from edgekit.networks.prune_apply import Kept, Numbers, find

if TYPE_CHECKING:
    import torch

MOST = 64
"""So many combinations of attributes are tried at most."""

_OWN = {
    ("weight", 0): ("out_features", "num_features", "num_channels", "num_parameters", "num_embeddings"),
    ("weight", 1): ("in_features", "embedding_dim", "in1_features"),
    ("weight", 2): ("in2_features",),
    ("weight_ih", 1): ("input_size",),
    ("weight_hh", 1): ("hidden_size",),
    ("weight_ih_l0", 1): ("input_size",),
    ("weight_hh_l0", 1): ("hidden_size",),
    ("running_mean", 0): ("num_features",),
}
"""Attributes of torch's layers that say the length of an axis of a tensor of theirs."""


def own_numbers(module: torch.nn.Module, coupling: Coupling, kept: Kept) -> Numbers:
    """Return the attributes of torch's own layers (and transformers' Conv1D) after their tensors are cut to `kept`."""
    found: Numbers = {}
    for name, axes in kept.items():
        path, _, leaf = name.rpartition(".")
        part, values = find(module, path), found.setdefault(path, {})
        for axis, indices in axes.items():
            for attribute in _OWN.get((leaf, int(axis)), ()):
                if isinstance(getattr(part, attribute, None), int):
                    values[attribute] = len(indices)
        if leaf == "weight":
            values.update(_of_layer(part, name, axes, coupling))
    return {path: values for path, values in found.items() if values}


def _of_layer(part: torch.nn.Module, name: str, axes: Mapping[str, list[int]], coupling: Coupling) -> dict[str, Any]:
    """Return the attributes of a layer that need more than the length of one axis."""
    import torch

    weight = part.weight
    assert isinstance(weight, torch.Tensor)
    sizes = [len(axes[str(axis)]) if str(axis) in axes else size for axis, size in enumerate(weight.shape)]
    if isinstance(part, torch.nn.modules.conv._ConvNd):  # noqa: SLF001 - the base of every convolution
        groups = part.groups
        if coupling.grouped.get(name):  # whole groups went: they are as wide as before
            groups = groups * sizes[0] // weight.shape[0]
        if part.transposed:
            return {"in_channels": sizes[0], "out_channels": sizes[1] * groups, "groups": groups}
        return {"in_channels": sizes[1] * groups, "out_channels": sizes[0], "groups": groups}
    if isinstance(part, torch.nn.GroupNorm):
        block = coupling.blocks.get(name)
        return {"num_channels": sizes[0], **({"num_groups": sizes[0] // block} if block else {})}
    if hasattr(part, "normalized_shape"):
        return {"normalized_shape": sizes}
    if hasattr(part, "nf") and weight.dim() == 2:  # noqa: PLR2004 - Conv1D of transformers: a matrix [in, out]
        return {"nf": sizes[1], **({"nx": sizes[0]} if hasattr(part, "nx") else {})}
    return {}


def size_after(size: Size, coupling: Coupling, kept: Kept) -> int:
    """Return what a size that stands in the code must become: how many of the labels it measures are kept."""
    gone = gone_labels(coupling, kept)
    return int((~np.isin(coupling.labels.find(size.labels), gone)).sum())


def gone_labels(coupling: Coupling, kept: Kept) -> np.ndarray[Any, Any]:
    """Return the representatives of the classes that go."""
    found = [np.zeros(0, np.int64)]
    for name, axes in kept.items():
        for axis, indices in axes.items():
            labels = coupling.labels.find(coupling.axes[Slot(name, int(axis))])
            found.append(np.delete(labels, indices))
    return np.unique(np.concatenate(found))


def guesses(module: torch.nn.Module, coupling: Coupling, kept: Kept) -> Iterator[Numbers]:
    """Yield sets of attributes to set, the likeliest first: none, then those whose values are sizes that change.

    An attribute is looked for in the module whose code has the size, else in the modules around it. Modules of one
    class behave alike: they follow together.
    """
    yield {}
    wanted: dict[str, set[tuple[int, int]]] = {}
    gone = gone_labels(coupling, kept)
    for size in coupling.sizes:
        after = int((~np.isin(coupling.labels.find(size.labels), gone)).sum())
        if after != len(size.labels):
            wanted.setdefault(size.module, set()).add((size.value, after))
    yield from _combinations(module, wanted, _equal)
    yield from _combinations(module, wanted, _scaled)


def _equal(value: int, old: int, new: int) -> int | None:
    return new if value == old else None


def _scaled(value: int, old: int, new: int) -> int | None:
    """Scale a factor or a multiple of a size: `heads` where the code has `heads * width`."""
    related = value > 1 and (old % value == 0 or value % old == 0)
    return value * new // old if related and value * new % old == 0 else None


def _combinations(module: torch.nn.Module, wanted: Mapping[str, set[tuple[int, int]]], fits: Any) -> Iterator[Numbers]:
    options: dict[tuple[str, str, int], dict[str, Any]] = {}
    for path, pairs in sorted(wanted.items()):
        for place in _around(path):
            part = find(module, place)
            hits = [
                (name, value, number)
                for name, value in sorted(vars(part).items())
                if not name.startswith("_")
                for number, (old, new) in enumerate(sorted(pairs))
                for value in [_changed(value, old, new, fits)]
                if value is not None
            ]
            for name, value, number in hits:
                options.setdefault((type(part).__qualname__, name, number), {})[place] = value
            if hits:
                break
    keys = list(options)
    for chosen in itertools.islice(itertools.product((True, False), repeat=len(keys)), MOST):
        numbers: Numbers = {}
        for key, use in zip(keys, chosen, strict=True):
            for path, value in options[key].items() if use else ():
                numbers.setdefault(path, {})[key[1]] = value
        if numbers:
            yield numbers


def _changed(value: Any, old: int, new: int, fits: Any) -> Any:
    """Return what an attribute becomes, a list for a tuple of numbers; None when it has no such number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return fits(value, old, new)
    if isinstance(value, (tuple, list)) and value and all(type(item) is int for item in value):
        made = [item if (got := fits(item, old, new)) is None else got for item in value]
        return made if made != list(value) else None
    return None


def _around(path: str) -> list[str]:
    """Return a module's path and those of the modules around it, innermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), -1, -1)]
