from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import house
import kinds
from contract import run_stage
from edgekit.data import Dataset
from edgekit.exporter import load_exporter
from edgekit.profile import Cpu
from edgekit.stages.equalize import Equalize
from edgekit.stages.quantize_int8 import QuantizeInt8

WIDTH = 32


def dialect(**changes):
    cpu = Cpu(arch="x86_64", cores=house.sourced(2), features=("avx512_vnni",))
    found = load_exporter("onnx").dialect(house.profile(runtime="onnx", cpu=cpu))
    return dataclasses.replace(found, **changes)


def data_of(feeds):
    none = house.MemorySamples([])
    return Dataset(
        id="d", calibration=house.MemorySamples(feeds), training=none, evaluation=none,
        preprocessing={}, labels=(), findings=(),
    )  # fmt: skip


def network(*, residual, transposed=False, mask=False):
    """Two products behind a LayerNormalization with three outlying channels."""
    r = np.random.default_rng(0)
    gamma = np.where(np.arange(WIDTH) < 3, 80, 1).astype(np.float32)
    rows = np.where(np.arange(WIDTH) < 3, 0.02, 1)[:, None]
    w1, w2 = ((r.normal(size=(WIDTH, WIDTH)) * rows).astype(np.float32) for _ in range(2))
    nodes = [
        helper.make_node("LayerNormalization", ["x", "gamma", "beta"], ["n"], name="norm"),
        helper.make_node("MatMul", ["n", "w1"], ["a"], name="first"),
        helper.make_node("MatMul", ["n", "w2"], ["b"], name="second"),
        helper.make_node("Add", ["a", "b"], ["y" if not residual else "s"], name="sum"),
    ]
    if transposed:
        nodes[1] = helper.make_node("Gemm", ["n", "w1"], ["a"], name="first", transB=1)
        w1 = np.ascontiguousarray(w1.T)
    if residual:
        nodes.append(helper.make_node("Add", ["s", "n"], ["y"], name="residual"))
    shape = ["batch", WIDTH] if transposed else ["batch", "tokens", WIDTH]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    if mask:
        inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "tokens"]))
    constants = {"w1": w1, "w2": w2, "gamma": gamma, "beta": r.normal(size=WIDTH).astype(np.float32)}
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(*shape, count=12):
    r = np.random.default_rng(1)
    return [{"x": r.normal(size=shape).astype(np.float32)} for _ in range(count)]


def equalized(tmp_path, model, rows, **rules):
    return run_stage(Equalize(), model, tmp_path, data=data_of(rows), dialect=dialect(**rules))


def int8_db(tmp_path, model, rows, original):
    _, made = run_stage(
        QuantizeInt8(aim=0.0, floor=0.0, mode="dynamic"), model, tmp_path, data=data_of(rows), dialect=dialect()
    )
    return kinds.worst_db(original, made, rows)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_normalization_takes_the_factors_in_and_int8_gains(transposed, tmp_path):
    model = network(residual=False, transposed=transposed)
    rows = feeds(7, WIDTH) if transposed else feeds(1, 7, WIDTH)
    facts, made = equalized(tmp_path, model, rows)
    assert [item["how"] for item in facts["equalization"]] == ["normalization"]
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in model.graph.node]
    assert kinds.worst_db(model, made, rows) > 90
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert int8_db(tmp_path / "a", made, rows, model) > int8_db(tmp_path / "b", model, rows, model) + 6


def test_a_normalization_that_feeds_others_gets_one_multiplication_behind_it(tmp_path):
    model, rows = network(residual=True), feeds(1, 7, WIDTH)
    facts, made = equalized(tmp_path, model, rows)
    assert [item["how"] for item in facts["equalization"]] == ["multiplication"]
    assert [n.op_type for n in made.graph.node].count("Mul") == 1
    assert kinds.worst_db(model, made, rows) > 90
    assert any("1 of them by a multiplication" in f["text"] for f in facts["findings"])


