"""What stages change in a model's structure, redone when it is rebuilt. Values of tensors are loaded afterwards."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edgekit.errors import UnsupportedError
from edgekit.networks.record import RECORD, Change

if TYPE_CHECKING:
    import torch

Apply = Callable[["torch.nn.Module", dict[str, Any]], "torch.nn.Module"]
"""Takes the module and a change's `details`, changes its structure in place, and returns it (or what replaces it)."""

WEIGHTS_ONLY = "weights"
"""Kind of a change that leaves the structure as it is: training."""

CHANGES = {
    WEIGHTS_ONLY: "edgekit.networks.changes:keep_structure",
    "plain": "edgekit.networks.plain:make_plain",
    "channels": "edgekit.networks.prune_apply:shrink",
    "layers": "edgekit.networks.prune_apply:drop_layers",
    "zeros": "edgekit.networks.prune_weights:hold_zeros",
}
"""Kind of change -> `module:function` of type `Apply`. Adding a kind is one line here."""


def apply_changes(module: torch.nn.Module, changes: Sequence[Change]) -> torch.nn.Module:
    """Redo changes on a module as its origin builds it, oldest first.

    Floats of 16 bits become float32 where there are changes: that is what stages train in.

    Raises:
        UnsupportedError: a kind that this version does not know.
        InputError: a change does not fit the module.
    """
    if not changes:
        return module
    module = _wide(module)
    for change in changes:
        if change.kind not in CHANGES:
            raise UnsupportedError(f"unknown change '{change.kind}'", where=RECORD, remedy="Use a newer edgekit.")
        home, _, name = CHANGES[change.kind].partition(":")
        apply: Apply = getattr(importlib.import_module(home), name)
        module = apply(module, change.details)
    return module


def keep_structure(module: torch.nn.Module, _details: dict[str, Any]) -> torch.nn.Module:
    """Return the module as it is."""
    return module


def _wide(module: torch.nn.Module) -> torch.nn.Module:
    import torch

    narrow = (torch.float16, torch.bfloat16)
    return module.float() if any(value.dtype in narrow for value in module.state_dict().values()) else module
