"""`.npy` and `.npz` files: every header is checked before any data is read; never pickle.

Uncompressed arrays are mapped into memory, so that a file may be larger than the machine's memory. A compressed
array (`np.savez_compressed`) must be decoded as a whole when rows of it are wanted, and is held then.
"""

from __future__ import annotations

import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from edgekit.data.faults import UnreadableError
from edgekit.data.limits import MAX_HELD_BYTES, MAX_MEMBERS
from edgekit.errors import InputError

_DAMAGED = (
    ValueError,
    EOFError,
    OSError,
    KeyError,
    SyntaxError,
    TypeError,
    OverflowError,
    RecursionError,
    MemoryError,
    RuntimeError,
    NotImplementedError,
    struct.error,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
)
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_CHUNK = 1 << 20
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the header of an array says.

    Attributes:
        dtype: plain: no objects, no fields.
        shape: non-negative sizes.
        fortran: the first axis varies fastest.
        offset: bytes of the header: where the data begins in its `.npy`.
    """

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * self.dtype.itemsize


class ArrayFile:
    """The arrays of one `.npz`, or the one array of a `.npy` under the name given.

    Args:
        path: the file.
        where: how to call it in errors.
        alone: the name of a `.npy`'s array.

    Raises:
        UnreadableError: not such a file, or damaged.
        InputError: it holds Python objects, or more than the limits allow.
    """

    def __init__(self, path: Path, *, where: str, alone: str = "") -> None:
        self.path, self.where = path, where
        self._alone = alone if path.suffix.lower() == ".npy" else None
        self._members: dict[str, zipfile.ZipInfo] = {}
        with self._damage():
            if self._alone is not None:
                with path.open("rb") as file:
                    self.headers = {alone: _read_header(file, alone, where, path.stat().st_size)}
            else:
                self.headers = self._read_members()

    def read(self, name: str) -> npt.NDArray[np.generic]:
        """Return a whole array, checked against the file's checksum."""
        header = self.headers[name]
        with self._damage():
            if self._alone is not None:
                return np.array(self._map(name, header.offset))
            if header.size > MAX_HELD_BYTES:
                raise InputError(
                    f"array '{name}' takes {header.size} bytes, at most {MAX_HELD_BYTES} are held",
                    where=self.where,
                    remedy="Save it uncompressed with np.savez: such arrays are mapped, not held.",
                )
            with zipfile.ZipFile(self.path) as archive, archive.open(self._members[name]) as file:
                return _read_data(file, header)

    def rows(self, name: str) -> npt.NDArray[np.generic]:
        """Return an array for reading rows of: mapped when uncompressed (its checksum is checked), else held."""
        if self._alone is not None:
            with self._damage():
                return self._map(name, self.headers[name].offset)
        info = self._members[name]
        if info.compress_type != zipfile.ZIP_STORED:
            return self.read(name)
        with self._damage():
            start = self._data_offset(info)
            self._check_sum(info, start)
            return self._map(name, start + self.headers[name].offset)

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except _DAMAGED as error:
            reason = "empty file" if _is_empty(self.path) else f"damaged or not an array file: {error}"
            raise UnreadableError(reason, where=self.where, remedy="Save it again with np.savez or np.save.") from None

    def _read_members(self) -> dict[str, Header]:
        headers = {}
        with zipfile.ZipFile(self.path) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            if len(archive.infolist()) > MAX_MEMBERS:
                raise InputError(
                    f"more than {MAX_MEMBERS} arrays", where=self.where, remedy="Stack them, one per input."
                )
            for info in infos:
                name = info.filename.removesuffix(".npy")
                if name in headers or info.compress_type not in _COMPRESSIONS or info.flag_bits & 1:
                    raise ValueError(f"array '{name}' is there twice, encrypted or of an unknown compression")
                with archive.open(info) as file:
                    headers[name] = _read_header(file, name, self.where, info.file_size)
                self._members[name] = info
        return headers

    def _data_offset(self, info: zipfile.ZipInfo) -> int:
        with self.path.open("rb") as file:
            file.seek(info.header_offset)
            magic, *_, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        if magic != b"PK\x03\x04":
            raise ValueError("a member of the archive is not where its directory says")
        return info.header_offset + _LOCAL_HEADER.size + int(name_length) + int(extra_length)

    def _check_sum(self, info: zipfile.ZipInfo, start: int) -> None:
        found, left = 0, info.file_size
        with self.path.open("rb") as file:
            file.seek(start)
            while left and (chunk := file.read(min(left, _CHUNK))):
                found, left = zlib.crc32(chunk, found), left - len(chunk)
        if left or found != info.CRC:
            raise ValueError(f"bad checksum of '{info.filename}'")

    def _map(self, name: str, start: int) -> npt.NDArray[np.generic]:
        header = self.headers[name]
        if header.size == 0:
            return np.empty(header.shape, header.dtype)
        order = "F" if header.fortran else "C"
        return np.memmap(self.path, header.dtype, "r", start, header.shape, order)  # type: ignore[call-overload,no-any-return]


def _read_header(file: IO[bytes], name: str, where: str, length: int) -> Header:
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # headers that Python 2 wrote
        shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise InputError(
            f"array '{name}' holds Python objects, which only pickle can load: refused",
            where=where,
            remedy="Save plain numbers: one array of one shape and dtype per input.",
        )
    if dtype.names is not None or dtype.subdtype is not None:
        raise InputError(f"array '{name}' has fields: {dtype}", where=where, remedy="Save one plain array per input.")
    if any(isinstance(size, bool) or size < 0 for size in shape):
        raise ValueError(f"shape {shape}")
    header = Header(dtype=dtype, shape=shape, fortran=fortran, offset=file.tell())
    if header.offset + header.size != length:
        raise ValueError(f"{length} bytes, the header of '{name}' says {header.offset + header.size}")
    return header


def _read_data(file: IO[bytes], header: Header) -> npt.NDArray[np.generic]:
    file.read(header.offset)
    data = np.empty(header.size, np.uint8)
    done = 0
    while done < header.size:
        chunk = file.read(min(_CHUNK, header.size - done))
        if not chunk:
            raise EOFError("the data ends early")
        data[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
        done += len(chunk)
    file.read(1)  # only at its end does zipfile compare the checksum
    flat = data.view(header.dtype) if header.size else np.empty(0, header.dtype)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False
