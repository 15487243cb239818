"""How often integer weights turn back while they are trained (Nagel et al., 2022): noise that learns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import torch

    from edgekit.networks.graph_module import GraphModule

    Module = torch.nn.Module
else:
    Module = object  # `watch` adds the base: this file must not import torch when it is imported

MOMENTUM = 0.01
OFTEN = 0.005
"""Frequency (turns a step, as a moving average) from which a weight counts as oscillating; that of the paper."""


def watch(module: GraphModule) -> Oscillation:
    """Start to watch a graph module; what comes is to be made a part of it."""
    import torch

    return cast("Oscillation", type("Oscillation", (Oscillation, torch.nn.Module), {})(module))


class Oscillation(Module):
    """Watches the integers of a graph module from step to step; its state is in buffers, so that checkpoints hold it.

    Attributes:
        start: the integers before training.
    """

    def __init__(self, module: GraphModule) -> None:
        """Start with the integers as they are."""
        import torch

        super().__init__()
        self._watched = (module,)  # in a tuple: not a part of this module
        self.start = [value.cpu().to(torch.int32) for value in module.integers()]
        for index, value in enumerate(self.start):
            self.register_buffer(f"before_{index}", value.clone())
            self.register_buffer(f"direction_{index}", torch.zeros(value.shape, dtype=torch.int8))
            self.register_buffer(f"often_{index}", torch.zeros(value.shape))

    def step(self) -> None:
        """Count which weights moved against their last move."""
        import torch

        for index, value in enumerate(self._watched[0].integers()):
            before, direction, often = self._buffers_of(index)
            move = (value.to(torch.int32) - before).sign().to(torch.int8)
            often.mul_(1 - MOMENTUM).add_((move * direction < 0).to(often.dtype), alpha=MOMENTUM)
            direction.copy_(torch.where(move != 0, move, direction))
            before.copy_(value)

    def facts(self) -> dict[str, float]:
        """Return what was seen up to the epoch that was kept.

        Returns:
            `rate` (turns a step and weight at its end), `share` (of weights that oscillate), `moved` (of weights whose
            integer is another than at the start).
        """
        import torch

        often = torch.cat([self._buffers_of(index)[2].reshape(-1).cpu() for index in range(len(self.start))])
        pairs = zip(self.start, self._watched[0].integers(), strict=True)
        moved = sum(int((old != new.cpu()).sum()) for old, new in pairs) / often.numel()
        found = {"rate": float(often.mean()), "share": float((often > OFTEN).double().mean()), "moved": moved}
        return {name: float(f"{value:.4g}") for name, value in found.items()}

    def _buffers_of(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        before, direction, often = (getattr(self, f"{name}_{index}") for name in ("before", "direction", "often"))
        return before, direction, often
