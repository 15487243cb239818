"""What a mask hides has no bearing on the answers, but would dominate what is measured over all tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from edgekit.data import Feed

MASK = "attention_mask"
_RANK = 2


def shown(feed: Feed, like: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
    """Return which tokens a sample's `attention_mask` shows, `[batch, tokens]`, for tensors that begin so.

    None when there is no such input, when nothing or everything is hidden, or when a tensor of shape `like` has
    other first axes, or no third.
    """
    mask = feed.get(MASK)
    if mask is None or mask.ndim != _RANK or len(like) <= _RANK or like[:_RANK] != mask.shape:
        return None
    found: npt.NDArray[np.bool_] = mask.astype(bool)
    return found if found.any() and not found.all() else None


def visible(feed: Feed, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return the tokens of a tensor that the mask shows, `[shown, ...]`; the tensor itself where that says nothing."""
    mask = shown(feed, values.shape)
    return values if mask is None else values[mask]
