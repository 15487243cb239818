"""From places to sources: which reader, which preprocessing, and how rows become feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from edgekit.artifact import TensorSpec
from edgekit.data.arrays import ArrayFile
from edgekit.data.arrow import ArrowRows
from edgekit.data.declared import Declared, Kind, image_input, settle
from edgekit.data.factory import FactoryRecords
from edgekit.data.faults import UnreadableError, named, noted
from edgekit.data.finding import Place, Role
from edgekit.data.pipeline import Batched, Pipeline, fixed_rows, sample_rank
from edgekit.data.records import ArrayRows, FeedFiles, ImageFiles, Records
from edgekit.data.rules import Preprocessing
from edgekit.data.sources import Source, row_specs
from edgekit.data.tables import TextTable
from edgekit.data.text import TextEncoder
from edgekit.errors import InputError
from edgekit.events import Finding


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the data is read.

    Attributes:
        sources: by role.
        preprocessing: complete.
        encoder: the tokenizer, for text.
        classes: names that integer labels refer to, as the data's own format says.
        folders: labels are names of class folders.
        rows: single samples that make one feed; 1 unless the model's batch axis is fixed to more.
        feed_rows: rows of a feed that is given whole.
    """

    sources: dict[Role, Source]
    preprocessing: Preprocessing
    encoder: TextEncoder | None
    classes: tuple[str, ...]
    folders: bool
    rows: int
    feed_rows: int


def plan_reading(
    places: Mapping[Role, Place], specs: Sequence[TensorSpec], declared: Declared, findings: list[Finding]
) -> Reading:
    """Open the readers of all places and settle the preprocessing.

    Raises:
        InputError: an array, column or tokenizer is missing, or the splits are of different kinds.
    """
    records = {role: _open(place, specs, declared) for role, place in places.items()}
    kinds = {role: _kind(reader) for role, reader in records.items()}
    if len(set(kinds.values())) > 1:
        raise InputError(
            "the splits are of different kinds: "
            + named(f"{places[role].name} {kind}" for role, kind in kinds.items()),
            where=next(iter(places.values())).name,
            remedy="Give all of one kind.",
        )
    kind = next(iter(kinds.values()))
    pictured = {name for reader in records.values() for name in _pictured(reader)}
    preprocessing, encoder = settle(declared, kind, pictured, specs, findings)
    whole = all(isinstance(reader, FeedFiles | FactoryRecords) for reader in records.values())
    most = _fixed(specs, preprocessing, next(iter(records.values())), whole=whole)
    rows = 1 if whole else most
    for reader in records.values():
        _note_unused(reader, findings)
    images = kind == "images"
    pipelines = {
        role: Pipeline(preprocessing, row_specs(specs, rows), encoder=encoder, batched=_batched(reader))
        for role, reader in records.items()
    }
    return Reading(
        sources={role: Source(reader, pipelines[role], images=images) for role, reader in records.items()},
        preprocessing=preprocessing,
        encoder=encoder,
        rows=rows,
        feed_rows=most if whole else 1,
        classes=next((reader.classes for reader in records.values() if reader.classes), ()),
        folders=any(place.classes is not None for place in places.values()),
    )


def _open(place: Place, specs: Sequence[TensorSpec], declared: Declared) -> Records:
    text = declared.preprocessing.text
    columns = {} if text is None else text.columns
    match place.form:
        case "images":
            name = image_input(specs, declared.preprocessing.inputs, place.name)
            return ImageFiles(place.paths, place.ids, place.classes, name)
        case "rows":
            file = ArrayFile(place.paths[0], where=place.name, alone=specs[0].name)
            return ArrayRows(file, specs, place.name)
        case "feeds":
            return FeedFiles(place.paths, place.ids, specs, declared.preprocessing.inputs)
        case "table":
            return TextTable(place.paths[0], place.name, columns)
        case "arrow":
            return ArrowRows(place.given, specs, place.name, columns)
        case "factory":
            return FactoryRecords(place.given, specs, declared.preprocessing.inputs, place.name)
        case _:
            assert_never(place.form)


def _kind(reader: Records) -> Kind:
    if isinstance(reader, TextTable) or (isinstance(reader, ArrowRows) and reader.texts):
        return "text"
    return "images" if _pictured(reader) else "arrays"


def _pictured(reader: Records) -> set[str]:
    """Return the inputs that a reader gives as encoded images."""
    if isinstance(reader, ImageFiles):
        return {reader.name}
    return reader.images if isinstance(reader, ArrowRows) else set()


def _batched(reader: Records) -> Batched:
    if isinstance(reader, FeedFiles):
        return "always"
    return "auto" if isinstance(reader, FactoryRecords) else "never"


def _fixed(specs: Sequence[TensorSpec], preprocessing: Preprocessing, reader: Records, *, whole: bool) -> int:
    """Return the rows that all inputs with a fixed batch axis agree on; 1 when there are none or they do not."""
    ranks = dict.fromkeys((spec.name for spec in specs), 0)
    if preprocessing.text is None and not whole:
        try:
            first = reader[0] if len(reader) else {}
        except UnreadableError:
            first = {}
        ranks |= {name: value.ndim for name, value in first.items() if isinstance(value, np.ndarray)}
    rows = {
        fixed_rows(
            spec,
            len(spec.shape) - 1
            if whole
            else sample_rank(preprocessing.text or preprocessing.inputs.get(spec.name), ranks[spec.name]),
        )
        for spec in specs
    } - {1}
    return rows.pop() if len(rows) == 1 else 1


def _note_unused(reader: Records, findings: list[Finding]) -> None:
    unused = getattr(reader, "unused", [])
    if unused:
        findings.append(noted("data-unused-arrays", text="arrays that are no input of the model: " + named(unused)))
