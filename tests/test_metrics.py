import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from edgekit.budget import Budget, Figure, judge
from edgekit.errors import InputError, UsageError
from edgekit.metrics import METRICS, default_metric, find_metric
from edgekit.metrics.agreement import class_output, decisions
from edgekit.metrics.metric import checked_value
from edgekit.metrics.values import word_errors

V04 = Path(__file__).parent / "cases" / "V04_metric_direction"


def rows(name, outputs, labels=None, original=None):
    outputs = outputs if isinstance(outputs, dict) else {"y": outputs}
    original = outputs if original is None else original if isinstance(original, dict) else {"y": original}
    return METRICS[name].per_sample(outputs, None if labels is None else np.asarray(labels), original)


def value(name, outputs, labels=None, original=None):
    return METRICS[name].total(rows(name, outputs, labels, original))


SCORES = np.random.default_rng(0).normal(size=(200, 10)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 10, 200)


def test_accuracy_and_top5_are_their_definitions():
    assert value("accuracy", SCORES, LABELS) == pytest.approx(np.mean(SCORES.argmax(1) == LABELS))
    first = np.argsort(-SCORES, axis=1, kind="stable")[:, :5]
    assert value("top5", SCORES, LABELS) == pytest.approx(
        np.mean([label in row for label, row in zip(LABELS, first, strict=True)])
    )
    assert set(np.unique(rows("accuracy", SCORES, LABELS))) <= {0, 1}


@pytest.mark.parametrize("shape", [(200, 10, 1, 1), (200, 1, 1, 10), (200, 1, 10)])
def test_axes_of_one_are_looked_through(shape):
    assert (rows("accuracy", SCORES.reshape(shape), LABELS) == rows("accuracy", SCORES, LABELS)).all()
    assert (rows("agreement", SCORES.reshape(shape), original=SCORES.reshape(shape)) == 1).all()


def test_class_indices_are_predictions_already():
    chosen = SCORES.argmax(1)
    assert value("accuracy", chosen, LABELS) == value("accuracy", SCORES, LABELS)
    assert value("accuracy", chosen[:, None].astype(np.int32), LABELS) == value("accuracy", SCORES, LABELS)
    with pytest.raises(InputError, match="top5 needs more than 5 scores"):
        rows("top5", chosen, LABELS)
    with pytest.raises(InputError, match="a likelihood needs scores"):
        rows("nll", chosen, LABELS)


def test_a_model_whose_scores_died_gets_no_credit_for_ties():
    dead = np.zeros((200, 10), np.float32)
    assert value("accuracy", dead, LABELS) == np.mean(LABELS == 0)
    assert value("top5", dead, LABELS) == np.mean(LABELS < 5)
    broken = np.full((200, 10), np.nan, np.float32)
    for name in ("accuracy", "top5", "f1"):
        assert value(name, broken, LABELS) == 0
    assert value("agreement", broken, original=SCORES) == 0
    assert value("agreement", broken, original=broken) == 0
    assert math.isnan(value("nll", broken, LABELS))


def test_likelihood_is_read_from_logits_and_from_probabilities():
    probabilities = special.softmax(SCORES.astype(np.float64), axis=1)
    expected = -np.log(probabilities[np.arange(200), LABELS]).mean()
    assert value("nll", SCORES, LABELS) == pytest.approx(expected, rel=1e-6)
    assert value("nll", probabilities, LABELS) == pytest.approx(expected, rel=1e-6)
    assert value("perplexity", SCORES, LABELS) == pytest.approx(math.exp(expected), rel=1e-6)
    # a quantized softmax no longer sums to one: what the original gives tells what it is
    rounded = np.round(probabilities * 256) / 256 * 0.8
    found = value("nll", rounded, LABELS, original=probabilities)
    assert found == pytest.approx(-np.log(np.maximum(rounded[np.arange(200), LABELS], 1e-12)).mean())
    assert value("nll", SCORES * 1e4, LABELS) > 1e3


