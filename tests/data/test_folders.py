"""Folders of images: classes, splits by name, and what else lies in there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgekit.artifact import TensorSpec
from edgekit.data import open_dataset
from edgekit.errors import InputError

SPEC = [TensorSpec(name="x", dtype="float32", shape=("b", 3, 8, 8))]
RNG = np.random.default_rng(3)


def paint(folder: Path, count: int, suffix: str = ".png") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        Image.fromarray(RNG.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{index:03d}{suffix}")


def rules(dataset) -> dict[str, str]:
    return {finding.rule: finding.text for finding in dataset.findings}


def everything(dataset) -> dict[str, int]:
    return {
        name: int(label)
        for split in (dataset.calibration, dataset.training, dataset.evaluation)
        for name, label in zip(split.ids, split.labels if split.labels is not None else [0] * len(split), strict=True)
    }


def test_class_folders_are_labels_in_sorted_order(tmp_path):
    for name in ("dog", "cat", "eel"):
        paint(tmp_path / name, 20)
    found = open_dataset(str(tmp_path), SPEC)
    assert found.labels == ("cat", "dog", "eel")
    labels = everything(found)
    assert len(labels) == 60
    assert all(found.labels[label] in name for name, label in labels.items())
    assert f"{tmp_path.name}/cat/003.png" in labels
    assert found.evaluation.labels.dtype == np.int64


def test_labels_txt_gives_the_order_and_names_the_folders(tmp_path):
    for name in ("dog", "cat"):
        paint(tmp_path / name, 15)
    (tmp_path / "labels.txt").write_text("dog\ncat\nbird\n")
    found = open_dataset(str(tmp_path), SPEC)
    assert found.labels == ("dog", "cat", "bird")
    assert all(label == int("cat/" in name) for name, label in everything(found).items())
    (tmp_path / "labels.txt").write_text("dog\n")
    with pytest.raises(InputError, match="cat"):
        open_dataset(str(tmp_path), SPEC)


def test_folders_are_matched_to_the_models_classes_by_name(tmp_path):
    for name in ("Dog", "polar_bear"):
        paint(tmp_path / name, 15)
    found = open_dataset(str(tmp_path), SPEC, class_names=("polar bear", "cat", "dog"))
    assert found.labels == ("polar bear", "cat", "dog")
    assert all(label == (2 if "Dog" in name else 0) for name, label in everything(found).items())
    with pytest.raises(InputError, match="Dog"):
        open_dataset(str(tmp_path), SPEC, class_names=("polar bear", "cat", "wolf"))


def test_numbered_folders_are_taken_as_numbers_with_a_warning(tmp_path):
    for name in range(11):
        paint(tmp_path / str(name), 3)
    found = open_dataset(str(tmp_path), SPEC)
    assert found.labels == tuple(str(number) for number in range(11))
    assert "numeric order" in rules(found)["data-label-order"]
    assert all(f"/{label}/" in name for name, label in everything(found).items())


def test_a_flat_folder_is_unlabelled(tmp_path):
    paint(tmp_path, 30)
    found = open_dataset(str(tmp_path), SPEC)
    assert found.evaluation.labels is None
    assert found.labels == ()


def test_one_folder_inside_is_no_class(tmp_path):
    paint(tmp_path / "images", 30)
    found = open_dataset(str(tmp_path), SPEC)
    assert found.evaluation.labels is None
    assert "data-one-folder" in rules(found)


def test_images_beside_class_folders_are_refused(tmp_path):
    paint(tmp_path / "cat", 3)
    paint(tmp_path / "dog", 3)
    paint(tmp_path, 2)
    with pytest.raises(InputError, match="2 images lie beside class folders"):
        open_dataset(str(tmp_path), SPEC)


def test_named_folders_are_splits(tmp_path):
    for split, count in (("Train", 40), ("val", 12), ("test", 25)):
        for name in ("cat", "dog"):
            paint(tmp_path / split / name, count)
    found = open_dataset(str(tmp_path), SPEC, training=True)
    assert {len(found.training), len(found.calibration), len(found.evaluation)} == {80, 24, 50}
    assert all("/Train/" in name for name in found.training.ids)
    assert all("/val/" in name for name in found.calibration.ids)
    assert all("/test/" in name for name in found.evaluation.ids)
    assert found.labels == ("cat", "dog")
    assert len(open_dataset(str(tmp_path), SPEC).training) == 0


def test_train_can_be_a_class(tmp_path):
    for name in ("train", "car", "plane"):
        paint(tmp_path / name, 8)
    assert open_dataset(str(tmp_path), SPEC).labels == ("car", "plane", "train")


def test_folders_beside_splits_are_told(tmp_path):
    for split in ("train", "test", "docs"):
        paint(tmp_path / split, 30)
    found = open_dataset(str(tmp_path), SPEC)
    assert "docs" in rules(found)["data-ignored-files"]
    assert all("/docs/" not in name for name in everything(found))


def test_two_folders_for_one_split_are_refused(tmp_path):
    for split in ("val", "valid"):
        paint(tmp_path / split, 3)
    with pytest.raises(InputError, match="both 'val' and 'valid'"):
        open_dataset(str(tmp_path), SPEC)


def test_hidden_and_resource_files_are_left_alone_and_others_told(tmp_path):
    paint(tmp_path / "cat", 10)
    paint(tmp_path / "dog", 10)
    for name in ("._000.png", ".DS_Store", "cat/._001.png", "cat/Thumbs.db"):
        (tmp_path / name).write_bytes(b"x")
    paint(tmp_path / "__MACOSX", 3)
    paint(tmp_path / ".cache", 3)
    (tmp_path / "cat" / "README.md").write_text("words")
    found = open_dataset(str(tmp_path), SPEC, strict=True)
    assert len(everything(found)) == 20
    assert rules(found)["data-ignored-files"] == "1 files or folders are not read: cat/README.md"


def test_links_are_followed_once(tmp_path):
    paint(tmp_path / "elsewhere", 12)
    (tmp_path / "data" / "cat").mkdir(parents=True)
    paint(tmp_path / "data" / "dog", 12)
    for path in sorted((tmp_path / "elsewhere").iterdir()):
        (tmp_path / "data" / "cat" / path.name).symlink_to(path)
    (tmp_path / "data" / "cat" / "loop").symlink_to(tmp_path / "data")
    found = open_dataset(str(tmp_path / "data"), SPEC)
    assert len(everything(found)) == 24


def test_links_to_nowhere_and_pipes_are_not_read(tmp_path):
    paint(tmp_path, 3)
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing.png")
    os.mkfifo(tmp_path / "pipe.png")
    assert len(open_dataset(str(tmp_path), SPEC).calibration) == 3


@pytest.mark.parametrize("name", ["bilder-größe", "写真", "a (copy) of it"])
def test_any_file_name_is_read_and_named(tmp_path, name):
    paint(tmp_path / name, 2)
    (tmp_path / name / "bad.png").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        open_dataset(str(tmp_path / name), SPEC)
    assert caught.value.where == f"{name}/bad.png"


def test_names_that_are_no_utf8_are_escaped(tmp_path):
    paint(tmp_path, 2)
    (tmp_path / "000.png").rename(tmp_path / os.fsdecode(b"\xff.png"))
    found = open_dataset(str(tmp_path), SPEC)
    assert any("\\udcff" in name or "\\xff" in name for name in found.calibration.ids)
    "".join(found.calibration.ids).encode()


def test_the_id_is_of_content_and_not_of_places(tmp_path):
    paint(tmp_path / "a", 25)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first = open_dataset(str(tmp_path / "a"), SPEC)
    assert open_dataset(str(tmp_path / "b"), SPEC).id == first.id
    assert open_dataset(str(tmp_path / "a"), SPEC, seed=1).id != first.id
    assert open_dataset(str(tmp_path / "a"), SPEC, preprocessing={"kind": "image", "mean": 0.5}).id != first.id
    Image.open(tmp_path / "b" / "003.png").transpose(Image.Transpose.ROTATE_90).save(tmp_path / "b" / "003.png")
    assert open_dataset(str(tmp_path / "b"), SPEC).id != first.id


def test_mixed_kinds_are_refused(tmp_path):
    paint(tmp_path, 2)
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 3, 8, 8), np.float32))
    with pytest.raises(InputError, match="2 images and 1 arrays"):
        open_dataset(str(tmp_path), SPEC)


@pytest.mark.parametrize("path", ["nowhere", "data.parquet", "data.zip"])
def test_other_paths_are_refused_with_what_is_read(tmp_path, path):
    if "." in path:
        (tmp_path / path).write_bytes(b"PK")
    with pytest.raises(InputError) as caught:
        open_dataset(str(tmp_path / path), SPEC)
    assert path in caught.value.where
    assert ".npz" in caught.value.remedy
    assert caught.value.exit_status == 4


def test_images_for_a_model_with_more_inputs_are_refused(tmp_path):
    paint(tmp_path, 2)
    with pytest.raises(InputError, match="'z'"):
        open_dataset(str(tmp_path), [*SPEC, TensorSpec(name="z", dtype="float32", shape=("b", 4))])


def test_other_sizes_than_the_models_are_refused(tmp_path):
    paint(tmp_path, 2)
    with pytest.raises(InputError, match=r"gives 9 x 9.*wants 8 x 8"):
        open_dataset(str(tmp_path), SPEC, preprocessing={"kind": "image", "crop": 9})


def test_undeclared_normalization_is_warned_about_and_declared_is_not(tmp_path):
    paint(tmp_path, 2)
    assert "data-normalization-undeclared" in rules(open_dataset(str(tmp_path), SPEC))
    (tmp_path / "preprocessing.toml").write_text('kind = "image"\nmean = [0.5, 0.5, 0.5]\nstd = 0.25\n')
    found = open_dataset(str(tmp_path), SPEC)
    assert "data-normalization-undeclared" not in rules(found)
    assert "preprocessing.toml" in rules(found)["data-preprocessing-from"]
    pixels = np.array(Image.open(tmp_path / "000.png")).transpose(2, 0, 1)
    np.testing.assert_allclose(found.calibration.sample(0)["x"][0], (pixels / 255 - 0.5) / 0.25, atol=1e-5)


def test_a_sidecars_typing_error_is_refused(tmp_path):
    paint(tmp_path, 2)
    (tmp_path / "preprocessing.toml").write_text('kind = "image"\nmeann = 0.5\n')
    with pytest.raises(InputError, match="meann") as caught:
        open_dataset(str(tmp_path), SPEC)
    assert "preprocessing.toml" in caught.value.where


@pytest.mark.parametrize("class_names", [(), ("dog", "cat"), ("LABEL_0", "LABEL_1")])
def test_what_a_package_records_opens_the_same_data_set(tmp_path, class_names):
    for name in ("cat", "dog"):
        paint(tmp_path / name, 20)
    first = open_dataset(str(tmp_path), SPEC, class_names=class_names, limit=30)
    again = open_dataset(tmp_path, SPEC, preprocessing=first.preprocessing, class_names=first.labels, limit=30)
    assert again.id == first.id
    assert again.labels == first.labels


def test_a_sidecar_in_a_split_is_told_to_be_unread(tmp_path):
    for split in ("train", "test"):
        paint(tmp_path / split, 3)
    (tmp_path / "train" / "preprocessing.toml").write_text('kind = "image"\n')
    assert "preprocessing.toml" in rules(open_dataset(str(tmp_path), SPEC))["data-ignored-files"]


def test_a_sample_that_changed_since_is_refused(tmp_path):
    paint(tmp_path, 3)
    found = open_dataset(str(tmp_path), SPEC)
    shutil.copy(tmp_path / "000.png", tmp_path / "001.png")
    found.calibration.sample(0)
    with pytest.raises(InputError, match="not what it was"):
        found.calibration.sample(1)
