"""What long work tells while it runs. Nothing outside `cli` prints: everyone else emits events to a listener."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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


MOST_ALIKE = 3
"""So many findings that say the same of other nodes are told one by one; more are told once, with their number."""

_NAMED = 5


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """Tell once what is said of many nodes: the first finding's text, how many more there are, and some of their names.

    Findings are alike when they differ in nothing but the node, names in quotes and numbers. The order is kept.
    """
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        alike.setdefault(_pattern(finding), []).append(finding)
    found: list[Finding] = []
    for group in alike.values():
        found += group if len(group) <= MOST_ALIKE else [_together(group)]
    return found


def _pattern(finding: Finding) -> tuple[str, ...]:
    text = finding.text.replace(finding.node, "'") if finding.node else finding.text
    return finding.severity, finding.rule, re.sub(r"'[^']*'|[-+]?\d[\d.,e%+-]*", "_", text)


def _together(group: list[Finding]) -> Finding:
    first, others = group[0], list(dict.fromkeys(finding.node for finding in group[1:]))
    names = ", ".join(f"'{name}'" for name in others[:_NAMED])
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    text = f"{first.text} (the same of {len(others)} others: {names}{more})"
    return msgspec.structs.replace(first, text=text)


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
