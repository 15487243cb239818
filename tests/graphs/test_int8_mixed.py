from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto

import kinds
from contract import run_stage
from edgekit.errors import NeedsDataError, UnsupportedError, UsageError
from edgekit.exporter import load_exporter
from edgekit.graphs.calibrate import open_graph
from edgekit.graphs.decisions import load_plan
from edgekit.graphs.layer_times import LayerTimes, layer_times
from edgekit.plan import make_stage
from edgekit.profile import load_profile
from edgekit.stages.quantize_int8 import QuantizeInt8
from house import calibration_data

CHANNELS = 16
LARGE = {1: 80, 3: 20}


def deep_cnn(seed=0):
    """Convolutions on 12 x 12 pixels; channels of two activations are so large that the others lose their bits."""
    rng = np.random.default_rng(seed)
    constants, nodes, last = {}, [], "x"
    for i in range(6):
        weight = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 12
        bias = rng.standard_normal(CHANNELS).astype(np.float32) / 10
        weight[0], bias[0] = weight[0] * LARGE.get(i, 1), bias[0] * LARGE.get(i, 1)
        weight[:, 0] /= LARGE.get(i - 1, 1)
        constants[f"W{i}"], constants[f"b{i}"] = weight, bias
        nodes.append(kinds.node("Conv", [last, f"W{i}", f"b{i}"], [f"c{i}"], name=f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(kinds.node("Relu", [f"c{i}"], [f"r{i}"]))
        last = f"r{i}"
    constants["G"] = rng.standard_normal((CHANNELS, 8)).astype(np.float32)
    nodes += [
        kinds.node("GlobalAveragePool", [last], ["p"]),
        kinds.node("Flatten", ["p"], ["f"]),
        kinds.node("MatMul", ["f", "G"], ["y"], name="head"),
    ]
    shape = [1, CHANNELS, 12, 12]
    model = kinds.build(nodes, [kinds.value("x", shape)], [kinds.value("y", [1, 8])], constants)
    return model, [{"x": feed["x"] * rng.uniform(0.3, 3)} for feed in kinds.draws(30, x=tuple(shape))]


def quantize(tmp_path, model, feeds, **options):
    profile = load_profile("raspberry-pi-5")
    dialect = load_exporter("onnx").dialect(load_profile("host"))
    options = {"mode": "static", "method": "minmax", "floor": -100, "aim": -100} | options
    stage = make_stage("quantize-int8", options, "test")
    facts, made = run_stage(stage, model, tmp_path, data=calibration_data(feeds), dialect=dialect, profile=profile)
    return facts["quantization"], made, load_plan(tmp_path / "out1")


def sizes(model):
    return sum(len(t.raw_data) for t in model.graph.initializer if len(t.dims) > 1)


@pytest.mark.parametrize("slower", [1.3, 2.0])
def test_it_is_nearer_at_the_same_size_within_the_time(slower, tmp_path):
    model, feeds = deep_cnn()
    fresh = [{"x": kinds.normal(500 + i, 1, CHANNELS, 12, 12)} for i in range(10)]
    plain, uniform, _ = quantize(tmp_path / "u", model, feeds)
    facts, mixed, plan = quantize(tmp_path / "m", model, feeds, mixed=True, aim=60, slower=slower, larger=1)
    told = facts["mixed"]
    assert told["kept"]
    assert told["exact"]
    assert told["time"] <= slower
    assert told["bytes"] == 1
    assert told["after_db"] == facts["outputs"]["y"]["sqnr_db"] > plain["outputs"]["y"]["sqnr_db"] + 1
    assert sizes(mixed) == sizes(uniform)
    assert kinds.worst_db(model, mixed, fresh) > kinds.worst_db(model, uniform, fresh)
    modes = {d.node: d.mode for d in plan.decisions if d.what == "weight"}
    assert {"static", "weights"} == set(modes.values())
    for decision in plan.decisions:
        if decision.mode == "weights":
            assert "float pays for its time" in decision.why


def test_time_buys_accuracy(tmp_path):
    model, feeds = deep_cnn()
    scores = []
    for slower in (1.0, 1.3, 3.0):
        facts, *_ = quantize(tmp_path / str(slower), model, feeds, mixed=True, aim=80, slower=slower, larger=1)
        scores.append(facts["outputs"]["y"]["sqnr_db"])
    assert scores == sorted(scores)
    assert scores[2] > scores[0] + 3


def test_an_aim_takes_no_more_than_it_needs(tmp_path):
    model, feeds = deep_cnn()
    plain, *_ = quantize(tmp_path / "u", model, feeds)
    aim = plain["outputs"]["y"]["sqnr_db"] + 2
    near, *_ = quantize(tmp_path / "near", model, feeds, mixed=True, aim=aim, slower=4)
    far, *_ = quantize(tmp_path / "far", model, feeds, mixed=True, aim=60, slower=4)
    assert near["outputs"]["y"]["sqnr_db"] >= aim
    assert near["mixed"]["time"] < far["mixed"]["time"]


def test_bytes_may_be_spent_too(tmp_path):
    model, feeds = deep_cnn()
    facts, made, plan = quantize(tmp_path, model, feeds, mixed=True, aim=80, slower=4, larger=2.2)
    assert 1 < facts["mixed"]["bytes"] <= 2.2
    floats = [d.node for d in plan.decisions if d.what == "weight" and d.mode == "float"]
    assert floats
    stored = {t.name: t.data_type for t in made.graph.initializer}
    assert all(stored[f"W{name.removeprefix('conv')}"] == TensorProto.FLOAT for name in floats if "conv" in name)


def test_what_the_recipe_names_is_left_alone(tmp_path):
    model, feeds = deep_cnn()
    for number, plan in enumerate(([], [{"match": "conv2", "mode": "static"}])):
        _, _, made = quantize(tmp_path / str(number), model, feeds, mixed=True, aim=80, slower=4, larger=1, plan=plan)
        modes = {d.node: d.mode for d in made.decisions if d.what == "weight"}
        assert modes["conv2"] == ("static" if plan else "weights")
        assert modes["conv4"] == "weights"


def test_a_chip_without_floats_takes_no_mixture(tmp_path):
    model, feeds = deep_cnn()
    rules = dataclasses.replace(load_exporter("qnn").dialect(load_profile("snapdragon")), whole="must")
    with pytest.raises(UnsupportedError, match="no float units"):
        run_stage(
            QuantizeInt8(mixed=True, method="minmax"),
            model,
            tmp_path,
            data=calibration_data(feeds),
            dialect=rules,
        )


def test_what_cannot_be_measured_or_asked_is_said(tmp_path):
    model, _ = deep_cnn()
    with pytest.raises(NeedsDataError, match="measured on calibration samples"):
        run_stage(QuantizeInt8(mode="weights", mixed=True), model, tmp_path, profile=load_profile("host"))
    with pytest.raises(UsageError, match=r"slower 0\.9 is no multiple"):
        QuantizeInt8(mixed=True, slower=0.9)
    with pytest.raises(UsageError, match="larger nan"):
        QuantizeInt8(mixed=True, larger=float("nan"))


def test_times_of_layers_are_those_of_the_roofline(tmp_path):
    model, feeds = deep_cnn()
    profile = load_profile("raspberry-pi-5")
    shapes = {"x": feeds[0]["x"].shape}
    floats = layer_times(model, tmp_path, shapes, profile, tmp_path)
    assert isinstance(floats, LayerTimes)
    assert set(floats.seconds) >= {"conv0", "conv5", "head"}
    assert sum(floats.seconds.values()) == pytest.approx(floats.total)
    _, uniform, _ = quantize(tmp_path / "u", model, feeds)
    integers = layer_times(uniform, tmp_path, shapes, profile, tmp_path)
    assert integers.seconds["conv3"] < floats.seconds["conv3"]
    assert not list(tmp_path.glob("counted*"))
    why = layer_times(model, tmp_path, {"z": (1,)}, profile, tmp_path)
    assert why == "the model has no input 'z'"
    assert open_graph(model, tmp_path, threads=1)
