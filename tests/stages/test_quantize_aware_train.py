"""Quantization-aware training: the module computes what the runtime does, learns, and is written back."""

import dataclasses
import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import house
from contract import ORT_CPU, onnx_artifact
from edgekit.artifact import MAIN, Artifact
from edgekit.dialect import Dialect
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.graphs.learned import write_learned
from edgekit.networks.graph_floats import meanings, start_between
from edgekit.networks.graph_module import graph_module
from edgekit.networks.graph_ops import OPERATORS
from edgekit.networks.graph_zeros import hold_zeros
from edgekit.networks.oscillation import watch
from edgekit.stage import Context, Inputs
from edgekit.stages.quantize_aware_train import QuantizeAwareTrain, _mismatches
from edgekit.stages.quantize_int4 import QuantizeInt4
from edgekit.stages.quantize_int8 import QuantizeInt8

SYMMETRIC = Dialect(
    name="tensorrt", activation="int8", weight="int8", symmetric_activations=True, per_channel=True,
    quantize_bias=False, ops=("Conv", "MatMul", "Gemm", "ConvTranspose"), quantize_outputs=False, int4="qdq",
    int4_symmetric=True, int4_whole_blocks=True,
)  # fmt: skip
PER_TENSOR = dataclasses.replace(ORT_CPU, per_channel=False, dynamic_transformers=False, reduce_range=True)
WIDE = dataclasses.replace(
    ORT_CPU, name="qnn", activation="uint16", dynamic_transformers=False, int4="qdq", int4_whole_blocks=True
)
ORT = dataclasses.replace(
    ORT_CPU, ops=("Conv", "MatMul", "Gemm"), float_outputs=("MatMul", "Gemm"), integer_gather=True, int4="matmulnbits"
)
BLOCKS = dataclasses.replace(ORT, block_kernels=("MatMul", "Gemm"))
DIALECTS = {"ort": ORT, "ort-blocks": BLOCKS, "tensorrt": SYMMETRIC, "per-tensor": PER_TENSOR, "qnn": WIDE}


def cnn(seed=0):
    rng = np.random.default_rng(seed)
    weights = {
        "w1": rng.normal(size=(8, 3, 3, 3)) / 5, "b1": rng.normal(size=8) / 5, "w2": rng.normal(size=(8, 1, 3, 3)) / 3,
        "b2": rng.normal(size=8) / 9, "w3": rng.normal(size=(4, 8, 1, 1)) / 3, "b3": np.zeros(4),
        "w4": rng.normal(size=(4, 5)), "b4": np.zeros(5),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="depthwise", pads=[1, 1, 1, 1], group=8),
        helper.make_node("Add", ["c2", "r1"], ["a"], name="add"),
        helper.make_node("Conv", ["a", "w3", "b3"], ["c3"], name="pointwise"),
        helper.make_node("Clip", ["c3", "zero", "six"], ["k"], name="clip"),
        helper.make_node("GlobalAveragePool", ["k"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["logits"], name="head"),
    ]
    constants = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    constants |= {"zero": np.array(0, np.float32), "six": np.array(6, np.float32)}
    return _model(nodes, [("x", TensorProto.FLOAT, ["batch", 3, 8, 8])], "logits", ["batch", 5], constants)


