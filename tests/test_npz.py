import io
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgekit.errors import InputError
from edgekit.npz import check_arrays, encode_arrays, read_arrays

DTYPES = hnp.scalar_dtypes().filter(lambda dtype: dtype.kind not in "mM") | hnp.unicode_string_dtypes()


@given(
    arrays=st.dictionaries(st.text("abc/._0", min_size=1), hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0)))
)
def test_arrays_come_back(tmp_path_factory, arrays):
    path = tmp_path_factory.getbasetemp() / "a.npz"
    path.write_bytes(encode_arrays(arrays))
    found = read_arrays(path)
    assert list(found) == sorted(arrays) == check_arrays(path)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable


def test_same_arrays_same_bytes():
    arrays = {"b": np.arange(6).reshape(2, 3).T, "a": np.float32(3)}
    copies = {"a": np.float32(3), "b": np.ascontiguousarray(arrays["b"])}
    assert encode_arrays(arrays) == encode_arrays(copies)


def test_numpy_and_we_read_each_other(tmp_path):
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez_compressed(tmp_path / "a.npz", x=fortran, s=np.array(["ä", "b"]))
    found = read_arrays(tmp_path / "a.npz")
    np.testing.assert_array_equal(found["x"], fortran)
    assert found["s"].tolist() == ["ä", "b"]
    (tmp_path / "b.npz").write_bytes(encode_arrays(found))
    np.testing.assert_array_equal(np.load(tmp_path / "b.npz")["x"], fortran)


def header(shape, descr="<f4", order=False):
    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(raw, {"shape": shape, "fortran_order": order, "descr": descr})
    return raw.getvalue()


def zipped(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        header((1 << 40,)) + b"1234",  # claims a terabyte
        header((2,)) + b"1234",
        header((1,)) + b"12345678",
        header((-1,)) + b"1234",
        header((1,), "|O") + pickle.dumps([1]),
        header((1,), [("a", "<f4")]) + b"1234",
        b"\x93NUMPY\x03\x00" + b"\x00" * 20,
        b"\x93NUMPY\x01\x00\xff\xff{",
        b"",
        b"junk",
    ],
)
def test_members_that_are_not_what_they_claim(tmp_path, content):
    path = zipped(tmp_path / "a.npz", x=content)
    for read in (read_arrays, check_arrays):
        with pytest.raises(InputError, match="plain arrays") as caught:
            read(path)
        assert "array 'x'" in caught.value.where


def test_archives_that_are_too_big_or_odd(tmp_path):
    path = zipped(tmp_path / "a.npz", x=header((100,)) + bytes(400))
    assert read_arrays(path)["x"].shape == (100,)
    with pytest.raises(InputError, match="more than"):
        read_arrays(path, max_bytes=300)
    (tmp_path / "b.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError):
        read_arrays(tmp_path / "b.npz")
    with pytest.raises(InputError):
        read_arrays(tmp_path / "missing.npz")
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("x.txt", b"")
    with pytest.raises(InputError):
        check_arrays(tmp_path / "c.npz")


@given(data=st.data())
def test_damaged_files_never_crash(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    content = bytearray(encode_arrays({"x": np.arange(20.0), "y": np.array(["text"])}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        check_arrays(path)
        read_arrays(path)
    except InputError:
        pass
