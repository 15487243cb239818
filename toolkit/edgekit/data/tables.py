"""CSV, TSV and JSONL files of text: only where each record begins is held; a record is read when it is wanted."""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgekit.data.faults import UnreadableError
from edgekit.data.limits import MAX_LINE_BYTES
from edgekit.data.pipeline import Raw
from edgekit.errors import InputError

SUFFIXES = frozenset({".csv", ".tsv", ".jsonl", ".ndjson"})
COLUMNS = {"text": "text", "text_pair": "text_pair", "label": "label"}
"""Meaning -> name of the column, unless the preprocessing says otherwise."""
_BOM = b"\xef\xbb\xbf"


class TextTable:
    """The records of a table with the columns `text`, and maybe `text_pair` and `label`.

    Args:
        path: CSV (with a header line), TSV or JSONL, in UTF-8.
        name: how to call it.
        columns: meaning -> the name of the column.

    Raises:
        InputError: no column of texts, no records, or not readable at all.
    """

    classes: tuple[str, ...] = ()

    def __init__(self, path: Path, name: str, columns: Mapping[str, str]) -> None:
        unknown = sorted(set(columns) - set(COLUMNS))
        if unknown:
            raise InputError(
                f"unknown column meaning '{unknown[0]}'",
                where=f"{name}, key columns",
                remedy="Meanings are " + ", ".join(COLUMNS) + ".",
            )
        self._path, self._name = path, name
        self._columns = COLUMNS | dict(columns)
        self._delimiter = {".csv": ",", ".tsv": "\t"}.get(path.suffix.lower())
        self._starts = array("q")
        self._header: list[str] = []
        labels: list[Any] = []
        found: set[str] = set()
        try:
            for start, record in self._records():
                self._starts.append(start)
                found.update(record or ())
                labels.append(None if record is None else record.get(self._columns["label"]))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"not readable: {error}", where=name, remedy="Save it as UTF-8.") from None
        names = set(self._header) | found
        if self._starts and self._columns["text"] not in names:
            raise InputError(
                f"no column '{self._columns['text']}'; there are " + ", ".join(f"'{key}'" for key in sorted(names)),
                where=name,
                remedy='Rename one, or declare columns = { text = "NAME" } (kind = "text").',
            )
        self.ids = [f"{name}[{index}]" for index in range(len(self._starts))]
        self.labels = labels if any(label not in (None, "") for label in labels) else None

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Raw:
        _, record = next(self._records(self._starts[index]))
        if record is None:
            raise UnreadableError(
                "the record is damaged: not an object, or not as many fields as the header",
                where=self.ids[index],
                remedy="Correct or remove it.",
            )
        raw: dict[str, str] = {}
        for meaning in ("text", "text_pair"):
            value = record.get(self._columns[meaning])
            if isinstance(value, str):
                raw[meaning] = value
            elif meaning == "text" or value is not None:
                raise UnreadableError(
                    f"'{self._columns[meaning]}' is no text",
                    where=self.ids[index],
                    remedy="Correct or remove it.",
                )
        return raw

    def _records(self, start: int | None = None) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield where each record begins and what it holds (None: damaged), from `start` on."""
        lines = _Lines(self._path, self._name)
        try:
            if start is not None:
                lines.seek(start)
            if self._delimiter is None:
                yield from _json_records(lines)
                return
            reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
            if start is None:
                self._header = [field.strip() for field in next(reader, [])]
            yield from self._csv_records(reader, lines)
        except csv.Error as error:
            raise InputError(
                f"not readable as CSV after byte {lines.position}: {error}",
                where=self._name,
                remedy="Quote fields that hold quotes, commas or line breaks.",
            ) from None
        finally:
            lines.close()

    def _csv_records(self, reader: Any, lines: _Lines) -> Iterator[tuple[int, dict[str, Any] | None]]:
        while True:
            start = lines.position
            fields = next(reader, None)
            if fields is None:
                return
            if not fields:
                continue
            whole = len(fields) == len(self._header)
            yield start, dict(zip(self._header, fields, strict=True)) if whole else None


def _json_records(lines: _Lines) -> Iterator[tuple[int, dict[str, Any] | None]]:
    while True:
        start = lines.position
        line = next(lines, None)
        if line is None:
            return
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        yield start, record if isinstance(record, dict) else None


class _Lines:
    """Decoded lines of a file, and the byte at which the next one begins."""

    def __init__(self, path: Path, name: str) -> None:
        self._file = path.open("rb")
        self._name = name
        if self._file.read(len(_BOM)) != _BOM:
            self._file.seek(0)
        self.position = self._file.tell()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(MAX_LINE_BYTES + 1)
        if not line:
            raise StopIteration
        if len(line) > MAX_LINE_BYTES:
            raise InputError(f"a line of more than {MAX_LINE_BYTES} bytes", where=self._name, remedy="Is it a table?")
        self.position += len(line)
        return line.decode("utf-8")

    def seek(self, position: int) -> None:
        self._file.seek(position)
        self.position = position

    def close(self) -> None:
        self._file.close()