def test_runtimes_with_grids_from_calibration_gain_too(tmp_path):
    """SmoothQuant where no grid is made at run time: the TensorRT dialect."""
    model, rows = network(residual=True), feeds(1, 7, WIDTH, count=24)
    rules = load_exporter("tensorrt").dialect(house.profile(runtime="tensorrt"))
    facts, made = run_stage(Equalize(), model, tmp_path, data=data_of(rows), dialect=rules)
    assert [item["how"] for item in facts["equalization"]] == ["multiplication"]
    assert facts["outputs"]["after_db"] > facts["outputs"]["before_db"] + 6
    stage = QuantizeInt8(floor=0.0, aim=0.0, mode="static")
    found = {}
    for name, graph in (("plain", model), ("equalized", made)):
        (tmp_path / name).mkdir()
        _, small = run_stage(stage, graph, tmp_path / name, data=data_of(rows), dialect=rules)
        found[name] = kinds.worst_db(model, small, rows)
    assert found["equalized"] > found["plain"] + 6


def test_a_dialect_that_puts_everything_on_grids_gets_no_multiplication(tmp_path):
    """What is multiplied would lie on a grid itself."""
    rules = {"dynamic_transformers": False, "whole": "prefer"}
    facts, made = equalized(tmp_path, network(residual=True), feeds(1, 7, WIDTH), **rules)
    assert facts["equalization"] == []
    assert made.SerializeToString() == network(residual=True).SerializeToString()


def test_hidden_tokens_do_not_decide(tmp_path):
    model, rows = network(residual=True, mask=True), feeds(1, 7, WIDTH)
    mask = np.array([[1, 1, 1, 0, 0, 0, 0]])
    seen = [{**row, "attention_mask": mask} for row in rows]
    other = [{**row, "attention_mask": mask} for row in rows]
    for row in other:
        row["x"] = row["x"].copy()
        row["x"][:, 3:] = row["x"][:, 3:][:, ::-1]  # the same values, so the same grids, in other places
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (
        equalized(tmp_path / name, model, data)[0]["equalization"] for name, data in (("a", seen), ("b", other))
    )
    assert first == second


@pytest.mark.parametrize("name", ["residual CNN", "small transformer", "Q23 LSTM and GRU", "Gemm"])
def test_every_kind_of_graph_computes_the_same(name, tmp_path):
    model, rows = kinds.BOUNDED[name][0]()
    _, made = equalized(tmp_path, model, rows)
    assert kinds.worst_db(model, made, rows) > 90


def test_without_data_nothing_changes(tmp_path):
    model = network(residual=False)
    facts, made = run_stage(Equalize(), model, tmp_path, data=None, dialect=dialect())
    assert facts["equalization"] == []
    assert made.SerializeToString() == model.SerializeToString()


def test_a_graph_with_a_conv_gets_no_multiplication(tmp_path):
    model, rows = kinds.residual_cnn()
    facts, made = run_stage(Equalize(cross_layer=False), model, tmp_path, data=data_of(rows), dialect=dialect())
    assert facts["equalization"] == []
    assert made.SerializeToString() == model.SerializeToString()


def uneven(*, kind="Relu", group=1, gemm=False):
    """Two layers; what the second one multiplies the first one's channels with differs a hundredfold."""
    r = np.random.default_rng(0)
    shape1, shape2 = ((8, 6), (8, 5)) if gemm else ((8, 3, 3, 3), (8 if group > 1 else 5, 8 // group, 3, 3))
    w1, w2 = (r.normal(size=shape).astype(np.float32) for shape in (shape1, shape2))
    spread = np.exp(2 * r.normal(size=8)).astype(np.float32)
    if gemm:
        w2 = w2 * spread[:, None]
    elif group == 1:
        w2 = w2 * spread[None, :, None, None]
    op = "Gemm" if gemm else "Conv"
    bias = r.normal(size=8).astype(np.float32)
    nodes = [
        helper.make_node(op, ["x", "w1", "b1"], ["a"], name="first", **({"transB": 1} if gemm else {})),
        helper.make_node(kind, ["a", *(["low", "high"] if kind == "Clip" else [])], ["r"], name="between",
                         **({"kernel_shape": [2, 2]} if kind == "MaxPool" else {})),
        helper.make_node(op, ["r", "w2"], ["y"], name="second", **({} if gemm else {"group": group})),
    ]  # fmt: skip
    constants = {"w1": w1, "w2": w2, "b1": bias}
    if kind == "Clip":
        constants |= {"low": np.float32(0), "high": np.float32(6)}
    shape, made = (["batch", 6], ["batch", 5]) if gemm else (["batch", 3, 12, 12], ["batch", len(w2), "h", "w"])
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, made)],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("kind", "gemm", "gain"), [("Relu", False, 3), ("MaxPool", False, 3), ("Relu", True, 1)])
def test_a_layer_takes_factors_in_for_the_next_and_four_bits_gain(kind, gemm, gain, tmp_path):
    model, rows = uneven(kind=kind, gemm=gemm), feeds(*((9, 6) if gemm else (1, 3, 12, 12)), count=24)
    rules = dialect(precisions=("w8a8", "w8a16", "w4a16"), dynamic_transformers=False)
    facts, made = run_stage(Equalize(precision="w4a16"), model, tmp_path, data=data_of(rows), dialect=rules)
    assert [item["how"] for item in facts["equalization"]] == ["layer"]
    assert facts["outputs"]["after_db"] > facts["outputs"]["before_db"]
    assert kinds.worst_db(model, made, rows) > 90
    stage = QuantizeInt8(precision="w4a16", floor=0.0, aim=0.0, method="minmax")
    found = {}
    for name, graph in (("plain", model), ("equalized", made)):
        (tmp_path / name).mkdir()
        _, small = run_stage(stage, graph, tmp_path / name, data=data_of(rows), dialect=rules)
        found[name] = kinds.worst_db(model, small, rows)
    assert found["equalized"] > found["plain"] + gain


