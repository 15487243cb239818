"""`edgekit run` redoes the recorded preprocessing: the same feed as the data set gave, from any form of the input."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from edgekit.artifact import TensorSpec
from edgekit.data import open_dataset, preprocess_one
from edgekit.errors import InputError

MODEL = [TensorSpec(name="x", dtype="float32", shape=("b", 3, 16, 12))]
DECLARED = {"kind": "image", "resize": 20, "crop": [16, 12], "mean": [0.1, 0.2, 0.3], "interpolation": "bicubic"}


def with_shape(*shape) -> list[TensorSpec]:
    return [TensorSpec(name="x", dtype="float32", shape=shape)]


@pytest.mark.parametrize(
    "name", ["alpha.png", "anim.gif", "cmyk.jpg", "exif_rot.jpg", "good.png", "grey16.png", "tiny.png"]
)
def test_a_file_gives_the_feed_of_the_data_set(cases, tmp_path, name):
    path = cases / "C04_corrupt_images" / "images" / name
    (tmp_path / name).write_bytes(path.read_bytes())
    data = open_dataset(str(tmp_path), MODEL, preprocessing=DECLARED)
    wanted = data.calibration.sample(0)["x"]
    for raw in (path, str(path), path.read_bytes(), {"x": path}):
        np.testing.assert_array_equal(preprocess_one(raw, data.preprocessing, MODEL)["x"], wanted)


def test_arrays_and_npz_are_taken_with_and_without_batch_axis(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    record = open_record(tmp_path)
    wanted = preprocess_one(buffer.getvalue(), record, MODEL)["x"]
    np.savez(tmp_path / "a.npz", x=array[None], y=3)
    np.save(tmp_path / "a.npy", array)
    for raw in (array, array[None], {"x": array}, tmp_path / "a.npz", tmp_path / "a.npy"):
        np.testing.assert_array_equal(preprocess_one(raw, record, MODEL)["x"], wanted)
    assert preprocess_one(np.stack([array] * 5), record, MODEL)["x"].shape[0] == 5


def open_record(folder):
    (folder / "d").mkdir()
    Image.new("RGB", (20, 20)).save(folder / "d" / "a.png")
    return open_dataset(str(folder / "d"), MODEL, preprocessing=DECLARED).preprocessing


def test_a_fixed_batch_is_filled_with_copies(tmp_path):
    record = open_record(tmp_path)
    image = tmp_path / "d" / "a.png"
    found = preprocess_one(image, record, with_shape(4, 3, 16, 12))["x"]
    assert found.shape == (4, 3, 16, 12)
    np.testing.assert_array_equal(found, np.repeat(preprocess_one(image, record, MODEL)["x"], 4, axis=0))
    vector = np.arange(5, dtype=np.float32)
    assert preprocess_one(vector, {}, with_shape(2, 5))["x"].tolist() == [vector.tolist()] * 2
    full = np.arange(10, dtype=np.float32).reshape(2, 5)
    np.testing.assert_array_equal(preprocess_one(full, {}, with_shape(2, 5))["x"], full)


def test_a_model_without_batch_axis(tmp_path):
    record = open_record(tmp_path)
    assert preprocess_one(tmp_path / "d" / "a.png", record, with_shape(3, 16, 12))["x"].shape == (3, 16, 12)
    assert preprocess_one(np.zeros((3, 5), np.float32), {}, with_shape(3, 5))["x"].shape == (3, 5)


def test_no_preprocessing_takes_arrays_as_they_are():
    array = np.random.default_rng(0).standard_normal((2, 3, 16, 12)).astype(np.float32)
    np.testing.assert_array_equal(preprocess_one(array, {}, MODEL)["x"], array)
    assert preprocess_one(array[0], {}, MODEL)["x"].shape == (1, 3, 16, 12)


@pytest.mark.parametrize(
    ("raw", "record", "words"),
    [
        ("nowhere.png", DECLARED, "no such file"),
        (b"no image", DECLARED, "not an image"),
        (np.zeros((70000, 1), np.uint8), {"kind": "image", "resize": 200, "crop": [16, 12]}, "image too large"),
        (b"", {}, 'kind "tensor"'),
        (np.zeros((16, 12, 3), np.float32), DECLARED, "an image is uint8"),
        (np.zeros((16, 12, 3), np.uint8), {}, "model wants float32|axis"),
        ({"y": np.zeros(3)}, {}, "'x'; there are 'y'"),
        (np.full((1, 3, 16, 12), np.nan), {}, "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(raw, record, words):
    with pytest.raises(InputError, match=words):
        preprocess_one(raw, record, MODEL)


def test_one_file_for_a_model_with_more_inputs_is_refused(cases):
    inputs = [*MODEL, TensorSpec(name="z", dtype="float32", shape=("b", 2))]
    record = {"inputs": {"x": DECLARED, "z": {"kind": "tensor"}}}
    path = cases / "C04_corrupt_images" / "images" / "good.png"
    with pytest.raises(InputError, match="'z'"):
        preprocess_one(path, record, inputs)
    feed = preprocess_one({"x": path, "z": np.ones(2, np.float32)}, record, inputs)
    assert {name: array.shape for name, array in feed.items()} == {"x": (1, 3, 16, 12), "z": (1, 2)}