def test_labels_per_position_are_averaged_within_the_sample():
    logits = np.random.default_rng(2).normal(size=(3, 4, 6))
    labels = np.random.default_rng(3).integers(0, 6, (3, 4))
    labels[0, 1:] = -100
    right = logits.argmax(-1) == labels
    assert rows("accuracy", {"logits": logits}, labels)[:, 0] == pytest.approx([float(right[0, 0]), *right[1:].mean(1)])
    labels[0, 0] = -100
    with pytest.raises(InputError, match="a sample has no label but -100"):
        rows("accuracy", {"logits": logits}, labels)


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 10_000))
def test_f1_is_its_definition(classes, n, seed):
    rng = np.random.default_rng(seed)
    true, predicted = rng.integers(0, classes, (2, n))
    scores = np.eye(max(classes, 2))[predicted]
    expected = []
    for one in sorted({*true.tolist(), *predicted.tolist()}):
        hits = np.sum((true == one) & (predicted == one))
        expected.append(2 * hits / (np.sum(true == one) + np.sum(predicted == one)))
    assert value("f1", scores, true) == pytest.approx(np.mean(expected))


@given(st.integers(2, 60), st.integers(0, 10_000))
def test_errors_and_rank_correlation_are_their_definitions(n, seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 8, n) / 2
    found = (truth + rng.integers(-2, 3, n))[:, None].astype(np.float32)
    error = found[:, 0].astype(np.float64) - truth
    assert value("mse", found, truth) == pytest.approx((error**2).mean())
    assert value("rmse", found, truth) == pytest.approx(math.sqrt((error**2).mean()))
    assert value("mae", found, truth) == pytest.approx(np.abs(error).mean())
    expected = stats.spearmanr(found[:, 0], truth).statistic if np.ptp(found) and np.ptp(truth) else math.nan
    assert value("spearman", found, truth) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(("said", "truth", "errors"), [
    ("the cat sat", "the cat sat", 0), ("the cat", "the cat sat", 1), ("a the cat sat", "the cat sat", 1),
    ("the dog sat", "the cat sat", 1), ("", "the cat sat", 3), ("x y z w", "the cat", 4), ("one", "", 1),
])  # fmt: skip
def test_word_errors(said, truth, errors):
    assert word_errors(said, truth) == (errors, len(truth.split()))


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=7))
def test_word_errors_are_the_edit_distance(said, truth):
    table = np.zeros((len(truth) + 1, len(said) + 1), int)
    table[0], table[:, 0] = np.arange(len(said) + 1), np.arange(len(truth) + 1)
    for i, word in enumerate(truth, 1):
        for j, other in enumerate(said, 1):
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (word != other))
    assert word_errors(" ".join(said), " ".join(truth))[0] == table[-1, -1]


def test_word_error_rate_is_over_all_words():
    said = {"text": np.array(["the cat", "a b c"])}
    assert value("wer", said, ["the cat sat", "a b d"]) == pytest.approx(2 / 6)
    assert math.isnan(value("wer", said, ["", ""]))
    with pytest.raises(InputError, match="wer needs an output of text"):
        rows("wer", SCORES, ["a"] * 200)
    with pytest.raises(UsageError, match="needs texts as labels"):
        rows("wer", said, [1, 2])


def test_ragged_samples_are_scored_one_by_one():
    pieces = [SCORES[:1, :10], SCORES[1:2, :7], SCORES[2:3, :9]]
    column = [piece[0] for piece in pieces]
    labels = [int(piece.argmax()) for piece in pieces]
    assert value("accuracy", {"y": column}, labels) == 1
    boxes = [np.ones((3, 4)), np.ones((0, 4)), np.ones((2, 4))]
    assert rows("agreement", {"boxes": boxes})[:, 0].tolist() == [1, 1, 1]
    changed = [np.ones((3, 4)), np.ones((1, 4)), np.zeros((2, 4))]
    assert rows("agreement", {"boxes": changed}, original={"boxes": boxes})[:, 0].tolist() == [1, 0, 0]


@pytest.mark.parametrize(("outputs", "expected"), [
    ({"y": (10,)}, ["y"]),
    ({"y": (1000, 1, 1)}, ["y"]),
    ({"y": (1,)}, []),
    ({"sentence_embedding": (384,)}, []),
    ({"last_hidden_state": (12, 384), "logits": (7,)}, ["logits"]),
    ({"last_hidden_state": (12, 384), "y": (7,)}, ["y"]),
    ({"logits": (12, 50)}, ["logits"]),
    ({"start_logits": (12,), "end_logits": (12,)}, ["start_logits", "end_logits"]),
    ({"boxes": (100, 4), "scores": (100,), "classes": (100,)}, []),
    ({"head1": (10,), "head2": (5,)}, ["head1", "head2"]),
    ({"y": (84, 8400)}, []),
])  # fmt: skip
def test_which_outputs_are_decisions(outputs, expected):
    assert decisions({name: np.zeros((2, *shape), np.float32) for name, shape in outputs.items()}) == expected


