"""Remove chosen channels from a network, so that it is proven to compute what it did without them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekit.errors import UnsupportedError
from edgekit.networks.coupled import Coupling, Slot
from edgekit.networks.network import Network
from edgekit.networks.prune_apply import Kept, Numbers, set_numbers, slice_tensors, tensors_of
from edgekit.networks.prune_check import TOLERANCE, Outputs, Snapshot, difference, doubled, run_all, unread
from edgekit.networks.prune_groups import Group
from edgekit.networks.prune_numbers import gone_labels, guesses, own_numbers
from edgekit.numerics.importance import Places


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What was removed.

    Attributes:
        details: of the change `channels`: `kept` and `numbers`.
        difference: between the pruned network and the original with these channels unread, relative; None where
            channels went that are normalized over: there the two differ by nature.
    """

    details: dict[str, Any]
    difference: float | None


class Refused(UnsupportedError):  # noqa: N818 - it is caught where it is thrown: other channels are tried
    """The network does not run without these channels.

    Attributes:
        homes: the modules whose code holds a size that changes.
    """

    def __init__(self, text: str, homes: Sequence[str], where: str) -> None:
        super().__init__(text, where=where)
        self.homes = tuple(homes)


def remove(network: Network, coupling: Coupling, gone: Sequence[tuple[Group, Places]]) -> Removal:
    """Remove channels from a network in place; nothing is changed when it fails.

    Args:
        network: as it was when it was coupled.
        coupling: of the network.
        gone: groups and the channels that go from each.

    Raises:
        Refused: no attribute of its modules makes its code fit the smaller tensors, or it runs and computes something
            else; `homes` are the modules with sizes in their code.
    """
    kept, reads = kept_of(coupling, gone)
    exact = all(group.exact for group, _ in gone)
    double, wanted = _reference(network, reads)
    with doubled(network.module, wanted=double):
        snapshot = Snapshot(network.module)
        numbers, found = _fit(network, coupling, kept, wanted, snapshot, double=double, exact=exact)
    return Removal(details={"kept": kept, "numbers": numbers}, difference=found if exact else None)


def kept_of(coupling: Coupling, gone: Sequence[tuple[Group, Places]]) -> tuple[Kept, dict[Slot, list[int]]]:
    """Return the indices that are kept of every tensor that gets smaller, and those that are no longer read."""
    lost: dict[Slot, list[int]] = defaultdict(list)
    for group, channels in gone:
        for slot, places in group.places.items():
            lost[slot] += places[channels].ravel().tolist()
    kept: Kept = {}
    for slot, indices in sorted(lost.items()):
        if indices:
            left = np.delete(np.arange(len(coupling.axes[slot])), indices).tolist()
            kept.setdefault(slot.tensor, {})[str(slot.axis)] = left
    return kept, {slot: lost[slot] for slot in coupling.reads if lost.get(slot)}


def _reference(network: Network, reads: Mapping[Slot, list[int]]) -> tuple[bool, Outputs]:
    """Run the original with nothing reading what goes: in float64, else as it is."""
    for double in (True, False):
        with doubled(network.module, wanted=double), unread(network.module, reads):
            try:
                return double, run_all(network, double=double)
            except Exception:  # a network may insist on float32: then the comparison is less sharp
                if not double:
                    raise
    raise AssertionError


def _fit(
    network: Network,
    coupling: Coupling,
    kept: Kept,
    wanted: Outputs,
    snapshot: Snapshot,
    *,
    double: bool,
    exact: bool,
) -> tuple[Numbers, float]:
    """Cut the tensors, then set numbers until the network runs and is right; undo it when none make it so."""
    module, best, reason = network.module, float("inf"), ""
    limit = TOLERANCE["float64" if double else "float32"]
    own = own_numbers(module, coupling, kept)
    for guess in list(guesses(module, coupling, kept)):
        slice_tensors(module, kept)
        numbers = {path: {**guess.get(path, {}), **own.get(path, {})} for path in sorted({*own, *guess})}
        set_numbers(module, numbers)
        try:
            outputs = run_all(network, double=double)
            found = difference(wanted, outputs)
        except Exception as error:  # noqa: BLE001 - whatever code does with sizes that do not fit
            reason = reason or f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            best = min(best, found)
            if found <= limit or (not exact and _alike(wanted, outputs)):
                return numbers, found
        snapshot.restore()
    homes = _homes(coupling, kept)
    where = ", ".join(home or type(module).__name__ for home in homes[:3]) or type(module).__name__
    if best < float("inf"):
        text = f"without the channels it computes something else: {best:.2g} apart, at most {limit:.0e} is rounding"
        raise Refused(text, homes, where)
    raise Refused(f"the code has a size that no attribute holds ({reason})", homes, where)


def can_go(network: Network, coupling: Coupling, gone: Sequence[tuple[Group, Places]]) -> bool:
    """Say whether channels could be removed; the network stays as it is."""
    snapshot = Snapshot(network.module)
    kinds = [(value, value.dtype) for value in tensors_of(network.module).values()]
    try:
        remove(network, coupling, gone)
    except Refused:
        return False
    finally:
        snapshot.restore()
        for value, kind in kinds:  # those that were cut are still as wide as they were compared
            value.data = value.data.to(kind)
    return True


def _alike(wanted: Outputs, found: Outputs) -> bool:
    """Say whether outputs have the shapes they had, and are finite where they were."""
    pairs = [(value, two[name]) for one, two in zip(wanted, found, strict=True) for name, value in one.items()]
    return all(a.shape == b.shape and bool((b.isfinite() | ~a.isfinite()).all()) for a, b in pairs)


def _homes(coupling: Coupling, kept: Kept) -> list[str]:
    """Return the modules whose code holds sizes that change."""
    gone = gone_labels(coupling, kept)
    found = [size.module for size in coupling.sizes if np.isin(coupling.labels.find(size.labels), gone).any()]
    return sorted(set(found))
