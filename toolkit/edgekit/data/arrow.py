"""A Hugging Face `datasets` folder (`save_to_disk`): Arrow files, mapped into memory, read sample by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit.artifact import TensorSpec
from edgekit.data.conform import check_names
from edgekit.data.faults import UnreadableError
from edgekit.data.pipeline import Raw
from edgekit.data.records import LABEL_KEYS
from edgekit.data.tables import COLUMNS
from edgekit.errors import InputError, TargetError

_MARKS = ("dataset_dict.json", "state.json")


def is_saved_dataset(folder: Path) -> bool:
    """Say whether a folder was written by `datasets`' save_to_disk."""
    return any((folder / mark).is_file() for mark in _MARKS)


def load(folder: Path) -> dict[str, Any]:
    """Return the splits of a saved data set by name (`""` when it has none), nothing of them read.

    Raises:
        TargetError: the `datasets` package is not installed.
        InputError: the folder cannot be read.
    """
    try:
        import datasets
    except ImportError:
        raise TargetError(
            "a saved data set needs the package 'datasets'",
            where=str(folder),
            remedy="pip install 'edgekit-toolkit[torch]', or save the samples as .npz.",
        ) from None
    try:
        found = datasets.load_from_disk(str(folder), keep_in_memory=False)
    except Exception as error:  # noqa: BLE001 - arrow, fsspec and json errors of a damaged folder
        raise InputError(
            f"not readable: {error}", where=str(folder), remedy="Save it again with save_to_disk."
        ) from None
    return dict(found) if isinstance(found, Mapping) else {"": found}


class ArrowRows:
    """The rows of one split.

    Columns are found by name: the model's inputs, `label` (or `labels`, `y`), `text` and `text_pair`. A model with
    one image input takes the only column of images, whatever its name.

    Raises:
        InputError: an input has no column.
    """

    def __init__(self, rows: Any, specs: Sequence[TensorSpec], name: str, columns: Mapping[str, str]) -> None:
        self._name = name
        names = list(rows.column_names)
        wanted = COLUMNS | dict(columns)
        label = next((key for key in (wanted["label"], *LABEL_KEYS) if key in names and key not in _names(specs)), None)
        self.texts = {meaning: wanted[meaning] for meaning in ("text", "text_pair") if wanted[meaning] in names}
        images = [key for key in names if _is_image(rows.features[key])]
        self._sources = {spec.name: spec.name for spec in specs if spec.name in names}
        if not self._sources and len(specs) == 1 and len(images) == 1:
            self._sources = {specs[0].name: images[0]}
        self.images = {name for name, column in self._sources.items() if column in images}
        if self._sources or "text" not in self.texts:
            self.texts = {}
            spare = [column for column in names if column not in {label, *self._sources.values()}]
            check_names([*self._sources, *spare], specs, name)
        self.classes: tuple[str, ...] = tuple(getattr(rows.features[label], "names", None) or ()) if label else ()
        self.labels = None if label is None else _label_values(rows, label)
        self._rows = rows.with_format("arrow", columns=[*self._sources.values(), *self.texts.values()])
        self.ids = [f"{name}[{index}]" for index in range(len(rows))]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Raw:
        row = self._rows[index]
        raw: dict[str, Any] = {}
        for name, column in (self._sources | self.texts).items():
            value = row.column(column)[0]
            if name in self.images:
                raw[name] = self._image(value.as_py(), index)
            elif name in self.texts:
                raw[name] = self._text(value.as_py(), column, index)
            else:
                raw[name] = _array(value, f"{self.ids[index]}, column '{column}'")
        return raw

    def _image(self, value: Any, index: int) -> bytes | Path:
        found = value or {}
        if found.get("bytes"):
            return bytes(found["bytes"])
        path = found.get("path")
        if not path or not Path(path).is_file():
            raise UnreadableError("no image in the row", where=self.ids[index], remedy="Remove the row.")
        return Path(path)

    def _text(self, value: Any, column: str, index: int) -> str:
        if not isinstance(value, str):
            raise UnreadableError(f"'{column}' is no text", where=self.ids[index], remedy="Remove the row.")
        return value


def _names(specs: Sequence[TensorSpec]) -> set[str]:
    return {spec.name for spec in specs}


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ == "Image"


def _label_values(rows: Any, label: str) -> list[Any]:
    values: list[Any] = []
    for batch in rows.select_columns([label]).with_format("arrow").iter(batch_size=4096):
        values.extend(batch.column(label).to_pylist())
    return values


def _array(value: Any, where: str) -> npt.NDArray[np.generic]:
    """Return a nested Arrow list as an array of its own dtype; lists of unequal length are refused."""
    inner = getattr(value, "value", None)  # an extension type: Array2D .. Array5D
    value = value if inner is None else inner
    if not hasattr(value, "values"):
        return np.array(value.as_py())
    values = value.values
    if values is None:
        raise UnreadableError("no value", where=where, remedy="Remove the row.")
    shape = [len(values)]
    while hasattr(values, "flatten") and hasattr(values.type, "value_type"):
        fixed = getattr(values.type, "list_size", None)
        lengths = set(values.value_lengths().to_pylist()) if fixed is None else {fixed}
        if len(lengths) != 1 or None in lengths:
            raise UnreadableError("the nested lists have unequal lengths", where=where, remedy="Remove the row.")
        shape.append(lengths.pop())
        values = values.flatten()
    if values.null_count:
        raise UnreadableError("values are missing", where=where, remedy="Remove the row.")
    found: npt.NDArray[np.generic] = values.to_numpy(zero_copy_only=False).reshape(shape)
    return np.array(found)