def test_whole_numbers_decide_unless_a_richer_output_speaks_against_it():
    ids = np.zeros((2, 3), np.int64)
    assert decisions({"ids": ids}) == ["ids"]
    assert decisions({"ids": ids, "boxes": np.zeros((2, 3, 4))}) == []
    assert rows("agreement", {"ids": ids + np.array([0, 0, 1])}, original={"ids": ids})[0, 0] == pytest.approx(2 / 3)
    names = np.array(["a", "b"])
    assert rows("agreement", {"t": np.array(["a", "c"])}, original={"t": names})[:, 0].tolist() == [1, 0]


def test_agreement_of_all_heads_is_that_of_the_worst():
    broken = SCORES[:, ::-1]
    assert value("agreement", {"a": SCORES, "b": broken}, original={"a": SCORES, "b": SCORES}) == 0
    noisy = SCORES + np.random.default_rng(5).normal(size=SCORES.shape)
    assert value("agreement", noisy, original=SCORES) == pytest.approx(np.mean(noisy.argmax(1) == SCORES.argmax(1)))


def test_agreement_of_features_sees_length_and_direction():
    original = {"embedding": SCORES}
    assert value("agreement", original, original=original) == pytest.approx(1)
    assert value("agreement", {"embedding": 3 * SCORES}, original=original) == pytest.approx(0.6)
    assert value("cosine", {"embedding": 3 * SCORES}, original=original) == pytest.approx(1)
    assert value("agreement", {"embedding": -SCORES}, original=original) == 0
    assert value("agreement", {"embedding": 0 * SCORES}, original=original) == 0
    assert value("cosine", {"embedding": 0 * SCORES}, original=original) == 0
    assert value("agreement", {"x": np.full((2, 1), 0.3)}, original={"x": np.full((2, 1), 0.9)}) == pytest.approx(0.6)


def test_what_is_not_finite_agrees_only_with_itself():
    mask = np.array([[1.0, -np.inf, 2.0], [1.0, 2.0, 3.0]])
    assert rows("cosine", {"embed": mask})[:, 0] == pytest.approx([1, 1])
    assert (
        rows("cosine", {"embed": np.array([[1.0, np.nan, 2.0], [1.0, 2.0, np.inf]])}, original={"embed": mask}).max()
        == 0
    )


@given(st.integers(0, 10_000), st.sampled_from([1e-200, 1.0, 1e200]))
@settings(max_examples=30)
def test_similarities_lie_between_zero_and_one(seed, scale):
    a, b = np.random.default_rng(seed).normal(size=(2, 5, 3, 4)) * scale
    for name in ("agreement", "cosine"):
        found = rows(name, a, original=b)
        assert found.shape == (5, 1)
        assert ((found >= 0) & (found <= 1)).all()
        assert rows(name, a, original=a) == pytest.approx(1)


