"""The qnn dialect against Qualcomm's real compiler and simulator: architecture by architecture, precision by precision.

Every model must run whole on the HTP, CPU fallback off, and give what the same graph gives on the CPU, within what
rounding explains at its precision.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import version_converter

import house
import kinds
import wild
from contract import onnx_artifact
from edgekit.exporter import load_exporter
from edgekit.graphs.freeze import freeze
from edgekit.plan import make_stage
from edgekit.profile import load_profile
from edgekit.stage import Context, Inputs
from edgekit.target import Bundle
from edgekit.targets import open_target
from htp_networks import ARCHITECTURES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the extra qnn (onnxruntime-qnn, x86-64 Linux)"
)
EXPORTER = load_exporter("qnn")
LEAST = {"fp16": 38.0, "w8a8": 22.0, "w8a16": 35.0, "w4a16": 35.0}
"""Precision -> lowest ratio of CPU against HTP in dB: seen are 39 to 71, 24 to 45, 37 to 79 and 37 to 60."""
SEQUENTIAL = {"lstm", "gru"}
"""Their weights stay float: the HTP has them in float16, whose error grows from step to step."""
SAMPLES = Path(__file__).parents[2] / "samples"


def recipe(precision):
    first = [(spec.name, spec.options) for spec in EXPORTER.prepare(load_profile("iq-9075"))]
    stages = [(name, {"precision": precision}) for name in ("equalize", "quantize-int8")]
    return first if precision == "fp16" else [*first, *stages]


def built(model, feeds, precision, profile, folder):
    """Run the recipe's stages, lint and compile; return the graph that was compiled, the bundle and stage facts."""
    data, facts = house.dataset(feeds), {}
    for number, (name, options) in enumerate(recipe(precision)):
        place = folder / f"{number}"
        artifact = onnx_artifact(model, place / "in")
        for part in ("out", "scratch"):
            (place / part).mkdir()
        given = Inputs(
            artifact=artifact, folder=place / "in", profile=profile, data=data, dialect=EXPORTER.dialect(profile)
        )
        facts |= make_stage(name, options, "test").run(given, place / "out", Context(scratch=place / "scratch"))
        model = onnx.load(place / "out" / "model.onnx")
    artifact = onnx_artifact(model, folder / "in")
    assert [f for f in EXPORTER.lint(artifact, folder / "in", profile) if f.severity == "error"] == []
    (folder / "out").mkdir()
    compiled = EXPORTER.compile(artifact, folder / "in", profile, folder / "out")
    assert compiled["context"]["refused"] == []
    nodes = onnx.load(folder / "out" / "model_ctx.onnx", load_external_data=False).graph.node
    assert {node.op_type for node in nodes} == {"EPContext"}, "all of it is on the HTP"
    return model, Bundle(folder=folder / "out", facts=compiled), facts


def ratios(model, bundle, feeds, profile):
    """Return CPU against simulator in dB for every float output."""
    found = list(open_target("htp-sim", profile).run(bundle, feeds))
    session = kinds.run
    expected = [dict(zip((v.name for v in model.graph.output), session(model, feed), strict=True)) for feed in feeds]
    told = {}
    for name in expected[0]:
        left, right = (
            np.concatenate([row[name].ravel() for row in rows]).astype(np.float64) for rows in (expected, found)
        )
        told[name] = 10 * np.log10((left**2).sum() / max(((left - right) ** 2).sum(), 1e-30))
    return told


def check(model, feeds, precision, device, folder, least=None):
    profile = load_profile(device)
    graph, bundle, facts = built(model, feeds, precision, profile, folder)
    for name, ratio in ratios(graph, bundle, feeds[:3], profile).items():
        assert ratio >= (LEAST[precision] if least is None else least), (name, ratio)
    return facts


USUAL = {
    name: "w8a16" if "transformer" in name or "encoder" in name else "fp16" if name in SEQUENTIAL else "w8a8"
    for name in ARCHITECTURES
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_runs_whole_and_right(name, tmp_path):
    model, feeds = ARCHITECTURES[name]()
    least = 30.0 if name in SEQUENTIAL else None
    facts = check(model, feeds, USUAL[name], "snapdragon-8-gen3", tmp_path, least)
    if "coverage" in facts:
        assert facts["coverage"]["precision"] == USUAL[name]
        assert facts["coverage"]["weights"] > 0.95, "a table of places is added, not multiplied"
        assert facts["coverage"]["macs"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("precision", LEAST)
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in SEQUENTIAL])
def test_every_precision_runs_whole_and_right(name, precision, tmp_path):
    check(*ARCHITECTURES[name](), precision, "snapdragon-8-gen3", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in {*SEQUENTIAL, "language_encoder"}])