def transformer(seed=0, width=64):
    """Embedding, attention of one head, a feed-forward block with its residuals and norms, and a classifier."""
    rng = np.random.default_rng(seed)
    scale = width**-0.5
    weights = {name: rng.normal(size=(width, width)) * scale for name in ("q", "k", "v", "o", "up", "down")}
    weights |= {"table": rng.normal(size=(50, width)), "head": rng.normal(size=(width, 4)) * scale}
    weights |= {"gamma": np.ones(width), "beta": np.zeros(width), "up_bias": rng.normal(size=width) / 9}
    weights |= {"factor": np.array(scale), "axes": np.array([1])}
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "ids"], ["e"], name="embed"),
        node("MatMul", ["e", "q"], ["query"], name="query"),
        node("MatMul", ["e", "k"], ["key"], name="key"),
        node("MatMul", ["e", "v"], ["value"], name="value"),
        node("Transpose", ["key"], ["turned"], name="turn", perm=[0, 2, 1]),
        node("MatMul", ["query", "turned"], ["scores"], name="scores"),
        node("Mul", ["scores", "factor"], ["scaled"], name="scale"),
        node("Softmax", ["scaled"], ["weights"], name="softmax", axis=-1),
        node("MatMul", ["weights", "value"], ["mixed"], name="mix"),
        node("MatMul", ["mixed", "o"], ["attended"], name="out"),
        node("Add", ["attended", "e"], ["sum"], name="residual"),
        node("LayerNormalization", ["sum", "gamma", "beta"], ["normed"], name="norm"),
        node("MatMul", ["normed", "up"], ["wide"], name="up"),
        node("Add", ["wide", "up_bias"], ["biased"], name="up_add"),
        node("Tanh", ["biased"], ["active"], name="active"),
        node("MatMul", ["active", "down"], ["narrow"], name="down"),
        node("ReduceMean", ["narrow", "axes"], ["pooled"], name="pool", keepdims=0),
        node("MatMul", ["pooled", "head"], ["logits"], name="classify"),
    ]
    constants = {name: np.asarray(value, np.int64 if name == "axes" else np.float32) for name, value in weights.items()}
    return _model(nodes, [("ids", TensorProto.INT64, ["batch", "length"])], "logits", ["batch", 4], constants, opset=18)


def _model(nodes, inputs, output, shape, constants, opset=17):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def feeds(kind, count=120, seed=1):
    rng = np.random.default_rng(seed)
    if kind == "cnn":
        return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]
    return [{"ids": rng.integers(0, 50, (1, 6))} for _ in range(count)]


def opened(model, *, fused=True):
    quiet = onnxruntime.SessionOptions()
    if not fused:
        quiet.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    quiet.log_severity_level = 3
    quiet.intra_op_num_threads = 1
    content = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, quiet, providers=["CPUExecutionProvider"])


def dataset(kind, model):
    rows = feeds(kind)
    session = opened(model)
    labels = np.array([session.run(None, row)[0].argmax() for row in rows])
    found = house.dataset(rows[:60], name=f"data-{kind}")
    return dataclasses.replace(
        found, training=house.MemorySamples(rows[60:] + rows[:40], np.r_[labels[60:], labels[:40]])
    )


def quantized(kind, tmp_path, *, dialect="ort", stage=None):
    """Quantize a model after training; return its folder and artifact, the float model's, and the data."""
    model = {"cnn": cnn, "transformer": transformer}[kind]()
    artifact = onnx_artifact(model, tmp_path / "float")
    data = dataset(kind, model)
    out = tmp_path / "quantized"
    out.mkdir()
    inputs = Inputs(
        artifact=artifact, folder=tmp_path / "float", profile=house.profile(), data=data, dialect=DIALECTS[dialect]
    )
    (stage or QuantizeInt8(floor=-99)).run(inputs, out, Context(scratch=tmp_path))
    made = Artifact(kind="onnx", files={MAIN: "changed"}, facts=artifact.facts)
    return dataclasses.replace(inputs, artifact=made, folder=out, teacher=(artifact, tmp_path / "float"))


