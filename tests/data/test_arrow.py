"""Folders that `datasets` saved: images, text, arrays; mapped and never decoded by the library."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from edgekit.artifact import TensorSpec
from edgekit.data import open_dataset
from edgekit.errors import InputError

datasets = pytest.importorskip("datasets")
RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


def spec(name="x", shape=("b", 3, 6, 5), dtype="float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def test_images_with_class_labels(tmp_path):
    pictures = RNG.integers(0, 256, (30, 6, 5, 3), np.uint8)
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"img": [Image.fromarray(picture) for picture in pictures], "label": [n % 2 for n in range(30)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "d")
    found = open_dataset(str(tmp_path / "d"), [spec()], class_names=("dog", "cat"), preprocessing={"kind": "image"})
    assert found.labels == ("dog", "cat")
    for split in (found.calibration, found.evaluation):
        numbers = [int(name.partition("[")[2][:-1]) for name in split.ids]
        assert split.labels.tolist() == [1 - number % 2 for number in numbers]
        wanted = pictures[numbers[0]].transpose(2, 0, 1) / 255
        np.testing.assert_allclose(split.sample(0)["x"][0], wanted, atol=1e-6)


def test_bad_images_in_rows_are_counted(tmp_path):
    (tmp_path / "gone.png").write_bytes(b"x")
    rows = {"image": [{"bytes": b"no image", "path": None}, {"bytes": None, "path": str(tmp_path / "gone.png")}]}
    features = datasets.Features({"image": datasets.Image(decode=False)})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "d")
    (tmp_path / "gone.png").unlink()
    with pytest.raises(InputError, match=r"2 of 2 samples cannot be read.*d\[0\].*d\[1\]"):
        open_dataset(str(tmp_path / "d"), [spec()])


def test_splits_and_arrays_of_their_own_dtype(tmp_path):
    features = datasets.Features(
        {
            "x": datasets.Array3D((3, 6, 5), "float32"),
            "ids": datasets.Sequence(datasets.Value("int32")),
            "grid": datasets.Sequence(datasets.Sequence(datasets.Value("float64"), length=2), length=3),
            "label": datasets.Value("float32"),
        }
    )
    x = RNG.standard_normal((40, 3, 6, 5)).astype(np.float32)
    grid = RNG.standard_normal((40, 3, 2))
    rows = {
        "x": list(x),
        "ids": [[n] * (1 + n % 3) for n in range(40)],
        "grid": list(grid),
        "label": [n / 8 for n in range(40)],
    }
    whole = datasets.Dataset.from_dict(rows, features=features)
    parts = {"train": whole.select(range(10)), "test": whole.select(range(10, 40))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "d")
    inputs = [spec(), spec("ids", ("b", "s"), "int64"), spec("grid", ("b", 3, 2))]
    found = open_dataset(str(tmp_path / "d"), inputs)
    assert (len(found.calibration), len(found.evaluation)) == (10, 30)
    feed = found.evaluation.sample(4)
    np.testing.assert_array_equal(feed["x"][0], x[14])
    np.testing.assert_array_equal(feed["grid"][0], grid[14].astype(np.float32))
    assert feed["ids"].tolist() == [[14] * 3]
    assert found.evaluation.labels[4] == 14 / 8
    told = {finding.node: finding.text for finding in found.findings if finding.rule == "data-dtype-cast"}
    assert "int32 cast to int64" in told["ids"]
    assert "float64 cast to float32" in told["grid"]


def test_uint8_arrays_are_seen_as_such(tmp_path):
    rows = {"x": [RNG.integers(0, 256, 4, np.uint8) for _ in range(3)]}
    features = datasets.Features({"x": datasets.Sequence(datasets.Value("uint8"))})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "d")
    with pytest.raises(InputError, match="dtype uint8, model wants float32; say which scaling"):
        open_dataset(str(tmp_path / "d"), [spec(shape=("b", 4))])


def test_ragged_nested_lists_and_missing_values_are_counted(tmp_path):
    rows = {"x": [[[1.0, 2.0], [3.0]], [[1.0, None], [2.0, 3.0]], None]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "d")
    with pytest.raises(InputError, match="3 of 3 samples cannot be read"):
        open_dataset(str(tmp_path / "d"), [spec(shape=("b", 2, 2))])


def test_another_column_is_refused_with_both_names(tmp_path):
    datasets.Dataset.from_dict({"features": [[1.0] * 4]}).save_to_disk(tmp_path / "d")
    with pytest.raises(InputError, match="'x'; there are 'features'"):
        open_dataset(str(tmp_path / "d"), [spec(shape=("b", 4))])


def test_text_columns(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "good": 1, "film": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    rows = {"sentence": ["good film", "film"], "label": [1, 0]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "d")
    declared = {"kind": "text", "columns": {"text": "sentence"}}
    found = open_dataset(
        str(tmp_path / "d"), [spec("input_ids", ("b", "s"), "int64")], preprocessing=declared, processor=tmp_path
    )
    assert found.calibration.sample(0)["input_ids"].tolist() == [[1, 2]]
    assert found.calibration.labels.tolist() == [1, 0]


def test_a_damaged_folder_is_refused(tmp_path):
    datasets.Dataset.from_dict({"x": [[1.0] * 4] * 30}).save_to_disk(tmp_path / "d")
    next((tmp_path / "d").glob("*.arrow")).write_bytes(b"ARROW1")
    with pytest.raises(InputError, match="not readable") as caught:
        open_dataset(str(tmp_path / "d"), [spec(shape=("b", 4))])
    assert caught.value.where
