"""Definitions of WordNet 3.0 as running text: `abbey: a church associated with a monastery or convent`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from samples.download import Package, unpack

PACKAGE = Package(
    origin="debian",
    name="wordnet-base",
    version="1:3.0-37",
    file="wordnet-base_3.0-37_all.deb",
    sha256="61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
)
LICENSE = "usr/share/doc/wordnet-base/copyright"
NOUNS = "usr/share/wordnet/data.noun"


def load() -> list[str]:
    """Return one line a noun, in an order drawn with a fixed seed."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(PACKAGE, Path(folder), {NOUNS: "data.noun"})
        rows = (Path(folder) / "data.noun").read_text(encoding="ascii").splitlines()
    found = [definition(row) for row in rows if not row.startswith("  ")]
    return [found[place] for place in np.random.default_rng(0).permutation(len(found))]


def definition(row: str) -> str:
    """Return word and definition of a row of WordNet's `data` files (format: wndb(5)), without examples."""
    fields, _, gloss = row.partition(" | ")
    word = fields.split(" ")[4].replace("_", " ")
    text = gloss.partition('; "')[0].strip()
    return f"{word}: {text}"
