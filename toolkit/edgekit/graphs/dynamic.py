"""Whether the axes that a model declares dynamic really are: the child's part of `files.check_dynamic`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgekit.artifact import TensorSpec
from edgekit.errors import EdgekitError, InputError
from edgekit.graphs.edit import load_model
from edgekit.graphs.feeds import Feed, index_bounds, random_feed
from edgekit.graphs.sessions import difference, open_session, run

_SIZES = (16, 64, 224, 32, 8, 128, 1, 256, 320, 416, 512, 640, 4, 2, 3)
"""Sizes to try for axes other than the batch, the commonest first."""

_SECOND_BATCH = 3
_ROW_TOLERANCE = 1e-3


def batch_axes(specs: Sequence[TensorSpec]) -> list[str]:
    """Return the names of dynamic first axes, in order."""
    return list(dict.fromkeys(spec.shape[0] for spec in specs if spec.shape and isinstance(spec.shape[0], str)))


def other_axes(specs: Sequence[TensorSpec]) -> list[str]:
    """Return the names of dynamic axes that are first nowhere, in order."""
    first = set(batch_axes(specs))
    names = dict.fromkeys(dim for spec in specs for dim in spec.shape if isinstance(dim, str))
    return [name for name in names if name not in first]


def working_sizes(
    session: Any, specs: Sequence[TensorSpec], bounds: Mapping[str, int], known: Mapping[str, int] | None = None
) -> tuple[dict[str, int] | None, str]:
    """Find sizes of the dynamic axes with which a model runs: batch 1 and the first usual size that works.

    Args:
        session: an open session of the model.
        specs: its inputs.
        bounds: bounds of integer inputs.
        known: sizes that are given.

    Returns:
        The sizes and an empty string, or None and why the last try failed.
    """
    batches, others, known = batch_axes(specs), other_axes(specs), dict(known or {})
    free = [name for name in others if name not in known]
    reason = ""
    for size in _SIZES if free else _SIZES[:1]:
        sizes = dict.fromkeys(batches, 1) | dict.fromkeys(free, size) | known
        try:
            run(session, random_feed(specs, sizes, bounds, seed=0))
        except InputError as error:
            reason = reason or f"{error.text} ({error.where})"
        else:
            return sizes, ""
    return None, reason


def probe_axes(
    model: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], known: dict[str, int], threads: int = 1
) -> dict[str, Any]:
    """Run a model with other sizes of its dynamic axes.

    Args:
        model: the model file.
        inputs: its input specs.
        outputs: its output specs.
        known: sizes of axes that a real sample has.
        threads: CPU threads.

    Returns:
        `base`: sizes that work, None when none was found and `reason` says why; `broken`: a list of
        `{"axes", "size", "node", "text"}`, one per axis (the batch axes go together) that does not work for another
        size; `mixes`: the output whose rows depend on other rows of the batch, with the difference, or None.
    """
    path = Path(model)
    specs, outs = (msgspec.convert(side, list[TensorSpec]) for side in (inputs, outputs))
    bounds = index_bounds(load_model(path), specs, path.parent)
    session = open_session(path, threads=threads)
    base, reason = working_sizes(session, specs, bounds, known)
    answer: dict[str, Any] = {"base": base, "reason": reason, "broken": [], "mixes": None}
    if base is None:
        return answer
    batches = batch_axes(specs)
    for axes in ([batches] if batches else []) + [[name] for name in other_axes(specs)]:
        size = _SECOND_BATCH if axes is batches else base[axes[0]] * 2
        sizes = base | dict.fromkeys(axes, size)
        feed = random_feed(specs, sizes, bounds, seed=0)
        try:
            found = run(session, feed)
            _check_shapes(path, outs, sizes, found, set(axes))
        except InputError as error:
            answer["broken"].append({"axes": axes, "size": size, "node": error.where, "text": error.text})
            continue
        if axes is batches and all(spec.shape and spec.shape[0] in axes for spec in (*specs, *outs)):
            answer["mixes"] = _mixing(session, feed, found)
    return answer


def _check_shapes(
    path: Path, outputs: Sequence[TensorSpec], sizes: Mapping[str, int], found: Feed, moved: set[str]
) -> None:
    """Raise InputError when an output does not have the size that its declared shape promises."""
    makers = {name: node.name for node in load_model(path).graph.node for name in node.output}
    for spec in outputs:
        shape = found[spec.name].shape
        for axis, dim in enumerate(spec.shape):
            if dim in moved and (len(shape) <= axis or shape[axis] != sizes[str(dim)]):
                raise InputError(
                    f"output '{spec.name}' has shape {list(shape)} where {list(spec.shape)} is declared",
                    where=f"node '{makers.get(spec.name, '')}'",
                )


def _mixing(session: Any, feed: Feed, together: Feed) -> list[Any] | None:
    """Run the rows of a batch one by one; return the output that differs most from running them together, if any."""
    worst: list[Any] | None = None
    for row in range(_SECOND_BATCH):
        try:
            alone = run(session, {name: array[row : row + 1] for name, array in feed.items()})
        except EdgekitError:
            return None
        for name, array in together.items():
            if array.dtype.kind == "f" and alone[name].shape[1:] == array.shape[1:]:
                found = difference(array[row : row + 1], alone[name])
                if found > _ROW_TOLERANCE and (worst is None or found > worst[1]):
                    worst = [name, found if np.isfinite(found) else None]
    return worst
