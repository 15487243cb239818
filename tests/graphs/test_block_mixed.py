from __future__ import annotations

import numpy as np
import onnx
import pytest

import kinds
from contract import onnx_artifact, run_stage
from edgekit.errors import NeedsDataError, UsageError
from edgekit.exporter import load_exporter
from edgekit.graphs.decisions import load_plan
from edgekit.plan import make_stage
from edgekit.profile import load_profile
from edgekit.stage import Context, Inputs
from edgekit.stages.quantize_int4 import QuantizeInt4
from house import calibration_data


def language(seed=0, layers=4, width=64):
    """A residual stack of two-layer blocks on tokens; what a block adds to the stream differs by a factor of 50."""
    rng = np.random.default_rng(seed)
    gains = np.geomspace(0.03, 1.5, layers)[rng.permutation(layers)]
    constants = {"E": rng.standard_normal((96, width)).astype(np.float32)}
    nodes = [kinds.node("Gather", ["E", "ids"], ["h0"], name="embed")]
    for i, gain in enumerate(gains):
        constants[f"U{i}"] = rng.standard_normal((width, 2 * width)).astype(np.float32) / width**0.5
        down = rng.standard_t(3, (2 * width, width)) / (2 * width) ** 0.5
        constants[f"D{i}"] = (gain * down).astype(np.float32)
        nodes += [
            kinds.node("MatMul", [f"h{i}", f"U{i}"], [f"u{i}"], name=f"up{i}"),
            kinds.node("Tanh", [f"u{i}"], [f"t{i}"]),
            kinds.node("MatMul", [f"t{i}", f"D{i}"], [f"d{i}"], name=f"down{i}"),
            kinds.node("Add", [f"h{i}", f"d{i}"], [f"h{i + 1}"]),
        ]
    constants["H"] = rng.standard_normal((width, 96)).astype(np.float32) / width**0.5
    nodes.append(kinds.node("MatMul", [f"h{layers}", "H"], ["y"], name="head"))
    inputs, outputs = [kinds.value("ids", ["b", "s"], kinds.INT64)], [kinds.value("y", ["b", "s", 96])]
    feeds = [{"ids": np.random.default_rng(i).integers(0, 96, (2, 12))} for i in range(40)]
    return kinds.build(nodes, inputs, outputs, constants), feeds


def quantize(tmp_path, model, feeds, **options):
    dialect = load_exporter("onnx").dialect(load_profile("host"))
    stage = QuantizeInt4(**{"method": "rtn", "accuracy_level": 1} | options)
    data = calibration_data(feeds) if feeds else None
    facts, made = run_stage(stage, model, tmp_path, data=data, dialect=dialect)
    return facts, made


def decibels(model, made, feeds):
    signal = noise = 0.0
    for feed in feeds:
        (expected,), (found,) = kinds.run(model, feed), kinds.run(made, feed)
        signal += float(np.square(expected, dtype=np.float64).sum())
        noise += float(np.square(expected.astype(np.float64) - found).sum())
    return 10 * np.log10(signal / noise)


@pytest.mark.parametrize(("method", "seed"), [("rtn", 0), ("rtn", 1), pytest.param("gptq", 2, marks=pytest.mark.slow)])
def test_at_the_size_of_the_uniform_model_it_is_nearer_on_samples_it_has_not_seen(method, seed, tmp_path):
    model, feeds = language(seed)
    fresh = [{"ids": np.random.default_rng(1000 + i).integers(0, 96, (2, 12))} for i in range(20)]
    plain, uniform = quantize(tmp_path / "uniform", model, feeds, method=method)
    bits = plain["quantization"]["bits_per_weight"]
    facts, mixed = quantize(tmp_path / "mixed", model, feeds, method=method, mean_bits=bits)
    told = facts["quantization"]["mixed"]
    assert told["kept"]
    assert told["exact"]
    assert mixed.ByteSize() <= uniform.ByteSize() + 200
    assert decibels(model, mixed, fresh) > decibels(model, uniform, fresh) + 0.5
    assert told["predicted_db"] == pytest.approx(told["after_db"], abs=3)
    assert told["after_db"] == round(min(facts["quantization"]["outputs"]["y"]["sqnr_db"], 200), 2)


def test_an_aim_takes_as_few_bytes_as_it_needs(tmp_path):
    model, feeds = language()
    sizes = []
    for aim in (18, 28):
        facts, made = quantize(tmp_path / str(aim), model, feeds, aim=aim)
        assert facts["quantization"]["outputs"]["y"]["sqnr_db"] >= aim
        sizes.append(facts["quantization"]["bits_per_weight"])
        assert made.ByteSize() < model.ByteSize() / 3
    assert sizes == sorted(sizes)
    assert sizes[0] < 5.4
    assert sizes[-1] < 8.6
    both, _ = quantize(tmp_path / "both", model, feeds, aim=60, mean_bits=6)
    assert both["quantization"]["bits_per_weight"] <= 6