@pytest.mark.parametrize(("name", "outputs", "labels", "error", "text"), [
    ("accuracy", SCORES, None, UsageError, "needs labels"),
    ("accuracy", SCORES, LABELS / 2, UsageError, "needs class indices"),
    ("accuracy", SCORES, LABELS + 1, InputError, r"the label 10 is none of the model's 10 classes 0 to 9"),
    ("accuracy", SCORES, LABELS - 1, InputError, r"the label -1 is none of"),
    ("accuracy", SCORES, LABELS[:9], InputError, "200 samples and 9 labels"),
    ("accuracy", {"embedding": SCORES}, LABELS, InputError, r"no output gives .* embedding \[10\]"),
    ("accuracy", SCORES[:, :1], LABELS, InputError, "no output gives class scores"),
    ("accuracy", {"logits": SCORES.reshape(100, 2, 10)}, LABELS[:100], InputError, "do not fit"),
    ("f1", {"logits": SCORES.reshape(100, 2, 10)}, LABELS.reshape(100, 2), InputError, "one label per"),
    ("mse", SCORES, LABELS, InputError, "mse cannot hold"),
    ("mse", SCORES, None, UsageError, "needs numbers as labels"),
    ("spearman", SCORES, SCORES, InputError, "one value per sample"),
    ("cosine", LABELS, None, InputError, "no output can be compared"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(name, outputs, labels, error, text):
    with pytest.raises(error, match=text):
        rows(name, outputs, labels)


def test_labels_are_held_against_scores_before_indices():
    both = {"ids": np.zeros((2, 3), np.int64), "pooled": np.zeros((2, 9)), "y": np.zeros((2, 4))}
    assert class_output(both) == "y"
    assert class_output(both | {"logits": np.zeros((2, 5))}) == "logits"


def test_metrics_are_found_by_name_and_alias():
    assert find_metric("top1") is find_metric("accuracy") is METRICS["accuracy"]
    assert find_metric("ppl").name == "perplexity"
    with pytest.raises(UsageError, match="unknown metric 'acuracy'") as caught:
        find_metric("acuracy")
    assert "'accuracy'" in caught.value.remedy


@pytest.mark.parametrize(("labels", "name"), [
    (None, "agreement"), (np.array([1, 2]), "accuracy"), (np.array([0.5]), "mae"), (np.array(["a"]), "wer"),
])  # fmt: skip
def test_what_is_judged_when_nothing_was_asked(labels, name):
    assert default_metric(labels).name == name


@pytest.mark.parametrize(("name", "original", "candidate", "drop"), [
    ("accuracy", 0.76, 0.70, 0.06),
    ("accuracy", 0.76, 0.80, -0.04),
    ("wer", 0.10, 0.15, 0.5),
    ("wer", 0.10, 0.05, -0.5),
    ("perplexity", 20, 22, 0.1),
    ("spearman", -0.5, -0.6, 0.2),
    ("accuracy", 0.0, 0.5, math.nan),
    ("mse", 0.0, 0.0, math.nan),
    ("accuracy", 0.5, math.nan, math.nan),
    ("wer", math.inf, 0.5, math.nan),
])  # fmt: skip
def test_a_drop_is_a_loss_whatever_the_direction(name, original, candidate, drop):
    metric = METRICS[name]
    assert metric.drop(original, candidate) == pytest.approx(drop, nan_ok=True)
    assert bool(metric.why_no_drop(original, candidate)) == math.isnan(drop)


@pytest.mark.parametrize("check", json.loads((V04 / "checks.json").read_text()), ids=str)
def test_case_v04(check):
    metric = find_metric(check["metric"])
    drop = metric.drop(check["base"], check["new"])
    # as many samples as make the bounds meet: what is left is direction, NaN and a base of 0
    note = metric.why_no_drop(check["base"], check["new"])
    ends = {"value": drop, "low": drop, "high": drop, "n": 10**6}
    figure = Figure(name="drop", unit="1", provenance="measured", on="host", note=note, **ends)
    verdict = judge(Budget(max_drop=check["max_drop"]), [figure])
    assert verdict.status == ("pass" if check["ok"] else "fail")


USER = """
import numpy as np
import {other}

def share(outputs, labels):
    right = outputs["y"].argmax(1) == labels
    return right.mean(), right
share.higher_is_better = True
share.bounded = True

def count(outputs, labels):
    import {other} as late
    return len(outputs["y"]) * late.FACTOR
count.higher_is_better = False
count.needs_labels = False

def undeclared(outputs, labels):
    return 1.0

def wordy(outputs, labels):
    return 1.0
wordy.higher_is_better = "yes"

def failing(outputs, labels):
    return outputs["nothing"]
failing.higher_is_better = True

def returns(outputs, labels):
    return labels[0] if len(labels) == 1 else tuple(labels)
returns.higher_is_better = True
CONSTANT = 3
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A folder with the user's module, under names that no other test uses."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(USER.format(other=f"{name}_other"))
    (tmp_path / f"{name}_other.py").write_text("FACTOR = 2\n")
    yield f"python:{name}"
    for loaded in [loaded for loaded in sys.modules if loaded.startswith(name)]:
        del sys.modules[loaded]


def test_a_metric_of_ones_own(user):
    before = list(sys.path)
    metric = find_metric(f"{user}:share")
    assert (metric.higher_is_better, metric.bounded, metric.needs_labels) == (True, True, True)
    found, scores = metric.whole({"y": SCORES}, LABELS)
    assert found == pytest.approx(value("accuracy", SCORES, LABELS))
    assert scores.mean() == pytest.approx(found)
    count = find_metric(f"{user}:count")
    assert (count.higher_is_better, count.bounded, count.needs_labels) == (False, False, False)
    assert count.whole({"y": SCORES}, None) == 400.0
    assert sys.path == before


@pytest.mark.parametrize(("spec", "text", "remedy"), [
    ("{}:undeclared", "does not say `higher_is_better`", "undeclared.higher_is_better = True"),
    ("{}:wordy", "says 'yes' for `higher_is_better`", "wordy.higher_is_better = True"),
    ("{}:shar", "has no function 'shar'", "'share'"),
    ("{}:CONSTANT", "has no function 'CONSTANT'", ""),
    ("{}_none:share", "there is no module", "It was looked for in"),
    ("{}", "no metric of one's own", "python:module:function"),
    ("{}:", "no metric of one's own", "python:module:function"),
    ("python:a b:c", "no metric of one's own", "python:module:function"),
    ("python:../x:c", "no metric of one's own", "python:module:function"),
])  # fmt: skip
def test_specs_that_are_wrong_are_named(user, spec, text, remedy):
    spec = spec.format(user)
    with pytest.raises(UsageError, match=text) as caught:
        find_metric(spec)
    assert caught.value.where == spec
    assert remedy in caught.value.remedy


def test_a_module_that_fails_is_the_users_to_mend(user, tmp_path):
    name = user.removeprefix("python:")
    (tmp_path / f"{name}_bad.py").write_text("1 / 0\n")
    (tmp_path / f"{name}_missing.py").write_text("import no_such_module_here\n")
    with pytest.raises(InputError, match="fails on import: ZeroDivisionError"):
        find_metric(f"{user}_bad:f")
    with pytest.raises(InputError, match="needs the module 'no_such_module_here'"):
        find_metric(f"{user}_missing:f")
    (tmp_path / "json.py").write_text("def f(o, l): return 1.0\n")
    with pytest.raises(UsageError, match="Python itself has a module 'json'"):
        find_metric("python:json:f")


def test_the_module_of_this_folder_is_taken(user, tmp_path):
    name = user.removeprefix("python:")
    assert find_metric(f"{user}:share", tmp_path).bounded
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / f"{name}.py").write_text("def share(o, l): return 1.0\nshare.higher_is_better = False\n")
    assert not find_metric(f"{user}:share", other).higher_is_better
    assert find_metric(f"{user}:share", tmp_path).higher_is_better


@pytest.mark.parametrize(("labels", "text"), [
    ([None], "returned NoneType, not a number"),
    (["0.5"], "returned str, not a number"),
    ([True], "returned bool, not a number"),
    ([1j], "returned complex, not a number"),
    ([1.0, [1.0, 1.0], 3], "returned 3 values"),
    ([1.0, [1.0]], r"have the shape \[1\], not \[2\]"),
    ([1.0, ["a", "b"]], "are no numbers"),
    ([1.0, [1.0, 0.0]], "the mean of the per-sample scores is 0.5, the metric 1"),
])  # fmt: skip
def test_what_a_metric_returns_is_checked(user, labels, text):
    metric = find_metric(f"{user}:returns")
    with pytest.raises(InputError, match=text) as caught:
        metric.whole({"y": [np.zeros(1), np.zeros(2)]}, labels)
    assert caught.value.where == f"{user}:returns"


def test_a_metric_may_fail_or_be_nan_but_not_lie_about_its_range(user):
    with pytest.raises(InputError, match="the metric failed: KeyError: 'nothing'"):
        find_metric(f"{user}:failing").whole({"y": SCORES}, LABELS)
    returns = find_metric(f"{user}:returns")
    assert returns.whole({"y": SCORES}, [np.array([0.25])]) == 0.25
    assert math.isnan(returns.whole({"y": SCORES[:2]}, [math.nan, [1.0, math.nan]])[0])
    share = find_metric(f"{user}:share")
    assert checked_value(share, 1.0) == 1.0
    assert math.isnan(checked_value(share, math.nan))
    with pytest.raises(InputError, match=r"declared to lie in \[0, 1\] and gives 76.3"):
        checked_value(share, 76.3)
