"""Remove channels and layers from a module: slices of tensors, and the numbers in its modules that name their sizes.

This is the change of kind `channels` and `layers` in a record; the values of what is left are loaded afterwards when a
model is rebuilt.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.errors import InputError

if TYPE_CHECKING:
    import torch

_REMEDY = "Remove the artifact: edgekit cache prune --all. The next build makes it again."

_HELD = "holds_zeros"

Kept = dict[str, dict[str, list[int]]]
"""Tensor of the state -> axis -> indices that are kept."""

Numbers = dict[str, dict[str, Any]]
"""Module -> attribute -> what it becomes: an int, or a list of ints for a tuple."""


def shrink(module: torch.nn.Module, details: dict[str, Any]) -> torch.nn.Module:
    """Keep what `details` says: `kept` (indices per tensor and axis) and `numbers` (attributes of modules).

    Tensors that are shared stay shared.

    Raises:
        InputError: it does not fit the module.
    """
    slice_tensors(module, details["kept"])
    set_numbers(module, details["numbers"])
    return module


def slice_tensors(module: torch.nn.Module, kept: Mapping[str, Mapping[str, list[int]]]) -> None:
    """Replace parameters and buffers by what is kept of them, in every place that holds them."""
    import torch

    named, holders = _tensors(module)
    for name, axes in kept.items():
        if name not in named:
            raise InputError(f"no tensor '{name}' in the model", where="record.json: changes", remedy=_REMEDY)
        old = named[name]
        new = old.detach()
        for axis, indices in axes.items():
            at = int(axis)
            if at >= new.dim() or not indices or max(indices) >= new.shape[at]:
                text = f"axis {axis} of '{name}' has {list(old.shape)} indices, not those to keep"
                raise InputError(text, where="record.json: changes", remedy=_REMEDY)
            new = new.index_select(at, torch.tensor(indices, device=new.device))
        made = torch.nn.Parameter(new, old.requires_grad) if isinstance(old, torch.nn.Parameter) else new
        if getattr(old, _HELD, False):
            hold(made)
        for table, leaf in holders[id(old)]:
            table[leaf] = made
    for part in module.modules():
        if isinstance(part, torch.nn.RNNBase):  # it holds its weights in a list too
            part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]  # noqa: SLF001


def hold(weight: torch.Tensor) -> None:
    """Let training leave the zeros of a parameter alone: their gradient is zero, also after the parameter is cut."""
    held: Any = weight  # torch leaves this method without types
    held.register_hook(lambda gradient: gradient * (held.detach() != 0))
    setattr(held, _HELD, True)


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return every parameter and buffer by all its names, also the buffers that the state leaves out."""
    return _tensors(module)[0]


def _tensors(
    module: torch.nn.Module,
) -> tuple[dict[str, torch.Tensor], dict[int, list[tuple[dict[str, Any], str]]]]:
    """Return every parameter and buffer by name, and for each tensor the dicts of modules that hold it."""
    named: dict[str, torch.Tensor] = {}
    holders: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        tables: list[dict[str, Any]] = [part._parameters, part._buffers]  # noqa: SLF001 - the dicts that hold them
        for table, leaf in ((held, leaf) for held in tables for leaf in held if held[leaf] is not None):
            named[f"{path}.{leaf}" if path else leaf] = table[leaf]
            holders.setdefault(id(table[leaf]), []).append((table, leaf))
    return named, holders


def set_numbers(module: torch.nn.Module, numbers: Mapping[str, Mapping[str, Any]]) -> None:
    """Set integer attributes of submodules; a tuple stays a tuple."""
    for path, values in numbers.items():
        part = find(module, path)
        for name, value in values.items():
            if not hasattr(part, name):
                raise InputError(f"no '{name}' in '{path}'", where="record.json: changes", remedy=_REMEDY)
            old = getattr(part, name)
            setattr(part, name, type(old)(value) if isinstance(old, (tuple, list)) else value)


def find(module: torch.nn.Module, path: str) -> torch.nn.Module:
    """Return a submodule by its path; InputError when there is none."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        raise InputError(f"no module '{path}' in the model", where="record.json: changes", remedy=_REMEDY) from None


def drop_layers(module: torch.nn.Module, details: dict[str, Any]) -> torch.nn.Module:
    """Keep the children `kept` of the list of layers `list`; layers that know their number get the new one.

    Raises:
        InputError: there is no such list of layers.
    """
    import torch

    path, kept = str(details["list"]), [int(index) for index in details["kept"]]
    layers = find(module, path)
    if not isinstance(layers, (torch.nn.ModuleList, torch.nn.Sequential)) or not kept or max(kept) >= len(layers):
        raise InputError(f"'{path}' is no list of so many layers", where="record.json: changes", remedy=_REMEDY)
    chosen = [layers[index] for index in kept]
    made = type(layers)(chosen) if isinstance(layers, torch.nn.ModuleList) else type(layers)(*chosen)
    made.train(layers.training)
    parent, _, leaf = path.rpartition(".")
    holder = find(module, parent) if parent else module
    setattr(holder, leaf, made)
    _cut_lists(holder, len(layers), kept)
    for number, (old, layer) in enumerate(zip(kept, chosen, strict=True)):
        for part in layer.modules():
            for name in ("layer_idx", "layer_id", "layer_index"):
                if getattr(part, name, None) == old:
                    setattr(part, name, number)
    return module


def _cut_lists(module: torch.nn.Module, count: int, kept: list[int]) -> None:
    """Keep in the configurations of a module what they list layer by layer: kinds of attention, for one.

    Configurations are replaced, not changed: others may hold them.
    """
    made: dict[int, Any] = {}
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is None or not hasattr(config, "__dict__"):
            continue
        if id(config) not in made:
            listed = {
                name: [value[index] for index in kept]
                for name, value in vars(config).items()
                if isinstance(value, list) and len(value) == count and name.endswith(("_types", "_layers"))
            }
            made[id(config)] = copy.copy(config) if listed else config
            vars(made[id(config)]).update(listed)
        if made[id(config)] is not config:
            part.config = made[id(config)]
