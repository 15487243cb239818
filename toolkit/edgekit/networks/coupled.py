"""What is known of a network's coupling: classes of channels, and where they stand; see `coupling`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from edgekit.networks.labels import PLAIN, Ids, Labels

Axes = list[Ids]
"""A tensor while it is interpreted: one array of labels per axis."""


class Slot(NamedTuple):
    """One axis of one tensor of the state."""

    tensor: str
    axis: int


class Size(NamedTuple):
    """A size that the code of a module gives as a number: it changes with the labels of the axis that it measures."""

    module: str
    labels: Ids
    value: int


class Work(NamedTuple):
    """What a layer does for the example inputs: multiply-accumulates, elements it moves, how it computes."""

    macs: int
    moved: int
    kind: str


class Split(NamedTuple):
    """An axis that a reshape splits into `parts`; one of the parts carries the channels."""

    kind: str
    parts: int
    carried: Ids


@dataclass(kw_only=True)
class Coupling:
    """What was learned about a network.

    Attributes:
        labels: the classes.
        axes: slot -> one label per index.
        makes: slots whose indices are channels that a linear or convolutional layer computes.
        reads: slots whose indices are channels that such a layer sums over.
        grouped: weight of a convolution with groups -> whether its groups are removed whole (else: all get thinner).
        blocks: normalization weight -> channels per group, for GroupNorm.
        sizes: sizes written in code.
        work: weight -> what its layer does, once per call.
        splits: node -> how its axis was split.
        inexact: labels that are normalized over, when that was allowed: without them the others change.
        unknown: operator that is not understood, with its module -> how many channels are kept because of it.
    """

    labels: Labels = field(default_factory=Labels)
    axes: dict[Slot, Ids] = field(default_factory=dict)
    makes: set[Slot] = field(default_factory=set)
    reads: set[Slot] = field(default_factory=set)
    grouped: dict[str, bool] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)
    sizes: list[Size] = field(default_factory=list)
    splits: dict[str, Split] = field(default_factory=dict)
    work: dict[str, list[Work]] = field(default_factory=dict)
    inexact: list[Ids] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)

    def freedom(self) -> tuple[int, int]:
        """Return how many made channels are free, and how many classes they are."""
        made = [self.labels.free(self.axes[slot]) for slot in sorted(self.makes)]
        flat = np.concatenate(made) if made else np.zeros(0, np.int64)
        return int((flat != PLAIN).sum()), len(np.unique(flat[flat != PLAIN]))