CASES = [
    ("cnn", "ort", None),
    ("cnn", "tensorrt", None),
    ("cnn", "per-tensor", None),
    ("cnn", "qnn", None),
    ("transformer", "ort", QuantizeInt8(mode="dynamic", floor=-99)),
    ("transformer", "ort-blocks", QuantizeInt8(mode="weights", floor=-99)),
    ("transformer", "tensorrt", None),
    ("transformer", "per-tensor", QuantizeInt8(mode="static", floor=-99)),
    ("transformer", "ort", QuantizeInt4(method="rtn")),
    ("transformer", "ort", QuantizeInt4(method="rtn", symmetric=True, accuracy_level=1, embedding_bits=4)),
    ("transformer", "tensorrt", QuantizeInt4(method="rtn")),
    ("transformer", "qnn", QuantizeInt4(method="rtn", form="qdq", symmetric=False)),
    ("cnn", "ort", QuantizeInt4(method="rtn")),
    ("cnn", "ort", QuantizeInt4(method="rtn", symmetric=True, block=16)),
    ("cnn", "ort", QuantizeInt4(method="rtn", bits=2, block=64)),
    ("cnn", "ort", QuantizeInt4(method="rtn", bits=8)),
]
NAMES = [f"{kind}-{dialect}-{stage.name if stage else 'static'}-{i}" for i, (kind, dialect, stage) in enumerate(CASES)]


@pytest.mark.parametrize(("kind", "dialect", "stage"), CASES, ids=NAMES)
@pytest.mark.parametrize("scales", [False, True], ids=["", "scales"])
def test_the_module_computes_what_the_runtime_computes(kind, dialect, stage, scales, tmp_path):
    """Tensors between the layers within one step of their grids; outputs at 40 dB or more; equal decisions."""
    inputs = quantized(kind, tmp_path, dialect=dialect, stage=stage)
    bits = 7 if DIALECTS[dialect].reduce_range else 8
    kernels = DIALECTS[dialect].block_kernels
    module = graph_module(inputs.folder / MAIN, learn_scales=scales, bits=bits, block_kernels=kernels)
    assert module.weights
    disturb(module)
    model = onnx.load(inputs.folder / MAIN)
    write_learned(model, module.learned())
    onnx.checker.check_model(model)
    compare(module, model, feeds(kind, count=100, seed=5), fused=dialect.startswith("ort"))
    for weight in module.weights:
        values = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == weight.name)
        if values.dtype == np.int8:
            looked_up = weight.name.startswith("table")  # no product, so all 8 bits
            assert np.abs(values.astype(int)).max() <= (127 if looked_up else 2 ** (bits - 1) - 1)


def test_activations_that_lie_between_two_integers_round_as_the_kernel_rounds_them():
    """Products with codes in blocks at accuracy level 4: inputs at half steps of their block, whatever its largest."""
    rng = np.random.default_rng(0)
    most = rng.uniform(0.5, 4.0, (400, 2, 1)).astype(np.float32)
    x = (most * (2 * rng.integers(-127, 127, (400, 2, 32)) + 1.0) / 254).astype(np.float32)
    x[..., :1] = most
    codes, scales = rng.integers(0, 256, (16, 2, 16)).astype(np.uint8), rng.uniform(0.1, 1, 32).astype(np.float32)
    constants = {"codes": codes, "scales": scales}
    node = helper.make_node(
        "MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft", K=64, N=16, bits=4, block_size=32,
        accuracy_level=4,
    )  # fmt: skip
    model = _model([node], [("x", TensorProto.FLOAT, [400, 64])], "y", [400, 16], constants)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    wanted = opened(model).run(None, {"x": x.reshape(400, 64)})[0]
    unpacked = np.stack([codes & 15, codes >> 4], -1).reshape(16, 2, 32).astype(np.float32)
    given = [torch.from_numpy(value) for value in (x.reshape(400, 64), unpacked, scales)]
    found = OPERATORS["MatMulNBits"](given, {"K": 64, "bits": 4, "block_size": 32, "accuracy_level": 4})
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def disturb(module):
    """Move what is learned away from where the quantizer left it, as training does."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for latent in module.latents:
            latent.add_(torch.randn(latent.shape, generator=generator) * 0.7)
        for value in module.bias_values:
            value.mul_(1.02)
        for ratio in module.ratios:
            ratio.mul_(1 + 0.05 * torch.rand(ratio.shape, generator=generator))
        module.clip()


def compare(module, model, rows, *, fused):
    """Hold the module against onnxruntime: the runtime's own kernels where it is the runtime, else node by node."""
    made = {name for node in model.graph.node for name in node.output}
    steps = {n.input[0]: n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] in made}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in steps)
    session, whole = opened(watched, fused=fused), opened(model, fused=fused)
    names = module.layout.outputs = [value.name for value in session.get_outputs()]
    wanted, found = [], []
    for feed in rows:
        with torch.no_grad():
            mine = module({key: torch.from_numpy(value) for key, value in feed.items()})
        theirs = dict(zip(names, session.run(names, feed), strict=True))
        for name, node in steps.items():
            step, zero = float(values[node.input[1]].ravel()[0]), values[node.input[2]]
            bounds = np.iinfo(zero.dtype)
            a, b = (
                np.clip(np.rint(np.asarray(side[name]) / np.float32(step)) + int(zero), bounds.min, bounds.max)
                for side in (mine, theirs)
            )
            assert np.abs(a - b).max() <= 1, name
        wanted.append(whole.run(["logits"], feed)[0])
        found.append(mine["logits"].numpy())
    wanted, found = np.concatenate(wanted), np.concatenate(found)
    assert 10 * np.log10((wanted**2).sum() / max(((wanted - found) ** 2).sum(), 1e-30)) >= 40
    clear = np.diff(np.sort(wanted, axis=1)[:, -2:], axis=1)[:, 0] > 0.02 * wanted.std()
    assert clear.mean() > 0.9  # outputs of random weights: two that are all but equal decide nothing
    assert (wanted.argmax(1) == found.argmax(1))[clear].all()


