"""What lies at a path: its form, and the splits that names of folders and files give."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgekit.data import arrow, pictures, tables
from edgekit.data.faults import named, noted, printable
from edgekit.data.limits import MAX_CONFIG_BYTES
from edgekit.data.rules import SIDECARS
from edgekit.data.text import TOKENIZER, TOKENIZER_CONFIG
from edgekit.errors import InputError
from edgekit.events import Finding

Role = Literal["all", "training", "calibration", "validation", "evaluation"]
Form = Literal["images", "feeds", "rows", "table", "arrow", "factory"]

ROLES: dict[str, Role] = {
    "train": "training",
    "training": "training",
    "calib": "calibration",
    "calibration": "calibration",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "eval": "evaluation",
    "evaluation": "evaluation",
    "test": "evaluation",
    "testing": "evaluation",
}
"""Name of a folder, file (without suffix) or split -> what it is for."""

ARRAYS = frozenset({".npz", ".npy"})
LABEL_FILES = ("labels.txt", "classes.txt")
_FORMS = (
    "Give a folder of images by class, a .npz, .npy, .csv, .tsv or .jsonl, a folder of .npz feeds, a folder that "
    "`datasets` saved, or python:module:factory."
)
_BESIDE = (*SIDECARS, *LABEL_FILES, TOKENIZER, TOKENIZER_CONFIG)
_ENOUGH_ROLES = 2


@dataclass(frozen=True, kw_only=True)
class Place:
    """One split's data, found but not read.

    Attributes:
        form: which reader it needs.
        name: how to call it.
        paths: its files (one folder for `arrow`, none for `factory`).
        ids: a name per file.
        classes: the class folder of each file; None when there are none.
        given: the object of an `arrow` split or a factory.
    """

    form: Form
    name: str
    paths: tuple[Path, ...] = ()
    ids: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    given: object = None


def find(path: str, findings: list[Finding]) -> dict[Role, Place]:
    """Return what lies at a path of files, by split (`all` when no names say what is for what).

    Raises:
        InputError: nothing there, nothing that can be read, or a mix that could mean two things.
    """
    root = Path(path).absolute()
    if root.is_file():
        return {"all": _file(root, root.name)}
    if not root.is_dir():
        raise InputError("no such file or folder", where=printable(path), remedy=_FORMS)
    if arrow.is_saved_dataset(root):
        splits = arrow.load(root)
        return named_splits(splits, "arrow", printable(root.name), printable(path))
    folders = sorted((entry for entry in _visible(root) if entry.is_dir()), key=lambda entry: entry.name)
    files = sorted((entry for entry in _visible(root) if entry.is_file() and _is_data(entry)), key=lambda e: e.name)
    split_folders, split_files = _by_role(folders, root), _by_role(files, root)
    if split_folders and _decides(split_folders, folders):
        left = [entry.name for entry in folders if entry.name.lower() not in ROLES] + [file.name for file in files]
        _note_ignored(left, findings)
        return {
            role: _folder(entry, printable(f"{root.name}/{entry.name}"), findings)
            for role, entry in split_folders.items()
        }
    if split_files and _decides(split_files, files):
        _note_ignored([entry.name for entry in [*files, *folders] if entry.stem.lower() not in ROLES], findings)
        return {role: _file(entry, printable(f"{root.name}/{entry.name}")) for role, entry in split_files.items()}
    return {"all": _folder(root, printable(root.name), findings, beside=_BESIDE)}


def named_splits(splits: dict[str, object], form: Form, name: str, where: str) -> dict[Role, Place]:
    """Return the splits of a factory or saved data set by role; InputError for a name that says no role."""
    if set(splits) == {""}:
        return {"all": Place(form=form, name=name, given=splits[""])}
    found: dict[Role, Place] = {}
    for key, given in splits.items():
        role = ROLES.get(key.lower())
        if role is None or role in found:
            raise InputError(
                f"what is the split '{key}' for?" if role is None else f"two splits for {role}",
                where=where,
                remedy="Splits are called " + ", ".join(ROLES) + ".",
            )
        found[role] = Place(form=form, name=f"{name}/{key}", given=given)
    return found


def read_label_list(root: Path) -> tuple[str, ...]:
    """Return the classes that `labels.txt` or `classes.txt` lists, one per line; empty when there is none.

    Raises:
        InputError: two such files, not text, or a class that stands there twice.
    """
    paths = [root / name for name in LABEL_FILES if (root / name).is_file()]
    if not paths:
        return ()
    where = printable(str(paths[0]))
    if len(paths) > 1:
        raise InputError("two lists of classes: " + " and ".join(LABEL_FILES), where=where, remedy="Keep one.")
    try:
        if paths[0].stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"larger than {MAX_CONFIG_BYTES} bytes", where=where, remedy="One class per line.")
        lines = [line.strip() for line in paths[0].read_text("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"not readable: {error}", where=where, remedy="Save it as UTF-8.") from None
    return checked_classes([line for line in lines if line], where)


def checked_classes(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Return class names as a tuple; InputError for a name that stands there twice."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"classes listed twice: {named(twice)}", where=where, remedy="List each class once.")
    return tuple(names)


def _file(path: Path, name: str) -> Place:
    suffix, name = path.suffix.lower(), printable(name)
    if suffix in ARRAYS:
        return Place(form="rows", name=name, paths=(path,), ids=(name,))
    if suffix in tables.SUFFIXES:
        return Place(form="table", name=name, paths=(path,), ids=(name,))
    if suffix in pictures.SUFFIXES:
        return Place(form="images", name=name, paths=(path,), ids=(name,))
    raise InputError(
        f"'{suffix or path.name}' is no format that edgekit reads", where=printable(str(path)), remedy=_FORMS
    )


def _folder(root: Path, name: str, findings: list[Finding], *, beside: Collection[str] = ()) -> Place:
    """Find out what a folder holds; files that lie `beside` the data are read by others."""
    if arrow.is_saved_dataset(root):
        given = arrow.load(root)
        return Place(form="arrow", name=name, given=next(iter(given.values())))
    files = list(_walk(root))
    images = [path for path in files if path.suffix.lower() in pictures.SUFFIXES]
    arrays = [path for path in files if path.suffix.lower() in ARRAYS]
    lists = [path for path in files if path.suffix.lower() in tables.SUFFIXES]
    where = printable(str(root))
    if images and arrays:
        raise InputError(
            f"{len(images)} images and {len(arrays)} arrays in one folder",
            where=where,
            remedy="Keep one kind, or give the other folder.",
        )
    taken = {*(images or arrays or lists), *(root / known for known in beside)}
    _note_ignored([str(path.relative_to(root)) for path in files if path not in taken], findings)
    if images:
        return _images(root, name, images, findings)
    if arrays:
        return _feeds(root, name, arrays)
    if len(lists) == 1:
        return _file(lists[0], f"{name}/{lists[0].name}")
    if lists:
        raise InputError(
            f"{len(lists)} tables in one folder: {named(path.name for path in lists)}",
            where=where,
            remedy="Give one of them, or call them train, calibration and test.",
        )
    raise InputError("no samples in the folder (hidden files are not read)", where=where, remedy=_FORMS)


def _images(root: Path, name: str, images: list[Path], findings: list[Finding]) -> Place:
    parts = [path.relative_to(root).parts for path in images]
    ids = tuple(printable("/".join((name, *part))) for part in parts)
    loose = [place for place, part in zip(ids, parts, strict=True) if len(part) == 1]
    classes = tuple(printable(part[0]) for part in parts)
    if loose and len(loose) < len(ids):
        raise InputError(
            f"{len(loose)} images lie beside class folders: {named(loose)}",
            where=printable(str(root)),
            remedy="Move them into a class folder, or all images into one.",
        )
    if not loose and len(set(classes)) == 1 and not any((root / file).is_file() for file in LABEL_FILES):
        findings.append(
            noted(
                "data-one-folder",
                node=classes[0],
                text=f"all images lie in the one folder '{classes[0]}': taken as unlabelled",
                remedy="Write labels.txt beside it if it is a class.",
            )
        )
        return Place(form="images", name=name, paths=tuple(images), ids=ids)
    return Place(form="images", name=name, paths=tuple(images), ids=ids, classes=None if loose else classes)


def _feeds(root: Path, name: str, arrays: list[Path]) -> Place:
    nested = sorted({str(path.relative_to(root).parent) for path in arrays} - {"."})
    if nested:
        raise InputError(
            f"arrays in subfolders: {named(nested)}",
            where=printable(str(root)),
            remedy="Give one of them, or call them calibration, training and evaluation.",
        )
    return Place(form="feeds", name=name, paths=tuple(arrays), ids=tuple(printable(f"{name}/{p.name}") for p in arrays))


def _by_role(entries: Sequence[Path], root: Path) -> dict[Role, Path]:
    found: dict[Role, Path] = {}
    for entry in entries:
        role = ROLES.get((entry.name if entry.is_dir() else entry.stem).lower())
        if role in found:
            raise InputError(
                f"both '{found[role].name}' and '{entry.name}' are for {role}",
                where=printable(str(root)),
                remedy="Keep one of them.",
            )
        if role is not None:
            found[role] = entry
    return found


def _decides(found: dict[Role, Path], entries: Sequence[Path]) -> bool:
    """Say whether names are splits: all of them, or two of different roles; `train` beside `car` is a class."""
    return len(found) == len(entries) or len(found) >= _ENOUGH_ROLES


def _walk(root: Path) -> Iterator[Path]:
    """Yield the regular files below a folder in order, links followed once, hidden ones left out."""
    seen: set[str] = set()
    for folder, below, names in os.walk(root, followlinks=True, onerror=_refuse_folder):
        real = os.path.realpath(folder)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if not _is_hidden(name))
        for name in sorted(names):
            path = Path(folder) / name
            if not _is_hidden(name) and path.is_file():
                yield path


def _refuse_folder(error: OSError) -> None:
    raise InputError(
        f"folder cannot be read: {error.strerror}",
        where=printable(str(error.filename)),
        remedy="Correct its permissions.",
    )


def _visible(root: Path) -> list[Path]:
    try:
        return [entry for entry in root.iterdir() if not _is_hidden(entry.name)]
    except OSError as error:
        _refuse_folder(error)
        raise


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in {"__MACOSX", "Thumbs.db", "desktop.ini", "__pycache__"}


def _is_data(path: Path) -> bool:
    return path.suffix.lower() in ARRAYS | tables.SUFFIXES | pictures.SUFFIXES


def _note_ignored(names: Sequence[str], findings: list[Finding]) -> None:
    if names:
        findings.append(
            noted(
                "data-ignored-files",
                text=f"{len(names)} files or folders are not read: " + named([printable(name) for name in names], 5),
            )
        )
