import io
import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from edgekit.budget import Budget, judge
from edgekit.errors import InputError, UsageError
from edgekit.evaluate import compare, evaluate, figures, load_outputs, run_onnx, save_outputs
from edgekit.evaluate import reference as reference_module
from edgekit.metrics import METRICS, Metric, find_metric
from edgekit.numerics.statistics import clopper_pearson, paired_difference

V04 = Path(__file__).parent / "cases" / "V04_metric_direction"
RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(300, 10)).astype(np.float32)
LABELS = np.where(RNG.random(300) < 0.8, SCORES.argmax(1), RNG.integers(0, 10, 300))


def batches(array, size, name="y"):
    return [{name: array[start : start + size]} for start in range(0, len(array), size)]


def flipped(scores, *samples):
    """The same scores, but for some samples with the highest and the lowest class exchanged."""
    changed = scores.copy()
    for sample in samples:
        high, low = scores[sample].argmax(), scores[sample].argmin()
        changed[sample, [high, low]] = scores[sample, [low, high]]
    return changed


# ---- running a model


def save_model(path, nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def tensor(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


@pytest.fixture
def linear(tmp_path):
    weight = onnx.numpy_helper.from_array(np.arange(8, dtype=np.float32).reshape(4, 2), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"),
        helper.make_node("Relu", ["y"], ["z"], name="r"),
    ]
    outputs = [tensor("z", ["n", 2]), tensor("y", ["n", 2])]
    return save_model(tmp_path / "model.onnx", nodes, [tensor("x", ["n", 4])], outputs, [weight])


def test_a_model_runs_feed_after_feed(linear):
    feeds = [{"x": RNG.normal(size=(n, 4)).astype(np.float32)} for n in (1, 3)]
    for model in (linear, linear.parent):
        for feed, found in zip(feeds, run_onnx(model, iter(feeds), threads=2), strict=True):
            assert list(found) == ["z", "y"]
            expected = feed["x"] @ np.arange(8, dtype=np.float32).reshape(4, 2)
            assert found["y"] == pytest.approx(expected, rel=1e-5)
            assert found["z"] == pytest.approx(np.maximum(expected, 0), rel=1e-5)
    unfused = next(run_onnx(linear, feeds, optimize=False))
    assert unfused["y"].shape == (1, 2)


def test_feeds_are_read_one_by_one(linear):
    read = []
    outputs = run_onnx(linear, ({"x": np.full((1, 4), read.append(i) or i, np.float32)} for i in range(5)))
    assert read == []
    next(outputs)
    assert read == [0]


@pytest.mark.parametrize(("feed", "where", "text"), [
    ({}, "x", "the feed lacks this input: it has nothing"),
    ({"X": np.ones((1, 4), np.float32)}, "x", "it has X"),
    ({"x": np.ones((1, 4))}, "x", "the model takes float32, the feed has float64"),
    ({"x": np.ones((1, 5), np.float32)}, "x", "the graph takes nx4, the feed has 1x5"),
    ({"x": np.ones(4, np.float32)}, "x", "the graph takes nx4, the feed has 4"),
    ({"x": np.ones((1, 4), np.float32), "more": np.ones(1)}, "model.onnx", "feed 0: Invalid input name"),
])  # fmt: skip
def test_a_feed_that_does_not_fit_is_refused(linear, feed, where, text):
    with pytest.raises(InputError, match=text) as caught:
        list(run_onnx(linear, [feed]))
    assert caught.value.where == where


def test_errors_name_the_node(tmp_path):
    x, w = tensor("x", ["n", 4]), tensor("w", ["k", 3])
    mismatch = save_model(
        tmp_path / "a.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="proj")],
        [x, w],
        [tensor("y", None)],
    )
    feed = {"x": np.ones((1, 4), np.float32), "w": np.ones((5, 3), np.float32)}
    with pytest.raises(InputError, match="onnxruntime fails on feed 0") as caught:
        list(run_onnx(mismatch, [feed]))
    assert caught.value.where == "a.onnx: proj (MatMul)"
    cases = {
        "unknown (Nope)": [helper.make_node("Nope", ["x"], ["y"], name="unknown")],
        "fixed (MatMul)": [helper.make_node("MatMul", ["x", "v"], ["y"], name="fixed")],
        "mixed (Add)": [helper.make_node("Add", ["x", "i"], ["y"], name="mixed")],
    }
    for where, nodes in cases.items():
        inputs = [x, tensor("v", [5, 3]), tensor("i", [4], TensorProto.INT64)]
        path = save_model(tmp_path / "b.onnx", nodes, inputs, [tensor("y", None)])
        with pytest.raises(InputError, match="onnxruntime cannot load the model") as caught:
            run_onnx(path, [])
        assert caught.value.where == f"b.onnx: {where}"


def test_a_file_that_is_no_model_is_refused_without_a_word_on_stderr(tmp_path, capfd):
    (tmp_path / "bad.onnx").write_bytes(b"garbage")
    for name in ("bad.onnx", "none.onnx"):
        with pytest.raises(InputError, match="cannot load the model") as caught:
            run_onnx(tmp_path / name, [])
        assert caught.value.where == name
    assert capfd.readouterr() == ("", "")


def test_an_output_that_is_no_tensor_is_refused(tmp_path):
    node = helper.make_node("SequenceConstruct", ["x", "x"], ["s"], name="seq")
    output = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    path = save_model(tmp_path / "m.onnx", [node], [tensor("x", ["n"])], [output])
    with pytest.raises(InputError, match="the output is a list, not a tensor") as caught:
        list(run_onnx(path, [{"x": np.ones(2, np.float32)}]))
    assert caught.value.where == "m.onnx: s"


def test_importing_loads_no_onnxruntime():
    code = "import sys, edgekit.evaluate; sys.exit('onnxruntime' in sys.modules or 'onnx' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == 0


# ---- comparing


def test_equal_outputs_leave_what_the_sample_leaves_open():
    found = compare({"y": SCORES[:50]}, {"y": SCORES[:50]}, LABELS[:50], METRICS["accuracy"])
    assert (found.drop, found.n, found.agreement) == (0, 50, 1)
    assert found.high >= 0.058
    assert found.high == pytest.approx(1 - 0.05 ** (1 / 50))
    assert found.outputs[0].sqnr_db == math.inf
    assert found.findings == ()
    assert judge(Budget(max_drop=0.001), figures(found, on="host")).status == "unproven"
    assert judge(Budget(max_drop=0.06), figures(found, on="host")).status == "pass"


def test_the_bounds_of_accuracy_are_those_of_the_changed_answers():
    changed = flipped(SCORES, *range(12))
    found = compare({"y": SCORES}, {"y": changed}, LABELS, METRICS["accuracy"])
    right = [(scores.argmax(1) == LABELS).astype(int) for scores in (SCORES, changed)]
    lost, gained = int(np.sum(right[0] > right[1])), int(np.sum(right[1] > right[0]))
    assert found.original == right[0].mean()
    assert found.candidate == right[1].mean()
    assert found.drop == pytest.approx((lost - gained) / 300)
    assert (found.low, found.high) == pytest.approx(paired_difference(lost, gained, 300), abs=1e-9)
    assert found.original_interval == pytest.approx(clopper_pearson(int(right[0].sum()), 300), abs=1e-9)
    assert found.agreement == pytest.approx(288 / 300)
    assert found.agreement_interval == pytest.approx(clopper_pearson(288, 300), abs=1e-9)


def test_without_labels_agreement_is_judged():
    found = compare({"y": SCORES}, {"y": flipped(SCORES, 3, 7)}, None, METRICS["agreement"])
    assert (found.original, found.candidate) == (1, pytest.approx(298 / 300))
    assert found.high == pytest.approx(clopper_pearson(2, 300).high, rel=1e-6)
    names = [figure.name for figure in figures(found, on="host")]
    assert names == ["drop", "agreement", "agreement-original"]


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from(["accuracy", "f1", "nll"]))
@settings(max_examples=15, deadline=None)
def test_how_both_sides_are_cut_into_batches_changes_nothing(left, right, name):
    changed = flipped(SCORES, *range(0, 300, 9))
    whole = compare({"y": SCORES}, {"y": changed}, LABELS, METRICS[name])
    cut = evaluate(batches(SCORES, left), batches(changed, right), LABELS, METRICS[name], count=300)
    for field in ("original", "candidate", "drop", "low", "high", "agreement"):
        assert getattr(cut, field) == pytest.approx(getattr(whole, field), rel=1e-9)
    assert cut.outputs[0].sqnr_db == pytest.approx(whole.outputs[0].sqnr_db)
    assert cut.outputs[0].elements == 3000


def test_streams_are_consumed_step_by_step():
    read = []

    def stream(name):
        for item in batches(SCORES, 50):
            read.append(name)
            yield item

    evaluate(stream("a"), stream("b"), LABELS, METRICS["accuracy"])
    assert read == ["a", "b"] * 6


@pytest.mark.parametrize(("name", "labels"), [("f1", LABELS), ("nll", LABELS), ("perplexity", LABELS)])
def test_other_metrics_get_bootstrapped_bounds(name, labels):
    noisy = SCORES + np.random.default_rng(4).normal(size=SCORES.shape).astype(np.float32)
    found = compare({"y": SCORES}, {"y": noisy}, labels, METRICS[name], seed=1)
    assert found.low < found.drop < found.high
    assert found == compare({"y": SCORES}, {"y": noisy}, labels, METRICS[name], seed=1)
    same = compare({"y": SCORES}, {"y": SCORES}, labels, METRICS[name], seed=1)
    assert (same.drop, same.high) == (0, pytest.approx(1 - 0.05 ** (1 / 300)))


def test_a_relative_drop_is_relative():
    values = np.linspace(1, 2, 200)[:, None]
    labels = np.zeros(200)
    found = compare({"y": values}, {"y": values * 1.1}, labels, METRICS["mae"])
    assert found.drop == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.1, 0.1), abs=0.02)


