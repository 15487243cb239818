from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import house
import kinds
from contract import onnx_artifact, run_stage
from edgekit.artifact import MAIN
from edgekit.data import Dataset
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.exporter import load_exporter
from edgekit.graphs.decisions import PLAN
from edgekit.graphs.kernels import optimized_ops
from edgekit.profile import Cpu
from edgekit.stage import Context, Inputs
from edgekit.stages.quantize_int8 import QuantizeInt8

INTEGERS = {TensorProto.INT8, TensorProto.UINT8}


def dialect(runtime="onnx", arch="x86_64", features=("avx512_vnni",)):
    cpu = Cpu(arch=arch, cores=house.sourced(2), features=features)
    return load_exporter(runtime).dialect(house.profile(runtime=runtime, cpu=cpu))


def data_of(feeds, ids=None):
    samples = house.MemorySamples(feeds) if ids is None else Named(feeds, ids)
    empty = house.MemorySamples([])
    return Dataset(
        id="d", calibration=samples, training=empty, evaluation=empty, preprocessing={}, labels=(), findings=()
    )


class Named(house.MemorySamples):
    def __init__(self, feeds, ids):
        super().__init__(feeds)
        self.names = ids

    @property
    def ids(self):
        return self.names


def quantize(tmp_path, model, feeds, *, rules=None, ids=None, **options):
    data = None if feeds is None else data_of(feeds, ids)
    return run_stage(QuantizeInt8(**options), model, tmp_path, data=data, dialect=rules or dialect())


def stored(model):
    """Bytes of the model, and the share of the elements of its matrices that are integers."""
    narrow = wide = 0
    for graph in [model.graph, *(a.g for n in model.graph.node for a in n.attribute if a.HasField("g"))]:
        for tensor in graph.initializer:
            if len(tensor.dims) >= 2:
                narrow += np.prod(tensor.dims) * (tensor.data_type in INTEGERS)
                wide += np.prod(tensor.dims) * (tensor.data_type == TensorProto.FLOAT)
    return model.ByteSize(), narrow / max(narrow + wide, 1)


def zero_points(model):
    names = {n.input[2] for n in model.graph.node if n.op_type in {"QuantizeLinear", "DequantizeLinear"}}
    return [numpy_helper.to_array(t) for t in model.graph.initializer if t.name in names]


def texts(facts, rule=""):
    return [f["text"] for f in facts["findings"] if rule in f["rule"]]


@pytest.mark.parametrize("name", kinds.BOUNDED)
def test_it_is_right_on_every_kind_of_graph(name, tmp_path):
    make, floor = kinds.BOUNDED[name]
    model, feeds = make()
    facts, made = quantize(tmp_path, model, feeds)
    assert kinds.worst_db(model, made, feeds) >= floor
    assert facts["coverage"]["precision"] == "w8a8"
    if any(len(t.dims) >= 2 for t in model.graph.initializer):
        assert facts["coverage"]["weights"] >= 0.9
        assert stored(made)[1] >= 0.9
    for left in facts["coverage"]["left_float"]:
        assert any(f["node"] == left and left in f["text"] for f in facts["findings"]), "left float without a word"


@pytest.mark.parametrize("name", ["residual CNN", "small transformer", "Q23 LSTM and GRU", "Q35 Einsum", "Gemm"])
@pytest.mark.parametrize("runtime", ["tensorrt", "qnn"])
def test_other_dialects_are_as_right(name, runtime, tmp_path):
    make, floor = kinds.BOUNDED[name]
    model, feeds = make()
    facts, made = quantize(tmp_path, model, feeds, rules=dialect(runtime))
    assert kinds.worst_db(model, made, feeds) >= floor
    gru = name.startswith("Q23") and runtime == "tensorrt"
    assert facts["coverage"]["weights"] >= (0.5 if gru else 0.9)
    assert not gru or any("weights of GRU" in text for text in texts(facts, "left-float"))


def test_every_product_of_a_cnn_runs_on_an_integer_kernel(tmp_path):
    model, feeds = kinds.residual_cnn()
    facts, made = quantize(tmp_path, model, feeds)
    ops = optimized_ops(made, tmp_path)
    assert (ops["QLinearConv"], ops["QGemm"], ops["QLinearAdd"]) == (3, 1, 1)
    assert not {"Conv", "FusedConv", "Gemm", "Clip", "Relu"} & set(ops)
    assert facts["coverage"]["macs"] == 1
    assert not texts(facts, "kernel")


