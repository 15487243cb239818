"""The Target protocol: where a compiled model is run and measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeGuard

import numpy as np
import numpy.typing as npt

from edgekit.budget import Figure, Provenance
from edgekit.events import Finding

Feed = dict[str, npt.NDArray[np.generic]]
"""Tensor name -> array, batch axis included."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What a device loads: a folder and what the exporter said about it.

    Attributes:
        folder: holds the files that `Exporter.compile` wrote.
        facts: the facts that `Exporter.compile` returned (`runtime`, `model`, `providers`, ...).
    """

    folder: Path
    facts: dict[str, Any]


class Tolerance(Protocol):
    """How far an output may be off: |found - expected| <= absolute + relative * |expected|; integers not at all."""

    @property
    def absolute(self) -> float:
        """Return the allowance that every value has."""
        ...

    @property
    def relative(self) -> float:
        """Return the allowance as a share of the expected value."""
        ...


@dataclass(frozen=True, kw_only=True)
class GoldenResult:
    """What became of golden outputs on a target.

    Attributes:
        matches: whether all are within the tolerance.
        outputs: output name -> `matches`, `error` (largest difference, None when not comparable), `text`.
        count: feeds that were compared.
    """

    matches: bool
    outputs: dict[str, dict[str, Any]]
    count: int


class Target(Protocol):
    """A device, an emulator or a simulator that runs bundles."""

    url: str
    findings: list[Finding]

    @property
    def provenance(self) -> Provenance:
        """How its outputs were obtained: `measured` on a device, `simulated`; connects when it must look."""
        ...

    def reach(self) -> None:
        """Connect and let go again, which costs little; TargetError when it is not there, in use, or lacks a tool."""
        ...

    def fingerprint(self) -> dict[str, str]:
        """Say what the target is (hardware, OS, runtime versions): part of cache keys and of the report."""
        ...

    def run(self, bundle: Bundle, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Yield one dict of outputs per feed, in order, holding no more than a chunk of them."""
        ...

    def measure(
        self, bundle: Bundle, feed: Feed, *, runs: int, threads: int, sustained: float = 0
    ) -> tuple[Figure, ...]:
        """Measure `latency-p50`, `-p90`, `-p95`, `-p99` (ms) and `memory` (B) with at least `runs` timed runs.

        `energy` (mJ) where the machine tells its power. With `sustained` seconds of load, latency is that of the last
        minute.
        """
        ...

    def golden(self, bundle: Bundle, inputs: Path, outputs: Path, *, tolerance: Tolerance) -> GoldenResult:
        """Compare what it gives for the feeds of one file with the outputs in another (`jobs.encode_feeds`)."""
        ...

    def __enter__(self) -> Self:
        """Connects when it is first used."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close."""
        ...

    def close(self) -> None:
        """Let go of the device; never raises."""
        ...


class Simulator(Target, Protocol):
    """A target that gives a device's outputs, slowly, without being one: its time says nothing about the device's."""

    @property
    def place(self) -> str:
        """Return what outputs come from, for people."""
        ...

    @property
    def seconds_each(self) -> float:
        """Return how many CPU seconds a sample takes; 0 while that is not known."""
        ...

    def affordable(self, bundle: Bundle, feed: Feed, wanted: int) -> int:
        """Return how many of `wanted` samples it is to run: as asked, else what a reasonable time is enough for."""
        ...


def is_simulator(target: Target | None) -> TypeGuard[Simulator]:
    """Say whether a target is a simulator, by its class alone: properties of a device connect to it and lock it."""
    return callable(getattr(type(target), "affordable", None))
