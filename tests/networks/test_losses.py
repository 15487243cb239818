"""Losses on labels and on a teacher's outputs, held against plain formulas; classes matched by name."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.errors import InputError
from edgekit.networks.imitation import find_soft
from edgekit.networks.label_order import align_labels
from edgekit.networks.losses import are_hot, find_task


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


def test_scores_that_say_yes_or_no_are_learned_each_by_itself():
    rng = np.random.default_rng(0)
    for shape, labels, dtype in (((6, 1), (6,), np.int64), ((6, 4), (6, 4), np.float32), ((6, 4), (6, 4), np.int64)):
        scores, truth = torch.tensor(rng.normal(size=shape)), rng.integers(0, 2, labels).astype(dtype)
        wanted = torch.nn.functional.binary_cross_entropy_with_logits(
            scores.reshape(labels), torch.tensor(truth).double()
        )
        task = find_task({"logits": scores}, truth)
        assert task.kind == "bits"
        assert float(task.loss({"logits": scores}, truth)) == pytest.approx(float(wanted))
        soft, _ = find_soft({"logits": scores}, {"logits": scores}, 2.0, task)
        assert [how for _, _, how in soft.pairs] == ["bits"]
        assert float(soft.loss({"logits": scores}, {"logits": scores}, None)) == pytest.approx(0, abs=1e-12)
        assert float(soft.loss({"logits": scores + 1}, {"logits": scores}, None)) > 0.05
    chances = torch.tensor(rng.uniform(0.01, 0.99, (20, 2)))
    truth = rng.integers(0, 2, (20, 2))
    task = find_task({"p": chances}, truth)
    wanted = torch.nn.functional.binary_cross_entropy(chances, torch.tensor(truth).double())
    assert float(task.loss({"p": chances}, truth)) == pytest.approx(float(wanted))
    assert find_task({"y": torch.zeros(4, 2)}, np.zeros((4, 2), np.float32)).kind == "values"


def test_labels_that_are_the_tokens_are_learned_one_place_on():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 9, (3, 6))
    labels = np.where(np.arange(6) < 2, -100, tokens)
    scores = torch.tensor(rng.normal(size=(3, 6, 9)))
    task = find_task({"logits": scores}, labels, {"input_ids": tokens})
    wanted = torch.nn.functional.cross_entropy(scores[:, :-1].reshape(-1, 9), torch.tensor(labels[:, 1:]).reshape(-1))
    assert float(task.loss({"logits": scores}, labels)) == pytest.approx(float(wanted))
    ahead = find_task({"logits": scores}, np.roll(tokens, -1, 1), {"input_ids": tokens})
    assert ahead.shift == 0


def test_a_batch_without_any_label_teaches_nothing():
    task = find_task({"logits": torch.zeros(2, 3, 5)}, np.array([[1, 2, -100], [-100, 0, 4]]))
    assert float(task.loss({"logits": torch.zeros(2, 3, 5)}, np.full((2, 3), -100))) == 0


def test_maps_are_resized_to_finer_labels():
    scores = torch.randn(2, 5, 4, 6)
    truth = np.random.default_rng(0).integers(0, 5, (2, 16, 24))
    task = find_task({"logits": scores}, truth)
    finer = torch.nn.functional.interpolate(scores, scale_factor=4, mode="bilinear")
    wanted = torch.nn.functional.cross_entropy(finer, torch.tensor(truth))
    assert float(task.loss({"logits": scores}, truth)) == pytest.approx(float(wanted), rel=1e-5)
    with pytest.raises(InputError, match="no output fits"):
        find_task({"logits": scores}, truth[:, :, :20])


def test_a_label_out_of_range_in_a_later_batch_is_told():
    task = find_task({"logits": torch.zeros(3, 5)}, np.array([0, 4, 1]))
    with pytest.raises(InputError, match="label -1, and the output has 5 classes"):
        task.check({"logits": torch.zeros(3, 5)}, np.array([0, 1, -1]))


def test_classes_come_in_many_forms():
    scores, truth = torch.randn(6, 4), np.arange(6) % 4
    wanted = float(torch.nn.functional.cross_entropy(scores, torch.tensor(truth)))
    rows = np.eye(4, dtype=np.float32)[truth]
    assert are_hot(rows)
    assert not are_hot(np.maximum(rows, rows[::-1]))
    for labels, hot in ((truth.astype(np.float64), False), (truth[:, None], False), (rows, True)):
        task = find_task({"logits": scores}, labels, hot=hot)
        assert task.kind == "classes"
        assert float(task.loss({"logits": scores}, labels)) == pytest.approx(wanted)
        task.check({"logits": scores}, labels)


def test_values_of_another_shape_are_no_labels():
    with pytest.raises(InputError, match="no output has the shape"):
        find_task({"output": torch.zeros(4, 2, 3)}, np.full((4, 3, 2), 0.5, np.float32))


def test_scores_of_maps_are_softened_over_their_classes():
    mine, theirs = torch.randn(2, 5, 3, 4), torch.randn(2, 5, 3, 4)
    soft, widths = find_soft({"logits": mine}, {"logits": theirs}, 2.0)
    assert widths == (5, 5)
    p, q = (softmax(value.movedim(1, -1).numpy(), 2) for value in (theirs, mine))
    wanted = 4 * (p * np.log(p / q)).sum(-1).mean()
    assert float(soft.loss({"logits": mine}, {"logits": theirs}, None)) == pytest.approx(wanted, rel=1e-5)


def test_several_outputs_are_each_held_against_their_own():
    rng = np.random.default_rng(0)
    mine = {name: torch.tensor(rng.normal(size=(6, width))) for name, width in (("kind", 4), ("color", 4))}
    theirs = {"color": mine["color"], "kind": mine["kind"][:, [1, 0, 2, 3]]}
    task = find_task(mine, np.arange(6) % 4)
    soft, widths = find_soft(mine, theirs, 2.0, task)
    assert (task.output, widths) == ("kind", (4, 4))
    ordered = dataclasses.replace(soft, columns=(1, 0, 2, 3))  # by the names of that output's classes, no other's
    assert float(ordered.loss(mine, theirs, None)) == pytest.approx(0, abs=1e-12)
    with pytest.raises(InputError, match="5 classes for 'color', the student 4"):
        find_soft(mine, {"kind": theirs["kind"], "color": torch.zeros(6, 5)}, 2.0, task)


def test_boxes_beside_scores_are_taught_too():
    mine = {"logits": torch.randn(2, 7, 5), "pred_boxes": torch.rand(2, 7, 4), "last_hidden_state": torch.rand(2, 7, 9)}
    soft, _ = find_soft(mine, dict(mine), 2.0)
    assert [(own, how) for own, _, how in soft.pairs] == [("logits", "scores"), ("pred_boxes", "values")]


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