def test_products_with_a_bias_behind_them_run_on_integer_kernels_too(tmp_path):
    model, feeds = kinds.matrix_and_bias()
    facts, made = quantize(tmp_path, model, feeds)
    ops = optimized_ops(made, tmp_path)
    assert (ops["QLinearConv"], ops["QGemm"]) == (1, 2)
    assert not texts(facts, "kernel")


def test_a_model_for_arm_has_signed_activations_and_the_same_kernels(tmp_path):
    model, feeds = kinds.residual_cnn()
    _, made = quantize(tmp_path, model, feeds, rules=dialect(arch="aarch64", features=("dotprod",)))
    assert {array.dtype for array in zero_points(made)} <= {np.dtype(np.int8), np.dtype(np.int32)}
    assert optimized_ops(made, tmp_path, signed=True)["QLinearConv"] == 3


def test_without_vnni_weights_have_seven_bits(tmp_path):
    model, feeds = kinds.residual_cnn()
    _, made = quantize(tmp_path, model, feeds, rules=dialect(features=("avx2",)))
    peaks = [np.abs(numpy_helper.to_array(t)).max() for t in made.graph.initializer if t.data_type == TensorProto.INT8]
    assert max(peaks) == 63


def test_the_graph_for_tensorrt_follows_its_rules(tmp_path):
    model, feeds = kinds.residual_cnn()
    _, made = quantize(tmp_path, model, feeds, rules=dialect("tensorrt"))
    assert all(array.dtype == np.int8 and not array.any() for array in zero_points(made))
    makers = {name: n.op_type for n in made.graph.node for name in n.output}
    readers = [n for n in made.graph.node if n.op_type in {"Conv", "Gemm"}]
    assert all(makers[name] == "DequantizeLinear" for n in readers for name in n.input[:2])
    floats = {t.name for t in made.graph.initializer if t.data_type == TensorProto.FLOAT}
    assert all(n.input[2] in floats for n in readers if len(n.input) > 2), "biases stay float"
    assert all(makers.get(n.input[0]) != "Conv" for n in made.graph.node if n.op_type == "QuantizeLinear"), "no Conv-Q"
    skip = next(n for n in made.graph.node if n.name == "skip")
    assert sorted(makers[name] for name in skip.input) == ["Conv", "DequantizeLinear"], "one branch on the grid"


def test_symmetric_means_zero_points_of_zero_also_behind_softmax(tmp_path):
    model, feeds = kinds.softmax_between()
    _, made = quantize(tmp_path, model, feeds, rules=dialect("tensorrt"))
    assert len(zero_points(made)) >= 4
    assert not any(array.any() for array in zero_points(made))


def test_sixteen_bit_activations_leave_weights_at_eight(tmp_path):
    import dataclasses

    model, feeds = kinds.old_opset()
    wide = dataclasses.replace(dialect(), activation="uint16")
    facts, made = quantize(tmp_path, model, feeds, rules=wide)
    kept = {t.name: t.data_type for t in made.graph.initializer}
    pairs = [n for n in made.graph.node if n.op_type == "QuantizeLinear"]
    assert {kept[n.input[2]] for n in pairs} == {TensorProto.UINT16}
    assert kept["W_quantized"] == TensorProto.INT8
    assert facts["coverage"]["precision"] == "w8a16"
    assert kinds.worst_db(model, made, feeds) >= 30


def test_a_shared_weight_is_stored_once(tmp_path):
    model, feeds = kinds.shared_weight()
    _, made = quantize(tmp_path, model, feeds)
    assert made.ByteSize() <= 0.45 * model.ByteSize()


def test_a_bias_far_above_its_weights_is_not_clipped(tmp_path):
    model, feeds = kinds.tiny_weights_large_bias()
    _, made = quantize(tmp_path, model, feeds)
    assert max(np.abs(kinds.run(model, f)[0] - kinds.run(made, f)[0]).max() for f in feeds) <= 0.05


def test_a_channel_of_zeros_keeps_its_bias(tmp_path):
    model, feeds = kinds.zero_channel()
    facts, made = quantize(tmp_path, model, feeds)
    assert np.abs(kinds.run(made, feeds[0])[0][0, 1] - 0.37).max() <= 0.05
    assert "column 1 of axis 1" in texts(facts, "left-float")[0]


