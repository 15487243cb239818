"""Losses on labels and on a teacher's outputs, held against plain formulas; classes matched by name."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.errors import InputError
from edgekit.networks.label_order import align_labels
from edgekit.networks.losses import find_soft, find_task


def softmax(values, temperature=1.0):
    scaled = values / temperature
    powers = np.exp(scaled - scaled.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), temperature=st.floats(0.5, 8))
def test_soft_targets_are_the_scaled_divergence(seed, temperature):
    rng = np.random.default_rng(seed)
    mine, theirs = rng.normal(size=(2, 5, 4))
    soft, widths = find_soft({"logits": torch.tensor(mine)}, {"logits": torch.tensor(theirs)}, temperature)
    assert widths == (4, 4)
    p, q = softmax(theirs, temperature), softmax(mine, temperature)
    wanted = temperature**2 * (p * np.log(p / q)).sum(-1).mean()
    found = soft.loss({"logits": torch.tensor(mine)}, {"logits": torch.tensor(theirs)}, None)
    assert float(found) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_padding_does_not_count_in_a_sequence():
    rng = np.random.default_rng(0)
    mine, theirs = (torch.tensor(values) for values in rng.normal(size=(2, 2, 3, 5)))
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    soft, _ = find_soft({"logits": mine}, {"logits": theirs}, 2.0)
    p, q = softmax(theirs.numpy(), 2), softmax(mine.numpy(), 2)
    rows = 4 * (p * np.log(p / q)).sum(-1)
    assert float(soft.loss({"logits": mine}, {"logits": theirs}, mask)) == pytest.approx(
        (rows[0, 0] + rows[0, 1] + rows[1, 0]) / 3
    )


def test_probabilities_are_no_logits():
    rng = np.random.default_rng(0)
    scores = torch.tensor(rng.normal(size=(6, 4)))
    others = torch.tensor(rng.normal(size=(6, 4)))
    plain, _ = find_soft({"y": scores}, {"y": others}, 1.0)
    made, _ = find_soft({"y": scores.softmax(-1)}, {"y": others.softmax(-1)}, 1.0)
    assert float(made.loss({"y": scores.softmax(-1)}, {"y": others.softmax(-1)}, None)) == pytest.approx(
        float(plain.loss({"y": scores}, {"y": others}, None))
    )
    task = find_task({"y": scores.softmax(-1)}, np.arange(6) % 4)
    assert task.probabilities
    wanted = torch.nn.functional.cross_entropy(scores, torch.arange(6) % 4)
    assert float(task.loss({"y": scores.softmax(-1)}, np.arange(6) % 4)) == pytest.approx(float(wanted))


def test_outputs_that_are_no_scores_are_compared_as_values():
    soft, widths = find_soft({"boxes": torch.ones(2, 3, 4)}, {"boxes": torch.full((2, 3, 4), 2.0)}, 2.0)
    assert widths is None
    assert float(soft.loss({"boxes": torch.ones(2, 3, 4)}, {"boxes": torch.full((2, 3, 4), 2.0)}, None)) == 0.25


def test_nothing_to_compare_is_refused():
    with pytest.raises(InputError, match="fits one of the student"):
        find_soft({"boxes": torch.ones(2, 3, 4)}, {"other": torch.ones(2, 9)}, 2.0)


@pytest.mark.parametrize(
    ("shape", "labels", "axis"),
    [((3, 5), (3,), 1), ((3, 7, 5), (3, 7), 2), ((3, 5, 4, 4), (3, 4, 4), 1), ((3, 5, 1, 1), (3,), 1)],
)
def test_classes_are_found_on_their_axis(shape, labels, axis):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, labels)
    if truth.ndim > 1:
        truth[0, 0] = -100
    scores = torch.tensor(rng.normal(size=shape))
    task = find_task({"logits": scores}, truth)
    assert (task.kind, task.axis) == ("classes", axis)
    plain = scores.movedim(axis, 1).reshape(3, 5, -1)
    wanted = torch.nn.functional.cross_entropy(plain, torch.tensor(truth).reshape(3, -1))
    assert float(task.loss({"logits": scores}, truth)) == pytest.approx(float(wanted))


def test_values_are_regressed():
    task = find_task({"output": torch.zeros(4, 1)}, np.ones(4))
    assert task.kind == "values"
    assert float(task.loss({"output": torch.zeros(4, 1)}, np.ones(4))) == 1


def test_labels_that_fit_no_output_are_refused():
    with pytest.raises(InputError, match=r"no output fits labels of shape \[3\]"):
        find_task({"boxes": torch.zeros(3, 7, 4)}, np.zeros(3, np.int64))
    with pytest.raises(InputError, match="label 9, and the output has 5 classes"):
        find_task({"logits": torch.zeros(3, 5)}, np.array([0, 9, 1]))


# --- the D cases -----------------------------------------------------------------------------------------------------


def test_d01_other_label_order_is_matched_by_name():
    names = ["cat", "dog", "bird", "fish"]
    order = [2, 0, 3, 1]
    teacher_names = [names[index] for index in order]
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(64, 4))
    teacher = scores[:, order]  # the same decisions, in the teacher's order
    columns, findings = align_labels(names, teacher_names, widths=(4, 4))
    assert (teacher.argmax(1) == scores.argmax(1)).mean() < 1
    np.testing.assert_array_equal(teacher[:, list(columns)], scores)
    assert "by class name" in findings[0].text
    soft, _ = find_soft({"logits": torch.tensor(scores)}, {"logits": torch.tensor(teacher)}, 2.5)
    found = dataclasses.replace(soft, columns=columns)
    both = {"logits": torch.tensor(scores)}, {"logits": torch.tensor(teacher)}
    assert float(found.loss(*both, None)) == pytest.approx(0, abs=1e-12)
    assert float(soft.loss(*both, None)) > 0.1


def test_d03_other_class_counts_are_refused_with_both_numbers():
    with pytest.raises(InputError, match="teacher has 1000 outputs, student 10; give --label-map"):
        align_labels((), (), widths=(10, 1000))
    with pytest.raises(InputError, match="teacher has 10 outputs, student 1000; give --label-map"):
        align_labels((), (), widths=(1000, 10))


def test_a_label_map_picks_the_students_classes_among_more():
    teacher = [f"class {index}" for index in range(1000)]
    student = ["Class_7", "class 3", "class 999"]
    columns, findings = align_labels(student, teacher, widths=(3, 1000))
    assert columns == (7, 3, 999)
    assert "3 of the teacher's 1000" in findings[0].text


def test_names_that_differ_are_refused():
    with pytest.raises(InputError, match="no class 'wolf'"):
        align_labels(["cat", "wolf"], ["cat", "dog"], widths=(2, 2))
    with pytest.raises(InputError, match="3 outputs and 2 class names"):
        align_labels(["cat", "dog"], ["cat", "dog", "bird"], widths=(3, 3))


def test_equal_counts_without_names_are_taken_in_order_and_said():
    columns, findings = align_labels(["cat", "dog"], [], widths=(2, 2))
    assert columns is None
    assert findings[0].severity == "warning"
    assert align_labels(["a", "b"], ["A", "B"], widths=(2, 2)) == (None, ())
