"""Labels as they are given, turned into indices of the model's outputs: by name wherever there are names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit.data.faults import named, noted, warned
from edgekit.errors import InputError
from edgekit.events import Finding

Labels = npt.NDArray[Any]
_PLACEHOLDER = re.compile(r"LABEL_\d+")
_MATRIX = 2
IGNORED = -100
"""Index of a position that has no label, in labels of more than one axis (as torch and transformers have it)."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """The labels of one split, for the samples that are kept.

    Attributes:
        values: one per sample.
        ids: the samples' names, for errors.
        folders: the values are names of class folders.
        rows: labels per sample, where the model's batch axis is fixed to more than one row.
    """

    values: Sequence[Any] | Labels
    ids: Sequence[str]
    folders: bool = False
    rows: int = 1


@dataclass(frozen=True, kw_only=True)
class Names:
    """What class names are known.

    Attributes:
        data: names that the data's integers refer to, in order (`labels.txt`, a sidecar, `datasets` features).
        ordered: the user says that `data` is in the order of the model's outputs (`labels.txt`, a sidecar).
        model: names of the model's outputs, in order (`id2label`).
        where: the data, for errors.
    """

    data: tuple[str, ...]
    ordered: bool
    model: tuple[str, ...]
    where: str


def encode(given: Mapping[str, Given], names: Names) -> tuple[dict[str, Labels], tuple[str, ...], list[Finding]]:
    """Turn labels into indices (or leave them as numbers) and return them by split, the class names, and findings.

    Strings are class names; integers are the model's indices, or refer to `names.data` where that is known. Both
    become indices of the model's outputs by name. Floats and arrays stay what they are; one-hot rows become indices.

    Raises:
        InputError: a label is missing, unknown, out of range or not finite, or data and model name other classes.
    """
    findings: list[Finding] = []
    arrays = {split: _array(part, findings) for split, part in given.items()}
    texts = {split: array.dtype.kind == "U" for split, array in arrays.items()}
    if any(texts.values()) and not all(texts.values()):
        raise InputError("some labels are names and some are numbers", where=names.where, remedy="Use one of both.")
    own = names.data
    if all(texts.values()):
        found = sorted({str(name) for array in arrays.values() for name in array.reshape(-1)})
        if _are_numbers(found, names) and not any(part.folders for part in given.values()):
            arrays = {split: array.astype(np.float64) for split, array in arrays.items()}
            if all(re.fullmatch(r"[+-]?\d+", text) for text in found):
                arrays = {split: array.astype(np.int64) for split, array in arrays.items()}
        else:
            own = own or _ordered(found, names, findings)
            arrays = {split: _positions(array, own, names.where) for split, array in arrays.items()}
    if any(array.dtype.kind != "i" or array.ndim > _MATRIX for array in arrays.values()):
        return arrays, (), findings
    _check_range(given, arrays, len(own or names.model))
    if not own:
        return arrays, names.model, findings
    table, classes = _match(own, names, findings)
    mapped = {
        split: np.where(array == IGNORED, IGNORED, table[np.maximum(array, 0)]) for split, array in arrays.items()
    }
    return mapped, classes, findings


def _are_numbers(found: Sequence[str], names: Names) -> bool:
    """Say whether all labels are written numbers and none is the name of a class."""
    if set(_plain(found)) & set(_plain([*names.data, *names.model])):
        return False
    return all(re.fullmatch(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", text) for text in found)


def _ordered(found: Sequence[str], names: Names, findings: list[Finding]) -> tuple[str, ...]:
    """Return the names of classes in the order that their indices follow: as text, folders 0 .. n as numbers."""
    if not all(name.isascii() and name.isdigit() for name in found) or not _are_numbers(found, names):
        return tuple(found)
    numeric = sorted(found, key=int)
    if numeric != list(found):
        findings.append(
            warned(
                "data-label-order",
                text=f"the class folders are numbers and taken in numeric order ({named(numeric, 3)}); trainers that "
                "sort folder names as text have another order",
                remedy="Write labels.txt with one folder name per line, in the order of the model's outputs.",
            )
        )
    return tuple(numeric)


def _positions(array: Labels, own: Sequence[str], where: str) -> Labels:
    places = {name: index for index, name in enumerate(own)}
    unknown = sorted({str(name) for name in array.reshape(-1)} - places.keys())
    if unknown:
        raise InputError(
            f"labels that are not in the list of classes: {named(unknown)}",
            where=where,
            remedy=f"The list has {named(own)}.",
        )
    return np.array([places[str(name)] for name in array.reshape(-1)], np.int64).reshape(array.shape)


def _match(
    own: tuple[str, ...], names: Names, findings: list[Finding]
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Return, for each of the data's classes, its index among the model's outputs, and the outputs' names."""
    model, same = names.model, np.arange(len(own))
    if not model or model == own:
        return same, own
    nameless = all(_PLACEHOLDER.fullmatch(name) for name in model)
    places = {name: index for index, name in enumerate(_plain(model))}
    missing = [name for name, plain in zip(own, _plain(own), strict=True) if plain not in places]
    if not missing:
        table = np.array([places[name] for name in _plain(own)], np.int64)
        if (table != same).any():
            findings.append(
                noted(
                    "data-labels-by-name",
                    text="the label order differs between data and model: labels are matched by name",
                )
            )
        return table, model
    if len(own) == len(model) and (nameless or (names.ordered and len(missing) == len(own))):
        if not nameless:
            findings.append(
                warned(
                    "data-label-names",
                    text=f"the list of classes names none of the model's ({named(model, 3)}): its order counts",
                    remedy="Check the order: the accuracy depends on it.",
                )
            )
        return same, own
    text = f"the data has classes that the model does not name: {named(missing)}"
    if nameless or len(own) > len(model):
        text = f"the data has {len(own)} classes, the model {len(model)}"
    raise InputError(
        text,
        where=names.where,
        remedy="Write labels.txt beside the data: the data's name of each of the model's outputs, one per line, in "
        "their order" + ("." if nameless else f" ({named(model)})."),
    )


