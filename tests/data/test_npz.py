"""Arrays as data: one file of samples, folders of feeds, and the preprocessing of raw images in arrays."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from edgekit.artifact import TensorSpec
from edgekit.data import open_dataset, preprocess_one
from edgekit.errors import InputError

RNG = np.random.default_rng(5)


def spec(name: str = "x", shape=("b", 4), dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def rules(dataset) -> dict[str, str]:
    return {finding.rule: finding.text for finding in dataset.findings}


@pytest.mark.parametrize("key", ["y", "label", "labels"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rows_of_an_npz_are_samples(tmp_path, vectors, key, save):
    save(tmp_path / "data.npz", x=vectors, **{key: np.arange(100) % 7})
    found = open_dataset(str(tmp_path / "data.npz"), [spec()])
    assert len(found.calibration) + len(found.evaluation) == 100
    for split in (found.calibration, found.evaluation):
        rows = [int(name.partition("[")[2][:-1]) for name in split.ids]
        np.testing.assert_array_equal(split.labels, np.array(rows) % 7)
        for position, row in enumerate(rows):
            np.testing.assert_array_equal(split.sample(position)["x"], vectors[row : row + 1])


def test_the_embedded_kind_of_sample(tmp_path):
    """uint8 images [n, 28, 28] with a declared preprocessing make float32 NCHW."""
    pictures = RNG.integers(0, 256, (60, 28, 28), np.uint8)
    np.savez(tmp_path / "train.npz", x=pictures[:30], y=np.arange(30) % 10)
    np.savez(tmp_path / "test.npz", x=pictures[30:], y=np.arange(30) % 10)
    (tmp_path / "preprocessing.toml").write_text(
        'kind = "image"\nscale = "1/255"\nmean = [0.286]\nstd = [0.353]\nchannels = "gray"\nlayout = "NCHW"\n'
        'labels = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]\n'
    )
    model = [spec(shape=("batch", 1, 28, 28))]
    found = open_dataset(str(tmp_path), model)
    assert found.labels == tuple("abcdefghij")
    assert len(found.evaluation) == 30
    feed = found.evaluation.sample(4)["x"]
    assert feed.shape == (1, 1, 28, 28)
    assert feed.dtype == np.float32
    np.testing.assert_allclose(feed[0, 0], (pictures[34] / 255 - 0.286) / 0.353, atol=1e-5)
    assert next(found.evaluation.batches(16))["x"].shape == (16, 1, 28, 28)
    again = preprocess_one(pictures[34], found.preprocessing, model)["x"]
    np.testing.assert_array_equal(again, feed)
    from PIL import Image

    Image.fromarray(pictures[34]).save(tmp_path / "one.png")
    np.testing.assert_array_equal(preprocess_one(tmp_path / "one.png", found.preprocessing, model)["x"], feed)


@pytest.mark.parametrize("shape", [(12, 9, 7), (12, 9, 7, 1), (12, 9, 7, 3), (12, 3, 9, 7), (12, 1, 9, 7)])
def test_images_in_arrays_are_resized_from_any_layout(tmp_path, shape):
    np.savez(tmp_path / "a.npz", x=RNG.integers(0, 256, shape, np.uint8))
    model = [spec(shape=("b", 3, 16, 16))]
    found = open_dataset(str(tmp_path / "a.npz"), model, preprocessing={"kind": "image", "mean": 0.5})
    assert found.calibration.sample(0)["x"].shape == (1, 3, 16, 16)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_feeds_of_images_have_a_batch_axis(tmp_path, rows):
    for index in range(3):
        np.savez(tmp_path / f"{index}.npz", x=RNG.integers(0, 256, (rows, 9, 7), np.uint8))
    with np.load(tmp_path / "1.npz") as file:
        wanted = file["x"][:, None] / 255
    whole = open_dataset(str(tmp_path), [spec(shape=("steps", 1, 9, 7))], preprocessing={"kind": "image"})
    np.testing.assert_allclose(whole.calibration.sample(1)["x"], wanted, atol=1e-6)
    single = open_dataset(str(tmp_path), [spec(shape=("batch", 1, 9, 7))], preprocessing={"kind": "image"})
    assert len(single.calibration) == 3 * rows
    np.testing.assert_allclose(single.calibration.sample(2 * rows - 1)["x"][0], wanted[-1], atol=1e-6)


def test_tensor_rules_transpose_expand_and_scale(tmp_path):
    images = RNG.integers(0, 256, (10, 5, 6, 3), np.uint8)
    np.savez(tmp_path / "a.npz", x=images)
    declared = {"kind": "tensor", "transpose": [2, 0, 1], "scale": 0.5, "mean": [1, 2, 3], "axis": 0}
    found = open_dataset(str(tmp_path / "a.npz"), [spec(shape=("b", 3, 5, 6))], preprocessing=declared)
    wanted = images[2].transpose(2, 0, 1) * 0.5 - np.array([1, 2, 3])[:, None, None]
    np.testing.assert_allclose(found.calibration.sample(2)["x"][0], wanted, atol=1e-5)
    np.savez(tmp_path / "b.npz", x=images[..., 0])
    declared = {"kind": "tensor", "expand": 0, "scale": 1}
    found = open_dataset(str(tmp_path / "b.npz"), [spec(shape=("b", 1, 5, 6))], preprocessing=declared)
    np.testing.assert_array_equal(found.calibration.sample(2)["x"][0, 0], images[2, ..., 0])


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"transpose": [0, 0, 1], "scale": 1}, "transpose"), ({"expand": 7, "scale": 1}, "expand|wants samples"),
        ({"scale": 1, "mean": [1, 2], "axis": 0}, "axis 0"), ({"scale": 1, "transpose": [0, 1]}, "transpose"),
    ],
)  # fmt: skip
def test_tensor_rules_that_do_not_fit_are_refused(tmp_path, declared, words):
    np.savez(tmp_path / "a.npz", x=RNG.integers(0, 256, (10, 3, 5, 6), np.uint8))
    with pytest.raises(InputError, match=words):
        open_dataset(
            str(tmp_path / "a.npz"), [spec(shape=("b", 3, 5, 6))], preprocessing={"kind": "tensor", **declared}
        )


def test_several_inputs_come_from_one_npz(tmp_path):
    ids = RNG.integers(0, 99, (30, 6), np.int32)
    images = RNG.integers(0, 256, (30, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", ids=ids, image=images, extra=ids, label=np.arange(30) % 2)
    model = [spec("image", ("b", 3, 8, 8)), spec("ids", ("b", "s"), "int64")]
    found = open_dataset(str(tmp_path / "a.npz"), model, preprocessing={"inputs": {"image": {"kind": "image"}}})
    feed = found.calibration.sample(0)
    row = int(found.calibration.ids[0].partition("[")[2][:-1])
    np.testing.assert_array_equal(feed["ids"][0], ids[row])
    np.testing.assert_allclose(feed["image"][0], images[row].transpose(2, 0, 1) / 255, atol=1e-6)
    assert "int32 cast to int64" in rules(found)["data-dtype-cast"]
    assert rules(found)["data-unused-arrays"].endswith("extra")


def test_an_input_may_be_called_like_a_label(tmp_path, vectors):
    np.savez(tmp_path / "a.npz", y=vectors, label=np.arange(100) % 3)
    found = open_dataset(str(tmp_path / "a.npz"), [spec("y")])
    assert set(found.evaluation.labels) == {0, 1, 2}


def test_wrong_npz_are_refused(tmp_path, vectors):
    np.savez(tmp_path / "name.npz", input=vectors)
    with pytest.raises(InputError, match="'x'; there are 'input'"):
        open_dataset(str(tmp_path / "name.npz"), [spec()])
    np.savez(tmp_path / "length.npz", x=vectors, y=np.arange(99))
    with pytest.raises(InputError, match="'x' 100, 'y' 99"):
        open_dataset(str(tmp_path / "length.npz"), [spec()])
    np.savez(tmp_path / "empty.npz", x=vectors[:0])
    with pytest.raises(InputError, match="no samples"):
        open_dataset(str(tmp_path / "empty.npz"), [spec()])
    np.savez(tmp_path / "scalar.npz", x=np.float32(1))
    with pytest.raises(InputError, match="leading axis"):
        open_dataset(str(tmp_path / "scalar.npz"), [spec()])
    np.savez(tmp_path / "one.npz", x=vectors[0])
    with pytest.raises(InputError, match="0 axes, the model wants 2"):
        open_dataset(str(tmp_path / "one.npz"), [spec()])
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match="damaged") as caught:
        open_dataset(str(tmp_path / "bad.npz"), [spec()])
    assert "bad.npz" in caught.value.where


def test_channels_last_for_a_channels_first_model_is_explained(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((30, 8, 9, 3), np.float32))
    with pytest.raises(InputError, match="NHWC and the model wants NCHW") as caught:
        open_dataset(str(tmp_path / "a.npz"), [spec(shape=("b", 3, 8, 9))])
    assert "axis 1 is 8" in caught.value.text


def test_npy_is_for_models_of_one_input(tmp_path, vectors):
    np.save(tmp_path / "a.npy", vectors)
    found = open_dataset(str(tmp_path / "a.npy"), [spec()])
    assert len(found.calibration) + len(found.evaluation) == 100
    with pytest.raises(InputError, match="'z'"):
        open_dataset(str(tmp_path / "a.npy"), [spec(), spec("z")])


def test_labels_of_feeds(tmp_path, vectors):
    for index in range(30):
        np.savez(tmp_path / f"{index:02d}.npz", x=vectors[index : index + 1], label=index % 3)
    found = open_dataset(str(tmp_path), [spec()])
    assert set(found.evaluation.labels) == {0, 1, 2}
    np.savez(tmp_path / "30.npz", x=vectors[30:31])
    with pytest.raises(InputError, match=r"1 of 31 files have no label: .*30\.npz"):
        open_dataset(str(tmp_path), [spec()])


def test_feeds_with_a_label_per_row_are_that_many_samples(tmp_path, vectors):
    for index in range(4):
        part = slice(index * 25, index * 25 + 25)
        np.savez(tmp_path / f"{index}.npz", x=vectors[part], y=np.arange(100)[part] % 5)
    found = open_dataset(str(tmp_path), [spec()])
    assert len(found.calibration) + len(found.evaluation) == 100
    position = found.evaluation.ids.index(next(name for name in found.evaluation.ids if "2.npz[" in name))
    row = 50 + int(found.evaluation.ids[position].partition("[")[2][:-1])
    np.testing.assert_array_equal(found.evaluation.sample(position)["x"], vectors[row : row + 1])
    assert found.evaluation.labels[position] == row % 5


@pytest.mark.parametrize(("axis", "count"), [("batch_size", 12), ("N", 12), ("time", 4), ("unk__3", 4)])
def test_unlabelled_feeds_of_several_rows_are_split_where_axis_0_is_a_batch(tmp_path, vectors, axis, count):
    for index in range(4):
        np.savez(tmp_path / f"{index}.npz", x=vectors[index * 3 : index * 3 + 3], z=vectors[:3])
    model = [spec(shape=(axis, 4)), spec("z", (axis, 4))]
    assert len(open_dataset(str(tmp_path), model).calibration) == count


def test_one_label_for_several_rows_is_refused(tmp_path, vectors):
    np.savez(tmp_path / "0.npz", x=vectors[:3], label=1)
    with pytest.raises(InputError, match="3 rows and a label of shape"):
        open_dataset(str(tmp_path), [spec(shape=("batch", 4))])


def test_feeds_of_a_fixed_batch_stay_whole(tmp_path, vectors):
    for index in range(25):
        np.savez(tmp_path / f"{index:02d}.npz", x=vectors[index * 4 : index * 4 + 4], y=np.arange(4) % 2)
    found = open_dataset(str(tmp_path), [spec(shape=(4, 4))])
    assert len(found.calibration) + len(found.evaluation) == 25
    assert found.evaluation.labels.shape == (len(found.evaluation), 4)
    assert [len(batch["x"]) for batch in found.evaluation.batches(8)] == [4] * len(found.evaluation)


def test_rows_are_grouped_for_a_fixed_batch(tmp_path, vectors):
    np.savez(tmp_path / "a.npz", x=vectors, y=np.arange(100) % 3)
    one = open_dataset(str(tmp_path / "a.npz"), [spec()])
    found = open_dataset(str(tmp_path / "a.npz"), [spec(shape=(8, 4))])
    assert len(found.evaluation) == len(one.evaluation) // 8
    assert found.evaluation.labels.shape == (len(found.evaluation), 8)
    wanted = np.concatenate([one.evaluation.sample(index)["x"] for index in range(8, 16)])
    np.testing.assert_array_equal(found.evaluation.sample(1)["x"], wanted)
    np.testing.assert_array_equal(found.evaluation.labels[1], one.evaluation.labels[8:16])
    assert "fixed to 8" in rules(found)["data-grouped"]
    np.savez(tmp_path / "few.npz", x=vectors[:5])
    with pytest.raises(InputError, match="fixed to 8, there are 5"):
        open_dataset(str(tmp_path / "few.npz"), [spec(shape=(8, 4))])


def test_a_model_without_batch_axis_takes_single_samples(tmp_path):
    np.savez(tmp_path / "a.npz", x=RNG.standard_normal((30, 3, 8)).astype(np.float32))
    found = open_dataset(str(tmp_path / "a.npz"), [spec(shape=(3, 8))])
    assert found.calibration.sample(0)["x"].shape == (3, 8)
    assert [feed["x"].shape for feed in found.calibration.batches(4)] == [(3, 8)] * len(found.calibration)


def test_ragged_feeds_come_alone(tmp_path):
    for index, length in enumerate([3, 3, 5, 3, 3, 3]):
        np.savez(tmp_path / f"{index}.npz", x=RNG.standard_normal((1, length)).astype(np.float32))
    found = open_dataset(str(tmp_path), [spec(shape=("b", "s"))])
    assert [feed["x"].shape for feed in found.calibration.batches(2)] == [(2, 3), (1, 5), (2, 3), (1, 3)]


@pytest.mark.parametrize("save", [np.save, np.savez])
def test_memory_does_not_grow_with_the_number_of_samples(tmp_path, save):
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.{'npy' if save is np.save else 'npz'}"
        array = RNG.standard_normal((count, 4096)).astype(np.float32)  # 16 KiB each
        save(path, array) if save is np.save else save(path, x=array)
        del array
        tracemalloc.start()
        found = open_dataset(str(path), [spec(shape=("b", 4096))])
        for feed in found.evaluation.batches(16):
            assert feed["x"].shape[1] == 4096
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(50)  # imports
    small, large = peak(200), peak(2000)
    assert large - small < 3 << 20  # 29 MB more data; ids and hashes are some hundred bytes a sample
