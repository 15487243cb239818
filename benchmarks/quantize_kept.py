"""Figures of one row of the bar, written down as they are found: a run that was stopped goes on with them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from quantize_measure import MissingError

Figures = dict[str, float]

SETTINGS = {
    "effnet": ("limit",),
    "minilm": ("limit",),
    "language-4": ("windows",),
    "language-8": ("windows",),
    "calibration": (),
    "tensorrt": ("limit",),
    "qnn": ("iterations",),
}
"""Options that a row's figures depend on: with others they are found again."""


class Kept:
    """The figures of one row, in a file."""

    def __init__(self, file: Path, row: str, options: argparse.Namespace) -> None:
        """Read the file if its figures were found with these options, or any if nothing but the table is wanted."""
        self.row, self._file = row, file
        self.settings = {name: getattr(options, name) for name in SETTINGS[row]}
        self.figures: dict[str, Figures] = {}
        self.left_out: dict[str, str] = {}
        self.about = ""
        self._done: list[str] = []
        if file.exists():
            held = json.loads(file.read_text(encoding="utf-8"))
            if held["settings"] == self.settings or options.table:
                self.figures, self._done, self.about = held["figures"], held["done"], held["about"]

    def once(self, what: str, find: Callable[[], Mapping[str, Figures]]) -> None:
        """Find figures unless they are there; what is not to be had is left out, with the reason."""
        if what in self._done:
            return
        try:
            found = find()
        except MissingError as error:
            self.left_out[what] = str(error)
            return
        for name, values in found.items():
            self.figures.setdefault(name, {}).update(values)
        self._done.append(what)
        self.save()

    def save(self) -> None:
        """Write the file."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        held = {"settings": self.settings, "figures": self.figures, "done": self._done, "about": self.about}
        self._file.write_text(json.dumps(held, indent=1), encoding="utf-8")
