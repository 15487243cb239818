from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import house
import kinds
from contract import run_stage
from edgekit.artifact import MAIN
from edgekit.data import Dataset
from edgekit.errors import InputError, UsageError
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.half_sums import largest_sums
from edgekit.graphs.plan_edits import HalfEdit
from edgekit.stages.fp16 import Fp16

HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT


def cast(tmp_path, model, feeds, **options):
    empty = house.MemorySamples([])
    data = None
    if feeds is not None:
        samples = house.MemorySamples(feeds)
        data = Dataset(
            id="d", calibration=samples, training=empty, evaluation=empty, preprocessing={}, labels=(), findings=()
        )
    return run_stage(Fp16(**options), model, tmp_path, data=data)


def kept(facts):
    return {f["node"]: f["text"] for f in facts["findings"] if f["rule"] == "kept-float32"}


def halves(model):
    return {t.name for t in model.graph.initializer if t.data_type == HALF}


def types_of(model):
    """Tensor type of everything, as onnx infers it."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    values = (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
    return {v.name: v.type.tensor_type.elem_type for v in values}


def mean_model(size=512):
    """The mean of many values around 100 fits, their sum does not (F01)."""
    nodes = [
        kinds.node("Conv", ["x", "W"], ["c"], name="c"),
        kinds.node("ReduceMean", ["c"], ["m"], axes=[2, 3], keepdims=0, name="rm"),
        kinds.node("Mul", ["m", "k"], ["y"], name="scale"),
    ]
    constants = {"W": np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1) + kinds.normal(0, 3, 3, 1, 1) / 100}
    constants["k"] = np.float32(0.01)
    model = kinds.build(nodes, [kinds.value("x", [1, 3, size, size])], [kinds.value("y", [1, 3])], constants)
    return model, [{"x": 100 + kinds.normal(1, 1, 3, size, size)}]


GOOD = ["residual CNN", "small transformer", "Q23 LSTM and GRU", "Q35 Einsum", "Q01 shared weight", "Q12 opset 11"]
GOOD += ["Q14 Upsample by 1.5", "Q17 weight behind Cast", "G12 left-out input", "Gemm factors", "float16 model"]
GOOD += ["local function", "Q30 integers for shapes", "Q05 grouped ConvTranspose", "Constant node"]


@pytest.mark.parametrize("name", GOOD)
def test_weights_become_half_and_results_stay(name, tmp_path):
    model, feeds = kinds.BOUNDED[name][0]()
    facts, made = cast(tmp_path, model, feeds)
    assert kinds.worst_db(model, made, feeds) >= 45
    assert facts["coverage"] == {"precision": "fp16", "weights": 1.0, "macs": 1.0, "left_float": []}
    assert not [t.name for t in made.graph.initializer if t.data_type == SINGLE and len(t.dims) > 1]
    assert [v.type.tensor_type.elem_type for v in made.graph.input] == [
        v.type.tensor_type.elem_type
        for v in onnx.load_from_string(model.SerializeToString()).graph.input
        if v.name not in {t.name for t in model.graph.initializer}
    ]


def test_a_mean_whose_sum_overflows_stays_float32(tmp_path):
    model, feeds = mean_model()
    facts, made = cast(tmp_path, model, feeds)
    assert set(kept(facts)) == {"rm"}
    assert "node rm kept in fp32" in kept(facts)["rm"]
    types = types_of(made)
    mean = next(n for n in made.graph.node if n.op_type == "ReduceMean")
    assert types[mean.output[0]] == SINGLE
    assert kinds.worst_db(model, made, feeds) >= 40


def test_a_small_mean_does_not(tmp_path):
    model, feeds = mean_model(16)
    facts, _ = cast(tmp_path, model, feeds)
    assert not kept(facts)


def test_sums_are_bounds_that_numpy_confirms(tmp_path):
    model, feeds = kinds.residual_cnn()
    del model.graph.output[:]
    model.graph.output.append(kinds.value("y", ["b", 10]))
    source = Canonical(model=model, folder=tmp_path, findings=())
    floats = {name for n in model.graph.node for name in n.input}
    samples = house.MemorySamples(feeds)
    sums = largest_sums(source, samples, [0], floats=floats, shapes={"m": (1, 8, 8, 8)}, threads=1)
    x = np.abs(np.pad(feeds[0]["x"][0], ((0, 0), (1, 1), (1, 1))))
    weights = {t.name: np.abs(numpy_helper.to_array(t)) for t in model.graph.initializer}
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    expected = np.einsum("chwij,ocij->ohw", windows, weights["W1"]) + weights["b1"][:, None, None]
    assert sums["stem"] == pytest.approx(expected.max(), rel=1e-4)
    assert set(sums) == {"stem", "depthwise", "project", "head", "g_node"}


@pytest.mark.parametrize("mask", [-1e9, float(np.finfo(np.float32).min)])
def test_a_mask_is_lowered_when_that_changes_nothing(mask, tmp_path):
    model, feeds = kinds.masked_attention(mask)
    facts, made = cast(tmp_path, model, feeds)
    assert any(f["rule"] == "mask-lowered" and "'neg'" in f["text"] for f in facts["findings"])
    assert not kept(facts)
    assert kinds.worst_db(model, made, feeds) >= 45
    stored = next(t for t in made.graph.initializer if t.name.startswith("neg"))
    assert np.isfinite(numpy_helper.to_array(stored))


def test_a_mask_over_a_whole_row_keeps_its_nodes_in_float32(tmp_path):
    model, feeds = kinds.masked_attention(-1e9, whole_row=True)
    facts, made = cast(tmp_path, model, feeds)
    assert {"mneg", "addmask", "sm"} <= set(kept(facts))
    assert max(np.abs(kinds.run(model, f)[0] - kinds.run(made, f)[0]).max() for f in feeds) <= 0.02


def test_scales_of_resize_stay_float32_also_when_computed(tmp_path):
    nodes = [
        kinds.node("Conv", ["x", "W"], ["c"]),
        kinds.node("Concat", ["nc", "hw"], ["scales"], axis=0),
        kinds.node("Resize", ["c", "", "scales"], ["y"], mode="linear"),
    ]
    constants = {"W": kinds.normal(4, 2, 3, 1, 1), "nc": np.ones(2, np.float32), "hw": np.full(2, 2, np.float32)}
    model = kinds.build(nodes, [kinds.value("x", [1, 3, 4, 4])], [kinds.value("y", [1, 2, 8, 8])], constants)
    feeds = kinds.draws(2, x=(1, 3, 4, 4))
    _, made = cast(tmp_path, model, feeds)
    resize = next(n for n in made.graph.node if n.op_type == "Resize")
    types = types_of(made)
    assert (types[resize.input[0]], types[resize.input[2]]) == (HALF, SINGLE)
    assert kinds.worst_db(model, made, feeds) >= 45


def test_constants_that_do_not_fit_are_named_and_their_nodes_stay(tmp_path):
    weight = kinds.normal(6, 4, 3)
    weight[0, 0] = 1e5
    nodes = [
        kinds.node("MatMul", ["x", "W"], ["m"], name="mm"),
        kinds.node("Mul", ["m", "k"], ["y"], name="mul"),
    ]
    constants = {"W": weight, "k": np.array([1, 1e8, 1e8], np.float32)}
    model = kinds.build(nodes, [kinds.value("x", ["b", 4])], [kinds.value("y", ["b", 3])], constants)
    facts, made = cast(tmp_path, model, kinds.draws(3, x=(2, 4)))
    told = " ".join(f["text"] for f in facts["findings"])
    assert "constant W has 1 value out of float16 range" in told
    assert "constant k has 2 values out of float16 range" in told
    assert set(kept(facts)) == {"mm", "mul"}
    assert not halves(made)
    assert facts["coverage"]["weights"] == 0


def test_vanishing_constants_and_large_counts_stay_float32(tmp_path):
    nodes = [
        kinds.node("Cast", ["n"], ["f"], to=SINGLE, name="count"),
        kinds.node("Div", ["f", "size"], ["u"], name="share"),
        kinds.node("Add", ["u", "eps"], ["v"], name="plus"),
        kinds.node("Reciprocal", ["v"], ["y"], name="turn"),
    ]
    constants = {"eps": np.float32(1e-12), "size": np.float32(10000)}
    model = kinds.build(nodes, [kinds.value("n", [4], TensorProto.INT64)], [kinds.value("y", [4])], constants)
    facts, made = cast(tmp_path, model, [{"n": np.array([1, 2049, 5001, 9999])}])
    assert set(kept(facts)) == {"count", "share", "plus"}
    assert "counts up to 9999" in kept(facts)["count"]
    assert "vanish" in kept(facts)["plus"]
    assert kinds.worst_db(model, made, [{"n": np.array([1, 2049, 5001, 9999])}]) >= 45


def test_cancellation_is_found_under_true_rounding_and_only_its_nodes_are_kept(tmp_path):
    """Every value fits, and onnxruntime, which computes float16 in float32, would not show it."""
    model, feeds = kinds.far_and_back()
    facts, made = cast(tmp_path, model, feeds)
    assert "far" in kept(facts)
    assert "conv" not in kept(facts)
    assert "below 35 dB" in kept(facts)["far"]
    assert facts["fp16"]["outputs"]["y"]["sqnr_db"] >= 35
    assert kinds.worst_db(model, made, feeds) >= 35


def test_the_plan_of_a_recipe_counts_before_ranges_and_outputs(tmp_path):
    model, feeds = mean_model(64)
    entries = (HalfEdit(match="Conv"), HalfEdit(match="r*", mode="float"), HalfEdit(match="c", mode="half"))
    facts, made = cast(tmp_path / "a", model, feeds, plan=entries)
    assert kept(facts) == {"rm": "node rm kept in fp32: the plan of the recipe names it ('r*')"}
    assert kinds.worst_db(model, made, feeds) >= 40
    forced, _ = cast(tmp_path / "b", *mean_model(), plan=(HalfEdit(match="rm", mode="half"),))
    assert "rm" not in kept(forced)
    (told,) = [f["text"] for f in forced["findings"] if f["rule"] == "overruled"]
    assert "although the sums it makes reach" in told


def test_a_node_whose_name_is_an_operator_type_stands_for_itself_when_outputs_need_it(tmp_path):
    nodes = [
        kinds.node("Conv", ["x", "W"], ["c"], name="conv"),
        kinds.node("Add", ["c", "k"], ["a"], name="Conv"),
        kinds.node("Sub", ["a", "k"], ["y"], name="back"),
    ]
    constants = {"W": kinds.normal(8, 4, 3, 1, 1), "k": np.float32(1000)}
    model = kinds.build(nodes, [kinds.value("x", [1, 3, 6, 6])], [kinds.value("y", [1, 4, 6, 6])], constants)
    facts, _ = cast(tmp_path, model, kinds.draws(4, x=(1, 3, 6, 6)))
    assert "Conv" in kept(facts)
    assert "conv" not in kept(facts)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keep": ("Cnov",)}, "'Cnov' matches no node"),
        ({"plan": (HalfEdit(match="iff", mode="half"),)}, "it holds a subgraph"),
    ],
)
def test_entries_that_cannot_be_followed_are_errors(options, text, tmp_path):
    model, feeds = kinds.weight_in_branch()
    with pytest.raises(UsageError, match=text):
        cast(tmp_path, model, feeds, **options)


def test_operators_without_half_and_subgraphs_stay_float32_with_a_note(tmp_path):
    model, feeds = kinds.weight_in_branch()
    facts, made = cast(tmp_path, model, feeds)
    assert kept(facts) == {"iff": "node iff kept in fp32: it holds a subgraph"}
    assert made.ByteSize() <= 0.55 * model.ByteSize(), "its weights are stored in half all the same"
    assert kinds.worst_db(model, made, feeds) >= 45


def test_an_inner_graph_reads_what_became_half_outside(tmp_path):
    branches = {
        key: helper.make_graph([kinds.node(op, ["h"], [f"o{op}"], name=op)], key, [], [kinds.value(f"o{op}", ["b", 8])])
        for key, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    nodes = [kinds.node("MatMul", ["x", "W"], ["h"]), kinds.node("If", ["c"], ["y"], name="iff", **branches)]
    inputs = [kinds.value("c", [], TensorProto.BOOL), kinds.value("x", ["b", 8])]
    model = kinds.build(nodes, inputs, [kinds.value("y", ["b", 8])], {"W": kinds.normal(9, 8, 8)})
    feeds = [{"c": np.array(bool(i)), "x": kinds.normal(i, 2, 8)} for i in range(2)]
    _, made = cast(tmp_path, model, feeds)
    assert halves(made)
    assert kinds.worst_db(model, made, feeds) >= 45


def test_keep_and_half_inputs(tmp_path):
    model, feeds = kinds.residual_cnn()
    facts, made = cast(tmp_path, model, feeds, keep=("Gemm",), io="fp16")
    assert set(kept(facts)) == {"head"}
    assert {v.type.tensor_type.elem_type for v in (*made.graph.input, *made.graph.output)} == {HALF}
    assert facts["graphs"][MAIN]["inputs"][0]["dtype"] == "float16"
    found = kinds.run(made, {"x": feeds[0]["x"].astype(np.float16)})[0]
    assert np.abs(found - kinds.run(model, feeds[0])[0]).max() < 0.05


def test_bfloat16_becomes_half_and_is_told(tmp_path):
    model, feeds = kinds.brain_float()
    facts, made = cast(tmp_path, model, feeds)
    assert any("bfloat16" in f["text"] for f in facts["findings"])
    assert halves(made)
    weight = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float32)
    assert np.abs(kinds.run(made, feeds[0])[0] - np.maximum(feeds[0]["x"] @ weight, 0)).max() < 0.01


def test_without_data_ranges_come_from_random_inputs_and_that_is_told(tmp_path):
    facts, made = cast(tmp_path, kinds.residual_cnn()[0], None)
    assert any(f["rule"] == "unchecked" for f in facts["findings"])
    assert halves(made)


def test_a_quantized_model_is_refused(tmp_path):
    scale = {"s": np.float32(0.1), "z": np.int8(0), "W": kinds.normal(0, 8, 8)}
    nodes = [
        kinds.node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        kinds.node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        kinds.node("MatMul", ["d", "W"], ["y"]),
    ]
    model = kinds.build(nodes, [kinds.value("x", [2, 8])], [kinds.value("y", [2, 8])], scale)
    with pytest.raises(InputError, match="already quantized"):
        cast(tmp_path, model, kinds.draws(2, x=(2, 8)))


def test_options_are_checked():
    with pytest.raises(UsageError, match="unknown io"):
        Fp16(io="half")


def odd_types(*between, **constants):
    """A product, whose result goes through `between` from `h` to `y`."""
    nodes = [kinds.node("MatMul", ["x", "W"], ["h"]), *between]
    constants["W"] = kinds.normal(0, 8, 8)
    model = kinds.build(nodes, [kinds.value("x", [4, 8])], [kinds.value("y", ["n", 8])], constants)
    return model, kinds.draws(4, x=(4, 8))


DOUBLE = TensorProto.DOUBLE
ROWS = np.array([[0], [0], [1], [1]])
UNCASTABLE = {
    "sums in float64": (
        odd_types(
            kinds.node("Cast", ["h"], ["d"], to=DOUBLE),
            kinds.node("CumSum", ["d", "axis"], ["s"], name="sum"),
            kinds.node("Cast", ["s"], ["y"], to=SINGLE),
            axis=np.array(1),
        ),
        "",
    ),
    "rows added up": (
        odd_types(kinds.node("ScatterND", ["h", "rows", "h"], ["y"], name="scatter", reduction="add"), rows=ROWS),
        "scatter",
    ),
    "sequences": (
        odd_types(
            kinds.node("SequenceConstruct", ["h", "h"], ["s"], name="pack"),
            kinds.node("ConcatFromSequence", ["s"], ["y"], name="unpack", axis=0),
        ),
        "pack",
    ),
    "a function with float32 inside": (
        odd_types(kinds.node("MeanVarianceNormalization", ["h"], ["y"], name="mvn", axes=[1])),
        "mvn",
    ),
}


@pytest.mark.parametrize("name", UNCASTABLE)
def test_what_cannot_be_half_stays_float32_and_the_rest_does_not(name, tmp_path):
    (model, feeds), stays = UNCASTABLE[name]
    facts, made = cast(tmp_path, model, feeds)
    assert kinds.worst_db(model, made, feeds) >= 45
    assert facts["coverage"]["weights"] == facts["coverage"]["macs"] == 1.0
    assert {stays} - {""} <= set(kept(facts))


def test_a_scan_of_opset_8_is_refused_for_what_it_is(tmp_path):
    body = helper.make_graph(
        [kinds.node("Add", ["s", "e"], ["t"]), kinds.node("Identity", ["t"], ["o"])],
        "body",
        [kinds.value("s", [2]), kinds.value("e", [2])],
        [kinds.value("t", [2]), kinds.value("o", [2])],
    )
    scan = kinds.node("Scan", ["", "start", "x"], ["end", "y"], num_scan_inputs=1, body=body)
    edges = kinds.value("x", [1, 3, 2]), kinds.value("y", [1, 3, 2])
    model = kinds.build([scan], edges[:1], edges[1:], {"start": np.zeros((1, 2), np.float32)}, opset=8)
    with pytest.raises(InputError, match="its Scan has a batch axis"):
        cast(tmp_path, model, kinds.draws(2, x=(1, 3, 2)))
