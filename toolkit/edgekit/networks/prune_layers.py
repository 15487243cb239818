"""Remove whole layers: blocks of one class in a list, each taking and giving a tensor of the same shape."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.errors import UnsupportedError, UsageError
from edgekit.networks.network import Network
from edgekit.networks.prune_apply import drop_layers
from edgekit.networks.prune_check import TOLERANCE, Snapshot, difference, doubled, run_all

if TYPE_CHECKING:
    import torch


def find_layers(network: Network) -> tuple[str, list[float]]:
    """Return the path of the longest list of like layers, and how much each of them changes what it is given.

    The change is 1 - cos(input, output), the mean over the last axis, on the example inputs (Men et al., "ShortGPT",
    2024).

    Raises:
        UnsupportedError: the network has no such list.
    """
    import torch

    lists = [
        (len(part), path, part)
        for path, part in network.module.named_modules()
        if isinstance(part, (torch.nn.ModuleList, torch.nn.Sequential))
        and len(part) > 1
        and len({type(layer) for layer in part}) == 1
        and len(list(part[0].children())) > 0
    ]
    for _, path, part in sorted(lists, key=lambda row: (-row[0], row[1])):
        influence = _influence(network, list(part))
        if influence is not None:
            return path, influence
    raise UnsupportedError(
        "no list of like layers, each of which gives a tensor of the shape that it takes",
        where=type(network.module).__name__,
        remedy="Leave `layers` out of the stage prune-channels.",
    )


def _influence(network: Network, layers: Sequence[torch.nn.Module]) -> list[float] | None:
    """Return how much each layer changes its input; None where one is not called once with a tensor that fits."""
    seen: dict[int, list[float]] = {}

    def look(index: int) -> Any:
        def hook(_module: Any, given: tuple[Any, ...], found: Any) -> None:
            before: Any = given[0] if given else None
            after: Any = found[0] if isinstance(found, tuple) else found
            if getattr(before, "shape", None) == getattr(after, "shape", ()):
                alike = _cosine(before, after)
                seen.setdefault(index, []).append(1.0 - alike)

        return hook

    handles = [layer.register_forward_hook(look(index)) for index, layer in enumerate(layers)]
    try:
        network.run(network.feed(network.sizes))
    finally:
        for handle in handles:
            handle.remove()
    if any(len(seen.get(index, [])) != 1 for index in range(len(layers))):
        return None
    return [seen[index][0] for index in range(len(layers))]


def _cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    import torch

    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=-1).mean())


def remove_layers(network: Network, count: int) -> dict[str, Any]:
    """Remove the `count` layers that change least, in place; return the details of the change `layers`.

    Raises:
        UsageError: fewer than one layer would stay. UnsupportedError: there is no list of layers, or the network
            without them is not what it is when they give on what they are given.
    """
    path, influence = find_layers(network)
    if count >= len(influence):
        raise UsageError(
            f"'{path}' has {len(influence)} layers: {count} cannot go",
            where="prune-channels: layers",
            remedy=f"At most {len(influence) - 1}.",
        )
    gone = np.argsort(np.array(influence), kind="stable")[:count].tolist()
    kept = [index for index in range(len(influence)) if index not in gone]
    details = {"list": path, "kept": kept}
    layers = network.module.get_submodule(path)
    with doubled(network.module, wanted=False):
        with _passed([layers[index] for index in gone]):  # type: ignore[index]
            wanted = run_all(network, double=False)
        snapshot = Snapshot(network.module)
        drop_layers(network.module, details)
        try:
            apart, reason = difference(wanted, run_all(network, double=False)), ""
        except Exception as error:  # noqa: BLE001 - whatever code does with fewer layers than it counts on
            apart, reason = float("inf"), f" ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    if apart > TOLERANCE["float32"]:
        snapshot.restore()
        raise UnsupportedError(
            f"without layers {gone} it computes something else: {apart:.2g} apart{reason}",
            where=path,
            remedy="Leave `layers` out of the stage prune-channels.",
        )
    return details


@contextlib.contextmanager
def _passed(layers: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Make layers give on what they are given."""

    def hook(_module: Any, given: tuple[Any, ...], found: Any) -> Any:
        return (given[0], *found[1:]) if isinstance(found, tuple) else given[0]

    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