def test_tables_keep_their_8_bits_where_products_have_7(tmp_path):
    """Only products saturate: a table that is looked up has all of its integers before training, and after."""
    stage = QuantizeInt8(mode="static", floor=-99)
    inputs = quantized("transformer", tmp_path, dialect="per-tensor", stage=stage)
    module = graph_module(inputs.folder / MAIN, bits=7)
    bounds = {weight.name: weight.high for weight in module.weights}
    assert (bounds["table_quantized"], bounds["up_quantized"]) == (127, 63)
    assert all(torch.equal(one, two) for one, two in zip(module.integers(), module.latents, strict=True))


# --- training --------------------------------------------------------------------------------------------------------


def train(inputs, tmp_path, name="run", **options):
    out, scratch = tmp_path / f"{name}-out", tmp_path / f"{name}-scratch"
    out.mkdir()
    scratch.mkdir()
    context = Context(scratch=scratch, shared=tmp_path / "shared")
    facts = QuantizeAwareTrain(**{"epochs": 4, "batch": 20, **options}).run(inputs, out, context)
    return facts, (out / MAIN).read_bytes()


def test_it_brings_a_coarse_graph_nearer_to_the_original(tmp_path):
    """Weights of one scale a tensor in 7 bits: what training gives is nearer than what rounding gave."""
    inputs = quantized("cnn", tmp_path, dialect="per-tensor")
    (facts, made), (again, same) = (
        train(inputs, tmp_path, name, rate=3e-3, learn_scales=True, pull=0.001, alpha=1.0) for name in ("one", "two")
    )
    assert made == same
    assert json.dumps(facts) == json.dumps(again)
    qat = facts["qat"]
    held = [row["held_out"] for row in qat["training"]["history"]]
    assert min(held) < 0.8 * held[0]
    assert qat["matches"]["sqnr_db"] >= 40
    assert qat["matches"]["argmax"] >= 0.999
    assert 0 < qat["oscillation"]["moved"] <= 1
    assert "pull" in qat["training"]["history"][1]
    rows = feeds("cnn", count=100, seed=7)
    original, before, after = (
        np.concatenate([opened(model).run(None, row)[0] for row in rows])
        for model in (
            onnx.load(tmp_path / "float" / MAIN),
            onnx.load(inputs.folder / MAIN),
            onnx.load_from_string(made),
        )
    )
    assert ((after - original) ** 2).sum() < ((before - original) ** 2).sum()
    shape = [(node.op_type, list(node.input)) for node in onnx.load(inputs.folder / MAIN).graph.node]
    assert [(node.op_type, list(node.input)) for node in onnx.load_from_string(made).graph.node] == shape