@pytest.mark.parametrize("change", ["Clip", "output", "shared", "another reader"])
def test_no_factor_goes_where_others_would_see_it(change, tmp_path):
    model, rows = uneven(kind="Clip" if change == "Clip" else "Relu"), feeds(1, 3, 12, 12)
    if change == "output":
        model.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, ["batch", 8, 10, 10]))
    elif change == "shared":
        model.graph.node.append(helper.make_node("Abs", ["w1"], ["z"], name="z"))
        model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [8, 3, 3, 3]))
    elif change == "another reader":
        model.graph.node.append(helper.make_node("Exp", ["a"], ["z"], name="z"))
        model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 8, 10, 10]))
    facts, made = equalized(tmp_path, model, rows)
    assert facts["equalization"] == []
    assert made.SerializeToString() == model.SerializeToString()


def test_grouped_convolutions_take_the_factors_of_their_channels(tmp_path):
    """In float nothing changes, whatever the factors are."""
    from edgekit.graphs.equalize_sites import find_sites, write_factors

    for group in (1, 2, 8):
        model, rows = uneven(group=group), feeds(1, 3, 12, 12, count=2)
        made = type(model).FromString(model.SerializeToString())
        (site,) = find_sites(made, tmp_path)
        write_factors(made, tmp_path, site, np.exp(np.random.default_rng(0).normal(size=8)).astype(np.float32))
        assert kinds.worst_db(model, made, rows) > 90
        assert not np.array_equal(*(numpy_helper.to_array(m.graph.initializer[1]) for m in (model, made)))


def test_each_way_can_be_switched_off(tmp_path):
    model, rows = network(residual=False), feeds(1, 7, WIDTH)
    facts, made = run_stage(Equalize(smooth=False), model, tmp_path, data=data_of(rows), dialect=dialect())
    assert facts["equalization"] == []
    model = uneven()
    other = tmp_path / "other"
    other.mkdir()
    facts, made = run_stage(
        Equalize(cross_layer=False), model, other, data=data_of(feeds(1, 3, 12, 12)), dialect=dialect()
    )
    assert facts["equalization"] == []
    assert made.SerializeToString() == model.SerializeToString()


def test_factors_go_again_when_the_whole_graph_is_not_nearer_on_held_out_samples(tmp_path, monkeypatch):
    answers = itertools.cycle([0.01, 0.02])  # the relative error of the worst output before and after
    monkeypatch.setattr("edgekit.graphs.equalize._worst", lambda *_: next(answers))
    model = network(residual=False)
    facts, made = equalized(tmp_path, model, feeds(1, 7, WIDTH), dynamic_transformers=False, whole="prefer")
    assert "outputs" not in facts
    assert facts["equalization"][0]["gain_db"] > 0
    assert [item["how"] for item in facts["equalization"]] == [""]
    assert made.SerializeToString() == model.SerializeToString()


def test_large_models_are_left_alone_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("edgekit.stages.equalize.MOST_BYTES", 100)
    model, feeds = (
        network(residual=False),
        [{"x": np.random.default_rng(i).normal(size=(2, 5, WIDTH)).astype(np.float32)} for i in range(8)],
    )
    facts, made = run_stage(Equalize(), model, tmp_path, data=data_of(feeds), dialect=dialect())
    assert made == model
    assert [finding["rule"] for finding in facts["findings"]] == ["not-equalized"]
