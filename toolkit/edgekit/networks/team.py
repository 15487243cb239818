"""The processes that train one network together: who takes which batches, and what they tell each other.

Gradients are averaged here and not by a wrapper around the module: what is learned need not be reached through one call
of it (projections between layers, integers of a graph), and no parameter has to take part in every step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from edgekit.errors import InputError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class Team:
    """All processes of a training; often one.

    Attributes:
        size: how many there are.
        rank: which one this is.
    """

    def __init__(self, accelerator: Any) -> None:
        """Take an `accelerate.Accelerator`."""
        self._accelerator = accelerator
        self.size, self.rank = int(accelerator.num_processes), int(accelerator.process_index)

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def steps(self, plan: list[T]) -> list[T]:
        """Return this process's batches of an epoch: equally many for all, some of the first twice if need be."""
        count = -(-len(plan) // self.size)
        return [plan[(step * self.size + self.rank) % len(plan)] for step in range(count)]

    def share(self, plan: list[T]) -> list[T]:
        """Return this process's part of batches that are looked at once."""
        return plan[self.rank :: self.size]

    def wait(self) -> None:
        """Wait until all are here."""
        self._accelerator.wait_for_everyone()

    def total(self, *values: float) -> tuple[float, ...]:
        """Return the sums of some numbers over all processes."""
        import torch

        if self.size == 1:
            return values
        held = torch.tensor(values, dtype=torch.float64, device=self._accelerator.device)
        return tuple(self._accelerator.reduce(held, reduction="sum").tolist())

    def start_alike(self, module: torch.nn.Module) -> None:
        """Give every process the parameters and buffers of the first."""
        from accelerate.utils import broadcast

        if self.size > 1:
            for value in [*module.parameters(), *module.buffers()]:
                value.data.copy_(broadcast(value.detach().clone()))

    def average(self, values: Iterable[torch.Tensor]) -> None:
        """Replace tensors by their mean over all processes."""
        if self.size > 1:
            for value in values:
                value.copy_(self._accelerator.reduce(value.clone(), reduction="mean"))

    def average_gradients(self, module: torch.nn.Module, fault: InputError | None) -> None:
        """Replace gradients by their mean over all processes.

        Args:
            module: all that is learned.
            fault: what went wrong in this process, if anything.

        Raises:
            InputError: the fault of any process, in every one.
        """
        import torch

        if self.size == 1:
            if fault is not None:
                raise fault
            return
        learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
        known = [float(parameter.grad is not None) for parameter in learned]
        parts = [p.grad.flatten() if p.grad is not None else torch.zeros_like(p).flatten() for p in learned]
        told = torch.tensor([float(fault is not None), *known], device=self._accelerator.device)
        told = self._accelerator.reduce(told, reduction="sum")
        if told[0] > 0:
            raise self._fault(fault)
        flat = self._accelerator.reduce(torch.cat(parts), reduction="mean")
        sizes = [parameter.numel() for parameter in learned]
        for parameter, mean, count in zip(learned, flat.split(sizes), told[1:].tolist(), strict=True):
            parameter.grad = mean.view(parameter.shape).clone() if count else None

    def _fault(self, fault: InputError | None) -> InputError:
        from accelerate.utils import gather_object

        told = gather_object([(fault.text, fault.where, fault.remedy) if fault is not None else None])
        text, where, remedy = next(one for one in told if one is not None)
        return InputError(text, where=where, remedy=remedy)
