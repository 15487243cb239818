"""Splits: disjoint by content, whatever the data; sizes and words as documented."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.artifact import TensorSpec
from edgekit.data import open_dataset
from edgekit.data.splitting import Key, split
from edgekit.errors import UsageError

SPEC = [TensorSpec(name="x", dtype="float32", shape=("b", 4))]
ROLES = ["all", "training", "calibration", "validation", "evaluation"]


def parts(found) -> list[list[Key]]:
    return [found.calibration, found.training, found.evaluation]


@settings(max_examples=300, deadline=None)
@given(
    kinds=st.dictionaries(st.sampled_from(ROLES[1:]), st.lists(st.integers(0, 60), min_size=1, max_size=90), min_size=1)
    | st.fixed_dictionaries({"all": st.lists(st.integers(0, 60), min_size=1, max_size=150)}),
    limit=st.none() | st.integers(1, 80),
    training=st.booleans(),
    seed=st.integers(0, 3),
)
def test_no_content_is_in_two_splits(kinds, limit, training, seed):
    content = {
        (role, index): value.to_bytes(32, "big") for role, values in kinds.items() for index, value in enumerate(values)
    }
    findings = []
    found = split(content, limit=limit, training=training, seed=seed, findings=findings)
    held = [{content[key] for key in part} for part in parts(found)]
    assert not held[0] & held[1]
    assert not held[2] & (held[0] | held[1])
    assert all(len(part) == len(set(part)) for part in parts(found))
    assert all(key in content for part in parts(found) for key in part)
    assert limit is None or len(found.calibration) <= limit
    assert training or not found.training
    assert split(content, limit=limit, training=training, seed=seed, findings=[]) == found
    if len(found.calibration) < 20:
        assert "data-few-samples" in {finding.rule for finding in findings}
    if not found.evaluation:
        assert any("unproven" in finding.text for finding in findings)
    if "evaluation" in kinds and len(kinds) > 1:
        assert found.evaluation == sorted(key for key in content if key[0] == "evaluation")


@given(st.integers(1, 600), st.none() | st.integers(1, 300), st.booleans())
def test_every_sample_of_distinct_content_is_somewhere(count, limit, training):
    content = {("all", index): index.to_bytes(32, "big") for index in range(count)}
    found = split(content, limit=limit, training=training, seed=0, findings=[])
    if count < 20:
        assert [len(part) for part in parts(found)] == [min(count, limit or count), 0, 0]
        return
    assert sum(len(part) for part in parts(found)) == count
    assert len(found.calibration) == min(256 if limit is None else limit, max(count // 5, min(count // 2, 64)))
    rest = count - len(found.calibration)
    assert len(found.evaluation) == (max(1, rest * 30 // 100) if training else rest)


@pytest.mark.parametrize(
    ("roles", "sizes"),
    [
        ({"training": 100, "evaluation": 50}, (50, 50, 50)),
        ({"training": 100, "validation": 50}, (50, 50, 50)),
        ({"training": 100, "validation": 40, "evaluation": 50}, (40, 100, 50)),
        ({"training": 100, "calibration": 30, "validation": 40, "evaluation": 50}, (30, 100, 50)),
        ({"calibration": 30, "evaluation": 50}, (15, 15, 50)),
        ({"calibration": 30}, (30, 0, 0)),
        ({"calibration": 300, "evaluation": 50}, (64, 236, 50)),
        ({"validation": 40, "evaluation": 50}, (20, 20, 50)),
        ({"evaluation": 100}, (50, 35, 15)),
        ({"training": 100}, (50, 35, 15)),
        ({"training": 100, "calibration": 30}, (30, 70, 30)),
    ],
)
def test_named_splits_are_used_as_documented(roles, sizes):
    numbers = iter(range(10**6))
    content = {
        (role, index): next(numbers).to_bytes(32, "big") for role, count in roles.items() for index in range(count)
    }
    found = split(content, limit=None, training=True, seed=0, findings=[])
    assert tuple(len(part) for part in parts(found)) == sizes


def test_a_model_judged_on_training_data_is_warned_about():
    content = {("training", index): index.to_bytes(32, "big") for index in range(100)}
    findings = []
    split(content, limit=None, training=False, seed=0, findings=findings)
    assert "looks better" in {finding.rule: finding.text for finding in findings}["data-no-evaluation-split"]


def test_duplicates_across_named_splits_are_dropped_and_counted(tmp_path, vectors):
    np.savez(tmp_path / "train.npz", x=np.concatenate([vectors[:40], vectors[60:65]]), y=np.zeros(45))
    np.savez(tmp_path / "test.npz", x=vectors[60:], y=np.ones(40))
    found = open_dataset(str(tmp_path), SPEC, training=True)
    assert len(found.evaluation) == 40
    assert len(found.training) + len(found.calibration) == 40
    assert "5 samples dropped" in next(f.text for f in found.findings if f.rule == "data-duplicates-across-splits")


def test_duplicates_stay_together_in_one_split(tmp_path, vectors):
    np.savez(tmp_path / "a.npz", x=np.tile(vectors[:30], (5, 1)))
    found = open_dataset(str(tmp_path / "a.npz"), SPEC, training=True)
    rows = [{feed["x"].tobytes() for feed in (part.sample(i) for i in range(len(part)))}
            for part in (found.calibration, found.training, found.evaluation)]  # fmt: skip
    assert [len(row) for row in rows] == [
        len(part) // 5 for part in (found.calibration, found.training, found.evaluation)
    ]
    assert sum(len(row) for row in rows) == 30


def test_the_label_is_not_part_of_the_content(tmp_path, vectors):
    np.savez(tmp_path / "a.npz", x=np.tile(vectors[:30], (2, 1)), y=np.repeat([0, 1], 30))
    found = open_dataset(str(tmp_path / "a.npz"), SPEC)
    held = [{part.sample(i)["x"].tobytes() for i in range(len(part))} for part in (found.calibration, found.evaluation)]
    assert not held[0] & held[1]


def test_of_a_large_training_split_only_what_calibration_needs_is_read(tmp_path, vectors):
    rows = np.random.default_rng(0).standard_normal((3000, 4)).astype(np.float32)
    np.savez(tmp_path / "train.npz", x=rows)
    np.savez(tmp_path / "test.npz", x=vectors)
    told = []
    found = open_dataset(str(tmp_path), SPEC, limit=40, listen=told.append)
    assert len(found.calibration) == 40
    assert len(found.evaluation) == 100
    read = sum(event.total for event in told if getattr(event, "done", None) == getattr(event, "total", 0))
    assert 140 <= read < 300


def test_asking_for_no_samples_is_a_usage_error(tmp_path, vectors):
    np.save(tmp_path / "a.npy", vectors)
    with pytest.raises(UsageError):
        open_dataset(str(tmp_path / "a.npy"), SPEC, limit=0)


def test_calibration_samples_are_trained_on_where_there_are_no_others():
    content = {("calibration", index): bytes([index, 0]) for index in range(200)}
    content |= {("evaluation", index): bytes([index, 1]) for index in range(50)}
    findings = []
    found = split(content, limit=None, training=True, seed=0, findings=findings)
    assert (len(found.calibration), len(found.training), len(found.evaluation)) == (64, 136, 50)
    assert {*found.calibration, *found.training} == {("calibration", index) for index in range(200)}
    assert [finding.rule for finding in findings] == ["data-no-training-split"]
    assert not split(content, limit=None, training=False, seed=0, findings=[]).training
