"""How much of the outputs single changes of a model cost: measured one by one, and kept when killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgekit.graphs.calibrate import Reference
from edgekit.numerics.output_distance import EXACT_DB, OutputDistance, decibels

_HOPELESS = float(10 ** (EXACT_DB / 10))
_COLUMN_FLOOR = 0.5  # dB: below, a column says no more than zeros would


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of a model costs on the samples it was judged on.

    Attributes:
        noise: power of the outputs' differences as a share of the outputs' power, summed over outputs; for integer
            outputs the share that changed. Of independent changes it adds up.
        outputs: output name -> signal-to-noise ratio in dB.
        faults: outputs that cannot be compared any more, and columns of outputs that lost their information.
    """

    noise: float
    outputs: dict[str, float] = {}
    faults: tuple[str, ...] = ()

    @property
    def sqnr(self) -> float:
        """The noise as a signal-to-noise ratio, in dB."""
        return decibels(1.0, self.noise)


def loss_of(distances: Mapping[str, OutputDistance]) -> Loss:
    """Return the loss of a model whose outputs lie so far from the original's."""
    noise = 0.0
    faults: list[str] = []
    for name, found in distances.items():
        if found.incomparable:
            noise, faults = _HOPELESS, [*faults, f"output '{name}': {found.incomparable}"]
            continue
        noise += 10 ** (-found.sqnr / 10) if found.sqnr < EXACT_DB else 0.0
        noise += 1 - found.equal
        faults += [f"output '{name}': {column}" for column in found.lost_columns(_COLUMN_FLOOR)[:3]]
    outputs = {name: round(found.sqnr, 3) for name, found in distances.items()}
    return Loss(noise=min(noise, _HOPELESS), outputs=outputs, faults=tuple(faults))


class Checkpoint:
    """Losses that were measured, by name, in a file that survives a kill; without a file they are kept in memory."""

    def __init__(self, file: Path | None) -> None:
        """Read what an earlier run left; a last line that was cut off is forgotten."""
        self._file = file
        self.known: dict[str, Loss] = {}
        for line in file.read_bytes().splitlines() if file is not None and file.exists() else ():
            try:
                name, loss = msgspec.json.decode(line, type=tuple[str, Loss])
            except msgspec.DecodeError:
                continue
            self.known[name] = loss

    def keep(self, name: str, loss: Loss) -> None:
        """Remember a loss."""
        self.known[name] = loss
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(b"\n" + msgspec.json.encode((name, loss)))


def measure(
    names: Sequence[str],
    opened: Callable[[str], Any],
    reference: Reference,
    checkpoint: Checkpoint,
    tell: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Loss]:
    """Measure changes of a model, one after the other; only one changed model is open at a time.

    Args:
        names: the changes.
        opened: change -> a session of the model with it.
        reference: the original's outputs, and the samples to judge on.
        checkpoint: what is known already, and where the rest is kept.
        tell: gets changes done and in all.
    """
    for done, name in enumerate(names, 1):
        if name not in checkpoint.known:
            checkpoint.keep(name, loss_of(reference.distances(opened(name))))
        tell(done, len(names))
    return {name: checkpoint.known[name] for name in names}