def test_a_dead_tensor_is_told_and_right_once_it_lives(tmp_path):
    for number, (kind, alive) in enumerate([(kinds.dead_relu, (3, 4)), (kinds.dead_relu_conv, (1, 4, 5, 5))]):
        model, feeds = kind()
        folder = tmp_path / str(number)
        folder.mkdir()
        facts, made = quantize(folder, model, feeds, mode="static")
        assert any("'r'" in text for text in texts(facts, "zero-range"))
        assert kinds.worst_db(model, made, feeds) >= 20
        assert any(n.op_type == "Relu" for n in made.graph.node)
        living = {"x": -np.abs(kinds.normal(99, *alive)) / 3}
        assert kinds.worst_db(model, made, [living]) >= 10, "negative inputs make the Relu alive"


@pytest.mark.parametrize("deeper", [False, True])
def test_a_detector_keeps_its_scores(deeper, tmp_path):
    model, feeds = kinds.boxes_and_scores(deeper=deeper)
    _, made = quantize(tmp_path, model, feeds)
    for feed in feeds:
        expected, found = kinds.run(model, feed)[0][:, 4:], kinds.run(made, feed)[0][:, 4:]
        assert np.abs(expected - found).mean() <= 0.05
        assert len(np.unique(found)) > 10


def test_samples_that_are_not_finite_are_all_named(tmp_path):
    model, feeds = kinds.old_opset()
    feeds[3]["x"][0, 0, 0, 0], feeds[5]["x"][0, 1, 2, 2] = np.nan, np.inf
    with pytest.raises(InputError) as caught:
        quantize(tmp_path, model, feeds, ids=[f"{i:03}.npz" for i in range(8)])
    assert "003.npz" in caught.value.text
    assert "005.npz" in caught.value.text


def test_a_quantized_model_is_refused(tmp_path):
    model, feeds = kinds.residual_cnn()
    _, made = quantize(tmp_path, model, feeds)
    again = tmp_path / "again"
    again.mkdir()
    with pytest.raises(InputError, match="already quantized"):
        quantize(again, made, feeds)


def test_weights_in_branches_and_odd_operators_are_told(tmp_path):
    expected = {
        kinds.weight_in_branch: ("subgraph", 0.35),
        kinds.recurrent: ("GRU", 0.45),
        kinds.einsum: ("Einsum", 0.35),
    }
    for number, (kind, (word, ratio)) in enumerate(expected.items()):
        model, feeds = kind()
        folder = tmp_path / str(number)
        folder.mkdir()
        facts, made = quantize(folder, model, feeds)
        assert any(word in text for text in texts(facts, "left-float"))
        assert made.ByteSize() <= ratio * model.ByteSize()
        assert facts["coverage"]["macs"] == 0, "it is not claimed that integers were multiplied"


def test_weights_that_inner_graphs_read_from_outside(tmp_path):
    model, feeds = kinds.weights_outside_loop()
    facts, made = quantize(tmp_path, model, feeds)
    assert kinds.worst_db(model, made, feeds) >= 25
    assert stored(made)[1] == 1
    assert facts["coverage"]["weights"] == 1
    assert made.ByteSize() <= 0.35 * model.ByteSize(), "a weight that two branches read is stored once"


def test_stacked_matrices_are_right_with_learned_rounding(tmp_path):
    model, feeds = kinds.stacked_matrices()
    _, made = quantize(tmp_path, model, feeds, rounding="learned")
    assert kinds.worst_db(model, made, feeds) >= 25
    assert stored(made)[1] >= 0.9


def test_bfloat16_is_converted_and_told(tmp_path):
    model, feeds = kinds.brain_float()
    facts, made = quantize(tmp_path, model, feeds)
    assert any("bfloat16" in text for text in texts(facts, "widened"))
    assert facts["graphs"][MAIN]["inputs"][0]["dtype"] == "float32"
    weight = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float32)
    expected = np.maximum(feeds[0]["x"] @ weight, 0)
    assert np.abs(kinds.run(made, feeds[0])[0] - expected).max() < 0.1