def test_what_the_recipe_names_keeps_its_format_and_the_rest_says_why(tmp_path):
    model, feeds = language()
    entry = {"match": "up0", "bits": 4, "block": 64}
    stage = make_stage("quantize-int4", {"method": "rtn", "mean_bits": 9.0, "plan": [entry]}, "test")
    dialect = load_exporter("onnx").dialect(load_profile("host"))
    run_stage(stage, model, tmp_path, data=calibration_data(feeds), dialect=dialect)
    decisions = {d.node: d for d in load_plan(tmp_path / "out1").decisions}
    assert (decisions["up0"].bits, decisions["up0"].granularity) == (4, "block-64")
    assert decisions["down0"].bits == 8
    assert "as it was before, alone it left" in decisions["down0"].why
    assert "the plan of the recipe names it ('up0')" in decisions["up0"].why


def test_the_standard_form_has_blocks_that_divide_the_depth(tmp_path):
    model, feeds = language(width=48)
    facts, made = quantize(tmp_path, model, feeds, form="qdq", mean_bits=6, block=16, symmetric=True)
    blocks = {a.i for n in made.graph.node for a in n.attribute if a.name == "block_size"}
    assert blocks <= {16, 32}
    assert facts["quantization"]["mixed"]["kept"]
    kinds_of = {t.data_type for t in made.graph.initializer}
    assert onnx.TensorProto.INT4 in kinds_of


def test_weights_that_lie_on_their_grid_need_no_more_bits(tmp_path):
    model, feeds = language()
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        grid = np.random.default_rng(1).integers(-7, 8, values.shape).astype(np.float32) / 32
        tensor.CopyFrom(onnx.numpy_helper.from_array(grid, tensor.name))
    facts, _ = quantize(tmp_path, model, feeds, mean_bits=6, symmetric=True)
    assert facts["quantization"]["outputs"]["y"]["sqnr_db"] > 60


def test_a_killed_choice_goes_on_where_it_was(tmp_path):
    model, feeds = language()
    artifact = onnx_artifact(model, tmp_path / "in")
    profile = load_profile("host")
    inputs = Inputs(
        artifact=artifact,
        folder=tmp_path / "in",
        profile=profile,
        data=calibration_data(feeds),
        dialect=load_exporter("onnx").dialect(profile),
    )
    heard = []

    def kill(event):
        heard.append(event.label)
        if event.label == "sensitivity" and event.done == 3:
            raise KeyboardInterrupt

    for name in ("scratch", "cut", "whole"):
        (tmp_path / name).mkdir()
    stage, file = QuantizeInt4(method="rtn", mean_bits=6), tmp_path / "scratch" / "sensitivity.jsonl"
    with pytest.raises(KeyboardInterrupt):
        stage.run(inputs, tmp_path / "cut", Context(scratch=tmp_path / "scratch", listen=kill))
    kept = file.read_bytes()
    assert len(kept.splitlines()) == 4
    facts = stage.run(inputs, tmp_path / "whole", Context(scratch=tmp_path / "scratch"))
    assert file.read_bytes().startswith(kept)
    again, _ = quantize(tmp_path / "again", model, feeds, mean_bits=6, accuracy_level=4)
    assert facts["quantization"]["mixed"] == again["quantization"]["mixed"]


def test_matrices_of_branches_stay_as_they_are(tmp_path):
    model, feeds = kinds.BOUNDED["Q22 weight in a branch"][0]()
    facts, _ = quantize(tmp_path, model, feeds, mean_bits=6)
    assert not facts["quantization"]["mixed"]["kept"]
    assert "branches" in facts["quantization"]["mixed"]["why"]


def test_fewer_bits_than_uniform_are_as_asked(tmp_path):
    model, feeds = language()
    facts, _ = quantize(tmp_path, model, feeds, mean_bits=4.4)
    told = facts["quantization"]["mixed"]
    assert told["kept"]
    assert told["bits_after"] <= 4.4 < told["bits_before"]
    assert told["why"] == "the uniform model takes more bits than were asked"


def test_what_cannot_be_done_is_said(tmp_path):
    model, feeds = language()
    with pytest.raises(UsageError, match=r"mean_bits 3.9 is less than the smallest formats take: 4\.\d\d"):
        quantize(tmp_path / "a", model, feeds, mean_bits=3.9)
    with pytest.raises(NeedsDataError, match="choosing bits by what they cost needs calibration samples"):
        quantize(tmp_path / "b", model, [], mean_bits=6)
