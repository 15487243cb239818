"""Token sequences of about the same length padded to one length, so that they can be trained on together.

Where a model takes an `attention_mask`, positions that it leaves out change nothing before them: sequences are filled
up on the right, the mask with 0 and labels of tokens with -100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MASK = "attention_mask"
STEP = 16
"""Sequences whose lengths round up to the same multiple of this come together."""

_IGNORED = -100
_RANK = 3  # samples, rows of a sample, tokens


@dataclass(frozen=True)
class Bucket:
    """Samples of one shape: input name -> [samples, rows, ...], labels or None, and which samples they are."""

    arrays: dict[str, Array]
    labels: Array | None
    indices: list[int]

    @property
    def length(self) -> int | None:
        """The number of tokens, where these are sequences with a mask."""
        mask = self.arrays.get(MASK)
        return int(mask.shape[2]) if mask is not None and mask.ndim == _RANK else None


def joined(buckets: list[Bucket]) -> list[Bucket]:
    """Return buckets of sequences joined by length, padded; others are returned as they are."""
    groups: dict[int, list[Bucket]] = {}
    for bucket in buckets:
        if bucket.length is None or not _fits(bucket):
            return buckets
        groups.setdefault(-(-bucket.length // STEP), []).append(bucket)
    return [_one(group) for _, group in sorted(groups.items())]


def _fits(bucket: Bucket) -> bool:
    """Say whether every input is a sequence of the same length."""
    return all(array.ndim == _RANK and array.shape[2] == bucket.length for array in bucket.arrays.values())


def _one(group: list[Bucket]) -> Bucket:
    if len(group) == 1:
        return group[0]
    longest = max(bucket.length or 0 for bucket in group)
    arrays = {name: np.concatenate([_padded(b.arrays[name], longest, 0) for b in group]) for name in group[0].arrays}
    labels = None
    if group[0].labels is not None:
        by_token = all(b.labels is not None and b.labels.shape[1:] == (b.length,) for b in group)
        parts = [b.labels for b in group if b.labels is not None]
        labels = np.concatenate([_padded(part, longest, _IGNORED) if by_token else part for part in parts])
    return Bucket(arrays, labels, [index for bucket in group for index in bucket.indices])


def _padded(array: Array, length: int, value: int) -> Array:
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])], constant_values=value)
