"""The text form of shapes on the command line and in recipes: `x=1x3x224x224` and `x=MIN/OPT/MAX`."""

from __future__ import annotations

from typing import NamedTuple

from edgekit.errors import UsageError

_EXAMPLE = "Write --shape x=1x3x224x224, or a range as --shape x=1x3x96x96/4x3x96x96/8x3x96x96 (MIN/OPT/MAX)."
_MAX_DIM = (1 << 31) - 1


class ShapeRange(NamedTuple):
    """The smallest, usual and largest shape of one input; all three are the same when it is fixed."""

    name: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


def parse_shape(text: str) -> ShapeRange:
    """Read `NAME=SHAPE` or `NAME=MIN/OPT/MAX`; the name may hold `=` and `/`, a shape is numbers joined by `x`.

    Raises:
        UsageError: with an example of the right form.
    """
    name, equals, shapes = text.rpartition("=")
    if not equals or not name:
        raise UsageError(f"'{text}' has no '=': a shape belongs to a named input", where="--shape", remedy=_EXAMPLE)
    return ShapeRange(name, *parse_range(shapes, where=f"--shape {name}"))


def parse_range(text: str, *, where: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Read `SHAPE` or `MIN/OPT/MAX` and return the three shapes.

    Raises:
        UsageError: not numbers, not one or three shapes, different ranks, or not in ascending order.
    """
    parts = [_dims(part, text, where) for part in text.split("/")]
    if len(parts) == 1:
        parts *= 3
    if len(parts) != 3:  # noqa: PLR2004 - min, opt, max
        raise UsageError(f"'{text}' is {len(parts)} shapes: one or three are needed", where=where, remedy=_EXAMPLE)
    low, usual, high = parts
    if not len(low) == len(usual) == len(high):
        raise UsageError(f"the shapes in '{text}' have different ranks", where=where, remedy=_EXAMPLE)
    if any(not a <= b <= c for a, b, c in zip(low, usual, high, strict=True)):
        raise UsageError(f"'{text}' is not in ascending order", where=where, remedy=_EXAMPLE)
    return low, usual, high


def _dims(part: str, text: str, where: str) -> tuple[int, ...]:
    words = part.strip().lower().split("x")
    if not all(word.isascii() and word.isdigit() and 0 < int(word[:20]) <= _MAX_DIM for word in words):
        raise UsageError(
            f"'{part}' in '{text}' is not a shape: positive numbers joined by 'x'", where=where, remedy=_EXAMPLE
        )
    return tuple(int(word) for word in words)
