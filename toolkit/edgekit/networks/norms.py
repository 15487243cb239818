"""Batch normalization while a trained network is trained further.

After pruning, running statistics belong to a network that is gone: they are estimated anew, over training samples,
before the first step. Then batches of enough samples normalize by their own statistics, as in training from the start,
which bears the rates that win back what pruning took; running ones follow. Small batches would make another network of
it than the one that will run: there the running statistics are held.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


ENOUGH = 16
"""Samples of a batch from which it may normalize by its own statistics."""


def norms_of(module: torch.nn.Module) -> list[Any]:
    """Return the batch normalizations of a module that have running statistics."""
    from torch.nn.modules.batchnorm import _BatchNorm

    found = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    return [part for part in found if part.track_running_stats and part.running_mean is not None]


def hold_norms(module: torch.nn.Module) -> None:
    """Let batch normalizations use their running statistics, whatever mode the rest is in."""
    for part in norms_of(module):
        part.training = False


LONE = "more than 1 value per channel"
"""What torch says where a batch normalization would normalize one value by itself."""


@contextmanager
def held(module: torch.nn.Module) -> Iterator[None]:
    """Let batch normalizations use their running statistics inside."""
    modes = [(part, part.training) for part in norms_of(module)]
    hold_norms(module)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def settling(module: torch.nn.Module) -> Iterator[None]:
    """Estimate running statistics anew as the mean over what runs inside, everything else in evaluation mode."""
    parts = norms_of(module)
    momenta = [part.momentum for part in parts]
    for part in parts:
        part.reset_running_stats()
        part.momentum, part.training = None, True  # None: the plain mean over all batches
    try:
        yield
    finally:
        for part, momentum in zip(parts, momenta, strict=True):
            part.momentum, part.training = momentum, False


def statistics(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return copies of all running statistics."""
    return [buffer.clone() for part in norms_of(module) for buffer in part.buffers()]


def running(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the running means and variances themselves."""
    return [buffer for part in norms_of(module) for buffer in part.buffers() if buffer.is_floating_point()]


def restore(module: torch.nn.Module, kept: Iterable[torch.Tensor]) -> None:
    """Put such copies back."""
    buffers = [buffer for part in norms_of(module) for buffer in part.buffers()]
    for buffer, value in zip(buffers, kept, strict=True):
        buffer.copy_(value)