def test_four_bits_are_trained_too(tmp_path):
    inputs = quantized("transformer", tmp_path, stage=QuantizeInt4(method="rtn", embedding_bits=4))
    facts, made = train(inputs, tmp_path, rate=5e-3, alpha=1.0, epochs=12, patience=12, pull=0.0)
    held = [row["held_out"] for row in facts["qat"]["training"]["history"]]
    assert min(held) < 0.9 * held[0]
    assert facts["qat"]["trained"]["weights"] > 10_000
    assert len(made) == pytest.approx((inputs.folder / MAIN).stat().st_size, rel=0.01)


# --- where it starts -------------------------------------------------------------------------------------------------

FOUND = {4: 0, 5: 7}
"""Cases whose floats are not all told: products in integers, and a table that is looked up before it is scaled."""


@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_weights_start_where_their_floats_lay(number, tmp_path):
    """Latent weights are the floats in units of the steps, as far as the integers stay those of the quantizer."""
    kind, dialect, stage = CASES[number]
    inputs = quantized(kind, tmp_path, dialect=dialect, stage=stage)
    bits = 7 if DIALECTS[dialect].reduce_range else 8
    module = graph_module(inputs.folder / MAIN, bits=bits, block_kernels=DIALECTS[dialect].block_kernels)
    before = [latent.detach().clone() for latent in module.latents]
    assert len(start_between(module, tmp_path / "float" / MAIN)) == FOUND.get(number, len(module.weights))
    moved = [(latent.detach() - old).abs() for latent, old in zip(module.latents, before, strict=True)]
    assert all(torch.equal(one, two) for one, two in zip(module.integers(), before, strict=True))
    assert sum(float(part.max()) > 0.1 for part in moved) == FOUND.get(number, len(module.weights))


@pytest.mark.parametrize("number", [0, 1, 6, 8, 12])
def test_weights_that_are_zero_stay_so_where_they_were_pruned(number, tmp_path):
    kind, dialect, stage = CASES[number]
    inputs = quantized(kind, tmp_path, dialect=dialect, stage=stage)
    module = graph_module(inputs.folder / MAIN, block_kernels=DIALECTS[dialect].block_kernels)
    start_between(module, tmp_path / "float" / MAIN)
    meant, before = meanings(module), module.integers()
    zeros = [
        (one - zero) * codes + zero == 0 if number in meant else codes == 0
        for number, codes in enumerate(before)
        for zero, one in [meant.get(number, (torch.tensor(0.0), torch.tensor(1.0)))]
    ]
    assert hold_zeros(module) == sum(int(mask.sum()) for mask in zeros) > 0
    optimizer = torch.optim.AdamW(module.latents, lr=1.0, weight_decay=0.0)
    feed = {key: torch.from_numpy(value) for key, value in feeds(kind)[0].items()}
    (module(feed)["logits"].square().sum() + module.distance_to_grid()).backward()
    optimizer.step()
    after = module.integers()
    assert all(torch.equal(old[mask], new[mask]) for old, new, mask in zip(before, after, zeros, strict=True))
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_floats_of_another_model_are_no_start(tmp_path):
    inputs = quantized("transformer", tmp_path, stage=QuantizeInt4(method="rtn"))
    onnx.save(transformer(seed=5), tmp_path / "other.onnx")
    module = graph_module(inputs.folder / MAIN)
    before = [latent.detach().clone() for latent in module.latents]
    assert not start_between(module, tmp_path / "other.onnx")
    assert all(torch.equal(one.detach(), two) for one, two in zip(module.latents, before, strict=True))


