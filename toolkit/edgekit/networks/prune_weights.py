"""Set single weights of a `torch` artifact to zero: the smallest of all, or of every few. Runs in a child process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit import events
from edgekit.errors import InputError, UnsupportedError
from edgekit.networks.child import Tell
from edgekit.networks.plain import make_plain, parametrized
from edgekit.networks.prune_apply import hold
from edgekit.networks.prune_groups import skipped
from edgekit.networks.rebuild import rebuild
from edgekit.networks.record import Change
from edgekit.networks.saving import save_network
from edgekit.numerics.importance import largest_of_block, smallest

if TYPE_CHECKING:
    import torch

Masks = dict[str, npt.NDArray[np.bool_]]


def sparsify(arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Write the artifact with zeros and return its facts: `sparsity`.

    Args:
        arguments: `folder`, `out`, `ratio`, `pattern` (empty, or `2:4`), `scope`, `skip`, `shapes`, `dtypes`,
            `threads`.
        tell: gets progress.

    Raises:
        UnsupportedError: the network has no weight of a linear or convolutional layer left to prune.
    """
    import torch

    torch.set_num_threads(int(arguments["threads"]))
    folder, out = Path(arguments["folder"]), Path(arguments["out"])
    network = rebuild(folder, shapes=arguments["shapes"], dtypes=arguments["dtypes"])
    changes = [Change(kind="plain")] if parametrized(network.module) else []
    make_plain(network.module, {})
    if network.program is not None:
        raise UnsupportedError(
            "an exported program does not say which of its tensors are weights of layers",
            where="program.pt2",
            remedy="Give the model as python:module:factory or as a Hugging Face directory.",
        )
    found = dict(weights_of(network.module, tuple(arguments["skip"])))
    if not found:
        raise UnsupportedError(
            "no weight of a linear or convolutional layer may become zero",
            where=type(network.module).__name__,
            remedy="Name fewer layers in `skip`, or leave the stage out.",
        )
    tell(events.Progress(label="sparsify", done=0, total=1))
    masks = masks_of(found, float(arguments["ratio"]), str(arguments["pattern"]), str(arguments["scope"]))
    with torch.no_grad():
        for name, (weight, _) in found.items():
            weight.mul_(torch.from_numpy(masks[name]).to(weight.dtype))
    changes.append(Change(kind="zeros", details={"tensors": sorted(found)}))
    save_network(network.module, folder, out, tuple(changes))
    tell(events.Progress(label="sparsify", done=1, total=1))
    zeros = {name: float((weight == 0).float().mean()) for name, (weight, _) in found.items()}
    total = sum(value.numel() for value in network.module.parameters())
    none = sum(int((value == 0).sum()) for value in network.module.parameters())
    odd = [name for name, (weight, axis) in found.items() if _uneven(weight.shape[axis], str(arguments["pattern"]))]
    return {
        "sparsity": {
            "pattern": arguments["pattern"],
            "parameters": none / total,
            "layers": {name: round(share, 6) for name, share in sorted(zeros.items())},
            "uneven": sorted(odd),
        }
    }


def weights_of(module: torch.nn.Module, skip: tuple[str, ...]) -> Iterator[tuple[str, tuple[torch.Tensor, int]]]:
    """Yield the weights of linear and convolutional layers, each tensor once: name, (weight, axis that is summed over).

    What is an embedding too is left out, and what matches a pattern of `skip`.
    """
    import torch

    seen = {id(part.weight) for part in module.modules() if isinstance(part, torch.nn.Embedding)}
    seen |= {id(value) for name, value in module.named_parameters(remove_duplicate=False) if skipped(name, skip)}
    for path, part in module.named_modules():
        weight = getattr(part, "weight", None)
        axis = _summed(part)
        if axis is not None and isinstance(weight, torch.nn.Parameter) and id(weight) not in seen:
            seen.add(id(weight))
            yield f"{path}.weight" if path else "weight", (weight, axis)


def _summed(part: torch.nn.Module) -> int | None:
    """Return the axis of a layer's weight that its outputs sum over; None for other modules."""
    import torch

    if isinstance(part, torch.nn.modules.conv._ConvNd):  # noqa: SLF001 - the base of every convolution
        return 0 if part.transposed else 1
    if isinstance(part, torch.nn.Linear):
        return 1
    return 0 if hasattr(part, "nf") and type(part).__name__ == "Conv1D" else None


def masks_of(weights: dict[str, tuple[torch.Tensor, int]], ratio: float, pattern: str, scope: str) -> Masks:
    """Return which weights stay: of every M along the summed axis the N largest, else all but the smallest share."""
    arrays = {name: weight.detach().float().numpy() for name, (weight, _) in weights.items()}
    if pattern:
        keep, block = map(int, pattern.split(":"))
        return {
            name: np.moveaxis(largest_of_block(np.moveaxis(values, axis, -1), keep, block), -1, axis)
            for name, values in arrays.items()
            for axis in [weights[name][1]]
        }
    if scope == "layer":
        return {name: smallest(values, ratio) for name, values in arrays.items()}
    relative = np.concatenate([(np.abs(values) / _size(values)).ravel() for values in arrays.values()])
    kept, masks, start = smallest(relative, ratio), {}, 0
    for name, values in arrays.items():
        masks[name] = kept[start : start + values.size].reshape(values.shape)
        start += values.size
    return masks


def _size(values: npt.NDArray[np.floating]) -> float:
    """Return the root mean square of a layer's weights: layers are compared relative to it."""
    return float(np.sqrt(np.square(values, dtype=np.float64).mean())) or 1.0


def _uneven(count: int, pattern: str) -> bool:
    return bool(pattern) and count % int(pattern.split(":")[1]) != 0


def hold_zeros(module: torch.nn.Module, details: dict[str, Any]) -> torch.nn.Module:
    """Let training leave the zeros of the tensors named in `details` alone: their gradient is zero.

    Raises:
        InputError: a tensor is not there.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    for name in details["tensors"]:
        if name not in named:
            remedy = "Remove the artifact: edgekit cache prune --all. The next build makes it again."
            raise InputError(f"no tensor '{name}' in the model", where="record.json: changes", remedy=remedy)
        hold(named[name])
    return module
