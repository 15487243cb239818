"""`.npz` and `.npy`: headers first, never pickle, every byte checked."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.data import arrays as arrays_module
from edgekit.data.arrays import ArrayFile
from edgekit.data.faults import UnreadableError
from edgekit.errors import InputError

DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def opened(path: Path) -> ArrayFile:
    return ArrayFile(path, where=path.name, alone="x")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "array",
    [
        DATA,
        np.asfortranarray(DATA),
        DATA.astype(">f8"),
        DATA.astype(np.uint8),
        np.float32(3),
        DATA[:0],
        np.array(["a", "bc"]),
    ],
)
def test_npz_gives_what_was_saved(tmp_path, save, array):
    save(tmp_path / "a.npz", x=array, y=np.arange(2))
    file = opened(tmp_path / "a.npz")
    for found in (file.read("x"), file.rows("x")):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype


@pytest.mark.parametrize("array", [DATA, np.asfortranarray(DATA), DATA.astype(">f8"), DATA[:0]])
def test_npy_gives_what_was_saved(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    file = opened(tmp_path / "a.npy")
    np.testing.assert_array_equal(file.read("x"), array)
    np.testing.assert_array_equal(file.rows("x"), array)


def test_stored_arrays_are_mapped_and_compressed_ones_held(tmp_path):
    np.savez(tmp_path / "a.npz", x=DATA)
    np.savez_compressed(tmp_path / "b.npz", x=DATA)
    assert isinstance(opened(tmp_path / "a.npz").rows("x"), np.memmap)
    assert not isinstance(opened(tmp_path / "b.npz").rows("x"), np.memmap)


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_python_objects_are_refused_before_anything_is_loaded(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    objects = np.array([{"a": 1}, None], object)
    np.savez(path, x=objects) if suffix == ".npz" else np.save(path, objects)
    with pytest.raises(InputError, match=r"'x' holds Python objects.*pickle") as caught:
        opened(path)
    assert not isinstance(caught.value, UnreadableError)


def test_a_bare_pickle_is_refused(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x80\x04\x95\x0c\0\0\0\0\0\0\0\x8c\x08builtins\x94.")
    with pytest.raises(InputError):
        opened(tmp_path / "a.npy")


def test_arrays_with_fields_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3, [("a", "f4"), ("b", "i4")]))
    with pytest.raises(InputError, match="fields"):
        opened(tmp_path / "a.npy")


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 0.999))
@pytest.mark.parametrize("name", ["a.npz", "c.npz", "a.npy"])
def test_truncated_files_are_found(tmp_path_factory, name, cut):
    folder = tmp_path_factory.mktemp("cut")
    if name == "a.npy":
        np.save(folder / name, DATA)
    else:
        (np.savez if name == "a.npz" else np.savez_compressed)(folder / name, x=DATA)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises(UnreadableError):
        opened(folder / name).read("x")


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
@pytest.mark.parametrize("name", ["a.npz", "c.npz"])
def test_flipped_bits_are_found_or_change_nothing(tmp_path_factory, name, place, bit):
    folder = tmp_path_factory.mktemp("flip")
    (np.savez if name == "a.npz" else np.savez_compressed)(folder / name, x=DATA)
    data = bytearray((folder / name).read_bytes())
    data[place % len(data)] ^= 1 << bit
    (folder / name).write_bytes(data)
    for way in ("read", "rows"):
        try:
            found = getattr(opened(folder / name), way)("x")
        except (InputError, KeyError):  # the name itself may be what was hit
            continue
        np.testing.assert_array_equal(found, DATA)


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


@pytest.mark.parametrize(
    "content",
    [
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }", b"\0" * 16),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4), }", b"\0" * 60),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", b"\0" * 99),
        npy("{'descr': 'nonsense', 'fortran_order': False, 'shape': (4,), }", b"\0" * 16),
        npy("__import__('os').system('true')"),
        npy("(" * 500 + ")" * 500),
        b"\x93NUMPY\x09\x00" + b"\0" * 99,
    ],
)
def test_headers_that_lie_are_found(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(UnreadableError):
            opened(tmp_path / name)


def test_a_compressed_array_above_the_limit_is_refused_unread(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20, np.uint8))
    monkeypatch.setattr(arrays_module, "MAX_HELD_BYTES", 1 << 19)
    monkeypatch.setattr(arrays_module, "_read_data", lambda *_: pytest.fail("data was read"))
    with pytest.raises(InputError, match="1048576 bytes"):
        opened(tmp_path / "a.npz").rows("x")


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays_module, "MAX_MEMBERS", 3)
    np.savez(tmp_path / "a.npz", **{f"x{index}": np.zeros(1) for index in range(4)})
    with pytest.raises(InputError, match="more than 3"):
        opened(tmp_path / "a.npz")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, DATA)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", buffer.getvalue())
        archive.writestr("x.npy", buffer.getvalue())
    with pytest.raises(UnreadableError, match="twice"):
        opened(tmp_path / "a.npz")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="gone"):
        opened(tmp_path / "gone.npz")
