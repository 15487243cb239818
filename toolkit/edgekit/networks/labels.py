"""Classes of channels that stand or fall together: union-find over integers, many at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
"""One label per index of an axis."""

PLAIN = 0
"""The label of what no class holds: axes of the data, and whatever is never removed."""


class Labels:
    """Labels of channels. Tied labels are one class; a class that is kept is never removed, and says why.

    Label 0 (`PLAIN`) is kept, and tying a label to it keeps the label's class without joining all that is kept.
    """

    def __init__(self) -> None:
        self._parent: Ids = np.zeros(1, np.int64)
        self._why: Ids = np.ones(1, np.int64)
        self._reasons = ["", "it belongs to the data"]

    @property
    def count(self) -> int:
        """Return how many labels there are: all are smaller."""
        return len(self._parent)

    def fresh(self, count: int) -> Ids:
        """Return `count` new labels, each a class of its own."""
        first = len(self._parent)
        made = np.arange(first, first + count, dtype=np.int64)
        self._parent = np.concatenate([self._parent, made])
        self._why = np.concatenate([self._why, np.zeros(count, np.int64)])
        return made

    def find(self, labels: Ids) -> Ids:
        """Return the representative of each label's class."""
        found = self._parent[labels]
        while True:
            above = self._parent[found]
            if np.array_equal(above, found):
                return found
            found = above

    def tie(self, first: Ids, second: Ids, reason: str) -> None:
        """Make `first[i]` and `second[i]` one class for every i; what is tied to `PLAIN` is kept for this reason."""
        first, second = np.broadcast_arrays(first, second)
        left, right = first.ravel(), second.ravel()
        self.keep(right[left == PLAIN], reason)
        self.keep(left[right == PLAIN], reason)
        both = (left != PLAIN) & (right != PLAIN)
        left, right = left[both], right[both]
        while True:
            low, high = self.find(left), self.find(right)
            apart = low != high
            if not apart.any():
                return
            low, high = np.minimum(low, high)[apart], np.maximum(low, high)[apart]
            for child, parent in {int(h): int(lo) for h, lo in zip(high, low, strict=True)}.items():
                if self._parent[child] == child:
                    self._parent[child] = parent
                    self._why[parent] = self._why[parent] or self._why[child]

    def keep(self, labels: Ids, reason: str) -> None:
        """Never remove the classes of these labels; the first reason of a class is the one that is told."""
        roots = np.unique(self.find(labels))
        open_roots = roots[self._why[roots] == 0]
        if open_roots.size:
            if reason not in self._reasons:
                self._reasons.append(reason)
            self._why[open_roots] = self._reasons.index(reason)

    def kept(self, labels: Ids) -> npt.NDArray[np.bool_]:
        """Say of each label whether its class is kept."""
        found: npt.NDArray[np.bool_] = self._why[self.find(labels)] != 0
        return found

    def free(self, labels: Ids) -> Ids:
        """Return the representatives, `PLAIN` for what is kept."""
        roots = self.find(labels)
        return np.where(self._why[roots] != 0, PLAIN, roots)

    def reason(self, label: int) -> str:
        """Return why a label's class is kept; empty when it is not."""
        return self._reasons[int(self._why[self.find(np.array([label]))[0]])]