def test_an_original_at_zero_measures_nothing():
    right = np.eye(10)[LABELS]
    note = "accuracy of the original is 0: nothing was measured"
    found = compare({"y": np.roll(right, 1, axis=1)}, {"y": right}, LABELS, METRICS["accuracy"])
    assert math.isnan(found.drop)
    assert (found.low, found.high, found.note) == (None, None, note)
    check = judge(Budget(max_drop=0.01), figures(found, on="host")).checks[0]
    assert check.status == "fail"
    assert note in check.reason


def test_a_candidate_that_gives_nan_fails():
    broken = SCORES.copy()
    broken[5] = np.nan
    found = compare({"y": SCORES}, {"y": broken}, LABELS, METRICS["nll"])
    assert judge(Budget(max_drop=0.5), figures(found, on="host")).status == "fail"
    assert [(one.severity, one.rule, one.node) for one in found.findings] == [("error", "output-not-finite", "y")]
    assert found.outputs[0].broken == 10
    counted = compare({"y": SCORES}, {"y": broken}, LABELS, METRICS["accuracy"])
    assert counted.candidate <= counted.original
    assert counted.agreement == pytest.approx(299 / 300)


def test_no_samples_claim_nothing():
    found = evaluate([], [], None, METRICS["agreement"], count=0)
    assert (found.n, found.drop, found.agreement) == (0, None, None)
    check = judge(Budget(max_drop=0.5), figures(found, on="host")).checks[0]
    assert (check.status, check.reason) == ("unproven", "nothing measured: there are no evaluation samples")
    assert evaluate([], [], np.array([], int), METRICS["accuracy"]).n == 0


