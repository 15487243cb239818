"""Readers of raw samples: image files, array files that are one feed each, rows of one array file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgekit.artifact import TensorSpec
from edgekit.data.arrays import ArrayFile
from edgekit.data.conform import check_names
from edgekit.data.faults import UnreadableError, named
from edgekit.data.pictures import is_one
from edgekit.data.pipeline import Raw
from edgekit.data.rules import ImageRule, Rule, TensorRule
from edgekit.errors import InputError

LABEL_KEYS = ("y", "label", "labels")
"""Names of arrays that hold labels, unless an input of the model has that name."""

RawLabels = Sequence[Any] | npt.NDArray[np.generic]


class Records(Protocol):
    """Raw samples that can be read again and again, in any order."""

    @property
    def ids(self) -> Sequence[str]:
        """A name per sample."""
        ...

    @property
    def labels(self) -> RawLabels | None:
        """What is given for each sample, as it is given (None for one that cannot be read); None when nothing is."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Names that integer labels refer to; empty when unknown."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int) -> Raw:
        """Return a raw sample; UnreadableError when it is damaged."""
        ...


class ImageFiles:
    """Image files for one input.

    Args:
        paths: the files.
        ids: their names.
        labels: class names, or None.
        name: the model's input.
    """

    classes: tuple[str, ...] = ()

    def __init__(self, paths: Sequence[Path], ids: Sequence[str], labels: Sequence[str] | None, name: str) -> None:
        self._paths, self.name = paths, name
        self.ids, self.labels = ids, labels

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Raw:
        return {self.name: self._paths[index]}


class ArrayRows:
    """One `.npz` or `.npy` whose leading axis counts the samples.

    Raises:
        InputError: an input has no array, or the leading axes differ.
    """

    classes: tuple[str, ...] = ()

    def __init__(self, file: ArrayFile, specs: Sequence[TensorSpec], name: str) -> None:
        key = label_key(file, specs)
        inputs = [other for other in file.headers if other != key]
        check_names(inputs, specs, name)
        self.unused = [other for other in inputs if other not in {spec.name for spec in specs}]
        lengths = {
            other: file.headers[other].shape[0] if file.headers[other].shape else None
            for other in [*(spec.name for spec in specs), *([key] if key else [])]
        }
        if len(set(lengths.values())) > 1 or None in lengths.values():
            raise InputError(
                "the arrays have different numbers of samples: "
                + ", ".join(f"'{other}' {length}" for other, length in lengths.items()),
                where=name,
                remedy="The leading axis of every array counts the samples.",
            )
        self._arrays = {spec.name: file.rows(spec.name) for spec in specs}
        self._count = lengths[specs[0].name] or 0
        self.ids = [f"{name}[{index}]" for index in range(self._count)]
        self.labels: RawLabels | None = file.rows(key) if key else None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Raw:
        return {name: np.array(array[index]) for name, array in self._arrays.items()}