def test_the_floats_tell_which_step_is_exact(tmp_path):
    """Against numpy: codes of 4 bits in blocks, their scales and zero points, and the matrix that they came from."""
    inputs = quantized("transformer", tmp_path, stage=QuantizeInt4(method="rtn", symmetric=False))
    module = graph_module(inputs.folder / MAIN)
    start_between(module, tmp_path / "float" / MAIN)
    model = onnx.load(inputs.folder / MAIN)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    number = next(n for n, weight in enumerate(module.weights) if weight.name == "up_4bit")
    latent = module.latents[number].detach().numpy()
    scales = stored["up_4bit_scales_half"].astype(np.float64)[..., None]
    packed = stored["up_4bit_zero_points"]
    zeros = np.stack([packed & 15, packed >> 4], -1).reshape(64, -1)[:, :2, None]
    floats = numpy_helper.to_array(next(t for t in transformer().graph.initializer if t.name == "up")).T
    exact = floats.reshape(64, 2, 32) / scales + zeros
    inside = np.abs(exact - np.rint(latent)) < 0.48
    assert inside.mean() > 0.9
    np.testing.assert_allclose(latent[inside], exact[inside], atol=1e-4)


def test_training_that_gains_nothing_keeps_the_graph_and_says_so(tmp_path):
    inputs = quantized("transformer", tmp_path, stage=QuantizeInt4(method="rtn"))
    facts, made = train(inputs, tmp_path, rate=5.0, alpha=1.0, epochs=2)
    assert facts["qat"]["training"]["kept_epoch"] == 0
    assert [finding["rule"] for finding in facts["findings"]].count("qat-gained-nothing") == 1
    before, after = (
        {t.name: t.raw_data for t in m.graph.initializer}
        for m in (onnx.load(inputs.folder / MAIN), onnx.load_from_string(made))
    )
    assert before == after


@pytest.mark.parametrize(
    ("found", "severity"),
    [
        ({"sqnr_db": 41.0, "argmax": 1.0, "runtime_db": 30.0}, None),
        ({"sqnr_db": 35.0, "argmax": 1.0, "runtime_db": 33.0}, "note"),
        ({"sqnr_db": 35.0, "argmax": 1.0, "runtime_db": 39.0}, "warning"),
        ({"sqnr_db": 35.0, "argmax": 1.0}, "warning"),
    ],
)
def test_a_mismatch_is_held_against_that_of_the_runtime_with_itself(found, severity):
    told = _mismatches({"samples": 64, **found})
    assert [finding.severity for finding in told] == ([severity] if severity else [])
    assert all(("differs from itself" in finding.text) is ("runtime_db" in found) for finding in told)


def test_a_float_graph_is_refused(tmp_path):
    inputs = quantized("cnn", tmp_path)
    with pytest.raises(InputError, match="not quantized"):
        train(dataclasses.replace(inputs, folder=tmp_path / "float"), tmp_path)


def test_an_operator_that_cannot_be_trained_through_is_named(tmp_path):
    inputs = quantized("cnn", tmp_path)
    model = onnx.load(inputs.folder / MAIN)
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Det", ["before"], ["logits"], name="odd"))
    onnx.save(model, inputs.folder / MAIN)
    with pytest.raises(UnsupportedError, match="Det cannot be trained through") as caught:
        graph_module(inputs.folder / MAIN)
    assert caught.value.where == "odd"


def test_filters_in_blocks_are_trained_and_packed_again(tmp_path):
    inputs = quantized("cnn", tmp_path, dialect="ort", stage=QuantizeInt4(method="rtn", bits=2))
    before = onnx.load(inputs.folder / MAIN)
    assert any(node.op_type == "BitShift" for node in before.graph.node)
    facts, made = train(inputs, tmp_path, rate=0.02, alpha=1.0, epochs=12, patience=12, pull=0.0)
    after = onnx.load_from_string(made)
    assert [n.SerializeToString() for n in after.graph.node] == [n.SerializeToString() for n in before.graph.node]
    values = ({t.name: numpy_helper.to_array(t) for t in model.graph.initializer} for model in (before, after))
    one, other = values
    changed = {name for name in one if not np.array_equal(one[name], other[name])}
    assert {"w1_2bit", "w2_2bit", "w3_2bit"} <= changed
    assert not [name for name in changed if "zero_points" in name or "scales" in name]
    held = [row["held_out"] for row in facts["qat"]["training"]["history"]]
    assert min(held) < 0.6 * held[0]
    assert facts["qat"]["matches"]["sqnr_db"] >= 40


