"""The store: artifacts on disk, content-addressed, published atomically, with a cache from keys to artifacts.

Layout under the root (`$EDGEKIT_HOME`, else `$XDG_CACHE_HOME/edgekit`, else `~/.cache/edgekit`):

    artifacts/ab/abcd.../manifest.json   the Artifact, written last
    artifacts/ab/abcd.../files/...       its files, read-only
    artifacts/ab/.new-...                being written; never read; removed when its writer is gone
    records/ab/abcd....json              cache key -> JSON record that names an artifact
    scratch/<key>/                       checkpoints of a stage: survive a kill, never published
    shared/<name>/                       what several stages can use (training samples as arrays), named by content
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec

from edgekit.artifact import Artifact, Step, canonical_json, sha256_file
from edgekit.atomic import sync_folder
from edgekit.errors import EdgekitError, IntegrityError, TargetError

_NEW = ".new-"
GONE = ".gone-"
"""What a name begins with while its folder is being removed."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    artifact: Artifact
    sizes: dict[str, int]


def default_root() -> Path:
    """Return the store's folder: `$EDGEKIT_HOME`, else the user's cache folder."""
    if home := os.environ.get("EDGEKIT_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgekit"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or none of it, whatever is killed when."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_NEW)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class Store:
    """Artifacts on disk. Safe for several processes at once; a kill at any moment leaves nothing half.

    Raises:
        TargetError: the folder cannot be written.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()
        try:
            for name in ("artifacts", "records", "scratch", "shared", "locks"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            self._alive = open(self.root / "locks" / "alive", "a")  # noqa: SIM115 - held for the store's life
        except OSError as error:
            raise TargetError(
                f"the store cannot be written: {error.strerror}",
                where=str(self.root),
                remedy="Set EDGEKIT_HOME to a folder that you can write.",
            ) from error
        self._sweep()

    def close(self) -> None:
        """Let other processes sweep what this one may have left."""
        self._alive.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- artifacts

    def folder(self, artifact_id: str) -> Path:
        """Return the read-only folder that holds an artifact's files."""
        return self._home(artifact_id) / "files"

    def load(self, artifact_id: str) -> Artifact | None:
        """Return a stored artifact, or None when it is not here (any more).

        Raises:
            IntegrityError: it is here but its manifest or a file's size is not what was published.
        """
        home = self._home(artifact_id)
        try:
            manifest = msgspec.json.decode((home / "manifest.json").read_bytes(), type=_Manifest)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise self._damaged(home, str(error)) from error
        if manifest.artifact.id != artifact_id:
            raise self._damaged(home, "the manifest is another artifact's")
        for name, size in manifest.sizes.items():
            path = home / "files" / name
            if not path.is_file() or path.stat().st_size != size:
                raise self._damaged(path, f"expected {size} bytes")
        with contextlib.suppress(OSError):
            os.utime(home / "manifest.json")
        return manifest.artifact

    def find(self, prefix: str) -> Artifact | None:
        """Return the artifact whose id is or starts with `prefix` (at least 6 characters), when there is just one."""
        least = 6
        if len(prefix) < least or not all(c in "0123456789abcdef" for c in prefix):
            return None
        found = [p.name for p in (self.root / "artifacts" / prefix[:2]).glob(f"{prefix}*") if p.is_dir()]
        return self.load(found[0]) if len(found) == 1 else None

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Give an empty folder inside the store to write an artifact's files into; removed unless published."""
        (self.root / "artifacts" / "new").mkdir(exist_ok=True)
        home = Path(tempfile.mkdtemp(dir=self.root / "artifacts" / "new", prefix=_NEW))
        (home / "files").mkdir()
        try:
            with self._room():
                yield home / "files"
        finally:
            if home.exists():
                remove(home)

    def publish(self, files: Path, kind: str, facts: dict[str, Any], lineage: tuple[Step, ...]) -> Artifact:
        """Turn a staging folder into an artifact, durably and in one rename.

        Args:
            files: a folder that `staging` gave, filled.
            kind: the artifact's kind.
            facts: its facts.
            lineage: the steps that made it.
        """
        paths = sorted(p for p in files.rglob("*") if p.is_file())
        hashes: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for path in paths:
            if path.is_symlink():
                raise EdgekitError("a stage wrote a symbolic link", where=path.name)
            name = path.relative_to(files).as_posix()
            _sync(path)
            hashes[name], sizes[name] = sha256_file(path), path.stat().st_size
            path.chmod(0o444)
        for folder in sorted((p for p in files.rglob("*") if p.is_dir()), reverse=True):
            sync_folder(folder)
        sync_folder(files)
        facts = msgspec.json.decode(canonical_json(facts))
        artifact = Artifact(kind=kind, files=hashes, facts=facts, lineage=lineage)
        home, target = files.parent, self._home(artifact.id)
        if target.exists():
            return artifact
        manifest = canonical_json(_Manifest(artifact=artifact, sizes=sizes))
        write_atomically(home / "manifest.json", manifest)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            home.rename(target)
        except OSError:
            if not target.exists():  # else another process published the same bytes first
                raise
        sync_folder(target.parent)
        return artifact

    # ---- cache records

    def record(self, key: str) -> dict[str, Any] | None:
        """Return what was remembered under a cache key, or None."""
        try:
            found = msgspec.json.decode(self._record(key).read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return found if isinstance(found, dict) else None

    def remember(self, key: str, record: dict[str, Any]) -> None:
        """Remember a JSON record under a cache key, atomically."""
        path = self._record(key)
        with self._room():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, canonical_json(record))

    def scratch(self, key: str) -> Path:
        """Return the folder for checkpoints of the work with this key; it is there until `forget_scratch`."""
        path = self.root / "scratch" / key
        path.mkdir(exist_ok=True)
        return path

    @property
    def shared(self) -> Path:
        """The folder for what several stages can use; `cache prune` empties it."""
        return self.root / "shared"

    def forget_scratch(self, key: str) -> None:
        """Remove the checkpoints of finished work."""
        shutil.rmtree(self.root / "scratch" / key, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the right to do the work with this key; a second process waits. A kill releases it."""
        with open(self.root / "locks" / key, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def forget_dangling(self) -> None:
        """Remove the cache records whose artifact is gone."""
        for path in (self.root / "records").glob("*/*.json"):
            record = self.record(path.stem)
            if record is None or not self._home(str(record.get("artifact", ""))).exists():
                path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove what killed processes left, when no other process uses the store."""
        try:
            fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            for pattern in (f"artifacts/*/{_NEW}*", f"artifacts/*/{GONE}*", f"records/*/{_NEW}*"):
                for path in self.root.glob(pattern):
                    remove(path)
            for path in (self.root / "locks").iterdir():
                if path.name != "alive":
                    path.unlink(missing_ok=True)
        fcntl.flock(self._alive, fcntl.LOCK_SH)

    def _home(self, artifact_id: str) -> Path:
        return self.root / "artifacts" / (artifact_id[:2] or "-") / (artifact_id or "-")

    def _record(self, key: str) -> Path:
        return self.root / "records" / key[:2] / f"{key}.json"

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Tell a full or read-only disk as what it is: it is no bug, and the user can help."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise TargetError(
                f"the store cannot be written: {error.strerror}",
                where=str(error.filename or self.root),
                remedy=f"Free space (edgekit cache prune), or set EDGEKIT_HOME to another folder than {self.root}.",
            ) from error

    def _damaged(self, path: Path, why: str) -> IntegrityError:
        return IntegrityError(
            f"an artifact in the store was changed: {why}",
            where=str(path),
            remedy="Remove it: edgekit cache prune --all. The next build makes it again.",
        )


def copy_file(source: Path, destination: Path) -> None:
    """Copy a file into the store, sharing blocks where the file system can; never a hard link."""
    with open(source, "rb") as reader, open(destination, "wb") as writer:
        try:
            fcntl.ioctl(writer, 0x40049409, reader.fileno())  # FICLONE of linux/fs.h
        except OSError:
            shutil.copyfileobj(reader, writer, 1 << 20)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, as far as it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
