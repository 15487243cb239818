"""The rebuild record of a `torch` artifact: `record.json`, read and written without torch.

An artifact of kind `torch` holds no pickle of edgekit's making: `record.json` says how to rebuild the module from
the files beside it. `from` is one of

- `huggingface`: `hf/config.json`, `hf/*.safetensors` (shards with their index), tokenizer and preprocessor files.
- `factory`: `source/` (the user's modules and the files they read), `weights.safetensors`.
- `exported-program`: `program.pt2` without its pickled part, `examples.safetensors`.

What stages did to the model since stands in `changes`, oldest first. Where there are any, `weights.safetensors` holds
the whole state after the last of them (with `aliases` for what is tied), and the weights of the origin are gone: the
module is built as its origin says, every change is applied to its structure, and the state is loaded last.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from edgekit.artifact import canonical_json
from edgekit.errors import InputError

RECORD = "record.json"
WEIGHTS = "weights.safetensors"
PROGRAM = "program.pt2"
EXAMPLES = "examples.safetensors"
_MAX_JSON = 16 << 20
_FICLONE = 0x40049409


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change that a stage made to a model.

    Attributes:
        kind: a key of `changes.CHANGES`: what knows how to redo it. `weights` says that only values changed.
        details: JSON values that this kind needs, e.g. the channels that were kept. Values of tensors do not belong
            here: they stand in `weights.safetensors`.
    """

    kind: str
    details: dict[str, Any] = {}


def changes_of(record: dict[str, Any]) -> tuple[Change, ...]:
    """Return the changes of a record, oldest first; none for a model as it was taken in.

    Raises:
        InputError: they are not such a list.
    """
    try:
        return msgspec.convert(record.get("changes", []), tuple[Change, ...])
    except msgspec.ValidationError as error:
        remedy = "Remove the artifact: edgekit cache prune --all. The next build makes it again."
        raise InputError(f"`changes` cannot be read: {error}", where=RECORD, remedy=remedy) from None


def write_record(out: Path, record: dict[str, Any]) -> None:
    """Write `record.json` in canonical form: equal records are equal bytes."""
    (out / RECORD).write_bytes(canonical_json(record))


def read_record(folder: Path) -> dict[str, Any]:
    """Read the `record.json` of an artifact of kind `torch`."""
    return read_json(folder / RECORD)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of at most 16 MiB.

    Raises:
        InputError: no such file, too big, not UTF-8, not JSON, or not an object.
    """
    remedy = "Restore the file as the library that saved the model wrote it."
    try:
        if path.stat().st_size > _MAX_JSON:
            raise InputError("over 16 MiB of JSON", where=path.name, remedy=remedy)
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read as JSON: {error}", where=path.name, remedy=remedy) from None
    if not isinstance(found, dict):
        raise InputError("a JSON object was expected", where=path.name, remedy=remedy)
    return found


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file, sharing its blocks copy-on-write where the file system can; never a hard link.

    Raises:
        InputError: it is not a regular file (symbolic links to one are followed).
    """
    if not source.is_file():
        raise InputError("not a regular file", where=str(source), remedy="Replace it with the file itself.")
    target.parent.mkdir(parents=True, exist_ok=True)
    if sys.platform == "linux":
        import fcntl

        with source.open("rb") as old, target.open("wb") as new, contextlib.suppress(OSError):
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
            return
    shutil.copyfile(source, target)
    os.utime(target)