def test_a_chip_without_floats_gets_whole_graphs_on_integers(name, precision, tmp_path):
    check(*ARCHITECTURES[name](), precision, "qcs6490", tmp_path)


@pytest.mark.parametrize(
    ("bounds", "joined"), [*((bounds, True) for bounds in kinds.CLIPS), *((kinds.CLIPS[i], False) for i in (0, -1))]
)
def test_clips_of_any_bounds_run_whole_and_right(bounds, joined, tmp_path):
    """The compiler drops a Clip only where the grid behind it stays inside, and takes its lower bound for 0."""
    model, feeds = kinds.clipped(*bounds, joined=joined)
    freeze(model, {"b": 1}, tmp_path)
    check(model, feeds, "w8a8", "snapdragon-8-gen3", tmp_path, least=25)


@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_the_vision_sample_with_its_trained_weights(precision, tmp_path):
    model = onnx.load(SAMPLES / "vision" / "model.onnx")
    freeze(model, {"batch": 1}, tmp_path)
    with np.load(SAMPLES / "vision" / "data" / "calibration.npz") as archive:
        pictures = archive["x"][:32].astype(np.float32)[:, None, None] / np.float32(255)
    check(
        model,
        [{"x": (picture - np.float32(0.286)) / np.float32(0.353)} for picture in pictures],
        precision,
        "snapdragon-8-gen3",
        tmp_path,
    )


WILD = {"ocr-cls": "w8a8", "captcha": "w8a8", "minilm-l3": "w8a16", "seizure-a": "fp16"}
"""Trained models of other people: a direction classifier, a captcha reader, a sentence encoder, an EEG transformer."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WILD)
def test_trained_models_run_whole_and_right(name, tmp_path):
    try:
        path = wild.fetch(name, tmp_path / "wild")
    except RuntimeError as error:
        pytest.skip(f"cannot be fetched here: {error}")
    feeds = [feed for feed, _ in zip(wild.feeds(name, fixed=True), range(12), strict=False)]
    model = fixed(onnx.load(path), feeds[0], path.parent)
    profile = load_profile("snapdragon-8-gen3")
    graph, bundle, _ = built(model, feeds, WILD[name], profile, tmp_path)
    for output, ratio in ratios(graph, bundle, feeds[:1], profile).items():
        assert ratio >= 20, (output, ratio)


def fixed(model, feed, folder):
    """Give every input the shape of a feed, as `--shape` does."""
    if next(entry.version for entry in model.opset_import if not entry.domain) < 13:
        model = version_converter.convert_version(model, 13)
    sizes = {}
    for value in model.graph.input:
        for number, dim in enumerate(value.type.tensor_type.shape.dim if value.name in feed else ()):
            if dim.dim_value <= 0:
                dim.dim_param = f"{value.name}_{number}"
                sizes[dim.dim_param] = feed[value.name].shape[number]
    freeze(model, sizes, folder)
    return model


def test_a_model_that_the_htp_does_not_take_gives_the_compilers_own_error(tmp_path):
    """The suite is worth nothing if a bad model passes it: NonZero has no fixed shape, a 2-D erf no kernel."""
    nodes = [kinds.node("Erf", ["x"], ["e"], name="bell"), kinds.node("Relu", ["e"], ["y"], name="after")]
    model = kinds.build(nodes, [kinds.value("x", [1, 8])], [kinds.value("y", [1, 8])], {})
    artifact = onnx_artifact(model, tmp_path / "in")
    errors = [
        f for f in EXPORTER.lint(artifact, tmp_path / "in", load_profile("snapdragon-8-gen3")) if f.severity == "error"
    ]
    assert errors[0].node == "bell"
    assert "not supported by QNN EP" in errors[0].text


def test_a_float_norm_before_a_16_bit_product_is_wrong_in_the_compiler_and_the_suite_would_see_it(
    tmp_path, monkeypatch
):
    """Why norms are quantized: Qualcomm's compiler, version 2.51, gives noise for this graph."""
    monkeypatch.setattr("edgekit.graphs.int8_whole._Completion._norm", lambda self, node: None)
    model, feeds = ARCHITECTURES["vision_transformer"]()
    profile = load_profile("snapdragon-8-gen3")
    graph, bundle, _ = built(model, feeds, "w8a16", profile, tmp_path)
    assert min(ratios(graph, bundle, feeds[:2], profile).values()) < 20
