"""`.npz` files that are the same bytes for the same arrays, and are read without trust.

A file that comes with a package may claim shapes that fill the memory, or hold pickled objects. Here every
array's header is held against the size of its member before anything is allocated, and objects are refused.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError

Arrays = dict[str, npt.NDArray[np.generic]]

_MAX_MEMBERS = 100_000
_DATE = (1980, 1, 1, 0, 0, 0)
_FAULTS = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError, OSError)


def encode_arrays(arrays: Mapping[str, npt.NDArray[Any]], *, deflate: bool = False) -> bytes:
    """Return an `.npz` of the arrays, in the order of their names; compressed with `deflate`."""
    buffer = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy", _DATE)
            entry.create_system = 3
            entry.compress_type = method
            entry.external_attr = 0o644 << 16
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(arrays[name], order="C"), allow_pickle=False)
    return buffer.getvalue()


def read_arrays(path: Path, max_bytes: int = 4 << 30) -> Arrays:
    """Read the arrays of a `.npz`.

    Raises:
        InputError: not a `.npz` of plain arrays, or more than `max_bytes` of them.
    """
    return {name: array for name, array in _walk(path, max_bytes, load=True).items() if array is not None}


def check_arrays(path: Path, max_bytes: int = 4 << 30) -> list[str]:
    """Return the names of the arrays of a `.npz` that any reader can load; InputError as `read_arrays`."""
    return list(_walk(path, max_bytes, load=False))


def _walk(path: Path, max_bytes: int, *, load: bool) -> dict[str, npt.NDArray[np.generic] | None]:
    remedy = "Give a `.npz` file of plain arrays (numpy.savez), and check where it comes from."
    found: dict[str, npt.NDArray[np.generic] | None] = {}
    name = ""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if len(entries) > _MAX_MEMBERS or sum(entry.file_size for entry in entries) > max_bytes:
                raise ValueError(f"it has more than {_MAX_MEMBERS} arrays or {max_bytes} bytes")
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                if name in found or name == entry.filename:
                    raise ValueError("not a `.npy` member, or there twice")
                with archive.open(entry) as file:
                    found[name] = _read_array(file, entry.file_size, load=load)
    except _FAULTS as error:
        where = f"{path}, array '{name}'" if name else str(path)
        raise InputError(f"not a file of plain arrays: {error}", where=where, remedy=remedy) from error
    return found


def _read_array(file: Any, size: int, *, load: bool) -> npt.NDArray[np.generic] | None:
    """Read one `.npy` of `size` bytes; ValueError unless its header claims exactly what is there."""
    shape, fortran, dtype = _read_npy_header(file)
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise ValueError(f"dtype {dtype} is not a plain number or text")
    length = math.prod(shape) * dtype.itemsize
    if any(axis < 0 for axis in shape) or file.tell() + length != size:
        raise ValueError(f"its header claims {length} bytes, another size than it has")
    if not load:
        return None
    content = bytearray(file.read(length))
    return np.ndarray(shape, dtype, buffer=content, order="F" if fortran else "C")


def _read_npy_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"`.npy` version {version} is not read")
