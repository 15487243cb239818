"""A module with what it takes to run and export it: named example inputs, dynamic axes, sizes to check at."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgekit import events
from edgekit.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

Axes = dict[str, dict[int, str]]
"""Input name -> axis -> name of the dynamic axis."""

BATCH = "batch"


@dataclass(kw_only=True)
class Network:
    """What `rebuild` gives.

    Attributes:
        module: the module, in the mode (training or not) that it was built in.
        examples: input name -> tensor, in the order of the inputs; as large along every dynamic axis as any check.
        axes: the dynamic axes.
        sizes: size of every named axis for the export, and of what follows from them (past and new tokens together).
        checks: sizes to compare at; each differs from `sizes` where an axis is dynamic.
        call: runs the module on named inputs; None calls it by keyword.
        program: set when the model is an exported program.
        pretrained: it is a model of transformers.
        findings: what was found while rebuilding.
    """

    module: torch.nn.Module
    examples: dict[str, torch.Tensor]
    axes: Axes = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    checks: tuple[dict[str, int], ...] = ({},)
    call: Callable[[dict[str, torch.Tensor]], Any] | None = None
    program: torch.export.ExportedProgram | None = None
    pretrained: bool = False
    task: str = ""
    findings: tuple[events.Finding, ...] = ()

    def feed(self, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Return the example inputs with every named axis at the size given; repeated where they are too short."""
        return {name: _resized(value, self.axes.get(name, {}), sizes) for name, value in self.examples.items()}

    def run(self, feed: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run in evaluation mode, without gradients: input name -> tensor to output name -> tensor."""
        import torch

        with torch.no_grad(), evaluating(self.module):
            found = self.call(feed) if self.call else self.module(**feed)
        return flatten(found, taken=set(feed))

    def labels(self) -> set[str]:
        """Return the names of the dynamic axes."""
        return {label for table in self.axes.values() for label in table.values()}

    def fixed(self, kept: set[str]) -> Network:
        """Return the network with only the axes in `kept` dynamic: a fixed batch is 1, others as for the export."""
        gone = self.labels() - kept
        constant = {name: 1 if name == BATCH else self.sizes[name] for name in gone}
        checks = tuple({name: size for name, size in check.items() if name not in gone} for check in self.checks)
        return dataclasses.replace(
            self,
            axes={
                key: {axis: name for axis, name in table.items() if name in kept} for key, table in self.axes.items()
            },
            sizes={name: size for name, size in self.sizes.items() if name not in gone},
            checks=tuple(check for index, check in enumerate(checks) if check not in checks[:index]),
            examples=self.feed(constant),
        )


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode, and every submodule back in its own mode afterwards.

    What modules keep for the next run (LeViT its attention biases) is forgotten: weights may be others by then.
    """
    modes = [(part, part.training) for part in module.modules()]
    held = [(value, value.copy()) for part, _ in modes for value in _containers(part)]
    for part, _ in modes:  # `eval()` itself may be overridden, or refused by an exported program's module
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for value, before in held:
            _put_back(value, before)


def _containers(part: torch.nn.Module) -> list[Any]:
    """Return the dicts and lists that are plain attributes of a module."""
    return [value for name, value in vars(part).items() if type(value) in (dict, list) and not name.startswith("_")]


def _put_back(value: Any, before: Any) -> None:
    """Give a dict or list the entries that it had, where it has others."""
    pairs = zip(_entries(value), _entries(before), strict=False)
    if len(value) == len(before) and all(one is two for one, two in pairs):
        return
    value.clear()
    if isinstance(value, dict):
        value.update(before)
    else:
        value.extend(before)


def _entries(value: Any) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else list(value)


def checks_for(
    sizes: Mapping[str, int], examples: Mapping[str, torch.Tensor], axes: Axes
) -> tuple[dict[str, int], ...]:
    """Return two sets of sizes to compare at: a batch of 1 with other axes halved, a batch of 3 with the largest."""
    if not sizes:
        return ({},)
    largest = {label: int(examples[name].shape[axis]) for name in axes for axis, label in axes[name].items()}
    small = {name: 1 if name == BATCH else max(1, size // 2) for name, size in sizes.items()}
    large = {name: 3 if name == BATCH else largest[name] for name in sizes}
    return (small, large)


def flatten(value: Any, taken: set[str], prefix: str = "") -> dict[str, torch.Tensor]:
    """Name the tensors of a module's output: keys of a dict, fields of a named tuple, else `output`, `output_1`, ...

    None and caches of past keys are left out.

    Raises:
        UnsupportedError: the output holds something that is not a tensor.
    """
    import torch

    if value is None or hasattr(value, "get_seq_length"):
        return {}
    if isinstance(value, torch.Tensor):
        name = prefix or "output"
        return {f"output_{name}" if name in taken else name: value}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        pairs = [(f"{prefix}.{key}" if prefix else str(key), item) for key, item in value.items()]
    elif isinstance(value, (tuple, list)):
        pairs = [(f"{prefix}.{index}" if prefix else f"output_{index}", item) for index, item in enumerate(value)]
    else:
        raise UnsupportedError(
            f"the output is {type(value).__name__}, not a tensor",
            where=prefix or "output",
            remedy="Return a tensor, a tuple or a dict of tensors.",
        )
    return {name: leaf for label, item in pairs for name, leaf in flatten(item, taken, label).items()}


def _resized(value: torch.Tensor, axes: Mapping[int, str], sizes: Mapping[str, int]) -> torch.Tensor:
    import torch

    for axis, name in axes.items():
        if name in sizes:
            value = value.index_select(axis, torch.arange(sizes[name]) % value.shape[axis])
    return value