def _plain(names: Sequence[str]) -> list[str]:
    return [name.strip().casefold().replace("_", " ") for name in names]


def _check_range(given: Mapping[str, Given], arrays: Mapping[str, Labels], count: int) -> None:
    for split, array in arrays.items():
        rows = array.reshape(len(array), -1)
        if array.ndim > 1:  # positions that a metric leaves out
            rows = np.where(rows == IGNORED, 0, rows)
        bad = np.flatnonzero(((rows < 0) | (rows >= (count or np.iinfo(np.int64).max))).any(axis=1))
        if len(bad):
            worst = rows[bad[0]].min() if (rows[bad[0]] < 0).any() else rows[bad[0]].max()
            raise InputError(
                f"label {worst}"
                + (f", there are {count} classes (0 .. {count - 1})" if count else " is negative")
                + f"; {len(bad)} samples are labelled so",
                where=given[split].ids[int(bad[0])],
                remedy="Labels are indices of the model's outputs; leave them out where they are unknown.",
            )


def _array(part: Given, findings: list[Finding]) -> Labels:
    missing = [part.ids[index] for index, value in enumerate(part.values) if value is None or _blank(value)]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(part.ids)} samples have no label: {named(missing)}",
            where=missing[0],
            remedy="Label all samples or none.",
        )
    array = part.values if isinstance(part.values, np.ndarray) else _joined(part.values)
    if array.dtype.kind in "UO":
        return np.char.strip(array) if array.dtype.kind == "U" else array
    if array.dtype.kind not in "biuf":
        raise InputError(f"labels of dtype {array.dtype}", where=part.ids[0], remedy="Labels are numbers or names.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
        raise InputError(
            "the label is not a finite number",
            where=part.ids[int(bad[0])],
            remedy="Correct or remove the sample.",
        )
    if array.ndim == _MATRIX and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == _MATRIX and part.rows == 1 and _one_hot(array):
        findings.append(
            noted("data-labels-one-hot", text=f"one-hot labels of {array.shape[1]} classes taken as indices")
        )
        array = array.argmax(axis=1)
    if array.ndim > _MATRIX:
        return array  # dense targets may be large
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)


def _blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _one_hot(array: Labels) -> bool:
    return bool(((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all())


def _joined(values: Sequence[Any]) -> Labels:
    """Return labels of any kind as one array; of dtype object when their shapes differ."""
    parts = [np.asarray(value) for value in values]
    if len({part.dtype.kind == "U" for part in parts}) > 1:
        parts = [np.asarray(str(value)) for value in values]
    if len({part.shape for part in parts}) == 1:
        return np.stack(parts)
    found = np.empty(len(parts), object)
    for index, part in enumerate(parts):
        found[index] = part
    return found
