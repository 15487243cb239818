"""Weights of a quantized graph that are zero, and stay so while the others are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgekit.networks.graph_floats import meanings

if TYPE_CHECKING:
    import torch

    from edgekit.networks.graph_module import GraphModule

_NOTHING = 1e-6  # of a step


def hold_zeros(module: GraphModule) -> int:
    """Let no gradient reach the latent weights whose integers stand for zero; return how many those are.

    Args:
        module: nothing of it was trained yet.
    """
    known, codes, count = meanings(module), module.integers(), 0
    for number, latent in enumerate(module.latents):
        if number in known:
            zero, one = (value.expand(latent.shape) for value in known[number])
            step = one - zero
            held = (zero + codes[number] * step).abs() <= _NOTHING * step.abs()
        else:  # nothing says what its integers stand for: those around zero do so for themselves
            held = (
                (codes[number] == 0) if module.weights[number].low < 0 else torch.zeros_like(latent, dtype=torch.bool)
            )
        count += int(held.sum())
        if held.any():
            latent.register_hook(_without(held))
    return count


def _without(held: torch.Tensor) -> Any:
    def hook(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.masked_fill(held.to(gradient.device), 0)

    return hook
