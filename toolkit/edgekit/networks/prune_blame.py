"""Find the channels that keep a network from being pruned: those stay, all others still may go."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from edgekit.networks.coupled import Coupling
from edgekit.networks.network import Network
from edgekit.networks.prune_groups import Group
from edgekit.networks.prune_remove import can_go
from edgekit.numerics.importance import Places

Gone = Sequence[tuple[Group, Places]]


def culprits(network: Network, coupling: Coupling, gone: Gone, measured: Collection[str]) -> set[str]:
    """Return the names of groups to keep whole, so that the others can go.

    Args:
        network: as it was when it was coupled; it stays so.
        coupling: of the network.
        gone: groups and channels that cannot go all together.
        measured: names of groups whose channels the code counts: tried by what they are in every layer. Without any,
            groups are tried one by one, in halves.
    """
    lost = [(group, channels) for group, channels in gone if channels.size]
    roles = sorted({group.role for group, _ in lost if group.name in measured})
    if not roles:
        return {group.name for group, _ in _guilty(network, coupling, lost)}
    if len(roles) == 1:
        return set(measured)
    own = {
        role: [(group, kept) for group, kept in lost if group.role == role and group.name in measured] for role in roles
    }
    bad = [role for role in roles if not can_go(network, coupling, own[role])]
    return {group.name for role in bad for group, _ in own[role]} or set(measured)


def _guilty(network: Network, coupling: Coupling, gone: Gone) -> list[tuple[Group, Places]]:
    """Halve what cannot go until single groups are left; halves that can go alone, not together: the second stays."""
    if can_go(network, coupling, gone):
        return []
    if len(gone) <= 1:
        return list(gone)
    halves = gone[: len(gone) // 2], gone[len(gone) // 2 :]
    return [row for half in halves for row in _guilty(network, coupling, half)] or list(halves[1])