def test_an_unknown_operator_is_named(tmp_path):
    nodes = [kinds.node("MatMul", ["x", "W"], ["a"])]
    nodes.append(onnx.helper.make_node("MyGelu", ["a"], ["y"], name="custom", domain="acme.ops"))
    model = kinds.build(
        nodes, [kinds.value("x", [1, 8])], [kinds.value("y", [1, 8])], {"W": kinds.normal(0, 8, 8)}, extra=("acme.ops",)
    )
    with pytest.raises(UnsupportedError, match=r"acme\.ops::MyGelu") as caught:
        quantize(tmp_path, model, kinds.draws(4, x=(1, 8)))
    assert "custom" in caught.value.where


def test_nothing_to_quantize_is_refused(tmp_path):
    model = kinds.build([kinds.node("Relu", ["x"], ["y"])], [kinds.value("x", [4])], [kinds.value("y", [4])], {})
    with pytest.raises(UnsupportedError, match="nothing in the model"):
        quantize(tmp_path, model, kinds.draws(4, x=(4,)))


def test_without_data_static_ranges_are_refused_and_dynamic_ones_are_marked_unchecked(tmp_path):
    cnn, mlp = kinds.residual_cnn()[0], kinds.softmax_between()[0]
    with pytest.raises(UsageError, match="calibration samples") as caught:
        quantize(tmp_path, cnn, None)
    assert "--data" in caught.value.remedy
    folder = tmp_path / "mlp"
    folder.mkdir()
    facts, made = quantize(folder, mlp, None)
    assert "MatMulInteger" in {n.op_type for n in made.graph.node}
    assert texts(facts, "unchecked")
    assert facts["coverage"]["macs"] == 1


def test_a_node_that_ruins_the_output_is_left_float_alone(tmp_path):
    """One activation has a rare huge value: its product cannot be int8, the others can."""
    constants = {
        name: np.eye(16, dtype=np.float32) * 0.9 + kinds.normal(i, 16, 16) / 30 for i, name in enumerate("ABCD")
    }
    constants |= {"bump": np.eye(1, 16, dtype=np.float32)[0] * 3e4, "dent": np.eye(1, 16, dtype=np.float32)[0] * -3e4}
    nodes = [
        kinds.node("Conv", ["x", "A4"], ["a"], name="first"),
        kinds.node("Add", ["a", "bump4"], ["p"]),
        kinds.node("Conv", ["p", "B4"], ["q"], name="victim"),
        kinds.node("Conv", ["q2", "C4"], ["y"], name="last"),
    ]
    four = {name + "4": constants[name].reshape(16, 16, 1, 1) for name in "ABC"}
    four["bump4"] = constants["bump"].reshape(1, 16, 1, 1)
    four["back4"] = -(constants["B"] @ constants["bump"]).reshape(1, 16, 1, 1)
    nodes.insert(3, kinds.node("Add", ["q", "back4"], ["q2"]))
    model = kinds.build(nodes, [kinds.value("x", [1, 16, 4, 4])], [kinds.value("y", [1, 16, 4, 4])], four)
    feeds = kinds.draws(20, x=(1, 16, 4, 4))
    facts, made = quantize(tmp_path, model, feeds)
    assert facts["coverage"]["left_float"] == ["victim"]
    assert kinds.worst_db(model, made, feeds) >= 20
    finding = next(f for f in facts["findings"] if f["node"] == "victim")
    assert finding["severity"] == "warning"
    assert "below 10 dB" in finding["text"]


def test_skip_leaves_named_nodes_and_types_float(tmp_path):
    model, feeds = kinds.residual_cnn()
    facts, made = quantize(tmp_path, model, feeds, skip=("st*", "Gemm"))
    assert facts["coverage"]["left_float"] == ["stem", "head"]
    floats = {t.name for t in made.graph.initializer if t.data_type == TensorProto.FLOAT}
    assert {"W1", "G"} <= floats


def test_options_are_checked():
    with pytest.raises(UsageError, match="unknown method 'minimax'") as caught:
        QuantizeInt8(method="minimax")
    assert "minmax" in caught.value.remedy
    with pytest.raises(UsageError, match="unknown mode"):
        QuantizeInt8(mode="dynamical")


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse", "entropy"])
def test_every_range_method_gives_a_good_cnn(method, tmp_path):
    model, feeds = kinds.residual_cnn()
    facts, made = quantize(tmp_path, model, feeds, method=method)
    assert facts["quantization"]["method"] == method
    assert kinds.worst_db(model, made, feeds) >= 15


