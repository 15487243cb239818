"""What long work tells while it runs. Nothing outside `cli` prints: everyone else emits events to a listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing worth knowing about a model, its data or its target.

    Attributes:
        severity: `error` stops a build, `warning` and `note` do not.
        node: the node, tensor, file or key concerned; empty when it is about the whole.
        rule: a stable kebab-case name of the rule, e.g. `trt-asymmetric-activation`.
        text: what was found, one sentence.
        remedy: the next step; may be empty for notes.
    """

    severity: Severity
    node: str
    rule: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted:
    """A stage begins."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDone:
    """A stage ended; `cached` means that nothing was computed."""

    name: str
    seconds: float
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`done` of `total` units of `label` are finished; `total` 0 means unknown."""

    label: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A finding, told as soon as it is known."""

    finding: Finding


Event = StageStarted | StageDone | Progress | Found
Listener = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Listen to nothing: the default of the Python API."""
