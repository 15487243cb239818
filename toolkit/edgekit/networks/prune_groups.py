"""Channels of a network that may go, in groups of interchangeable ones: from the coupling to what is chosen from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal

import numpy as np
import numpy.typing as npt

from edgekit.networks.coupled import Coupling, Slot
from edgekit.networks.labels import PLAIN
from edgekit.numerics.importance import Floats, Norm, Places, combined, gathered, loss_without, norms, step_of

Importance = Literal["l1", "l2", "batch-norm", "taylor"]
Array = npt.NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Channels that stand at the same places, so that any of them may go.

    Attributes:
        name: a weight that makes them.
        places: slot -> `[channels, indices of each]`.
        makes: slots of layers that compute them.
        reads: slots of layers that sum over them.
        exact: without the channels that go, the others are what they were.
    """

    name: str
    places: dict[Slot, Places]
    makes: tuple[Slot, ...]
    reads: tuple[Slot, ...]
    exact: bool

    @property
    def size(self) -> int:
        """How many channels there are."""
        return len(next(iter(self.places.values())))

    @property
    def role(self) -> str:
        """What the group is in every layer: its name without numbers."""
        return re.sub(r"\d+", "#", self.name)

    @property
    def weight(self) -> int:
        """How many computed features one channel holds."""
        return sum(self.places[slot].shape[1] for slot in self.makes)

    def step(self, multiple: int) -> int:
        """Return how many channels go at once so that every layer's width stays a multiple."""
        return step_of(multiple, [self.places[slot].shape[1] for slot in (*self.makes, *self.reads)])


def groups_of(coupling: Coupling, banned: Collection[str] = ()) -> list[Group]:
    """Return the groups of channels that may go, in order of their names.

    Args:
        coupling: of the network.
        banned: names of groups to leave out.
    """
    places: dict[int, dict[Slot, list[int]]] = defaultdict(lambda: defaultdict(list))
    for slot in sorted(coupling.axes):
        free = coupling.labels.free(coupling.axes[slot])
        for index in np.flatnonzero(free != PLAIN):
            places[int(free[index])][slot].append(int(index))
    alike: dict[tuple[tuple[Slot, int], ...], list[dict[Slot, list[int]]]] = defaultdict(list)
    for held in places.values():
        if any(slot in coupling.makes for slot in held):
            alike[tuple((slot, len(indices)) for slot, indices in held.items())].append(held)
    changed = {int(root) for labels in coupling.inexact for root in coupling.labels.free(labels)}
    groups = []
    for signature, members in alike.items():
        slots = [slot for slot, _ in signature]
        made = tuple(slot for slot in slots if slot in coupling.makes)
        table = {slot: np.array([held[slot] for held in members], np.int64) for slot in slots}
        first = coupling.labels.free(coupling.axes[slots[0]][table[slots[0]][:, 0]])
        group = Group(
            name=made[0].tensor,
            places=table,
            makes=made,
            reads=tuple(slot for slot in slots if slot in coupling.reads),
            exact=not any(int(root) in changed for root in first),
        )
        groups.append(group)
    groups = _named(sorted(groups, key=lambda group: (group.name, min(map(tuple, group.places)))))
    return [group for group in groups if group.name not in banned]


def _named(groups: list[Group]) -> list[Group]:
    """Tell groups that one weight makes apart: `conv.weight`, `conv.weight (2)`."""
    counts: dict[str, int] = defaultdict(int)
    found = []
    for group in groups:
        counts[group.name] += 1
        number = counts[group.name]
        name = group.name if number == 1 else f"{group.name} ({number})"
        found.append(Group(name=name, places=group.places, makes=group.makes, reads=group.reads, exact=group.exact))
    return found


def skipped(name: str, patterns: Collection[str]) -> bool:
    """Say whether a tensor is one that a user wants left alone, by its name or that of a module around it."""
    return any(fnmatch(name, pattern) or fnmatch(name, f"{pattern}.*") for pattern in patterns)


def scores_of(
    group: Group,
    tensor: Callable[[str], Array],
    kind: Importance,
    *,
    sensitivities: Mapping[Slot, Floats] | None = None,
    batch_norms: Collection[str] = (),
) -> Floats:
    """Return how much each channel of a group matters: norms and scales relative to the group's mean.

    Args:
        group: the group.
        tensor: returns a tensor of the state by name.
        kind: `l1` and `l2`: norms of the weights that make and read the channels; `batch-norm`: the magnitude of
            BatchNorm's scale, the norm `l1` where a group has none; `taylor`: what the loss would change.
        sensitivities: for `taylor`: what the loss of every batch changes without each index of a slot that makes or
            reads channels, `[batches, indices]`.
        batch_norms: names of the scales of BatchNorm layers.
    """
    if kind == "taylor":
        known = sensitivities or {}
        slots = group.reads or group.makes
        return loss_without([(known[slot], group.places[slot]) for slot in slots])
    scales = [slot for slot in group.places if slot.tensor in batch_norms]
    if kind == "batch-norm" and scales:
        found = [(np.abs(tensor(slot.tensor)).astype(np.float64), slot) for slot in scales]
        return combined([gathered(scale, group.places[slot]) for scale, slot in found])
    norm: Norm = "l2" if kind == "l2" else "l1"
    parts = [(norms(tensor(slot.tensor), slot.axis, norm), slot) for slot in (*group.makes, *group.reads)]
    return combined([gathered(scores, group.places[slot]) for scores, slot in parts])
