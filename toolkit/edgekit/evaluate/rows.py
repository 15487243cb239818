"""Which axis counts the samples, and outputs that come one by one joined along it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from edgekit.artifact import TensorSpec
from edgekit.data import Feed
from edgekit.metrics import Labels

TOGETHER = 64
"""Outputs that are compared and stored at once."""


def leading_axis(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str | int | None:
    """Return the first axis that every input and output shares and that therefore counts rows; None without one."""
    first = {spec.shape[0] if spec.shape else None for spec in (*inputs, *outputs)}
    return first.pop() if len(first) == 1 else None


def rows_of(labels: Labels, leading: str | int | None) -> Labels:
    """Return one label per row: where the batch is fixed to k > 1 rows, data gives labels [n, k] for n feeds."""
    if labels is None or not isinstance(leading, int) or leading == 1:
        return labels
    return labels.reshape(-1, *labels.shape[2:])


def together(outputs: Iterable[Feed], leading: str | int | None, size: int = TOGETHER) -> Iterator[Feed]:
    """Join outputs that came one by one along the axis that counts rows: comparing and storing them costs less so."""
    if leading is None:
        yield from outputs
        return
    held: list[Feed] = []
    for output in outputs:
        if held and (len(held) == size or _shapes(held[0]) != _shapes(output)):
            yield _joined(held)
            held = []
        held.append(output)
    if held:
        yield _joined(held)


def _joined(outputs: list[Feed]) -> Feed:
    return {name: np.concatenate([output[name] for output in outputs]) for name in outputs[0]}


def _shapes(output: Feed) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, array.shape[1:]) for name, array in output.items()]
