"""Movie review snippets with human valence, from the ground truth of VADER (Hutto and Gilbert, 2014).

10,605 snippets of reviews, each with the mean of 20 people's ratings from -4 to 4. Those whose mean is at least half
a point from neutral are labeled `positive` or `negative`; texts that differ in case only count once.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from samples.download import Package, unpack

PACKAGE = Package(
    origin="sdist",
    name="vaderSentiment",
    version="3.3.2",
    file="vaderSentiment-3.3.2.tar.gz",
    sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
)
ARCHIVE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
LICENSE = "vaderSentiment-3.3.2/LICENSE.txt"
SNIPPETS = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
LABELS = ("negative", "positive")
NEUTRAL = 0.5
CALIBRATION, EVALUATION = 256, 5000


class Snippet(NamedTuple):
    """A text and its class: 0 negative, 1 positive."""

    text: str
    label: int


def load() -> tuple[list[Snippet], list[Snippet], list[Snippet]]:
    """Return the calibration (256), training and evaluation (5,000) snippets, drawn with a fixed seed."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(PACKAGE, Path(folder), {ARCHIVE: "data.tar.gz"})
        with tarfile.open(Path(folder) / "data.tar.gz") as archive:
            member = archive.extractfile(SNIPPETS)
            assert member is not None
            lines = member.read().decode("utf-8").splitlines()
    found: dict[str, Snippet] = {}
    for line in lines:
        _, valence, text = line.split("\t")
        if abs(float(valence)) >= NEUTRAL:
            found.setdefault(text.strip().lower(), Snippet(text.strip(), int(float(valence) > 0)))
    snippets = list(found.values())
    drawn = [snippets[row] for row in np.random.default_rng(0).permutation(len(snippets))]
    rest = drawn[:-EVALUATION]
    return rest[:CALIBRATION], rest[CALIBRATION:], drawn[-EVALUATION:]
