"""What can be wrong with one sample: errors that a scan gathers, and notes that it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from edgekit.data.limits import NAMED
from edgekit.errors import InputError
from edgekit.events import Finding


class UnreadableError(InputError):
    """A sample that cannot be decoded: gathered, counted, and skipped while such samples are few."""


class NonFiniteError(InputError):
    """A sample with NaN or infinity: gathered so that one error names all of them; never skipped."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something worth telling about a sample that is fine; equal notes of many samples become one finding.

    Attributes:
        rule: as in `Finding`.
        node: the array or key concerned.
        text: one sentence about one sample.
        severity: as in `Finding`.
        remedy: as in `Finding`.
    """

    rule: str
    node: str
    text: str
    severity: Literal["warning", "note"] = "note"
    remedy: str = ""


class Notes:
    """Counts notes: at most one finding per note, however many samples it is about."""

    def __init__(self) -> None:
        self._counts: Counter[Note] = Counter()
        self._first: dict[Note, str] = {}

    def add(self, notes: Iterable[Note], sample: str) -> None:
        """Count the notes of one sample."""
        for note in notes:
            self._counts[note] += 1
            self._first.setdefault(note, sample)

    def findings(self, total: int) -> list[Finding]:
        """Return one finding per note: how many of `total` samples it is about, and the first of them."""
        return [
            Finding(
                severity=note.severity,
                node=note.node,
                rule=note.rule,
                text=f"{note.text} ({count} of {total} samples, first {self._first[note]})",
                remedy=note.remedy,
            )
            for note, count in self._counts.items()
        ]


def noted(rule: str, text: str, *, node: str = "", remedy: str = "") -> Finding:
    """Return a finding of severity `note`."""
    return Finding(severity="note", node=node, rule=rule, text=text, remedy=remedy)


def warned(rule: str, text: str, *, node: str = "", remedy: str = "") -> Finding:
    """Return a finding of severity `warning`."""
    return Finding(severity="warning", node=node, rule=rule, text=text, remedy=remedy)


def named(names: Iterable[str], limit: int = NAMED) -> str:
    """Join names for a sentence; past `limit` say how many more there are."""
    listed = list(names)
    shown = ", ".join(listed[:limit])
    return shown if len(listed) <= limit else f"{shown} and {len(listed) - limit} more"


def printable(name: str) -> str:
    """Return a file name that can be encoded as UTF-8: undecodable bytes become hex escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
