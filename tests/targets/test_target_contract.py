"""What every target must do, whatever lies behind it: this machine, Qualcomm's simulator, the stand-in for AI Hub."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

import kinds
from aihub_service import NAME, needs_client
from contract import onnx_artifact
from edgekit.errors import EdgekitError
from edgekit.exporter import load_exporter
from edgekit.jobs import encode_feeds
from edgekit.profile import load_profile
from edgekit.target import Bundle
from edgekit.targets import open_target

needs_simulator = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the extra qnn (onnxruntime-qnn, x86-64 Linux)"
)
TARGETS = {
    "local": ("host", "local", 1e-4),
    "htp-sim": ("snapdragon-8-gen3", "htp-sim", 2e-2),
    "aihub": ("snapdragon-8-gen3", f"aihub://{NAME}", 1e-4),
}
MARKS = {"htp-sim": [needs_simulator], "aihub": [needs_client, pytest.mark.slow]}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, [])) for name in TARGETS])
def given(request, tmp_path):
    """A target, a bundle for it, samples, what is expected, and how near it must come."""
    if request.param == "aihub":
        request.getfixturevalue("aihub_service")
    name, url, near = TARGETS[request.param]
    profile = load_profile(name)
    model, feeds = kinds.residual_cnn()
    artifact = onnx_artifact(model, tmp_path / "in")
    (tmp_path / "out").mkdir()
    facts = load_exporter(profile.runtime).compile(artifact, tmp_path / "in", profile, tmp_path / "out")
    bundle = Bundle(folder=tmp_path / "out", facts=facts)
    names = [value.name for value in model.graph.output]
    expected = [dict(zip(names, kinds.run(model, feed), strict=True)) for feed in feeds[:3]]
    with open_target(url, profile) as target:
        yield target, bundle, feeds[:3], expected, near


class Near:
    def __init__(self, absolute):
        self.absolute, self.relative = absolute, 0.0


def test_it_says_what_it_is(given):
    target, *_ = given
    target.reach()
    told = target.fingerprint()
    assert told
    assert all(isinstance(key, str) and isinstance(value, str) and value for key, value in told.items())
    assert json.dumps(told)
    assert target.provenance in ("measured", "simulated")


def test_outputs_come_in_order_under_the_graphs_names(given):
    target, bundle, feeds, expected, near = given
    for feed, wanted in zip(target.run(bundle, iter(feeds)), expected, strict=True):
        assert list(feed) == list(wanted)
        for name, array in wanted.items():
            assert (feed[name].dtype, feed[name].shape) == (array.dtype, array.shape)
            assert np.abs(feed[name] - array).max() <= near * max(1, np.abs(array).max())
    assert list(target.run(bundle, [])) == []


def test_latency_is_measured_or_its_absence_is_explained(given):
    target, bundle, feeds, *_ = given
    found = {figure.name: figure for figure in target.measure(bundle, feeds[0], runs=100, threads=1)}
    assert {f"latency-{name}" for name in ("p50", "p90", "p95", "p99")} <= set(found)
    for figure in found.values():
        assert figure.provenance == target.provenance
        assert figure.on
        assert (figure.value is not None and figure.value > 0) or figure.note, "no value, and no reason"
    values = [found[f"latency-{name}"].value for name in ("p50", "p90", "p95", "p99")]
    assert values == sorted(values) if values[0] is not None else values == [None] * 4


def test_golden_outputs_match_and_others_do_not(given, tmp_path):
    target, bundle, feeds, expected, near = given
    inputs, outputs = tmp_path / "inputs.npz", tmp_path / "outputs.npz"
    inputs.write_bytes(encode_feeds(feeds))
    tolerance = Near(near * max(float(np.abs(array).max()) for row in expected for array in row.values()) + near)
    outputs.write_bytes(encode_feeds(expected))
    found = target.golden(bundle, inputs, outputs, tolerance=tolerance)
    assert (found.matches, found.count) == (True, 3)
    outputs.write_bytes(encode_feeds([{name: array + 1 for name, array in row.items()} for row in expected]))
    assert not target.golden(bundle, inputs, outputs, tolerance=tolerance).matches


def test_a_feed_that_does_not_fit_is_an_error_of_ours(given):
    target, bundle, *_ = given
    with pytest.raises(EdgekitError) as caught:
        list(target.run(bundle, [{"x": np.zeros((1, 3, 5, 5), np.float32)}]))
    assert caught.value.text
    assert caught.value.remedy


def test_closing_twice_is_safe(given):
    target, bundle, feeds, *_ = given
    target.close()
    target.close()
    assert len(list(target.run(bundle, feeds[:1]))) == 1, "it connects again when it is used again"
