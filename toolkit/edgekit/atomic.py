"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from edgekit.errors import UsageError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that becomes `path` in one rename when the block ends well, and leaves no trace when not.

    A kill may leave the hidden `.NAME.part` beside it, which the next writer of the same name takes over.

    Raises:
        UsageError: the place cannot be written, or another process is writing the same file.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            _take(descriptor, temporary)
            file.truncate()
            try:
                yield file
                file.flush()
                os.fsync(descriptor)
                temporary.rename(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        sync_folder(path.parent)
    except OSError as error:
        text = f"cannot be written: {error.strerror or error}"
        raise UsageError(text, where=str(path), remedy="Choose another place, or free this one.") from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int, temporary: Path) -> None:
    """Lock the temporary file for as long as it is open; OSError unless it is ours alone."""
    busy = BlockingIOError(errno.EBUSY, f"another process uses {temporary.name}")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        ours = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == os.geteuid()
        if ours and os.path.samestat(found, os.lstat(temporary)):
            return
    except (BlockingIOError, FileNotFoundError):  # its owner is at work, or has just put it into place
        raise busy from None
    raise busy
