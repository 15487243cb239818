"""Qualcomm AI Hub as a target: Qualcomm's real client against a stand-in for the service; no device is behind it."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import onnx
import pytest

import kinds
from aihub_service import NAME, needs_client, write_token
from contract import onnx_artifact
from edgekit.errors import InputError, LinkError, TargetError, UnsupportedError, UsageError
from edgekit.exporter import load_exporter
from edgekit.jobs import encode_feeds
from edgekit.profile import load_profile
from edgekit.target import Bundle, is_simulator
from edgekit.targets import aihub, aihub_told, open_target
from edgekit.targets.aihub_job import check_feed, compared

PHONE = load_profile("snapdragon-8-gen3")
URL = f"aihub://{NAME}"


@pytest.fixture
def service(aihub_service):
    return aihub_service


def bundle_of(model, folder):
    artifact = onnx_artifact(model, folder / "bundle")
    return Bundle(folder=folder / "bundle", facts={"model": "model.onnx", **artifact.facts})


def scaled(dtype=onnx.TensorProto.FLOAT):
    """Y = x + x, of 1x3."""
    return kinds.build(
        [kinds.node("Add", ["x", "x"], ["y"])], [kinds.value("x", [1, 3], dtype)], [kinds.value("y", [1, 3], dtype)], {}
    )


def feeds(count):
    return [{"x": np.full((1, 3), i, np.float32)} for i in range(count)]


@needs_client
def test_a_model_is_compiled_and_run_there(service, tmp_path):
    service.tell(pending=2)
    target = open_target(URL, PHONE)
    target.reach()
    assert not is_simulator(target)
    model, samples = kinds.residual_cnn()
    outputs = list(target.run(bundle_of(model, tmp_path), samples[:3]))
    for feed, found in zip(samples[:3], outputs, strict=True):
        for expected, array in zip(kinds.run(model, feed), found.values(), strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)
    print_of = target.fingerprint()
    assert print_of["device"] == NAME
    assert print_of["chip"] == "hexagon:v75"
    assert [finding.rule for finding in target.findings] == ["aihub-compiled"]
    assert service.asked("POST /api/v1/jobs/") == 2


@needs_client
def test_latency_and_memory_are_of_its_runs_and_name_service_and_job(service, tmp_path):
    service.tell(times=list(range(1000, 1300)))
    target = open_target(URL, PHONE)
    found = {one.name: one for one in target.measure(bundle_of(scaled(), tmp_path), feeds(1)[0], runs=300, threads=1)}
    assert found["latency-p50"].value == pytest.approx(1.149)
    assert found["latency-p50"].low < 1.149 < found["latency-p50"].high
    assert {one.provenance for one in found.values()} == {"measured"}
    assert found["latency-p95"].on.startswith(f"{NAME} via AI Hub at 127.0.0.1:")  # no figure of Qualcomm's own
    assert "job j0002" in found["latency-p95"].on
    assert found["latency-p99"].n == 300
    assert "unstable" in found["latency-p50"].note  # the series climbs by a fifth from third to third
    assert (found["memory"].value, found["memory"].high) == (5e6, 6e6)


@pytest.mark.slow
@needs_client
def test_a_short_series_proves_no_p99_and_layers_off_the_htp_disqualify(service, tmp_path):
    service.tell(layers={"NPU": 10, "CPU": 2})
    target = open_target(URL, PHONE)
    found = {one.name: one for one in target.measure(bundle_of(scaled(), tmp_path), feeds(1)[0], runs=100, threads=1)}
    assert "p99 takes 300 runs, not 100" in found["latency-p99"].note
    assert found["latency-p50"].disqualified == "of 12 layers ran 2 on the CPU"
    assert "target-fallback" in {finding.rule for finding in target.findings}


@pytest.mark.slow
@needs_client
def test_integers_of_64_bits_go_as_32_and_come_back_as_64(service, tmp_path):
    target = open_target(URL, PHONE)
    bundle = bundle_of(scaled(onnx.TensorProto.INT64), tmp_path)
    outputs = list(target.run(bundle, [{"x": np.array([[1, 2, -3]])}]))
    assert outputs[0]["y"].dtype == np.int64
    assert outputs[0]["y"].tolist() == [[2, 4, -6]]
    with pytest.raises(InputError, match="do not fit into int32"):
        list(target.run(bundle, [{"x": np.array([[1, 2, 1 << 40]])}]))


@needs_client
def test_a_deadline_keeps_the_job_and_the_next_run_takes_it_up(service, tmp_path, monkeypatch):
    service.tell(pending={"inference": 10**6})
    monkeypatch.setenv("EDGEKIT_AIHUB_SECONDS", "4")
    bundle = bundle_of(scaled(), tmp_path)
    with pytest.raises(TargetError, match="the deadline has passed: inference job j0002 is not done") as caught:
        list(open_target(URL, PHONE).run(bundle, feeds(2)))
    assert caught.value.exit_status == 5
    assert "inference job j0002" in caught.value.remedy
    service.tell(pending=0)
    target = open_target(URL, PHONE)
    assert [out["y"][0, 0] for out in target.run(bundle, feeds(2))] == [0, 2]
    assert service.asked("POST /api/v1/jobs/") == 2  # nothing was submitted twice
    assert any("j0002" in finding.text for finding in target.findings if finding.rule == "aihub-resumed")
    list(open_target(URL, PHONE).run(bundle, feeds(2)))
    assert service.asked("POST /api/v1/jobs/") == 3  # fetched is done: inference runs anew, the compiled model stays


@pytest.mark.slow
@needs_client
def test_a_child_that_is_killed_loses_no_job(service, tmp_path, monkeypatch):
    service.tell(pending={"compile": 10**6})
    monkeypatch.setattr(aihub, "GRACE", -3596.0)  # ended by force after 4 s, before its own deadline
    with pytest.raises(TargetError, match="no answer") as caught:
        list(open_target(URL, PHONE).run(bundle_of(scaled(), tmp_path), feeds(1)))
    assert "compile job j0001" in caught.value.remedy


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize("kind", ["compile", "inference"])
def test_a_failed_job_tells_the_services_reason_and_is_not_taken_up_again(service, tmp_path, kind):
    service.tell(fail=kind)
    bundle = bundle_of(scaled(), tmp_path)
    with pytest.raises(UnsupportedError, match=f"{kind} job j000[12] failed: the stand-in was told to fail"):
        list(open_target(URL, PHONE).run(bundle, feeds(1)))
    service.tell(fail="")
    assert len(list(open_target(URL, PHONE).run(bundle, feeds(1)))) == 1


@pytest.mark.slow
@needs_client
def test_a_job_that_the_account_has_no_more_is_submitted_anew(service, tmp_path):
    bundle = bundle_of(scaled(), tmp_path)
    list(open_target(URL, PHONE).run(bundle, feeds(1)))
    (kept,) = (tmp_path / "home" / "aihub").glob("*.json")
    kept.write_text(json.dumps({"job": "jgone", "what": "compile", "device": NAME}))
    assert len(list(open_target(URL, PHONE).run(bundle, feeds(1)))) == 1


@pytest.mark.slow
@needs_client
def test_a_cut_connection_is_tried_again(service, tmp_path):
    service.tell(cut=2)
    assert len(list(open_target(URL, PHONE).run(bundle_of(scaled(), tmp_path), feeds(1)))) == 1
    assert json.loads((service.folder / "control.json").read_text())["cut"] == 0


@needs_client
def test_an_expired_token_says_how_to_get_another(service, tmp_path):
    service.tell(token="other")
    with pytest.raises(TargetError, match="does not take the token") as caught:
        open_target(URL, PHONE).reach()
    assert caught.value.exit_status == 5
    assert "qai-hub configure --api_token" in caught.value.remedy
    assert "good" not in str(caught.value)  # the token itself is told nowhere


@pytest.mark.slow
@needs_client
def test_no_token_at_all(service, tmp_path):
    (tmp_path / "client.ini").unlink()
    with pytest.raises(TargetError, match="has no token") as caught:
        open_target(URL, PHONE).reach()
    assert "qai-hub configure" in caught.value.remedy


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize(
    ("status", "match"),
    [(403, "does not take the token: .*told to refuse"), (426, "takes this client no more: .*told to refuse")],
)
def test_what_the_service_answers_reaches_the_user(service, status, match):
    service.tell(refuse=status)
    with pytest.raises(TargetError, match=match):
        open_target(URL, PHONE).reach()


@needs_client
def test_a_wrong_device_name_lists_close_ones(service):
    with pytest.raises(TargetError, match="no device 'Stand-in Fone'") as caught:
        open_target("aihub://Stand-in Fone", PHONE).reach()
    assert f"'{NAME}'" in caught.value.remedy


@needs_client
def test_a_service_that_is_not_there(service, tmp_path, monkeypatch):
    monkeypatch.setattr(aihub, "TOKEN_SECONDS", 3.0)
    write_token(tmp_path, "http://127.0.0.1:9", "good")
    with pytest.raises(LinkError, match="gave no answer in 3 s") as caught:
        open_target(URL, PHONE).reach()
    assert caught.value.exit_status == 5


@pytest.mark.slow
@needs_client
def test_another_chip_than_the_profiles_is_told(service):
    target = open_target(URL, load_profile("snapdragon-8-gen2"))
    target.reach()
    assert [finding.rule for finding in target.findings] == ["target-other-device"]
    other = open_target("aihub://Stand-in Board", PHONE)
    other.reach()
    assert [finding.rule for finding in other.findings] == ["target-unknown-device"]


@pytest.mark.slow
@needs_client
def test_golden_outputs_are_compared(service, tmp_path):
    bundle, (inputs, outputs) = bundle_of(scaled(), tmp_path), (tmp_path / "in.npz", tmp_path / "out.npz")
    inputs.write_bytes(encode_feeds(feeds(2)))
    outputs.write_bytes(encode_feeds([{"y": feed["x"] * 2} for feed in feeds(2)]))
    target = open_target(URL, PHONE)
    assert target.golden(bundle, inputs, outputs, tolerance=Near()).matches
    service.tell(wrong=0.5)
    found = target.golden(bundle, inputs, outputs, tolerance=Near())
    assert not found.matches
    assert found.outputs["y"]["error"] == pytest.approx(0.5)
    service.tell(wrong=0, rename=True)
    assert target.golden(bundle, inputs, outputs, tolerance=Near()).outputs["y"]["text"] == "it is missing"


@pytest.mark.slow
@needs_client
def test_weights_beside_the_graph_go_along(service, tmp_path):
    model, samples = kinds.residual_cnn()
    bundle, expected = bundle_of(model, tmp_path), kinds.run(model, samples[0])[0]
    onnx.save(
        model, bundle.folder / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0
    )
    found = next(open_target(URL, PHONE).run(bundle, samples[:1]))
    np.testing.assert_allclose(next(iter(found.values())), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@needs_client
def test_what_the_exporter_gives_runs_there(service, tmp_path):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path / "in")
    (tmp_path / "out").mkdir()
    facts = load_exporter("qnn").compile(artifact, tmp_path / "in", PHONE, tmp_path / "out")
    feed = kinds.residual_cnn()[1][0]
    assert len(list(open_target(URL, PHONE).run(Bundle(folder=tmp_path / "out", facts=facts), [feed]))) == 1


def test_urls():
    assert open_target("aihub://Samsung%20Galaxy%20S24", PHONE).url == "aihub://Samsung Galaxy S24"
    for url in ("aihub://", "aihub:///"):
        with pytest.raises(UsageError, match="names no device"):
            open_target(url, PHONE)


def test_without_the_client_its_absence_is_told(monkeypatch):
    monkeypatch.delenv(aihub_told.PYTHON, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TargetError, match="client is not installed") as caught:
        open_target(URL, PHONE).reach()
    assert "edgekit-toolkit[aihub]" in caught.value.remedy
    monkeypatch.setenv(aihub_told.PYTHON, "/nowhere/python")
    with pytest.raises(TargetError, match="names no program"):
        open_target(URL, PHONE).reach()


def test_a_python_without_the_client_dies_aloud(monkeypatch, tmp_path):
    monkeypatch.setenv(aihub_told.PYTHON, shutil.which("false") or "")
    monkeypatch.setattr(aihub, "TOKEN_SECONDS", 5.0)
    with pytest.raises(TargetError, match="client died: status 1"):
        open_target(URL, PHONE).reach()


@pytest.mark.parametrize(
    ("feed", "match"),
    [
        ({"x": np.zeros((1, 4), np.float32)}, r"float32 \[1, 4\]; the model takes float32 \[1, 3\]"),
        ({"x": np.zeros((3,), np.float32)}, "the model takes"),
        ({"x": np.zeros((1, 3), np.float64)}, "is float64"),
        ({"z": np.zeros((1, 3), np.float32)}, "takes x, not z"),
        ({"x": np.zeros((1, 3), np.float32), "z": np.zeros(1)}, "takes x, not x, z"),
    ],
)
def test_a_feed_that_does_not_fit_is_not_sent(tmp_path, feed, match):
    with pytest.raises(InputError, match=match):
        check_feed(feed, bundle_of(scaled(), tmp_path))


@pytest.mark.parametrize("told", ["soon", "0", "-1", "1.5"])
def test_a_deadline_that_is_none(monkeypatch, told):
    monkeypatch.setenv("EDGEKIT_AIHUB_SECONDS", told)
    with pytest.raises(UsageError, match="no seconds"):
        aihub._seconds()


def test_one_figure_of_its_own_decides_nothing():
    profile = {"execution_summary": {"estimated_inference_time": 700, "estimated_inference_peak_memory": None}}
    found = {one.name: one for one in aihub_told.profile_figures(profile, "x", [], "")}
    assert found["latency-p50"].value == 0.7
    assert "no series" in found["latency-p50"].note
    assert found["latency-p95"].value is None
    assert found["memory"].value is None


class Near:
    absolute, relative = 1e-3, 0.0


@pytest.mark.parametrize(
    ("found", "wanted", "matches"),
    [
        (np.float32([1, np.nan]), np.float32([1, np.nan]), True),
        (np.float32([1, np.inf]), np.float32([1, np.inf]), True),
        (np.float32([1, 2]), np.float32([1, np.nan]), False),
        (np.float32([1, 2]), np.float32([1, np.inf]), False),
        (np.float32([1.0005]), np.float32([1]), True),
        (np.float32([[1]]), np.float32([1]), False),
        (np.int32([1]), np.float32([1]), False),
        (np.int64([3]), np.int64([3]), True),
        (np.int64([3]), np.int64([4]), False),
        (np.zeros((0,), np.float32), np.zeros((0,), np.float32), True),
        (None, np.float32([1]), False),
    ],
)
def test_comparison(found, wanted, matches):
    assert compared(found, wanted, Near())["matches"] is matches
