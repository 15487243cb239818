"""Models and data taken in: once, by content, and noticed when they change."""

from __future__ import annotations

import os
import shutil

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgekit import events
from edgekit.artifact import MAIN
from edgekit.errors import InputError, UsageError
from edgekit.sources import ingest, read_data
from edgekit.store import Store
from onnx_models import linear


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "home") as found:
        yield found


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    return linear(tmp_path / "model" / "m.onnx")


class Heard(list):
    """Whether a model was read, or known already."""

    def __call__(self, event):
        if isinstance(event, events.StageStarted):
            self.append(event.name)


def take(model, store, **options):
    heard = Heard()
    return ingest(str(model), store, listen=heard, **options), heard == ["ingest"]


def external(path, value=0.0):
    """Write `y = x @ W + b` with W in a file beside it."""
    linear(path)
    (path.parent / "w.bin").unlink(missing_ok=True)  # onnx.save would add to it
    loaded = onnx.load(path)
    weight = np.full((8, 3), value, np.float32)
    loaded.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "W"))
    onnx.save(loaded, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_a_model_is_read_once(store, model):
    first, read = take(model, store)
    assert read
    again, read = take(model, store)
    assert not read
    assert again == first
    assert first.kind == "onnx"
    assert [step.stage for step in first.lineage] == ["ingest"]
    assert [spec.name for spec in first.specs("inputs")] == ["x"]


def test_a_touched_model_is_the_same_and_a_changed_one_is_another(store, model):
    first, _ = take(model, store)
    os.utime(model)
    assert take(model, store) == (first, False)
    linear(model, seed=1)
    other, read = take(model, store)
    assert read
    assert other.id != first.id


def test_the_same_model_elsewhere_is_the_same_artifact(store, model, tmp_path):
    first, _ = take(model, store)
    shutil.copytree(model.parent, tmp_path / "copy")
    shutil.move(tmp_path / "copy" / "m.onnx", tmp_path / "copy" / "another name.onnx")
    assert take(tmp_path / "copy" / "another name.onnx", store)[0].id == first.id


def test_weights_in_another_file_are_part_of_the_model(store, model):
    external(model)
    first, _ = take(model, store)
    assert take(model, store) == (first, False)
    before = model.read_bytes()
    external(model, value=1.0)
    assert model.read_bytes() == before, "only the file beside it is another"
    other, read = take(model, store)
    assert read
    assert other.id != first.id
    (model.parent / "w.bin").unlink()
    with pytest.raises(InputError, match=r"w\.bin"):
        take(model, store)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("LICENSE", "Do what you like.\n", {"text": "Do what you like.\n"}),
        ("README.md", "---\nlicense: apache-2.0\n---\n", {"name": "apache-2.0"}),
    ],
)
def test_a_license_that_comes_later_is_seen(store, model, name, text, told):
    first, _ = take(model, store)
    assert "license" not in first.facts
    (model.parent / name).write_text(text)
    assert take(model, store)[0].facts["license"] == told
    (model.parent / name).unlink()
    assert take(model, store)[0] == first


def test_what_is_gone_from_the_store_is_read_again(store, model):
    first, _ = take(model, store)
    shutil.rmtree(store.folder(first.id).parent)
    again, read = take(model, store)
    assert read
    assert again == first


def test_the_store_holds_a_copy_and_never_a_link(store, model):
    taken, _ = take(model, store)
    assert (store.folder(taken.id) / MAIN).stat().st_nlink == 1
    assert model.stat().st_nlink == 1
    linear(model, seed=5)
    assert store.load(taken.id) == taken


def test_the_same_bytes_for_the_same_model_in_any_store(store, model, tmp_path):
    with Store(tmp_path / "other") as other:
        assert take(model, other)[0].id == take(model, store)[0].id


@pytest.mark.parametrize("name", ["nosuch.onnx", "nosuch.edgekit", "nosuch.pt2", "nosuch"])
def test_what_is_not_there_is_named(store, tmp_path, name):
    with pytest.raises(InputError) as caught:
        take(tmp_path / name, store)
    assert caught.value.where.endswith(name)
    assert caught.value.remedy


def test_a_refused_model_leaves_nothing(store, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(InputError):
        take(tmp_path / "bad.onnx", store)
    assert not list(store.root.glob("artifacts/*/*"))
    assert not list(store.root.glob("records/*/*"))


def test_weights_belong_to_factories_only(store, model):
    with pytest.raises(UsageError, match="weights of its own"):
        ingest(str(model), store, weights=model)


def test_a_package_gives_its_model_and_what_it_knows(store, package):
    taken, _ = take(package, store)
    assert taken.kind == "onnx"
    assert taken.facts["quantized"]
    assert "preprocessing" in taken.facts


def test_no_data_is_no_dataset(store, model):
    taken, _ = take(model, store)
    assert read_data(None, taken, source=store.folder(taken.id)) is None


def test_a_label_map_wins_over_the_names_of_the_model(store, model, tmp_path):
    taken, _ = take(model, store)
    np.savez(tmp_path / "d.npz", x=np.eye(8, dtype=np.float32)[[0, 1, 2] * 20], y=[0, 1, 2] * 20)
    (tmp_path / "names.txt").write_text("cat\n\ndog\nowl\n")
    options = {"source": store.folder(taken.id), "label_map": str(tmp_path / "names.txt")}
    assert read_data(str(tmp_path / "d.npz"), taken, **options).labels == ("cat", "dog", "owl")


@pytest.mark.parametrize(
    "text", [b"", b"\n\n", b"cat\ncat\n", b"\xff\xfe\x00"], ids=["empty", "blank", "twice", "binary"]
)
def test_a_useless_label_map_is_refused(store, model, tmp_path, text):
    taken, _ = take(model, store)
    (tmp_path / "names.txt").write_bytes(text)
    with pytest.raises(InputError) as caught:
        read_data(str(tmp_path), taken, source=store.folder(taken.id), label_map=str(tmp_path / "names.txt"))
    assert caught.value.where == str(tmp_path / "names.txt")


def test_what_a_package_recorded_of_its_preprocessing_holds(store, package, given):
    """A package as a model brings its preprocessing, so the same raw data is read in the same way."""
    taken, _ = take(package, store)
    found = read_data(str(given.data(count=40)), taken, source=store.folder(taken.id))
    assert found.preprocessing == taken.facts["preprocessing"]