def test_the_choice_is_recorded_with_what_it_was_measured_on(tmp_path):
    model, feeds = kinds.small_transformer()
    facts, _ = quantize(tmp_path, model, feeds)
    chosen = facts["quantization"]
    assert chosen["form"] in chosen["why"]
    assert f"on {len(feeds)} calibration samples" in chosen["why"]  # too few to hold any out
    many, _ = quantize(tmp_path / "many", model, feeds * 2)
    assert "9 held-out calibration samples" in many["quantization"]["why"]
    assert chosen["candidates"]
    assert chosen["outputs"]["y"]["sqnr_db"] >= 20


def test_other_files_of_the_artifact_come_along(tmp_path):
    model, feeds = kinds.softmax_between()
    folder, out = tmp_path / "in", tmp_path / "out"
    artifact = onnx_artifact(model, folder)
    (folder / "sub").mkdir()
    (folder / "sub" / "tokenizer.json").write_text("{}")
    out.mkdir()
    inputs = Inputs(artifact=artifact, folder=folder, profile=house.profile(), data=data_of(feeds), dialect=dialect())
    QuantizeInt8().run(inputs, out, Context(scratch=tmp_path))
    assert (out / "sub" / "tokenizer.json").read_text() == "{}"


def test_external_weights_are_read_where_they_lie(tmp_path):
    model, feeds = kinds.softmax_between()
    folder, out = tmp_path / "in", tmp_path / "out"
    artifact = onnx_artifact(model, folder)
    onnx.save(
        model,
        folder / MAIN,
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=0,
        convert_attribute=False,
    )
    out.mkdir()
    inputs = Inputs(artifact=artifact, folder=folder, profile=house.profile(), data=data_of(feeds), dialect=dialect())
    facts = QuantizeInt8().run(inputs, out, Context(scratch=tmp_path))
    assert facts["coverage"]["weights"] == 1
    assert sorted(path.name for path in out.iterdir()) == [MAIN, PLAN]
    assert kinds.worst_db(kinds.softmax_between()[0], onnx.load(out / MAIN), feeds) >= 20