@pytest.mark.parametrize("check", json.loads((V04 / "checks.json").read_text()), ids=str)
def test_case_v04_through_the_whole_chain(check):
    n = 2000
    value = np.where(np.arange(n)[:, None] < check["base"] * n, 1.0, 0.0)
    new = np.where(np.arange(n)[:, None] < check["new"] * n, 1.0, 0.0)  # nothing is below NaN
    if check["metric"] == "top1":
        original, candidate = (np.concatenate([1 - side, side], axis=1) for side in (value, new))
        labels = np.ones(n, int)
    else:
        original, candidate = (np.where(side[:, 0] == 1, "wrong", "right") for side in (value, new))
        labels = np.array(["right"] * n)
    metric = find_metric(check["metric"])
    if math.isnan(check["new"]):
        values = iter([check["base"], math.nan])
        metric = Metric(name="top1", higher_is_better=True, bounded=True, whole=lambda *_: next(values))
    found = compare({"y": original}, {"y": candidate}, labels, metric)
    verdict = judge(Budget(max_drop=check["max_drop"]), figures(found, on="host"))
    assert verdict.status == ("pass" if check["ok"] else "fail")


# ---- what must not be overlooked


def detector(n=20, seed=1):
    rng = np.random.default_rng(seed)
    boxes, scores = rng.uniform(0, 640, (n, 100, 4)), rng.random((n, 100, 3)) ** 3
    return np.concatenate([boxes, scores], axis=2).astype(np.float32)


