"""A model run, measured and checked on this machine and over ssh, by the same target."""

from __future__ import annotations

import json
import os
import weakref
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onnx_models
from edgekit.budget import Budget, judge
from edgekit.errors import InputError, TargetError, UnsupportedError, UsageError
from edgekit.jobs import encode_feeds
from edgekit.manifest import Tolerance
from edgekit.profile import load_profile
from edgekit.target import Bundle, is_simulator
from edgekit.targets import chunks as parts
from edgekit.targets import composite, open_target
from edgekit.transports.local import LocalTransport
from house import profile

FACTS = {"runtime": "onnxruntime", "model": "model.onnx", "providers": ["CPUExecutionProvider"]}
EXACT = Tolerance(absolute=0, relative=0)
HOST = profile(cpu=load_profile("host").cpu)


SSH = pytest.param("ssh", marks=pytest.mark.system("openssh-server"))


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEKIT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module", params=["local", SSH])
def target(request, home):
    """One open target for all tests of this file that leave it whole: on this machine, and over ssh."""
    with pytest.MonkeyPatch.context() as patch:
        url = request.param
        if url == "ssh":
            url, environment = request.getfixturevalue("sshd")
            for name, value in environment.items():
                patch.setenv(name, value)
        with open_target(url, HOST) as opened:
            yield opened


@pytest.fixture(scope="module")
def local(home):
    """This machine, for what does not depend on the transport."""
    with open_target("local", HOST) as opened:
        yield opened


@pytest.fixture
def bundle(tmp_path):
    """A model with external data, in a folder with an odd name."""
    folder = tmp_path / "it's a bundle"
    folder.mkdir()
    onnx_models.linear(folder / "model.onnx", features=64, classes=10)
    model = onnx.load(folder / "model.onnx")
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    return Bundle(folder=folder, facts=FACTS)


def feeds(count, seed=0):
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(1 + i % 2, 64)).astype(np.float32)} for i in range(count)]


def here(bundle, given):
    path = str(bundle.folder / bundle.facts["model"])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [session.run(None, feed)[0] for feed in given]


# --- run ---


def test_outputs_come_in_order_and_are_those_of_this_machine(target, bundle, monkeypatch):
    monkeypatch.setattr(parts, "CHUNK_FEEDS", 3)
    given = feeds(8)
    found = list(target.run(bundle, iter(given)))
    assert len(found) == 8
    for one, other in zip(found, here(bundle, given), strict=True):
        assert set(one) == {"y"}
        np.testing.assert_array_equal(one["y"], other)
    assert target.findings == []  # a machine of the kind, with all that was asked


def test_no_feeds_give_no_outputs(local, bundle):
    assert list(local.run(bundle, [])) == []


def test_no_more_than_a_chunk_is_held(local, bundle, monkeypatch):
    monkeypatch.setattr(parts, "CHUNK", 4 * feeds(1)[0]["x"].nbytes)
    made, alive = [], []

    def stream():
        for _ in range(20):
            array = np.zeros((1, 64), np.float32)
            made.append(weakref.ref(array))
            alive.append(sum(ref() is not None for ref in made))
            yield {"x": array}
            del array

    assert sum(1 for _ in local.run(bundle, stream())) == 20
    assert len(alive) == 20
    assert max(alive) <= 5  # a chunk, and the one that did not fit into it


def test_chunks_are_bounded_in_bytes_and_feeds(monkeypatch):
    monkeypatch.setattr(parts, "CHUNK", 100)
    monkeypatch.setattr(parts, "CHUNK_FEEDS", 3)
    sizes = [40, 40, 40, 500, 1, 1, 1, 1]
    chunks = list(parts.chunks({"x": np.zeros(size, np.uint8)} for size in sizes))
    assert [[feed["x"].size for feed in chunk] for chunk in chunks] == [[40, 40], [40], [500], [1, 1, 1], [1]]


