"""Which of a teacher's outputs stands for which of the student's: by class name, never by position alone."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit.errors import InputError
from edgekit.events import Finding

_MAP = "Give the names of the student's outputs, one per line in their order, with --label-map FILE."


def align_labels(
    student: Sequence[str], teacher: Sequence[str], *, widths: tuple[int, int]
) -> tuple[tuple[int, ...] | None, tuple[Finding, ...]]:
    """Return the teacher's column for each of the student's outputs; None where they are the same.

    Args:
        student: class names in the order of the student's outputs; empty when unknown.
        teacher: class names in the order of the teacher's outputs; empty when unknown.
        widths: number of the student's and of the teacher's outputs.

    Raises:
        InputError: the classes differ, or names that are needed are unknown; says both counts.
    """
    wide, most = widths
    for whose, names, width in (("student", student, wide), ("teacher", teacher, most)):
        if names and len(names) != width:
            raise InputError(f"the {whose} has {width} outputs and {len(names)} class names", where=whose, remedy=_MAP)
    if not student or not teacher:
        if wide != most:
            raise InputError(
                f"teacher has {most} outputs, student {wide}; give --label-map", where="teacher", remedy=_MAP
            )
        unknown = "neither model names its classes" if not student and not teacher else _nameless(student)
        text = f"{unknown}: the {wide} outputs of teacher and student are taken to be in the same order"
        return None, (Finding(severity="warning", node="", rule="label-order", text=text, remedy=_MAP),)
    places = {_plain(name): index for index, name in enumerate(teacher)}
    if len(places) != len(teacher) or len({_plain(name) for name in student}) != len(student):
        raise InputError("two classes have the same name", where="labels", remedy="Make the class names differ.")
    missing = [name for name in student if _plain(name) not in places]
    if missing:
        counts = f"teacher has {most} outputs, student {wide}; give --label-map"
        text = f"the teacher has no class {', '.join(map(repr, missing[:5]))}"
        raise InputError(f"{text}: {counts}" if wide != most else text, where="teacher", remedy=_MAP)
    columns = tuple(places[_plain(name)] for name in student)
    if columns == tuple(range(most)):
        return None, ()
    chosen = f"{wide} of the teacher's {most} outputs are used" if wide != most else "the label order differs"
    text = f"{chosen}: teacher and student are matched by class name"
    return columns, (Finding(severity="note", node="", rule="label-order", text=text),)


def _nameless(student: Sequence[str]) -> str:
    return "the teacher does not name its classes" if student else "the student does not name its classes"


def _plain(name: str) -> str:
    return name.strip().casefold().replace("_", " ")
