"""The data cases from the wild, and their kin: right, or refused with the words that a user needs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgekit.artifact import TensorSpec
from edgekit.data import Dataset, open_dataset
from edgekit.errors import InputError

CONV = [TensorSpec(name="x", dtype="float32", shape=(1, 3, 8, 8))]
TWO = [TensorSpec(name=name, dtype="float32", shape=("b", 6)) for name in ("x", "z")]
IMAGE = [TensorSpec(name="x", dtype="float32", shape=("b", 3, 32, 32))]


def rules(dataset: Dataset) -> dict[str, str]:
    return {finding.rule: finding.text for finding in dataset.findings}


def test_c01_float64_is_cast_with_a_note(cases):
    given = cases / "C01_wrong_dtype"
    cast, plain = (open_dataset(str(given / name), CONV) for name in ("calib_f64", "calib"))
    assert "float64 cast to float32" in rules(cast)["data-dtype-cast"]
    assert "3 of 3 samples" in rules(cast)["data-dtype-cast"]
    assert "data-dtype-cast" not in rules(plain)
    with np.load(given / "calib_f64" / "001.npz") as file:
        np.testing.assert_array_equal(cast.calibration.sample(1)["x"], file["x"].astype(np.float32))


def test_c01_uint8_is_refused_with_a_hint(cases):
    with pytest.raises(InputError) as caught:
        open_dataset(str(cases / "C01_wrong_dtype" / "calib_u8"), CONV)
    assert "dtype uint8, model wants float32; say which scaling was used in training" in str(caught.value)
    assert "000.npz" in caught.value.where
    assert "'x'" in caught.value.where


def test_c01_uint8_is_scaled_as_declared(cases):
    declared = {"kind": "tensor", "scale": "1/255", "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.25]}
    found = open_dataset(str(cases / "C01_wrong_dtype" / "calib_u8"), CONV, preprocessing=declared)
    with np.load(cases / "C01_wrong_dtype" / "calib_u8" / "000.npz") as file:
        raw = file["x"].astype(np.float64) / 255
    wanted = (raw - np.array([0.1, 0.2, 0.3])[:, None, None]) / np.array([0.5, 0.5, 0.25])[:, None, None]
    np.testing.assert_allclose(found.calibration.sample(0)["x"], wanted, atol=1e-5)


@pytest.mark.parametrize("hidden", [[], [".DS_Store"], [".DS_Store", "._000.npz", ".hidden/000.npz"]])
def test_c03_nothing_to_read_is_refused(tmp_path, hidden):
    for name in hidden:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match="no samples in the folder"):
        open_dataset(str(tmp_path), TWO)


@pytest.mark.parametrize(("folder", "count"), [("one", 1), ("calib", 3)])
def test_c03_too_few_are_told(cases, folder, count):
    found = open_dataset(str(cases / "C03_empty_one_missing" / folder), TWO, limit=128)
    assert len(found.calibration) == count
    assert len(found.evaluation) == 0
    told = {finding.rule: finding for finding in found.findings}
    assert told["data-few-samples"].severity == "warning"
    assert f"asked 128, found {count}" in told["data-fewer-than-asked"].text


def test_c03_another_name_is_refused_with_both_names(cases):
    with pytest.raises(InputError) as caught:
        open_dataset(str(cases / "C03_empty_one_missing" / "wrong_name"), TWO)
    assert "'input'" in str(caught.value)
    assert "'x'" in str(caught.value)


def test_c03_a_missing_input_is_named(cases):
    with pytest.raises(InputError, match="input 'z'"):
        open_dataset(str(cases / "C03_empty_one_missing" / "missing"), TWO)


def test_c04_too_many_bad_images_are_refused_by_name(cases):
    folder = cases / "C04_corrupt_images"
    with pytest.raises(InputError) as caught:
        open_dataset(str(folder / "images"), IMAGE)
    for name in json.loads((folder / "expect.json").read_text())["bad"]:
        assert name in caught.value.text
    assert "3 of 10" in caught.value.text


@pytest.fixture
def mostly_good(cases, tmp_path) -> Path:
    """57 distinct good images and the three bad ones of the case: 5 % are bad."""
    folder = tmp_path / "images"
    shutil.copytree(cases / "C04_corrupt_images" / "images", folder)
    rng = np.random.default_rng(0)
    from PIL import Image

    for index in range(50):
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).save(folder / f"good{index}.png")
    return folder


def test_c04_few_bad_images_are_skipped_named_and_counted(mostly_good):
    found = open_dataset(str(mostly_good), IMAGE)
    told = rules(found)["data-bad-files"]
    assert "3 of 60" in told
    assert all(name in told for name in ("truncated.jpg", "zero.png", "text.png"))
    assert len(found.calibration) + len(found.evaluation) == 57


def test_c04_one_more_bad_image_is_too_many(mostly_good):
    (mostly_good / "another.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(InputError, match="4 of 61"):
        open_dataset(str(mostly_good), IMAGE)


def test_c04_strict_refuses_one_bad_image(mostly_good):
    with pytest.raises(InputError, match=r"strict.*truncated\.jpg"):
        open_dataset(str(mostly_good), IMAGE, strict=True)


def test_c04_bad_feeds_count_like_bad_images(tmp_path):
    for index in range(40):
        np.savez(tmp_path / f"{index:03d}.npz", x=np.full((1, 6), index, np.float32), z=np.ones((1, 6), np.float32))
    whole = (tmp_path / "007.npz").read_bytes()
    (tmp_path / "007.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "011.npz").write_bytes(b"")
    told = rules(open_dataset(str(tmp_path), TWO))["data-bad-files"]
    assert "2 of 40" in told
    assert "007.npz" in told
    assert "011.npz (empty file)" in told
    (tmp_path / "012.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match="3 of 40"):
        open_dataset(str(tmp_path), TWO)


def test_c05_an_image_bomb_is_refused_by_its_header(cases):
    script = (
        "import re, sys\n"
        "from edgekit.artifact import TensorSpec\n"
        "from edgekit.data import open_dataset\n"
        "spec = TensorSpec(name='x', dtype='float32', shape=('b', 3, 32, 32))\n"
        "try:\n"
        "    open_dataset(sys.argv[1], [spec])\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)\n"
    )  # not ru_maxrss: it starts from what the parent held when it forked
    toolkit = str(Path(__file__).parents[2] / "toolkit")
    ran = subprocess.run(
        [sys.executable, "-c", script, str(cases / "C05_image_bomb" / "images")],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": toolkit},
    )  # fmt: skip
    told, memory = ran.stdout.rsplit("\n", 2)[:2]
    assert "InputError" in told
    assert "image too large" in told
    assert "bomb.png" in told
    assert int(memory) < 500
    assert ran.stderr == ""


def test_q10_samples_that_are_not_finite_are_refused_by_name(cases):
    with pytest.raises(InputError) as caught:
        open_dataset(str(cases / "Q10_nan_in_one_calib_sample" / "calib"), CONV)
    assert "003.npz, array 'x'" in caught.value.text
    assert "005.npz, array 'x'" in caught.value.text
    assert "2 of 8" in caught.value.text
