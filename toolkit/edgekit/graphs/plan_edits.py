"""Wishes of a recipe for single nodes: `[[stage.plan]]` tables, matched by node name or operator type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

import msgspec

from edgekit.errors import UsageError, did_you_mean

SKIP = "the option skip names it"
_MANY = 30


class Int8Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How some nodes of an int8 model are computed.

    Attributes:
        match: glob of node names or operator types.
        mode: `float` (as it was), `weights` (in float on weights stored in 8 bits), `static` (integers with ranges from
            calibration), `dynamic` (MatMul and Gemm: integers with ranges at run time), `w8a8` (integers: dynamic
            where the whole graph is, else static).
    """

    match: str
    mode: Literal["float", "weights", "static", "dynamic", "w8a8"]


class BlockEdit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the weights of some nodes are stored block-wise.

    Attributes:
        match: glob of node names or operator types.
        mode: `weights` or `float` (they stay as they are).
        bits: bits of a weight; left out: as the stage says.
        block: weights that share a scale; left out: as the stage says.
    """

    match: str
    mode: Literal["float", "weights"] = "weights"
    bits: int | None = None
    block: int | None = None


class HalfEdit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In what type some nodes compute.

    Attributes:
        match: glob of node names or operator types.
        mode: `float` (float32), or `half` (float16, whatever ranges and outputs say).
    """

    match: str
    mode: Literal["float", "half"] = "float"


Edit = TypeVar("Edit", Int8Edit, BlockEdit, HalfEdit)


def reason_of(edit: Int8Edit | BlockEdit | HalfEdit, skip: Sequence[str]) -> str:
    """Return what a table of decisions says of a node that an entry named."""
    return f"{SKIP if edit.match in skip else 'the plan of the recipe names it'} ('{edit.match}')"


def apply_edits(edits: Sequence[Edit], ops: Mapping[str, str], *, stage: str) -> dict[str, Edit]:
    """Return the entry that counts for each node: of several that match, the last.

    Args:
        edits: the entries, in order.
        ops: node name -> operator type.
        stage: the stage's name, for errors.

    Raises:
        UsageError: an entry matches nothing.
    """
    found: dict[str, Edit] = {}
    for edit in edits:
        named = [name for name, op in ops.items() if matches(edit.match, name, op)]
        if not named:
            known = sorted({*ops.values(), *ops})
            raise UsageError(
                f"'{edit.match}' matches no node and no operator type of the model",
                where=f"{stage}, plan or skip",
                remedy=did_you_mean(edit.match, known)
                if len(known) < _MANY or _is_close(edit.match, known)
                else "edgekit inspect MODEL --plan lists the nodes.",
            )
        found |= dict.fromkeys(named, edit)
    return found


def refuse_all(edit: Int8Edit | BlockEdit | HalfEdit, refusals: Mapping[str, str], *, stage: str) -> None:
    """Raise when an entry can be followed for none of the nodes that it counts for.

    Args:
        edit: the entry.
        refusals: node -> why it cannot be followed there, empty where it can.
        stage: the stage's name.
    """
    if not refusals or not all(refusals.values()):
        return
    name, why = next(iter(refusals.items()))
    others = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
    raise UsageError(
        f"'{edit.match}' asks for what no node can have: '{name}'{others}: {why}",
        where=f"{stage}, plan or skip",
        remedy="Ask for another mode there, or remove the entry; edgekit inspect MODEL --plan lists the nodes.",
    )


def matches(glob: str, name: str, op: str) -> bool:
    """Say whether a glob names a node, by its name as it is, by its name as a pattern, or by its operator type."""
    return name == glob or fnmatchcase(name, glob) or fnmatchcase(op, glob)


def _is_close(word: str, known: list[str]) -> bool:
    from difflib import get_close_matches

    return bool(get_close_matches(word, known, n=1, cutoff=0.5))