def dead_scores(original):
    return (np.round(original / 2.5) * 2.5).astype(np.float32)


@pytest.mark.parametrize("axis", [1, 2])
def test_scores_that_died_beside_their_boxes_are_an_error(axis):
    original = np.moveaxis(detector(), 2, axis)
    candidate = np.moveaxis(dead_scores(detector()), 2, axis)
    found = compare({"y": original}, {"y": candidate}, None, METRICS["cosine"])
    assert found.outputs[0].sqnr_db > 47
    assert found.candidate > 0.9999
    errors = [one for one in found.findings if one.severity == "error"]
    assert len(errors) == 1
    assert errors[0].node == "y"
    assert errors[0].rule == "output-constant"
    assert f"columns 4-6 of axis {axis} (of 7) are constant" in errors[0].text
    groups = {(group.first, group.last): group.sqnr_db for group in found.outputs[0].groups if group.axis == axis}
    assert groups[0, 3] > 47
    assert groups[4, 6] <= 0


def test_scores_of_their_own_output_are_seen_too():
    original = {"boxes": detector()[..., :4], "scores": detector()[..., 4:], "count": np.full((20, 1), 100.0)}
    candidate = original | {"scores": np.zeros_like(original["scores"])}
    found = compare(original, candidate, None, METRICS["agreement"])
    assert [one.node for one in found.findings] == ["scores"]
    assert found.findings[0].text.startswith("all 100 columns of axis 1 are constant")
    assert found.candidate == 0
    assert [output.name for output in found.outputs] == ["boxes", "scores", "count"]


def test_a_scalar_per_sample_that_died_is_an_error():
    values = RNG.random(40).astype(np.float32)
    for shape in ((40,), (40, 1)):
        found = compare({"y": values.reshape(shape)}, {"y": np.full(shape, 0.5)}, None, METRICS["agreement"])
        assert found.findings[0].text.startswith("the output is constant")
        assert found.findings[0].severity == "error"


def test_what_rounds_to_nothing_rightly_is_a_warning():
    original = RNG.random((100, 5)).astype(np.float32)
    original[:, 3] *= 1e-3
    candidate = original.copy()
    candidate[:, 3] = 0
    found = compare({"y": original}, {"y": candidate}, None, METRICS["agreement"])
    assert [(one.severity, one.rule) for one in found.findings] == [("warning", "output-constant")]
    assert "columns 3 of axis 1 (of 5)" in found.findings[0].text


def test_a_few_samples_or_a_good_candidate_raise_no_alarm():
    rng = np.random.default_rng(3)
    original = detector()
    good = original + rng.normal(size=original.shape) * np.array([1, 1, 1, 1, 0.01, 0.01, 0.01])
    assert compare({"y": original}, {"y": good}, None, METRICS["agreement"]).findings == ()
    logits = rng.normal(size=(3, 10)).astype(np.float32)
    assert compare({"y": logits}, {"y": np.round(logits)}, None, METRICS["agreement"]).findings == ()


