"""Turn weights that a module computes from others (weight and spectral normalization) into weights of their own.

What torch's parametrizations and the older hooks of `torch.nn.utils` compute before each use is stored in its place:
the network gives what it gave, bit by bit, and its channels are indices of one tensor. Training goes on without the
parametrization. This is the change of kind `plain` in a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgekit.networks.network import evaluating

if TYPE_CHECKING:
    import torch


def make_plain(module: torch.nn.Module, _details: dict[str, Any]) -> torch.nn.Module:
    """Store what every parametrization computes in evaluation mode; return the module."""
    import torch

    with evaluating(module):
        for part in parametrized(module):
            for name in list(getattr(part, "parametrizations", {})):
                torch.nn.utils.parametrize.remove_parametrizations(part, name, leave_parametrized=True)
                value = getattr(part, name)
                if not isinstance(value, torch.nn.Parameter):  # what it was computed from is not trained
                    delattr(part, name)
                    part.register_parameter(name, torch.nn.Parameter(value.detach(), requires_grad=False))
            for remove, name in _hooks(part):
                remove(part, name)
                _forget(part)
    return module


def parametrized(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the submodules with weights that are computed before each use."""
    import torch

    return [part for part in module.modules() if torch.nn.utils.parametrize.is_parametrized(part) or _hooks(part)]


def _forget(part: torch.nn.Module) -> None:
    """Remove what torch leaves behind: a hook that asks for the tensors of spectral normalization when it loads."""
    for hooks in (part._state_dict_hooks, part._load_state_dict_pre_hooks):  # noqa: SLF001 - torch's own are there
        for key, hook in list(hooks.items()):
            if type(getattr(hook, "hook", hook)).__name__.startswith("SpectralNorm"):
                del hooks[key]


def _hooks(part: torch.nn.Module) -> list[tuple[Callable[..., Any], str]]:
    """Return what removes the hooks of `torch.nn.utils.weight_norm` and `spectral_norm`, and their weights' names."""
    from torch.nn import utils

    kinds = {"WeightNorm": utils.remove_weight_norm, "SpectralNorm": utils.remove_spectral_norm}
    hooks: list[Any] = list(part._forward_pre_hooks.values())  # noqa: SLF001 - as torch's own functions find them
    found = [(kinds.get(type(hook).__name__), getattr(hook, "name", "")) for hook in hooks]
    return [(remove, name) for remove, name in found if remove is not None]