class FeedFiles:
    """A folder of `.npz` (or `.npy`) files that are one feed each, with its batch axis.

    A feed of several rows is as many samples where the batch axis is free: where there is one label per row, or where
    all inputs share a leading axis that is called like a batch. Else (a fixed batch, a leading axis of time) the feed
    stays whole, and what labels it has stay together.
    """

    classes: tuple[str, ...] = ()

    def __init__(
        self, paths: Sequence[Path], ids: Sequence[str], specs: Sequence[TensorSpec], rules: Mapping[str, Rule]
    ) -> None:
        self._specs, self._rules, self._files = specs, rules, list(zip(paths, ids, strict=True))
        self._entries: list[tuple[int, int | None]] = []
        self._shard: tuple[int, dict[str, npt.NDArray[np.generic]]] | None = None
        self.ids: list[str] = []
        self.unused: list[str] = []
        labels: list[Any] = []
        unlabelled: list[str] = []
        for position, (path, name) in enumerate(self._files):
            try:
                rows, found = self._look(path, name)
            except UnreadableError:
                rows, found = None, None  # the scan reads it again and counts it
            else:
                unlabelled.extend([name] if found is None else [])
            for row in [None] if rows is None else range(rows):
                self._entries.append((position, row))
                self.ids.append(name if row is None else f"{name}[{row}]")
                labels.append(found if row is None or found is None else found[row])
        labelled = any(label is not None for label in labels)
        if labelled and unlabelled:
            raise InputError(
                f"{len(unlabelled)} of {len(self._files)} files have no label: {named(unlabelled)}",
                where=unlabelled[0],
                remedy="Give every file a label (key 'label'), or none.",
            )
        self.labels: RawLabels | None = labels if labelled else None

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Raw:
        position, row = self._entries[index]
        if row is not None and self._shard is not None and self._shard[0] == position:
            return {name: array[row : row + 1] for name, array in self._shard[1].items()}
        file = self._open(*self._files[position])
        check_names([name for name in file.headers if name != label_key(file, self._specs)], self._specs, file.where)
        if row is None:
            return {spec.name: file.read(spec.name) for spec in self._specs}
        self._shard = None  # let go of one shard before the next is held
        self._shard = (position, {spec.name: file.rows(spec.name) for spec in self._specs})
        return {name: array[row : row + 1] for name, array in self._shard[1].items()}

    def _look(self, path: Path, name: str) -> tuple[int | None, Any]:
        """Return how many samples the file is split into (None: it is one) and its label or labels."""
        file = self._open(path, name)
        key = label_key(file, self._specs)
        self.unused.extend(sorted(set(file.headers) - {spec.name for spec in self._specs} - {key, *self.unused}))
        label = file.read(key) if key else None
        shapes = {other: header.shape for other, header in file.headers.items()}
        return split_rows(shapes, label, self._specs, self._rules, where=name, batched=True)

    def _open(self, path: Path, name: str) -> ArrayFile:
        return ArrayFile(path, where=name, alone=self._specs[0].name)


def split_rows(
    shapes: Mapping[str, Sequence[int]],
    label: Any,
    specs: Sequence[TensorSpec],
    rules: Mapping[str, Rule],
    *,
    where: str,
    batched: bool,
) -> tuple[int | None, Any]:
    """Say into how many samples a feed is split (None: it is one), and give its labels back: one per sample.

    Args:
        shapes: of the feed's arrays.
        label: one, one per row, or None.
        specs: the model's inputs.
        rules: the declared preprocessing by input.
        where: the feed's name.
        batched: images have a batch axis for sure; else their shape tells.

    Raises:
        InputError: a feed of several samples with one label.
    """
    if not all(_is_batched(shapes.get(spec.name, ()), rules.get(spec.name), spec, sure=batched) for spec in specs):
        return None, label
    lengths = {shapes[spec.name][0] for spec in specs}
    rows = lengths.pop() if len(lengths) == 1 else 1
    per_row = label is not None and np.shape(label)[:1] == (rows,)
    if rows == 1:
        return None, label[0] if per_row else label
    free = all(isinstance(spec.shape[0], str) for spec in specs)
    if not free or not (per_row or _share_batch(specs)):
        return None, label
    if label is not None and not per_row:
        text = f"{rows} rows and a label of shape {list(np.shape(label))}"
        raise InputError(text, where=where, remedy="Give one label per row.")
    return rows, label


def _share_batch(specs: Sequence[TensorSpec]) -> bool:
    first = {spec.shape[0] for spec in specs}
    name = str(next(iter(first))).lower()
    return len(first) == 1 and (name in {"n", "b", "bs", "bsz"} or "batch" in name)


def _is_batched(shape: Sequence[int], rule: Rule | None, spec: TensorSpec, *, sure: bool) -> bool:
    """Say whether an array has the rank that an input's rule takes with a batch axis."""
    if not shape or not spec.shape:
        return False
    if isinstance(rule, ImageRule):
        return sure or not is_one(shape)
    return len(shape) == len(spec.shape) - (isinstance(rule, TensorRule) and rule.expand is not None)


def label_key(file: ArrayFile, specs: Sequence[TensorSpec]) -> str | None:
    """Return the name of the array that holds the labels; None when there is none."""
    inputs = {spec.name for spec in specs}
    return next((key for key in LABEL_KEYS if key in file.headers and key not in inputs), None)
