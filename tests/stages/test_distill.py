"""The stages distill and finetune as far as they need no torch: options, and what they hand to their child."""

import dataclasses

import numpy as np
import pytest

import house
from edgekit.artifact import Artifact, Step
from edgekit.errors import EdgekitError, InputError, UsageError
from edgekit.networks import feeding
from edgekit.networks.feeding import names_of, teacher_of
from edgekit.stage import Context, Inputs
from edgekit.stages.distill import Distill
from edgekit.stages.finetune import Finetune


def artifact(name, labels=(), lineage=()):
    return Artifact(kind="torch", files={"weights.safetensors": name}, facts={"labels": list(labels)}, lineage=lineage)


def data(count=40, labels=("a", "b")):
    feeds = [{"x": np.full((1, 2), index, np.float32)} for index in range(count)]
    found = house.dataset(feeds)
    return dataclasses.replace(found, training=house.MemorySamples(feeds, np.arange(count) % 2), labels=tuple(labels))


def inputs(tmp_path, student, teacher=None, **changes):
    for name in ("student", "teacher"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "record.json").write_text("{}")
    taught = (teacher, tmp_path / "teacher") if teacher else None
    found = Inputs(artifact=student, folder=tmp_path / "student", profile=house.profile(), data=data(), teacher=taught)
    return dataclasses.replace(found, **changes)


@pytest.mark.parametrize("cls", [Distill, Finetune])
@pytest.mark.parametrize(
    "options", [{"epochs": -1}, {"batch": 0}, {"rate": -0.1}, {"rate": float("nan")}, {"patience": 0}]
)
def test_options_that_make_no_sense_are_refused(cls, options):
    with pytest.raises(UsageError) as caught:
        cls(**options)
    assert next(iter(options)) in caught.value.where


@pytest.mark.parametrize("options", [{"alpha": 1.1}, {"temperature": 0.0}])
def test_shares_and_temperatures_are_checked(options):
    with pytest.raises(UsageError):
        Distill(**options)


def test_a_model_that_is_its_own_teacher_is_passed_on(tmp_path):
    given = inputs(tmp_path, artifact("one"), artifact("one"))
    out = tmp_path / "out"
    out.mkdir()
    facts = Distill().run(given, out, Context(scratch=tmp_path))
    assert facts["training"] is None
    assert facts["findings"][0]["rule"] == "no-teacher"
    assert (out / "record.json").read_text() == "{}"


def test_without_a_teacher_it_is_a_bug(tmp_path):
    with pytest.raises(EdgekitError, match="without a teacher"):
        Distill().run(inputs(tmp_path, artifact("one")), tmp_path, Context(scratch=tmp_path))


def test_what_the_child_is_told(tmp_path, monkeypatch):
    told = {}
    monkeypatch.setattr(
        feeding, "run_in_child", lambda job, arguments, **_options: told.update(arguments) or {"job": job}
    )
    given = inputs(tmp_path, artifact("small", ("x", "y")), artifact("large", ("y", "x", "z")))
    (tmp_path / "scratch").mkdir()
    context = Context(scratch=tmp_path / "scratch", shared=tmp_path / "shared", seed=7, threads=1, training_threads=2)
    assert Distill(epochs=4).run(given, tmp_path, context) == {"job": "edgekit.networks.distill:distill"}
    assert (told["epochs"], told["temperature"], told["seed"], told["threads"]) == (4, 2.5, 7, 2)
    assert told["labels"] == ["a", "b"]  # as the data names the outputs
    assert told["teacher"]["labels"] == ["y", "x", "z"]
    assert (tmp_path / "shared").iterdir()
    again = Distill(epochs=9).run(given, tmp_path, context)
    assert again
    assert len(list((tmp_path / "shared").glob("feeds-*"))) == 1


def test_the_original_names_the_same_classes_as_what_was_made_of_it(tmp_path):
    """--label-map renames the classes of the student; the original that it was pruned from has the same outputs."""
    original = artifact("large", ("LABEL_0", "LABEL_1"))
    step = Step(
        stage="prune-channels", revision=1, options={}, inputs={"artifact": original.id}, libraries={}, facts={}
    )
    given = inputs(tmp_path, artifact("small", ("LABEL_0", "LABEL_1"), (step,)), original)
    assert names_of(given) == ("a", "b")
    assert teacher_of(given, Context(scratch=tmp_path), {}, {})["labels"] == ["a", "b"]


def test_too_little_data_is_refused_before_a_child_starts(tmp_path):
    given = inputs(tmp_path, artifact("small"), artifact("large"), data=data(20))
    with pytest.raises(InputError, match="20 training samples are too few"):
        Distill().run(given, tmp_path, Context(scratch=tmp_path))
    with pytest.raises(UsageError, match="needs data"):
        Finetune().run(dataclasses.replace(given, data=None), tmp_path, Context(scratch=tmp_path))
