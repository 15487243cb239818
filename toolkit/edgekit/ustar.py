"""The headers of the archive of a package, and the names that may stand in them.

A header follows from a member's name and size alone: mode 0644, owner 0, one fixed time. It is written here,
not by `tarfile`, whose bytes differ between Python versions. Follows POSIX.1-2017 `pax`, "ustar interchange
format"; a "pax" extended header precedes only names that ustar cannot hold and sizes of 8 GiB and more.
"""

from __future__ import annotations

import re
import unicodedata
from typing import BinaryIO

BLOCK = 512
"""Tar's unit: headers are blocks, contents are padded to blocks with zeros."""

_TIME = 315532800  # 1980-01-01: GNU tar warns about the epoch itself
_MAX_SIZE = 8**11 - 1  # eleven octal digits
_NAME, _PREFIX = 100, 155  # bytes of ustar's two fields for a name
_MAX_EXTENDED = 4096
_MAX_PATH = 1024
_MAX_PART = 255
_OCTAL = re.compile(rb"([0-7]{11})\x00")
_RECORD = re.compile(r"[0-9]{1,4} (path(?==)|size(?==[0-9]{1,20}\n))=([^\n]*)\n")
_SHUNNED = frozenset('\\:*?"<>|')  # not allowed, or with a meaning of its own, on some device's file system


def name_fault(name: str, seen: dict[str, str]) -> str:
    """Return why an archive must not hold `name` next to those seen before, or nothing, and note it as seen.

    `seen` maps a path, folded as a file system that ignores case would, to the path as written; folders end
    with `/`.
    """
    parts = name.split("/")
    if any(part in {"", ".", ".."} or part[-1] in ". " for part in parts):
        return "the name is not a plain relative path"
    if any(char in _SHUNNED or unicodedata.category(char) in {"Cc", "Cs"} for char in name):
        return "the name has a character that some file systems refuse"
    if len(name.encode()) > _MAX_PATH or any(len(part.encode()) > _MAX_PART for part in parts):
        return "the name is too long"
    for depth in range(1, len(parts)):
        folder = "/".join(parts[:depth])
        if (earlier := seen.setdefault(_folded(folder), folder + "/")) != folder + "/":
            return f"the name clashes with '{earlier}'"
    if (earlier := seen.setdefault(_folded(name), "")) != "":
        return f"the name clashes with '{earlier}'"
    seen[_folded(name)] = name
    return ""


def header(name: str, size: int) -> bytes:
    """Return the blocks that precede the content of a member."""
    prefix, rest = _split(name)
    records = b"" if rest else _record("path", name)
    rest = rest or name.encode("ascii", "replace")[-_NAME:]
    if size > _MAX_SIZE:
        records += _record("size", str(size))
        size = 0
    block = _ustar(prefix, rest, size, b"0")
    if not records:
        return block
    return _ustar(b"", b"PaxHeader", len(records), b"x") + records + bytes(-len(records) % BLOCK) + block


def read_header(file: BinaryIO) -> tuple[str, int] | None:
    """Read the next header and return name and size of its member, or None for a zero block.

    Raises:
        ValueError: not a header as `header` writes it, byte by byte. The name is not judged.
    """
    raw = block = file.read(BLOCK)
    records: dict[str, str] = {}
    if block == bytes(BLOCK):
        return None
    if block[156:157] == b"x":
        length = _octal(block[124:136])
        if length > _MAX_EXTENDED:
            raise ValueError("an extended header is too long")
        data = file.read(length + -length % BLOCK)
        records = dict(_RECORD.findall(data.decode("utf-8", "replace")))
        block = file.read(BLOCK)
        raw += data + block
    if len(block) < BLOCK:
        raise ValueError("the archive is cut short")
    prefix, rest = (block[a:b].rstrip(b"\0").decode("utf-8", "replace") for a, b in ((345, 500), (0, 100)))
    name = records.get("path", f"{prefix}/{rest}" if prefix else rest)
    size = int(records.get("size", "0")) or _octal(block[124:136])
    if header(name, size) != raw:
        raise ValueError("a header is not as edgekit writes it")
    return name, size


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def _split(name: str) -> tuple[bytes, bytes]:
    """Split a name into ustar's prefix and name fields; both are empty when they cannot hold it."""
    if not name.isascii():
        return b"", b""
    encoded = name.encode()
    if len(encoded) <= _NAME:
        return b"", encoded
    cut = encoded.find(b"/", len(encoded) - _NAME - 1)
    return (encoded[:cut], encoded[cut + 1 :]) if 0 < cut <= _PREFIX else (b"", b"")


def _record(key: str, value: str) -> bytes:
    """Return an extended header record, whose first number is the length of the whole record."""
    body = f" {key}={value}\n".encode()
    length = len(body)
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def _ustar(prefix: bytes, name: bytes, size: int, kind: bytes) -> bytes:
    """Return a ustar header block."""
    fields = b"".join((
        name.ljust(_NAME, b"\0"), b"0000644\0", b"0000000\0", b"0000000\0",  # mode, owner, group
        b"%011o\0" % size, b"%011o\0" % _TIME, b" " * 8, kind, bytes(100),  # checksum as spaces, kind, link
        b"ustar\x0000", bytes(64), b"0000000\0", b"0000000\0",  # version, names of owner and group, device
        prefix.ljust(_PREFIX, b"\0"), bytes(12),
    ))  # fmt: skip
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def _octal(field: bytes) -> int:
    """Return a size field's number; ValueError when it is not written as ours are."""
    match = _OCTAL.fullmatch(field)
    if not match:
        raise ValueError("a header is cut short or not as edgekit writes it")
    return int(match[1], 8)