def test_a_column_that_drifted_is_a_warning():
    changed = SCORES.copy()
    changed[:, 2] += 5
    found = compare({"y": SCORES}, {"y": changed}, None, METRICS["agreement"])
    assert [(one.severity, one.rule) for one in found.findings] == [("warning", "output-drifted")]
    assert "columns 2 of axis 1" in found.findings[0].text


def test_nan_of_the_original_is_told_and_masks_are_not():
    original = SCORES.copy()
    original[:, 0] = -np.inf
    assert compare({"y": original}, {"y": original}, None, METRICS["agreement"]).findings == ()
    original[0, 1] = np.nan
    found = compare({"y": original}, {"y": original}, None, METRICS["agreement"])
    assert [(one.severity, one.rule) for one in found.findings] == [("warning", "original-not-finite")]


# ---- ragged outputs


def test_ragged_batches_of_one_are_stacks_of_one():
    original = [{"logits": RNG.normal(size=(1, length, 5))} for length in (3, 7, 4)]
    found = evaluate(original, original, None, METRICS["agreement"], count=3)
    assert (found.n, found.agreement) == (3, 1)


def test_detections_may_differ_in_number():
    original = [np.arange(n * 6.0).reshape(n, 6) for n in (3, 0, 2, 2)]
    candidate = [original[0], original[1], original[2][:1], original[3] + 0.5]
    found = compare({"y": original}, {"y": candidate}, None, METRICS["agreement"])
    assert found.n == 4
    assert [(one.severity, one.rule) for one in found.findings] == [("warning", "output-shape-differs")]
    assert "1 of 4 samples" in found.findings[0].text
    assert 0.5 < found.agreement < 0.75
    with pytest.raises(InputError, match="do not share a batch axis") as caught:
        evaluate([{"boxes": original[0], "n": np.array(3)}], [{"boxes": original[0]}], None, METRICS["agreement"])
    assert "batched=False" in caught.value.remedy


# ---- the user's own metric


def counting(outputs, labels):
    return float(np.mean([np.argmax(sample) == label for sample, label in zip(outputs["y"], labels, strict=True)]))


def own(function, **fields):
    return Metric(name="python:m:f", whole=function, **({"higher_is_better": True, "bounded": True} | fields))


def test_a_metric_of_all_outputs_is_bootstrapped():
    changed = flipped(SCORES, *range(30))
    found = compare({"y": SCORES}, {"y": changed}, LABELS, own(counting))
    exact = compare({"y": SCORES}, {"y": changed}, LABELS, METRICS["accuracy"])
    assert (found.original, found.candidate, found.drop) == (exact.original, exact.candidate, exact.drop)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=0.015)
    ragged = [{"y": [*SCORES[:9], SCORES[9, :8]]}] * 2
    assert compare(*ragged, LABELS[:10].clip(0, 7), own(counting)).n == 10


def test_a_metric_with_scores_gets_the_exact_bounds():
    def scored(outputs, labels):
        right = (outputs["y"].argmax(1) == labels).astype(float)
        return right.mean(), right

    changed = flipped(SCORES, *range(30))
    found = compare({"y": SCORES}, {"y": changed}, LABELS, own(scored))
    exact = compare({"y": SCORES}, {"y": changed}, LABELS, METRICS["accuracy"])
    assert (found.low, found.high) == (exact.low, exact.high)

    def wild(_outputs, labels):
        return 0.5, np.where(np.arange(len(labels)) % 2, 1.5, -0.5)

    with pytest.raises(InputError, match=r"outside \[0, 1\]"):
        compare({"y": SCORES}, {"y": changed}, LABELS, own(wild))
    with pytest.raises(InputError, match=r"declared to lie in \[0, 1\] and gives 76"):
        compare({"y": SCORES}, {"y": changed}, LABELS, own(lambda *_: 76.0))


