"""Say where in a network numbers stop being finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgekit.errors import InputError

if TYPE_CHECKING:
    import torch

_LOWER = "Lower the stage's `rate`, or look at the training samples for values that are out of range."


def check_finite(module: torch.nn.Module, where: str) -> None:
    """Raise InputError that names the parameter whose gradient is not finite."""
    import torch

    for name, parameter in module.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise InputError(
                f"{where}: the gradient of the parameter '{_plain(name)}' is not finite",
                where=_plain(name),
                remedy=_LOWER,
            )


def name_fault(
    module: torch.nn.Module, forward: Callable[[dict[str, torch.Tensor]], Any], feed: dict[str, torch.Tensor], text: str
) -> InputError:
    """Return an error that names the input, parameter or module where numbers stop being finite."""
    import torch

    for name, value in feed.items():
        if not bool(torch.isfinite(value).all()):
            return InputError(f"{text}: the input has NaN or infinite values", where=name, remedy="Remove the sample.")
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if not bool(torch.isfinite(value).all()):
            return InputError(
                f"{text}: the parameter '{_plain(name)}' is not finite", where=_plain(name), remedy=_LOWER
            )
    found: list[str] = []

    def watch(name: str) -> Callable[[torch.nn.Module, Any, Any], None]:
        return lambda _module, _inputs, output: found.append(name) if _broken(output) else None

    leaves = [(name, part) for name, part in module.named_modules() if not list(part.children())]
    hooks = [part.register_forward_hook(watch(name)) for name, part in leaves]
    try:
        with torch.no_grad():
            forward(feed)
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        name = _plain(found[0])
        return InputError(
            f"{text}: the module '{name}' is the first to give NaN or infinity", where=name, remedy=_LOWER
        )
    return InputError(text, where="loss", remedy=_LOWER)


def _broken(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return value.is_floating_point() and not bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, (tuple, list)) and any(_broken(item) for item in value)


def _plain(name: str) -> str:
    """Return a name as the user's module has it."""
    return name.removeprefix("inner.")