def test_strings_and_other_dtypes_pass(local, tmp_path):
    nodes = [helper.make_node("Identity", ["s"], ["t"]), helper.make_node("Identity", ["i"], ["j"])]
    inputs = [onnx_models.tensor("s", [2], TensorProto.STRING), onnx_models.tensor("i", [], TensorProto.INT64)]
    outputs = [onnx_models.tensor("t", [2], TensorProto.STRING), onnx_models.tensor("j", [], TensorProto.INT64)]
    onnx_models.save(tmp_path / "model.onnx", nodes, inputs, outputs)
    (tmp_path / "b").mkdir()
    (tmp_path / "model.onnx").rename(tmp_path / "b" / "model.onnx")
    feed = {"s": np.array(["größe", ""], dtype=object), "i": np.array(7)}
    (found,) = local.run(Bundle(folder=tmp_path / "b", facts=FACTS), [feed])
    assert found["t"].tolist() == ["größe", ""]
    assert found["j"] == 7


@pytest.mark.parametrize("value", [np.array([{}], dtype=object), np.zeros(2, "V2"), np.zeros(1, "M8[s]")])
def test_what_is_no_tensor_is_refused(local, bundle, value):
    with pytest.raises(InputError, match="cannot be sent to a device") as caught:
        list(local.run(bundle, [{"x": value}]))
    assert caught.value.where == "input 'x'"


def test_wrong_feeds_are_input_errors(target, bundle):
    with pytest.raises(InputError, match="input 'x' is missing"):
        list(target.run(bundle, [{"z": np.zeros((1, 64), np.float32)}]))
    with pytest.raises(InputError, match="float64"):
        list(target.run(bundle, [{"x": np.zeros((1, 64))}]))


def test_a_model_that_does_not_load_is_not_supported(local, tmp_path):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(UnsupportedError) as caught:
        list(local.run(Bundle(folder=tmp_path / "bundle", facts=FACTS), feeds(1)))
    assert caught.value.exit_status == 7
    assert "model.onnx on local" in caught.value.where


def test_models_are_sent_once_and_data_does_not_stay(target, bundle):
    list(target.run(bundle, feeds(2)))
    work = Path(target._transport.push(bundle.folder / "model.onnx", "here")).parent
    models = max(work.glob("bundle-*/model.onnx"), key=lambda path: path.stat().st_mtime)
    before = models.stat()
    list(target.run(bundle, feeds(2, seed=1)))
    assert (models.stat().st_ino, models.stat().st_mtime) == (before.st_ino, before.st_mtime)
    assert list(work.glob("job-*"))
    target.close()
    assert list(work.glob("job-*")) == []
    assert len(list(target.run(bundle, feeds(1)))) == 1  # and can be opened again


# --- measure ---


def test_measure(target, bundle):
    figures = target.measure(bundle, feeds(1)[0], runs=100, threads=1)
    names = [figure.name for figure in figures]
    assert names == ["latency-p50", "latency-p90", "latency-p95", "latency-p99", "memory"]
    p50, p90, p95, p99, memory = figures
    assert 0 < p50.value <= p90.value <= p95.value <= p99.value
    assert p50.low <= p50.value <= p50.high
    assert p50.n >= 100
    assert memory.value > 1e6
    for figure in figures:
        assert figure.provenance == "measured"
        assert figure.on.startswith("local (" if target.url == "local" else "ssh 127.0.0.1 (")
        assert f"onnxruntime {onnxruntime.__version__} CPU)" in figure.on
    assert len(target.details["series_ms"]) >= p50.n
    assert target.details["engine"]["threads"] == 1


def test_under_load_the_last_window_counts_and_that_is_told(bundle):
    with open_target("local", HOST) as target:
        figures = target.measure(bundle, feeds(1)[0], runs=100, threads=1, sustained=1.5)
        told = target.details["sustained"]
    assert len(told["windows"]) == 3
    assert figures[0].n == told["last"]["n"]
    assert figures[0].value == told["last"]["p50"]["value"]
    (finding,) = [one for one in target.findings if one.rule in {"target-sustained", "target-throttles"}]
    assert "under load for 2 s" in finding.text