def test_unpacking_that_is_read_otherwise_stays(tmp_path):
    """An output that shows codes on their way: nothing is taken for filters then, and BitShift is named."""
    inputs = quantized("cnn", tmp_path, dialect="ort", stage=QuantizeInt4(method="rtn"))
    model = onnx.load(inputs.folder / MAIN)
    shift = next(node for node in model.graph.node if node.op_type == "BitShift")
    model.graph.output.append(helper.make_tensor_value_info(shift.output[0], TensorProto.UINT8, None))
    onnx.save(model, inputs.folder / MAIN)
    with pytest.raises(UnsupportedError, match="BitShift cannot be trained through"):
        graph_module(inputs.folder / MAIN)


@pytest.mark.parametrize("mixing", [False, True])
def test_a_graph_of_a_fixed_batch_runs_row_by_row(tmp_path, mixing):
    """A Reshape to [1, ...] mixes rows that come together: then they run one by one; else all at once."""
    inputs = quantized("cnn", tmp_path)
    model = onnx.load(inputs.folder / MAIN)
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    if mixing:
        model.graph.node[-1].output[0] = "plain"
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, -1]), "one_row"))
        model.graph.node.append(helper.make_node("Reshape", ["plain", "one_row"], ["flat"], name="flat"))
        model.graph.node.append(helper.make_node("Softmax", ["flat"], ["logits"], name="soft", axis=-1))
    onnx.save(model, tmp_path / "fixed.onnx")
    module, session = graph_module(tmp_path / "fixed.onnx"), opened(model, fused=False)
    rows = feeds("cnn", count=5)
    with torch.no_grad():
        found = module({"x": torch.from_numpy(np.concatenate([row["x"] for row in rows]))})["logits"]
    wanted = np.concatenate([session.run(["logits"], row)[0] for row in rows])
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)
    assert module._together is not mixing


@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"temperature": 0}, {"pull": -1}, {"rate": -1.0}, {"batch": 0}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(UsageError):
        QuantizeAwareTrain(**options)


def test_the_distance_to_the_grid_and_its_pull(tmp_path):
    inputs = quantized("cnn", tmp_path)
    module = graph_module(inputs.folder / MAIN)
    assert float(module.distance_to_grid().detach()) == 0
    with torch.no_grad():
        for latent in module.latents:
            latent.clamp_(-100, 100).add_(0.25)
    assert float(module.distance_to_grid().detach()) == pytest.approx(0.0625)
    module.distance_to_grid().backward()
    total = sum(latent.numel() for latent in module.latents)
    torch.testing.assert_close(module.latents[0].grad, torch.full_like(module.latents[0], 0.5 / total))


def test_oscillation_counts_turns(tmp_path):
    inputs = quantized("cnn", tmp_path)
    module = graph_module(inputs.folder / MAIN)
    first = module.latents[0].data.view(-1)
    first[0] = 4.0
    seen = watch(module)
    first[0] = 5.0
    seen.step()
    for value in (6.0, 5.0, 6.0, 5.0, 5.0):
        first[0] = value
        seen.step()
    facts = seen.facts()
    total = sum(latent.numel() for latent in module.latents)
    assert facts["share"] == pytest.approx(1 / total, rel=1e-3)
    assert facts["rate"] == pytest.approx(sum(0.01 * 0.99**age for age in (1, 2, 3)) / total, rel=0.3)
