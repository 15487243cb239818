"""Errors that a user can act on: what went wrong, where, and the next step. Each class owns its exit status."""

from __future__ import annotations

from typing import ClassVar


class EdgekitError(Exception):
    """Base of every error that edgekit raises on purpose; used as itself it reports a bug in edgekit.

    Args:
        text: what is wrong, in one sentence.
        where: the file, key, node or tensor concerned; empty when there is none.
        remedy: what the user can do next; empty only for bugs.
    """

    exit_status: ClassVar[int] = 1
    kind: ClassVar[str] = "bug"

    def __init__(self, text: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.text}" if self.where else self.text]
        if self.remedy:
            parts.append(self.remedy)
        return "\n".join(parts)


class UsageError(EdgekitError):
    """An unknown option, profile, recipe or metric, or options that do not go together."""

    exit_status = 2
    kind = "usage"


class NeedsDataError(UsageError):
    """What was asked needs samples, and no data was given."""


class BudgetMissedError(EdgekitError):
    """A budget was missed: nothing ships."""

    exit_status = 3
    kind = "budget"


class InputError(EdgekitError):
    """A model, data set, archive or configuration that is wrong or unsafe."""

    exit_status = 4
    kind = "input"


class TargetError(EdgekitError):
    """A device that cannot be reached or a tool that is missing."""

    exit_status = 5
    kind = "target"


class LinkError(TargetError):
    """A machine that answered and does no more: work that is not timed may go on once it answers again."""


class IntegrityError(EdgekitError):
    """A hash, a signature or a golden output that does not match."""

    exit_status = 6
    kind = "integrity"


class UnsupportedError(EdgekitError):
    """What was asked is not possible on this profile."""

    exit_status = 7
    kind = "unsupported"


def did_you_mean(word: str, known: list[str]) -> str:
    """Return a remedy that names the closest known words, or all of them when none is close."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
    return "Known: " + ", ".join(sorted(known)) + "."