def summary(n=320):
    point = {"value": 10.0, "low": 9.5, "high": 10.5}
    told = {"n": n, "drift": 0.0, "unstable": False, "coarse": False, "tick": 0.0}
    return {**told, **dict.fromkeys(("p50", "p90", "p95", "p99"), point)}


def measured(target, bundle):
    """Measure for real, then put in the latency summary of a calm machine: this one may be busy."""
    start, place = target._place.start, target._place
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "start", lambda *args, **kwargs: {**start(*args, **kwargs), "latency": summary()})
        return target.measure(bundle, feeds(1)[0], runs=100, threads=1)


def test_a_calm_measurement_decides(local, bundle):
    assert [figure.note for figure in measured(local, bundle)] == [""] * 5


def test_a_fallback_on_a_device_of_the_kind_misses_every_latency_budget_and_is_told(bundle):
    asking = Bundle(
        folder=bundle.folder, facts={**FACTS, "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
    )
    with open_target("local", HOST) as target:
        figures = measured(target, asking)
    for figure in figures:
        assert "ran instead of CUDAExecutionProvider: CUDAExecutionProvider is not in this onnxruntime" in figure.note
    check = judge(Budget(latency_ms={"p95": 1e6}), figures).checks[0]
    assert (check.name, check.status) == ("latency-p95", "fail")
    assert "ran instead of CUDAExecutionProvider" in check.reason
    assert judge(Budget(max_memory=10**12), figures).checks[0].status == "unproven", "accuracy and size do not suffer"
    (finding,) = target.findings
    assert finding.rule == "target-fallback"
    assert "asked was CUDAExecutionProvider CPUExecutionProvider" in finding.text


def test_a_device_of_another_kind_is_told_and_measured_all_the_same(bundle):
    asking = Bundle(folder=bundle.folder, facts={**FACTS, "runtime": "tensorrt"})
    with open_target("local", load_profile("jetson")) as target:
        figures = measured(target, asking)
        assert [figure.note for figure in figures] == [""] * 5
        assert [finding.rule for finding in target.findings] == ["target-other-device", "target-fallback"]


def test_too_little_time_gives_figures_without_a_value(local, bundle, monkeypatch):
    monkeypatch.setattr(composite, "MEASURE_SECONDS", 0.4)
    *latency, memory = local.measure(bundle, feeds(1)[0], runs=10**6, threads=1)
    assert all(figure.value is None and "1000000 are needed" in figure.note for figure in latency)
    assert memory.value is not None


# --- golden ---


def test_golden(target, bundle, tmp_path):
    given = feeds(4)
    outputs = [{"y": values} for values in here(bundle, given)]
    (tmp_path / "in.npz").write_bytes(encode_feeds(given))
    (tmp_path / "out.npz").write_bytes(encode_feeds(outputs))
    same = target.golden(bundle, tmp_path / "in.npz", tmp_path / "out.npz", tolerance=EXACT)
    assert (same.matches, same.count, same.outputs["y"]["error"]) == (True, 4, 0)
    outputs[2]["y"] = outputs[2]["y"] + np.float32(0.5)
    (tmp_path / "out.npz").write_bytes(encode_feeds(outputs))
    other = target.golden(
        bundle, tmp_path / "in.npz", tmp_path / "out.npz", tolerance=Tolerance(absolute=0.1, relative=0)
    )
    assert not other.matches
    assert other.outputs["y"]["error"] == pytest.approx(0.5, rel=1e-5)


def test_plain_golden_files(local, bundle, tmp_path):
    (feed,) = feeds(1)
    np.savez(tmp_path / "in.npz", **feed)
    np.savez(tmp_path / "out.npz", y=here(bundle, [feed])[0])
    paths = tmp_path / "in.npz", tmp_path / "out.npz"
    assert local.golden(bundle, *paths, tolerance=EXACT, layout="plain").matches


# --- the machine ---


def test_fingerprint(target):
    found = target.fingerprint()
    assert found["onnxruntime"] == onnxruntime.__version__
    assert found["machine"] == os.uname().machine
    assert found == target.fingerprint()


def test_closing_is_safe_at_any_time(bundle):
    target = open_target("local", HOST)
    target.close()
    target.fingerprint()
    target.close()
    target.close()
    assert len(list(target.run(bundle, feeds(1)))) == 1
    target.close()


@pytest.mark.parametrize("url", ["htp-simulator", "cloud://x", "", "locl"])
def test_targets_that_are_not_there_are_refused_with_a_suggestion(url):
    with pytest.raises(UsageError, match="unknown target") as caught:
        open_target(url, HOST)
    assert "local" in caught.value.remedy or "Known" in caught.value.remedy


class Disturbed(LocalTransport):
    """The local transport with something wrong on the far side."""

    def __init__(self, **changes):
        super().__init__()
        self.changes = changes

    def run(self, argv, *, timeout):
        done = super().run(argv, timeout=timeout)
        for name, change in self.changes.items():
            if name in argv:
                change(self._place("."))
        return done


def disturbed(**changes):
    return composite.CompositeTarget(Disturbed(**changes), HOST)


def overwrite(content):
    def change(work):
        for path in work.glob("job-*/out/feeds.npz"):
            path.write_bytes(content)

    return change


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", encode_feeds([{"y": np.zeros(1)}]), encode_feeds([{"y": np.zeros(1)}] * 3)],
)
def test_outputs_that_are_none_are_told(bundle, content):
    with disturbed(infer=overwrite(content)) as target, pytest.raises(TargetError, match=r"come back|came back"):
        list(target.run(bundle, feeds(2)))


