"""Channels last in memory while a network with convolutions trains.

The same numbers, in about two thirds of the time on a CPU, most of all where layers are depthwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.networks.network import evaluating

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]

_MAP = 4  # axes of an image or of a kernel: batch or outputs, channels, height, width
_CLOSE = 1e-3


def takes_channels_last(module: torch.nn.Module, feed: Tensors) -> bool:
    """Say whether a module computes the same with channels last in memory: code that reads the layout may not.

    Args:
        module: maps a feed to outputs; it is as it was afterwards.
        feed: one batch.
    """
    import torch

    if not any(value.dim() == _MAP for value in [*module.parameters(), *feed.values()]):
        return False
    with torch.no_grad(), evaluating(module):
        wanted: Tensors = module(feed)
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave it out
        try:
            found: Tensors = module(channels_last(feed))
        except (RuntimeError, ValueError):  # e.g. `view` across axes that no longer lie together
            return False
        finally:
            module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return all(_near(found[name], value) for name, value in wanted.items())


def channels_last(feed: Tensors) -> Tensors:
    """Return a feed with its maps laid out channels last."""
    import torch

    return {
        name: value.contiguous(memory_format=torch.channels_last) if value.dim() == _MAP else value
        for name, value in feed.items()
    }


def _near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    import torch

    if not wanted.is_floating_point():
        return bool(torch.equal(found, wanted))
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    return bool(torch.allclose(found, wanted, rtol=_CLOSE, atol=_CLOSE * max(scale, 1e-12), equal_nan=True))