MEMORY = """
import json, resource, sys
import numpy as np
sys.path[:0] = json.loads(sys.argv[1])
import house, kinds
from contract import onnx_artifact
from edgekit.data import Dataset
from edgekit.exporter import load_exporter
from edgekit.stage import Context, Inputs
from edgekit.stages.quantize_int8 import QuantizeInt8
from pathlib import Path

class Drawn(house.MemorySamples):
    def sample(self, index):
        return {"x": kinds.normal(index, 1, 16, 256, 256)}

nodes, constants, last = [], {}, "x"
for i in range(6):
    constants[f"W{i}"] = kinds.normal(i, 16, 16, 1, 1) / 4
    nodes.append(kinds.node("Conv", [last, f"W{i}"], [f"c{i}"]))
    last = f"c{i}"
model = kinds.build(nodes, [kinds.value("x", [1, 16, 256, 256])], [kinds.value(last, [1, 16, 256, 256])], constants)
folder = Path(sys.argv[2])
artifact = onnx_artifact(model, folder / "in")
(folder / "out").mkdir()
samples = Drawn([None] * int(sys.argv[3]))
empty = house.MemorySamples([])
data = Dataset(id="d", calibration=samples, training=empty, evaluation=empty, preprocessing={}, labels=(), findings=())
profile = house.profile()
inputs = Inputs(artifact=artifact, folder=folder / "in", profile=profile, data=data,
                dialect=load_exporter("onnx").dialect(profile))
QuantizeInt8(method=sys.argv[4]).run(inputs, folder / "out", Context(scratch=folder))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["minmax", "entropy"])
def test_memory_does_not_grow_with_samples(method, tmp_path):
    path = json.dumps([entry for entry in sys.path if entry])

    def peak(count):
        folder = tmp_path / str(count)
        folder.mkdir()
        argv = [sys.executable, "-c", textwrap.dedent(MEMORY), path, str(folder), str(count), method]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert peak(60) <= 1.2 * peak(6)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_become_float32_and_edges_stay_as_they_were(dtype, tmp_path):
    kind = TensorProto.FLOAT16 if dtype == np.float16 else TensorProto.DOUBLE
    constants = {"W": kinds.normal(1, 16, 8).astype(dtype), "b": kinds.normal(2, 8).astype(dtype)}
    nodes = [kinds.node("MatMul", ["x", "W"], ["h"]), kinds.node("Add", ["h", "b"], ["y"])]
    edges = [kinds.value(name, shape, kind) for name, shape in (("x", ["n", 16]), ("y", ["n", 8]), ("b", [8]))]
    model = kinds.build(
        nodes, edges[:1], [edges[1], edges[0], edges[2]], constants
    )  # outputs: of a node, input, constant
    feeds = [{"x": kinds.normal(i, 1, 16).astype(dtype)} for i in range(6)]
    facts, made = quantize(tmp_path, model, feeds)
    assert kinds.worst_db(model, made, feeds) >= 25
    assert stored(made)[1] == facts["coverage"]["weights"] == facts["coverage"]["macs"] == 1.0
    assert [v.type.tensor_type.elem_type for v in (*made.graph.input, *made.graph.output)] == [kind] * 4
    assert texts(facts, "to-float32") == [
        f"the model computes in {np.dtype(dtype).name}, which this step cannot run: it was converted to float32 first"
    ]


def test_a_sum_in_float64_does_not_make_a_float64_model(tmp_path):
    nodes = [
        kinds.node("MatMul", ["x", "W"], ["h"]),
        kinds.node("Cast", ["h"], ["d"], to=TensorProto.DOUBLE),
        kinds.node("Mul", ["d", "k"], ["s"]),
        kinds.node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
    ]
    constants = {"W": kinds.normal(1, 16, 8), "k": np.full((1, 8), 3.0)}
    model = kinds.build(nodes, [kinds.value("x", ["n", 16])], [kinds.value("y", ["n", 8])], constants)
    facts, made = quantize(tmp_path, model, kinds.draws(6, x=(1, 16)))
    assert "to-float32" not in "".join(f["rule"] for f in facts["findings"])
    assert TensorProto.DOUBLE in {t.data_type for t in made.graph.initializer}


@pytest.mark.parametrize("name", kinds.BOUNDED)
def test_learned_rounding_is_as_right_on_every_kind_of_graph(name, tmp_path):
    make, floor = kinds.BOUNDED[name]
    model, feeds = make()
    facts, made = quantize(tmp_path, model, feeds, rounding="learned")
    assert kinds.worst_db(model, made, feeds) >= floor
    learned = facts["quantization"]["rounding"]
    assert learned["kept"] == (learned.get("after_db", 0) > learned.get("before_db", 0)), learned


def test_learning_takes_fewer_samples_of_large_models_and_leaves_huge_ones(tmp_path, monkeypatch):
    model, feeds = kinds.residual_cnn()
    feeds = feeds * 4
    whole, _ = quantize(tmp_path / "a", model, feeds, rounding="learned")
    macs = 1.0
    monkeypatch.setattr("edgekit.graphs.int8_learn.macs_of_all", lambda job: macs)
    monkeypatch.setattr("edgekit.graphs.int8_learn.MOST_WORK", 12)
    fewer, made = quantize(tmp_path / "b", model, feeds, rounding="learned")
    assert fewer["quantization"]["rounding"]["samples"] == 12 < whole["quantization"]["rounding"]["samples"]
    macs = 3.0
    none, plain = quantize(tmp_path / "c", model, feeds, rounding="learned")
    assert "too large: 3 multiply-accumulates" in none["quantization"]["rounding"]["why"]
    assert plain == quantize(tmp_path / "d", model, feeds)[1] != made


def test_learned_rounding_of_a_cnn_comes_nearer_at_the_same_size_and_kernels(tmp_path):
    model, feeds = kinds.residual_cnn()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _, nearest = quantize(tmp_path / "a", model, feeds)
    facts, learned = quantize(tmp_path / "b", model, feeds, rounding="learned")
    found = facts["quantization"]["rounding"]
    assert found["kept"]
    assert found["products"] == 4
    assert found["moved"] > 0
    assert kinds.worst_db(model, learned, feeds) > kinds.worst_db(model, nearest, feeds)
    assert learned.ByteSize() == nearest.ByteSize()
    assert [n.op_type for n in learned.graph.node] == [n.op_type for n in nearest.graph.node]


def test_an_unknown_rounding_is_refused():
    with pytest.raises(UsageError, match="unknown rounding 'stochastic'"):
        QuantizeInt8(rounding="stochastic")