def test_a_lost_result_is_told(bundle):
    def lose(work):
        for path in work.glob("job-*/result-*"):
            path.unlink()

    with disturbed(infer=lose) as target, pytest.raises(TargetError, match="cannot fetch 'job-"):
        list(target.run(bundle, feeds(2)))


def test_a_killed_runner_is_told(bundle, tmp_path, monkeypatch):
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "onnxruntime.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with open_target("local", HOST) as target:
        target.fingerprint()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
        with pytest.raises(TargetError, match="killed, as happens when memory runs out"):
            list(target.run(bundle, feeds(1)))


def test_a_missing_runtime_is_told_with_the_command(bundle, tmp_path, monkeypatch):
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "onnxruntime.py").write_text("raise ImportError(\"No module named 'onnxruntime'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    with open_target("local", HOST) as target, pytest.raises(TargetError, match="No module named") as caught:
        list(target.run(bundle, feeds(1)))
    assert "-m pip install onnxruntime" in caught.value.remedy


def test_jobs_are_what_the_runner_documents(local, bundle, monkeypatch):
    jobs = []
    push = local._transport.push

    def keep(source, name):
        if "/job-" in name:
            jobs.append(json.loads(source.read_text()))
        return push(source, name)

    monkeypatch.setattr(local._transport, "push", keep)
    monkeypatch.setattr(local._place, "_jobs", 0)
    facts = {**FACTS, "shapes": {"x": [[1, 64], [1, 64], [2, 64]]}}
    list(local.run(Bundle(folder=bundle.folder, facts=facts), feeds(1)))
    (job,) = jobs
    assert job["model"].startswith("../bundle-")
    assert job == {
        "schema": 1,
        "id": "000001",
        "model": job["model"],
        "runtime": "onnxruntime",
        "providers": ["CPUExecutionProvider"],
        "threads": 0,
        "result": "result-000001.json",
        "shapes": facts["shapes"],
        "inputs": ["feeds.npz"],
        "outputs": "out",
    }


def test_asking_what_a_target_is_does_not_connect():
    """A property that connects would lock the device, and nobody would let it go."""

    class Untouchable:
        url, title, far = "ssh://orin", "ssh orin", True

        def open(self):
            raise AssertionError("it connected")

    target = composite.CompositeTarget(Untouchable(), HOST)
    assert not is_simulator(target)
    assert not is_simulator(None)