def test_a_metric_cannot_change_what_it_is_given():
    def careless(outputs, _labels):
        outputs["y"] -= 1
        return 0.5

    with pytest.raises(ValueError, match="read-only"):
        compare({"y": SCORES}, {"y": SCORES}, LABELS, own(careless))


# ---- what does not fit


@pytest.mark.parametrize(("reference", "candidate", "labels", "options", "error", "text"), [
    (SCORES, SCORES, None, {}, UsageError, "the metric 'accuracy' needs labels"),
    (SCORES, SCORES, LABELS[:250], {}, InputError, "250 labels"),
    (SCORES[:250], SCORES[:250], LABELS, {}, InputError, "outputs of 250 samples came for 300 labels"),
    (SCORES, SCORES, LABELS, {"count": 299}, InputError, "outputs of 300 samples came for 299 samples"),
    (SCORES[:200], SCORES, LABELS, {}, InputError, "the original gave outputs for 200 samples"),
    (SCORES, SCORES[:200], LABELS, {}, InputError, "the candidate gave outputs for 200 samples"),
    (SCORES, SCORES[:, :9], LABELS, {}, InputError, r"y: the original's shape is \[100, 10\]"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(reference, candidate, labels, options, error, text):
    with pytest.raises(error, match=text):
        evaluate(batches(reference, 100), batches(candidate, 100), labels, METRICS["accuracy"], **options)


def test_a_missing_output_is_named_and_one_more_is_left_aside():
    with pytest.raises(InputError, match="y: the candidate lacks this output: it gives z"):
        compare({"y": SCORES}, {"z": SCORES}, LABELS, METRICS["accuracy"])
    assert compare({"y": SCORES}, {"z": SCORES[:, :3], "y": SCORES}, LABELS, METRICS["accuracy"]).drop == 0


def test_a_comparison_is_json():
    found = compare({"y": SCORES}, {"y": flipped(SCORES, 1)}, LABELS, METRICS["accuracy"])
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


# ---- outputs on disk


ARRAYS = st.one_of(
    *(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)) for dtype in (
        np.float16, np.float32, np.float64, np.int64, np.uint8, np.int32, np.bool_, "<U5", ">f4",
    ))
)  # fmt: skip


@given(st.lists(ARRAYS, min_size=1, max_size=3), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_outputs_come_back_bit_by_bit(tmp_path_factory, arrays, count):
    path = tmp_path_factory.mktemp("outputs") / "reference.npz"
    item = {f"output.{index}/x": array for index, array in enumerate(arrays)}
    assert save_outputs(path, [item] * count) == count
    back = list(load_outputs(path))
    assert len(back) == count
    for one in back:
        assert list(one) == list(item)
        for name, array in item.items():
            assert one[name].shape == array.shape
            if array.dtype.kind != "U":
                assert one[name].dtype == array.dtype.newbyteorder("=")
            assert one[name].tobytes() == array.astype(one[name].dtype).tobytes()
    assert sorted(path.parent.iterdir()) == [path]


def test_outputs_are_kept_as_narrow_as_they_come_back(tmp_path):
    path = tmp_path / "reference.npz"

    def size(array):
        save_outputs(path, [{"y": array}])
        return path.stat().st_size

    exact = np.arange(4096, dtype=np.float32).clip(0, 2000)
    assert size(exact) < 2 * 4096 + 1000
    assert size(exact + np.float32(0.1)) > 4 * 4096
    assert size(exact.astype(np.int64) % 100) < 4096 + 1000
    assert size((exact + np.float32(0.1)).astype(np.float64)) < 4 * 4096 + 1000
    special = np.array([np.nan, -0.0, np.inf, -np.inf, 65504, 6e-8], np.float32)
    save_outputs(path, [{"y": special}])
    assert next(load_outputs(path))["y"].tobytes() == special.tobytes()


def test_ragged_outputs_and_texts_are_kept(tmp_path):
    path = tmp_path / "reference.npz"
    items = [{"boxes": np.ones((n, 4), np.float32), "text": np.array(["x" * n, "é"], object)} for n in (3, 0, 2)]
    save_outputs(path, items)
    for item, back in zip(items, load_outputs(path), strict=True):
        assert back["boxes"].shape == item["boxes"].shape
        assert back["text"].tolist() == item["text"].tolist()
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist()[:2] == ["000000/0.npy", "000000/1.npy"]
    assert np.load(path)["names"].tolist() == ["boxes", "text"]


def test_equal_outputs_give_equal_bytes_and_are_read_lazily(tmp_path):
    save_outputs(tmp_path / "a.npz", batches(SCORES, 64))
    save_outputs(tmp_path / "b.npz", ({"y": item["y"].copy()} for item in batches(SCORES, 64)))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    found = evaluate(load_outputs(tmp_path / "a.npz"), batches(SCORES, 7), LABELS, METRICS["accuracy"])
    assert found.drop == 0


@pytest.mark.parametrize(("items", "text"), [
    ([{"y": np.ones(1)}, {"z": np.ones(1)}], "item 1 has the outputs"),
    ([{"y": np.ones(1)}, {"y": np.ones(1, int)}], "item 1 has the outputs"),
    ([{"y": np.array([object()])}], "outputs of object cannot be kept"),
    ([{"y": np.array([b"x"])}], "cannot be kept"),
])  # fmt: skip
def test_outputs_that_cannot_be_kept_leave_no_file(tmp_path, items, text):
    with pytest.raises(InputError, match=text):
        save_outputs(tmp_path / "reference.npz", items)
    assert list(tmp_path.iterdir()) == []


def npy(array, *, pickled=False):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


NAMES = {"names.npy": npy(np.array(["y"])), "dtypes.npy": npy(np.array(["float32"]))}


@pytest.mark.parametrize("entries", [
    {},
    {"names.npy": NAMES["names.npy"]},
    NAMES | {"000001/0.npy": npy(np.ones(1, np.float32))},
    NAMES | {"000000/0.npy": npy(np.ones(1, np.float32)), "more": b""} | {"000000/1.npy": b"", "x": b""},
    NAMES | {"000000/0.npy": npy(np.ones(1, np.int32))},
    NAMES | {"000000/0.npy": npy(np.array(["x"]))},
    NAMES | {"000000/0.npy": npy(np.array([{}], object), pickled=True)},
    NAMES | {"000000/0.npy": npy(np.ones(9, np.float32))[:-1]},
    NAMES | {"000000/0.npy": header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,)}\n")},
    NAMES | {"000000/0.npy": header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1)}\n")},
    NAMES | {"000000/0.npy": header("__import__('os').abort()\n")},
    NAMES | {"000000/0.npy": b"garbage"},
    {"names.npy": npy(np.array([1])), "dtypes.npy": npy(np.array(["float32"]))},
    {"names.npy": npy(np.array(["y", "z"])), "dtypes.npy": npy(np.array(["float32"]))},
], ids=lambda entries: ",".join(entries) or "empty")  # fmt: skip
def test_a_file_of_another_form_is_refused(tmp_path, entries):
    path = tmp_path / "reference.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    with pytest.raises(InputError) as caught:
        list(load_outputs(path))
    assert caught.value.where.startswith("reference.npz")


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "reference.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("names.npy", npy(np.zeros(1000)))
    with pytest.raises(InputError, match="is compressed"):
        list(load_outputs(path))
    monkeypatch.setattr(reference_module, "MAX_ENTRY_BYTES", 1000)
    save_outputs(path, [{"y": SCORES}])
    with pytest.raises(InputError, match="larger than"):
        list(load_outputs(path))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_file_is_refused_or_reads_the_same(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("outputs") / "reference.npz"
    save_outputs(path, batches(SCORES[:4], 2))
    whole = [item["y"].tobytes() for item in load_outputs(path)]
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    try:
        found = [item["y"].tobytes() for item in load_outputs(path)]
    except InputError:
        return
    assert found == whole


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="this is no file of outputs"):
        list(load_outputs(tmp_path / "none.npz"))
