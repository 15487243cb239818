"""The archive of a package: a canonical, uncompressed POSIX tar.

Canonical means that headers follow from names and sizes (see `ustar`), that padding is zero and that the
archive ends with exactly two zero blocks. So the same members give the same bytes, every byte that is not
content follows from the names and sizes and is compared, and `tar xf` still works on any device.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edgekit.atomic import replacing, sync_folder
from edgekit.errors import InputError, IntegrityError, UsageError
from edgekit.ustar import BLOCK, header, name_fault, read_header

_CHUNK = 1 << 20
_END = bytes(2 * BLOCK)
_AGAIN = "Get the package again from where it was built, and do not use this copy."


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a reader accepts from an archive that it does not trust.

    Attributes:
        max_bytes: size of the archive file.
        max_members: number of files in it.
    """

    max_bytes: int = 64 << 30
    max_members: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file to be put into an archive, hashed before.

    Attributes:
        name: relative, with forward slashes.
        source: the content: bytes, or a file on disk.
        size: its number of bytes.
        sha256: hex sha256 of its bytes.
    """

    name: str
    source: Path | bytes
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file found in an archive: `size` bytes at `offset`, whose hex sha256 is `sha256`."""

    name: str
    offset: int
    size: int
    sha256: str


def member(name: str, source: Path | bytes) -> Member:
    """Hash a file, or bytes, that is to become a member."""
    found = hashlib.sha256()
    size = 0
    for chunk in _content(source):
        found.update(chunk)
        size += len(chunk)
    return Member(name=name, source=source, size=size, sha256=found.hexdigest())


def write_bundle(out_file: Path, members: Sequence[Member]) -> None:
    """Write an archive of `members`, in their order; it appears under its name whole or not at all.

    Raises:
        InputError: a name that no archive may hold, two names that are the same on some file system, or a
            file that changed since it was hashed.
        UsageError: the file cannot be written.
    """
    seen: dict[str, str] = {}
    for each in members:
        if reason := name_fault(each.name, seen):
            raise InputError(f"cannot be packed: {reason}", where=each.name, remedy="Rename the file.")
    with replacing(out_file) as file:
        for each in members:
            file.write(header(each.name, each.size))
            found = hashlib.sha256()
            for chunk in _content(each.source):
                found.update(chunk)
                file.write(chunk)
            if found.hexdigest() != each.sha256:
                where = str(each.source) if isinstance(each.source, Path) else each.name
                raise InputError("changed while it was packed", where=where, remedy="Build again.")
            file.write(bytes(-each.size % BLOCK))
        file.write(_END)


def read_bundle(path: Path, limits: Limits) -> tuple[Entry, ...]:
    """List and hash the members of an archive, and compare all of its other bytes with what they must be.

    Raises:
        InputError: not a readable regular file, or beyond the limits.
        IntegrityError: not an archive as `write_bundle` writes it: cut, extended, another header or padding.
    """
    with open_archive(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limits.max_bytes:
            raise _beyond(path, f"it has {size} bytes, more than the {limits.max_bytes} that are read")
        entries: list[Entry] = []
        seen: dict[str, str] = {}
        while (entry := _read_entry(file, path, seen)) is not None:
            if len(entries) == limits.max_members:
                raise _beyond(path, f"it has more than the {limits.max_members} members that are read")
            entries.append(entry)
        if file.read(BLOCK) != _END[BLOCK:] or file.tell() != size:
            raise damaged(path, "the archive does not end where it must", file.tell())
        return tuple(entries)


def read_member(path: Path, entry: Entry, max_bytes: int) -> bytes:
    """Return the content of a member, checked against its hash; InputError when it is above `max_bytes`."""
    if entry.size > max_bytes:
        raise _beyond(path, f"{entry.name} has {entry.size} bytes, more than the {max_bytes} that are read")
    with open_archive(path) as file:
        return b"".join(_checked(file, path, entry))


def extract(path: Path, entries: Sequence[Entry], folder: Path) -> None:
    """Write members that `read_bundle` found to the new folder `folder`, which appears whole or not at all.

    Raises:
        UsageError: the folder exists or cannot be written.
        IntegrityError: the archive changed since it was read.
    """
    if os.path.lexists(folder):
        raise UsageError("the folder exists", where=str(folder), remedy="Choose a new one, or remove it.")
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(folder)) from error
    try:
        with open_archive(path) as file:
            for entry in entries:
                target = temporary / entry.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as out:
                    for chunk in _checked(file, path, entry):
                        out.write(chunk)
                    out.flush()
                    os.fsync(out.fileno())
        temporary.chmod(0o755)
        for inner in temporary.rglob("*/"):
            sync_folder(inner)
        sync_folder(temporary)
        temporary.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        text, remedy = (
            f"cannot be extracted: {error.strerror}",
            "Free some space, or choose another folder (TMPDIR for temporary ones).",
        )
        raise UsageError(text, where=str(folder), remedy=remedy) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def damaged(path: Path, text: str, offset: int | None = None) -> IntegrityError:
    """Return the error for an archive that is not what was written."""
    where = str(path) if offset is None else f"{path}, byte {offset}"
    return IntegrityError(text, where=where, remedy=_AGAIN)


def open_archive(path: Path) -> BinaryIO:
    """Open a regular file for reading; InputError when there is none that can be read."""
    remedy = "Give the path of a file that can be read."
    try:
        # not blocking: a named pipe must not hang the reader
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError("not a regular file", where=str(path), remedy=remedy)
    return os.fdopen(descriptor, "rb")


def _beyond(path: Path, text: str) -> InputError:
    remedy = "Check where it comes from; a caller of the Python API can give wider `Limits`."
    return InputError(text, where=str(path), remedy=remedy)


def _read_entry(file: BinaryIO, path: Path, seen: dict[str, str]) -> Entry | None:
    """Read the next header and hash the content that follows it; None at the end of the archive."""
    start = file.tell()
    try:
        found = read_header(file)
    except ValueError as error:
        raise damaged(path, str(error), start) from None
    if found is None:
        return None
    name, size = found
    if reason := name_fault(name, seen):
        raise damaged(path, reason, start)
    offset = file.tell()
    sha256 = hashlib.sha256()
    left = size
    while left and (chunk := file.read(min(left, _CHUNK))):
        sha256.update(chunk)
        left -= len(chunk)
    padding = bytes(-size % BLOCK)
    if left or file.read(len(padding)) != padding:
        raise damaged(path, f"{name} is cut short or not padded with zeros", file.tell())
    return Entry(name=name, offset=offset, size=size, sha256=sha256.hexdigest())


def _checked(file: BinaryIO, path: Path, entry: Entry) -> Iterator[bytes]:
    """Yield the content of a member; IntegrityError at its end when it is not what was hashed before."""
    file.seek(entry.offset)
    found = hashlib.sha256()
    left = entry.size
    while left and (chunk := file.read(min(left, _CHUNK))):
        found.update(chunk)
        left -= len(chunk)
        yield chunk
    if found.hexdigest() != entry.sha256:
        raise damaged(path, f"{entry.name} changed while it was read", entry.offset)


def _content(source: Path | bytes) -> Iterator[bytes]:
    """Yield bytes, or the content of a file, in chunks."""
    if isinstance(source, bytes):
        yield source
        return
    with open_archive(source) as file:
        while chunk := file.read(_CHUNK):
            yield chunk
