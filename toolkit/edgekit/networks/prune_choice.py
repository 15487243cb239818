"""Which channels of a network go: by importance, in whole steps, until the share that was asked for is met."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from edgekit.errors import UnsupportedError
from edgekit.networks.coupled import Coupling, Slot
from edgekit.networks.network import Network
from edgekit.networks.prune_apply import tensors_of
from edgekit.networks.prune_cost import Rates, channel_cost, macs_after
from edgekit.networks.prune_groups import Group, Importance, scores_of
from edgekit.numerics.importance import Candidates, Floats, Places, choose

_BISECTIONS = 24


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `prune` is asked for; see the stage `prune-channels`."""

    ratio: float
    of: Literal["channels", "macs"]
    importance: Importance
    per: Literal["channel", "millisecond"]
    scope: Literal["global", "layer"]
    multiple: int
    least: int
    layers: int
    across_norms: bool
    uniform: bool
    skip: tuple[str, ...]


class NothingError(UnsupportedError):
    """NothingError may go."""


def chosen(
    network: Network,
    coupling: Coupling,
    groups: Sequence[Group],
    options: Options,
    rates: Rates,
    losses: Mapping[Slot, Floats],
) -> list[tuple[Group, Places]]:
    """Choose which channels go: over all groups at once, or the same share of every group."""
    state = {name: value.detach() for name, value in tensors_of(network.module).items()}
    norms = _batch_norms(network)

    def scores(group: Group) -> Floats:
        found = scores_of(
            group, lambda name: state[name].numpy(), options.importance, sensitivities=losses, batch_norms=norms
        )
        if options.per == "millisecond":
            found = found / max(channel_cost(group, coupling, rates), 1e-12)
        return found

    alike: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for group in groups:
        alike[(group.role, group.size) if options.uniform else (group.name, 0)].append(group)
    families = list(alike.values())
    kinds = [
        Candidates(
            scores=np.stack([scores(group) for group in family]) if len(family) > 1 else scores(family[0]),
            weight=sum(_weight(group, coupling, options) for group in family),
            step=family[0].step(options.multiple),
            least=options.least,
        )
        for family in families
    ]

    def take(share: float) -> list[tuple[Group, Places]]:
        total = sum(kind.weight * np.shape(kind.scores)[-1] for kind in kinds)
        found = choose(kinds, share * total, even=options.scope == "layer")
        rows = [np.atleast_2d(channels) for channels in found]
        pairs = zip(families, rows, strict=True)
        return [(group, row) for family, many in pairs for group, row in zip(family, many, strict=True)]

    return take(options.ratio) if options.of == "channels" else _until(take, coupling, options.ratio)


def _until(take: Any, coupling: Coupling, ratio: float) -> list[tuple[Group, Places]]:
    """Find the share of channels after which the work has fallen by `ratio`."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if 1 - macs_after(coupling, take(middle)) < ratio:
            low = middle
        else:
            high = middle
    found: list[tuple[Group, Places]] = min(
        (take(low), take(high)), key=lambda gone: abs(1 - macs_after(coupling, gone) - ratio)
    )
    return found


def _weight(group: Group, coupling: Coupling, options: Options) -> float:
    return float(group.weight) if options.of == "channels" else max(channel_cost(group, coupling, None), 1.0)


def _batch_norms(network: Network) -> set[str]:
    import torch

    kinds = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the base of every BatchNorm
    return {f"{path}.weight" for path, part in network.module.named_modules() if isinstance(part, kinds)}


def nothing_goes(
    network: Network, coupling: Coupling, groups: Sequence[Group], options: Options, banned: Sequence[str]
) -> NothingError:
    """Say why nothing can go, by name."""
    if not groups:
        other = "the network does not run without some of it" if banned else "it is to be left alone"
        reasons = [
            f"'{slot.tensor}': {coupling.labels.reason(int(coupling.axes[slot][0])) or other}"
            for slot in sorted(coupling.makes)[:3]
        ]
        text = "no channel of the network may go: " + ("; ".join(reasons) or "it has no layer that is understood")
        if banned:
            text += f"; sizes in the code keep {', '.join(banned[:3])}"
        normed = any(word in text for word in ("normalizes over it", "mean reduces over it", "norm reduces over it"))
        remedy = (
            "Set across_norms = true, or leave the pruning stage out." if normed else "Leave the pruning stage out."
        )
        return NothingError(text, where=type(network.module).__name__, remedy=remedy)
    widest = max(groups, key=lambda group: group.size)
    return NothingError(
        f"ratio {options.ratio} would empty layers or break the multiple of {options.multiple}: the widest, "
        f"'{widest.name}', has {widest.size} channels, which go {widest.step(options.multiple)} at once",
        where="prune-channels: ratio",
        remedy="Set a smaller `multiple`.",
    )
