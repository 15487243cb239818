"""The gate: what is known of a candidate, how it was found out, and how candidates are ranked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.artifact import MAIN
from edgekit.budget import Budget, Figure, dominated
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.exporter import load_exporter
from edgekit.gate import RUNS, Gate, model_size
from edgekit.original import OUTPUTS, Original
from edgekit.profile import load_profile
from edgekit.sources import ingest
from edgekit.store import Store
from edgekit.target import Bundle
from house import calibration_data, dataset, profile
from onnx_models import linear, noisy


@pytest.fixture(scope="module")
def feeds():
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1, 8)).astype(np.float32)} for _ in range(200)]


@pytest.fixture
def gate(tmp_path, feeds):
    with Store(tmp_path / "home") as store:
        reference = ingest(str(linear(tmp_path / "m.onnx")), store)
        yield Gate(
            original=Original(store=store, artifact=reference, data=dataset(feeds), metric=None),
            profile=profile(),
            exporter=load_exporter("onnx"),
            budget=Budget(),
        )


@pytest.fixture
def publish(gate, tmp_path):
    """Publish the reference with its weights changed."""

    def run(change):
        model = onnx.load(tmp_path / "m.onnx")
        weight = next(tensor for tensor in model.graph.initializer if tensor.name == "W")
        weight.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(weight)).astype(np.float32), "W"))
        path = tmp_path / "changed.onnx"
        onnx.save(model, path)
        return ingest(str(path), gate.original.store)

    return run


def of(gate, **changes):
    """Return a gate whose original is another one."""
    return replace(gate, original=replace(gate.original, **changes))


def bundle(gate, artifact):
    return Bundle(folder=gate.original.store.folder(artifact.id), facts={"runtime": "onnxruntime", "model": MAIN})


class Machine:
    url, provenance = "stand-in", "measured"

    def __init__(self, *, refuses=False):
        self.findings, self.refuses, self.runs = [], refuses, []

    def fingerprint(self):
        return {"board": "stand-in"}

    def run(self, given, fed):
        from edgekit.evaluate import run_onnx

        yield from run_onnx(given.folder / given.facts["model"], fed)

    def measure(self, given, feed, *, runs, threads, sustained=0):
        self.runs.append(runs)
        if self.refuses and len(self.runs) > 1:
            raise UnsupportedError("float is not for this engine")
        return (Figure(name="latency-p50", value=1.0, unit="ms", provenance="measured", on=self.url, n=runs),)


def test_the_same_model_loses_nothing(gate):
    trial = gate.trial(bundle(gate, gate.original.artifact), None, gate.original.artifact)
    figures = {figure.name: figure for figure in trial.figures}
    assert figures["drop"].value == 0
    assert figures["drop"].n == 100
    assert figures["agreement"].value == 1
    assert figures["drop"].provenance == "simulated"
    assert figures["latency-p50"].provenance == "predicted"
    assert figures["size"].value == (gate.original.store.folder(gate.original.artifact.id) / MAIN).stat().st_size
    assert trial.fingerprint == {}


def test_another_model_loses_and_the_bounds_hold_the_loss(gate, publish):
    other = publish(lambda weight: weight[::-1])
    trial = gate.trial(bundle(gate, other), None, other)
    drop = next(figure for figure in trial.figures if figure.name == "drop")
    assert drop.value > 0.2
    assert drop.low <= drop.value <= drop.high


def test_a_target_is_measured_and_so_is_the_original(gate):
    machine = Machine()
    trial = gate.trial(bundle(gate, gate.original.artifact), machine, gate.original.artifact)
    figures = {figure.name: figure for figure in trial.figures}
    assert machine.runs == [RUNS, RUNS]
    assert figures["drop"].provenance == "measured"
    assert figures["drop"].on == "stand-in"
    assert {figure.name for figure in trial.original} == {"size", "latency-p50", "drop"}
    assert trial.fingerprint == {"board": "stand-in"}


def test_a_p99_budget_takes_three_times_the_runs(gate):
    machine = Machine()
    strict = replace(gate, budget=Budget(latency_ms={"p99": 5.0}))
    strict.trial(bundle(gate, gate.original.artifact), machine, gate.original.artifact)
    assert machine.runs[0] == 3 * RUNS


def test_an_original_that_the_target_does_not_run_is_no_reason_to_fail(gate):
    trial = gate.trial(bundle(gate, gate.original.artifact), Machine(refuses=True), gate.original.artifact)
    assert {figure.name for figure in trial.original} == {"size", "drop"}
    assert dominated(trial.original, trial.figures) is None


def test_without_data_accuracy_was_not_looked_at(gate):
    bare = of(gate, data=None)
    trial = bare.trial(bundle(gate, gate.original.artifact), None, gate.original.artifact)
    drop = next(figure for figure in trial.figures if figure.name == "drop")
    assert drop.value is None
    assert "there is no data" in drop.note
    assert bare.original.outputs_id is None
    assert bare.original.golden_samples is None


def test_without_an_evaluation_split_nothing_is_said_about_accuracy(gate, feeds):
    few = of(gate, data=replace(dataset(feeds[:8]), evaluation=dataset([]).evaluation))
    drop = next(
        f
        for f in few.trial(bundle(gate, gate.original.artifact), None, gate.original.artifact).figures
        if f.name == "drop"
    )
    assert drop.value is None
    assert "too few samples" in drop.note
    assert few.original.outputs_id is None
    assert len(few.original.golden_samples) == 4, "golden inputs come from the calibration samples then"


def test_the_originals_outputs_are_computed_once(gate):
    first = gate.original.outputs("evaluation")
    stamp = first.stat().st_mtime_ns
    again = replace(gate.original).outputs("evaluation")
    assert again == first
    assert again.name == OUTPUTS
    assert again.stat().st_mtime_ns == stamp
    assert gate.original.outputs("calibration") != first


def test_accuracy_without_labels_is_agreement(gate):
    assert gate.original.judged_by.name == "agreement"
    assert replace(gate.original, metric="accuracy").judged_by.name == "accuracy"
    with pytest.raises(UsageError, match="acuracy"):
        _ = replace(gate.original, metric="acuracy").judged_by


def test_ranking_looks_at_the_calibration_data_only(gate, publish):
    """The evaluation data decides at the end, once; it must not choose among candidates."""

    class Untouchable:
        labels, ids = None, ()

        def __len__(self):
            return 100

        def sample(self, index):
            raise AssertionError("the evaluation data was looked at")

        batches = sample

    watched = of(gate, data=replace(gate.original.data, evaluation=Untouchable()))
    score = watched.score(publish(lambda weight: weight[::-1]))
    assert score.drop > 0.2
    assert watched.score(gate.original.artifact).drop == 0


@pytest.mark.parametrize(
    ("budget", "within"),
    [
        (Budget(), True),
        (Budget(max_drop=0.1), False),
        (Budget(max_drop=1.0), True),
        (Budget(max_size=10), False),
        (Budget(latency_ms={"p50": 1e-9, "p99": 1e9}), False),
        (Budget(latency_ms={"p50": 1e9}), True),
    ],
    ids=str,
)
def test_a_score_is_within_the_budget_or_not(gate, publish, budget, within):
    other = publish(lambda weight: weight[::-1])
    assert replace(gate, budget=budget).score(other).within is within


def test_few_samples_rule_an_alternative_out_only_by_evidence(gate, publish):
    """What few samples lose may be chance: the lower bound says what is sure."""
    other = publish(lambda weight: weight * (1 + 0.5 * np.sin(np.arange(weight.size).reshape(weight.shape))))
    found = gate.score(other)
    low, high = found.bounds
    assert 0 < low < found.drop < high
    between, below = replace(gate, budget=Budget(max_drop=(low + found.drop) / 2)), Budget(max_drop=low / 2)
    kept = between.score(other)
    assert kept.within
    assert kept.doubtful
    assert not kept.keeps  # a round of a recipe is undone all the same
    assert f"{found.drop:.2%}" in kept.why_before([found])
    assert "chance" in kept.why_before([found])
    out = replace(gate, budget=below).score(other)
    assert not out.within
    assert not out.doubtful
    sure = replace(gate, budget=Budget(max_drop=high)).score(other)
    assert sure.within
    assert not sure.doubtful


def test_scores_sort_by_budget_then_time_then_size_then_accuracy(gate, publish):
    from edgekit.score import Score

    good = Score(within=True, latency_ms=2.0, size=10, drop=0.0)
    ranked = [
        replace(good, latency_ms=1.0),
        good,
        replace(good, drop=0.01),
        replace(good, size=11),
        replace(good, latency_ms=None),
        replace(good, within=False, latency_ms=0.1),
    ]
    mixed = [*ranked[3:], *ranked[:3]]
    assert sorted(mixed, key=Score.key) == ranked


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([(True, 1.0, 90), (True, 1.01, 50), (True, 1.5, 10)], 1),  # no prediction tells 1 % apart: the smaller one
        ([(True, 1.0, 90), (True, 1.05, 50)], 0),
        ([(False, 1.0, 10), (True, 1.01, 50)], 1),
        ([(False, 1.0, 90), (False, 1.01, 50)], 0),
        ([(True, None, 90), (True, None, 50)], 1),
        ([(True, None, 10), (True, 5.0, 50)], 1),
    ],
)
def test_latencies_that_are_alike_are_told_apart_by_size(rows, best):
    from edgekit.score import Score, best_of

    scores = [Score(within=within, latency_ms=ms, size=size, drop=0.0) for within, ms, size in rows]
    assert best_of(scores) == best
    if rows == [(True, 1.0, 90), (True, 1.01, 50), (True, 1.5, 10)]:
        assert scores[1].why_before([scores[0], scores[2]]).startswith("as fast as others")


def test_a_graph_whose_shapes_are_open_has_no_prediction_and_says_why(gate):
    class Open:
        def estimate(self, artifact, folder, device):
            raise InputError("the axis 't' is open", where="x", remedy="Fix it with --shape.")

    (figure,) = replace(gate, exporter=Open()).estimate(gate.original.artifact)
    assert figure.value is None
    assert "'t' is open" in figure.note
    assert replace(gate, exporter=Open()).score(gate.original.artifact).latency_ms is None


def test_open_shapes_count_as_those_of_the_largest_of_a_few_samples(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "W"], ["y"])]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "t", 8]) for name in "xy"]
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "W")
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    feeds = [{"x": np.ones((1, length, 8), np.float32)} for length in (3, 40, 7, 5)]
    with Store(tmp_path / "home") as store:
        artifact = ingest(str(tmp_path / "m.onnx"), store)
        gate = Gate(
            original=Original(store=store, artifact=artifact, data=calibration_data(feeds), metric=None),
            profile=load_profile("raspberry-pi-5"),
            exporter=load_exporter("onnx"),
            budget=Budget(),
        )
        figures = {figure.name: figure for figure in gate.estimate(artifact)}
        assert figures["latency-p50"].value > 0
        assert "x 1x40x8" in figures["latency-p50"].note
        assert of(gate, data=None).estimate(artifact)[0].value is None


def test_size_is_what_a_device_loads(tmp_path):
    for name, size in (("model.onnx", 10), ("model.onnx.data", 100), ("sub/w.bin", 1000), ("README.md", 7)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    assert model_size(tmp_path).value == 1110


def test_seeded_feeds_are_the_same_every_time(gate):
    one, two = gate.original.seeded_feeds(), replace(gate.original).seeded_feeds()
    assert len(one) == len(two) > 0
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])
    assert not np.array_equal(one[0]["x"], replace(gate.original, seed=1).seeded_feeds()[0]["x"])


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_a_model_that_draws_random_numbers_is_compared_only_when_they_change_nothing(tmp_path, feeds, scale):
    with Store(tmp_path / "home") as store:
        reference = ingest(str(noisy(tmp_path / "m.onnx", scale)), store)
        gate = Gate(
            original=Original(store=store, artifact=reference, data=dataset(feeds), metric=None),
            profile=profile(),
            exporter=load_exporter("onnx"),
            budget=Budget(),
        )
        trial = gate.trial(bundle(gate, reference), None, reference)
        drop = next(found for found in trial.figures if found.name == "drop")
        known = gate.original.outputs_id
    assert [finding["rule"] for finding in reference.facts["findings"]] == ["random-operator"]
    assert (known is None) == (drop.value is None) == (scale == 1.0)
    assert drop.value == 0.0 or "random numbers" in drop.note
