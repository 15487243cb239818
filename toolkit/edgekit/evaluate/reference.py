"""Outputs on disk: what the original gave for the evaluation split, to validate a package without it.

The file is an `.npz`: a zip archive of `.npy` entries, none of them pickled. `names.npy` and `dtypes.npy` say
what the outputs are called and what dtype they have; `000000/0.npy` is the first output of the first item as
the model gave it, so ragged outputs need no padding and neither side ever holds more than one item. Entries
are stored in the narrowest dtype that gives back the same bits and are not compressed: equal outputs give
equal bytes on every machine.
"""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgekit.data import Feed
from edgekit.errors import InputError

Array = npt.NDArray[np.generic]

MAX_ENTRY_BYTES = 1 << 30
"""Largest entry that is read: one output of one item."""

# what zipfile and numpy raise on bytes that are no archive or no array
_DAMAGE = (
    OSError,
    ValueError,
    LookupError,
    EOFError,
    RuntimeError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_NARROWER = {
    "float64": ("float16", "float32"),
    "float32": ("float16",),
    "int64": ("int8", "int16", "int32"),
    "int32": ("int8", "int16"),
    "int16": ("int8",),
    "uint64": ("uint8", "uint16", "uint32"),
    "uint32": ("uint8", "uint16"),
    "uint16": ("uint8",),
}


def save_outputs(path: Path, outputs: Iterable[Feed]) -> int:
    """Write outputs item by item; the file appears when it is whole.

    Args:
        path: the `.npz` file to write.
        outputs: output name -> array; every item has the same names and dtypes, shapes may differ.

    Returns:
        The number of items.

    Raises:
        InputError: an item has other outputs or dtypes than the first, or a dtype that cannot be kept.
    """
    part = path.with_name(f"{path.name}.part")
    first: dict[str, str] = {}
    count = 0
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            for item in outputs:
                arrays = {name: _plain(name, array) for name, array in item.items()}
                dtypes = {name: _dtype(array) for name, array in arrays.items()}
                if not count:
                    first = dtypes
                elif dtypes != first:
                    raise InputError(f"item {count} has the outputs {dtypes}, the first one {first}", where=path.name)
                for index, array in enumerate(arrays.values()):
                    _write(archive, f"{count:06d}/{index}", _narrow(array))
                count += 1
            _write(archive, "names", np.array([*first], dtype=np.str_))
            _write(archive, "dtypes", np.array([*first.values()], dtype=np.str_))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count


def load_outputs(path: Path) -> Iterator[Feed]:
    """Yield what `save_outputs` wrote, item by item, in the dtypes it had (text as fixed-width strings).

    The file may come from anywhere: nothing in it is executed, and no entry is read that is larger than it
    says.

    Raises:
        InputError: the file is missing, damaged, or not of this form.
    """
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            names = _read(archive, path, "names")
            dtypes = _read(archive, path, "dtypes")
        except _DAMAGE as error:
            raise InputError(f"this is no file of outputs: {error}", where=path.name) from error
        count, left = divmod(len(archive.namelist()) - 2, max(1, names.size))
        if names.dtype.kind != "U" or names.ndim != 1 or names.shape != dtypes.shape or left:
            raise InputError("the entries do not fit the names of the outputs", where=path.name)
        for item in range(count):
            yield {
                str(name): _restored(_read(archive, path, f"{item:06d}/{index}"), str(dtype), path)
                for index, (name, dtype) in enumerate(zip(names, dtypes, strict=True))
            }


def _plain(name: str, array: Array) -> Array:
    """Numbers, booleans or text as a contiguous little-endian array; objects only when they are all text."""
    if array.dtype.kind in "OT" and all(isinstance(value, str) for value in array.ravel()):
        return array.astype(np.str_)
    if array.dtype.kind not in "fiubUc":
        raise InputError(f"outputs of {array.dtype} cannot be kept", where=name)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)


def _dtype(array: Array) -> str:
    return "str" if array.dtype.kind == "U" else array.dtype.name


def _narrow(array: Array) -> Array:
    """The same values in the narrowest dtype from which every bit comes back."""
    bits = array.tobytes()
    for name in _NARROWER.get(array.dtype.name, ()):
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            smaller = array.astype(name)
            if smaller.astype(array.dtype).tobytes() == bits:
                return smaller
    return array


def _restored(array: Array, dtype: str, path: Path) -> Array:
    """An entry in the dtype that it was narrowed from."""
    if _dtype(array) != dtype and array.dtype.name not in _NARROWER.get(dtype, ()):
        raise InputError(f"an entry of {array.dtype} stands for {dtype}", where=path.name)
    return array if dtype == "str" else array.astype(dtype)


def _write(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    entry = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
    entry.create_system = 3  # the same bytes on every system
    entry.external_attr = 0o644 << 16
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    archive.writestr(entry, buffer.getvalue())


def _read(archive: zipfile.ZipFile, path: Path, name: str) -> Array:
    """Read one entry, its sizes checked before anything is allocated."""
    where = f"{path.name}: {name}.npy"
    try:
        entry = archive.getinfo(f"{name}.npy")
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > MAX_ENTRY_BYTES:
            raise InputError("the entry is compressed, or larger than 1 GiB", where=where)
        data = io.BytesIO(archive.read(entry))
        version = np.lib.format.read_magic(data)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, fortran, dtype = read_header[version](data)
        if (
            dtype.hasobject
            or fortran
            or int(np.prod(shape, dtype=object)) * dtype.itemsize != entry.file_size - data.tell()
        ):
            raise InputError("the entry is no plain array of the size that it says", where=where)
        return np.frombuffer(data.read(), dtype).reshape(shape)
    except _DAMAGE as error:
        raise InputError(f"the entry is missing or damaged: {error}", where=where) from error
