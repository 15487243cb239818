"""The runner as a program: jobs in, results out, whatever happens in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onnx_models
from edgekit.device import arrays


def save_feeds(path, feeds):
    np.savez(path, **{f"{i}:{name}": array for i, feed in enumerate(feeds) for name, array in feed.items()})


def expected(model, feeds):
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(None, feed), strict=True)) for feed in feeds]


@pytest.fixture
def linear(tmp_path):
    return onnx_models.linear(tmp_path / "model.onnx")


@pytest.fixture
def feeds():
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1 + i % 3, 8)).astype(np.float32)} for i in range(5)]


# --- infer ---


def test_infer_gives_the_outputs_in_order(tmp_path, runner, job, result, linear, feeds):
    save_feeds(tmp_path / "in.npz", feeds[:3])
    save_feeds(tmp_path / "more.npz", feeds[3:])
    assert runner("infer", job(inputs=["in.npz", "more.npz"])) == (0, "")
    assert result()["count"] == 5
    assert result()["id"] == "t"
    assert result()["fallback"] is None
    assert result()["engine"]["providers"] == ["CPUExecutionProvider"]
    found = [feed for name in result()["outputs"] for feed in arrays.read_feeds(str(tmp_path / name))]
    for one, other in zip(found, expected(linear, feeds), strict=True):
        np.testing.assert_array_equal(one["y"], other["y"])


def test_no_feeds_give_no_outputs(tmp_path, runner, job, result, linear):
    save_feeds(tmp_path / "in.npz", [])
    assert runner("infer", job())[0] == 0
    assert result()["count"] == 0
    assert list(arrays.read_feeds(str(tmp_path / "out" / "in.npz"))) == []


@pytest.mark.parametrize("name", ["a/b:0", "x.npy", "file", "0:z", "größe", " x ", "../../x", "-x"])
def test_tensors_may_have_any_name(tmp_path, runner, job, result, feeds, name):
    model = onnx_models.linear(tmp_path / "model.onnx", x=name, y=name + "!")
    named = [{name: feed["x"]} for feed in feeds]
    save_feeds(tmp_path / "in.npz", named)
    assert runner("infer", job()) == (0, "")
    found = list(arrays.read_feeds(str(tmp_path / "out" / "in.npz")))
    for one, other in zip(found, expected(model, named), strict=True):
        np.testing.assert_array_equal(one[name + "!"], other[name + "!"])


def test_scalars_strings_and_integers_pass(tmp_path, runner, job, result):
    kinds = {"s": TensorProto.STRING, "i": TensorProto.INT64, "b": TensorProto.BOOL, "h": TensorProto.FLOAT16}
    nodes = [helper.make_node("Identity", [name], [name + "2"]) for name in kinds]
    shapes = {"s": [2], "i": [], "b": [1], "h": [0, 3]}
    inputs = [onnx_models.tensor(name, shapes[name], kind) for name, kind in kinds.items()]
    outputs = [onnx_models.tensor(name + "2", shapes[name], kind) for name, kind in kinds.items()]
    onnx_models.save(tmp_path / "model.onnx", nodes, inputs, outputs)
    feed = {
        "s": np.array(["größe", ""]),
        "i": np.array(2**40),
        "b": np.array([True]),
        "h": np.zeros((0, 3), np.float16),
    }
    save_feeds(tmp_path / "in.npz", [feed])
    assert runner("infer", job()) == (0, "")
    (found,) = arrays.read_feeds(str(tmp_path / "out" / "in.npz"))
    for name, array in feed.items():
        assert found[name + "2"].dtype.kind == array.dtype.kind
        np.testing.assert_array_equal(found[name + "2"], array)


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        ({}, "input 'x' is missing"),
        ({"x": np.zeros((1, 8), np.float32), "z": np.zeros(1)}, "no input 'z'"),
        ({"x": np.zeros((1, 8))}, "input 'x' is float64, the model takes float32"),
        ({"x": np.zeros((1, 8), np.int32)}, "input 'x' is int32"),
        ({"x": np.zeros((1, 9), np.float32)}, "for input: x"),
        ({"x": np.zeros(8, np.float32)}, "x"),
        ({"x": np.array(["a"])}, "input 'x' is str"),
    ],
)
def test_wrong_feeds_are_told_by_name(tmp_path, runner, job, result, linear, feed, words):
    save_feeds(tmp_path / "in.npz", [{"x": np.zeros((1, 8), np.float32)}, feed or {"other": np.zeros(1)}])
    assert runner("infer", job())[0] == 1
    assert result()["error"]["kind"] == "input"
    assert words in result()["error"]["text"]
    assert not (tmp_path / "out" / "in.npz").exists()


def test_files_that_are_no_feeds_are_told(tmp_path, runner, job, result, linear):
    (tmp_path / "in.npz").write_bytes(b"PK\x03\x04 nothing")
    assert runner("infer", job())[0] == 1
    assert result()["error"]["kind"] == "input"
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 8), np.float32))
    assert runner("infer", job())[0] == 1
    assert "'x' is no key of a feed" in result()["error"]["text"]
    np.savez(tmp_path / "in.npz", **{"0:x": np.array([{"a": 1}], dtype=object)})
    assert runner("infer", job())[0] == 1
    assert "allow_pickle" in result()["error"]["text"]
    assert runner("infer", job(inputs=["no.npz"]))[0] == 1
    assert "no.npz" in result()["error"]["text"]


def test_a_model_that_does_not_load_is_told(tmp_path, runner, job, result, feeds):
    save_feeds(tmp_path / "in.npz", feeds)
    assert runner("infer", job())[0] == 1
    assert result()["error"] == {"kind": "input", "text": "no model at model.onnx", "remedy": ""}
    (tmp_path / "model.onnx").write_bytes(b"nonsense")
    assert runner("infer", job())[0] == 1
    assert result()["error"]["kind"] == "model"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 2}', '{"schema": 1}'])
def test_no_usable_job_gives_no_result(tmp_path, runner, text):
    path = tmp_path / "job.json"
    path.write_text(text)
    status, told = runner("infer", path)
    assert status == 2
    assert "job.json" in told
    assert list(tmp_path.iterdir()) == [path]


# --- what runs instead ---


@pytest.mark.parametrize("asked", [["CUDAExecutionProvider", "CPUExecutionProvider"], ["CUDAExecutionProvider"]])
def test_fallback_of_providers_is_told(tmp_path, runner, job, result, linear, feeds, asked):
    save_feeds(tmp_path / "in.npz", feeds)
    assert runner("infer", job(providers=asked))[0] == 0
    assert result()["fallback"] == {
        "asked": asked,
        "ran": ["CPUExecutionProvider"],
        "reason": "CUDAExecutionProvider is not in this onnxruntime",
    }


def test_fallback_of_tensorrt_is_told(tmp_path, runner, job, result, linear, feeds):
    save_feeds(tmp_path / "in.npz", feeds)
    assert runner("infer", job(runtime="tensorrt"))[0] == 0
    told = result()["fallback"]
    assert (told["asked"], told["ran"]) == (["tensorrt"], ["CPUExecutionProvider"])
    assert "tensorrt" in told["reason"]
    assert "CUDAExecutionProvider is not in this onnxruntime" in told["reason"]
    found = list(arrays.read_feeds(str(tmp_path / "out" / "in.npz")))
    np.testing.assert_array_equal(found[0]["y"], expected(linear, feeds)[0]["y"])


def test_missing_runtime_is_told_with_the_command(tmp_path, runner, job, result, linear, feeds):
    save_feeds(tmp_path / "in.npz", feeds)
    (tmp_path / "onnxruntime.py").write_text("raise ImportError(\"No module named 'onnxruntime'\")")
    status, _ = runner("infer", job(), env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert status == 1
    assert result()["error"]["kind"] == "missing"
    assert "-m pip install onnxruntime" in result()["error"]["remedy"]


# --- measure ---


def test_measure(tmp_path, runner, job, result, linear, feeds):
    save_feeds(tmp_path / "in.npz", feeds)
    assert runner("measure", job(runs=120, min_seconds=0.05, threads=2))[0] == 0
    told = result()
    assert told["latency"]["n"] >= 120
    assert told["latency"]["n"] + told["latency"]["warmup"] == len(told["series_ms"])
    assert 0 < told["latency"]["p50"]["value"] <= told["latency"]["p99"]["value"]
    assert sum(told["warmup_ms"]) >= 300
    assert told["load_ms"] > 0
    assert told["engine"]["threads"] == 2
    assert told["engine"]["spinning"] is False
    assert told["memory"]["host_only"] is False
    assert set(told["machine"]) == {"before", "after"}


def test_memory_grows_with_the_model(tmp_path, runner, job, result):
    size = 3000
    onnx_models.linear(tmp_path / "model.onnx", features=size, classes=size)
    save_feeds(tmp_path / "in.npz", [{"x": np.zeros((1, size), np.float32)}])
    assert runner("measure", job(runs=10, min_seconds=0))[0] == 0
    memory = result()["memory"]
    weights = size * size * 4
    assert weights <= memory["growth"] <= 6 * weights
    assert memory["peak"] == memory["baseline"] + memory["growth"]


def test_too_little_time_is_a_refused_latency(tmp_path, runner, job, result, linear, feeds):
    save_feeds(tmp_path / "in.npz", feeds)
    assert runner("measure", job(runs=10**6, max_seconds=0.5))[0] == 0
    assert "1000000 are needed" in result()["latency"]["refused"]
    assert result()["memory"]["peak"] > 0


def test_measure_takes_a_feed(tmp_path, runner, job, result, linear):
    save_feeds(tmp_path / "in.npz", [])
    assert runner("measure", job())[0] == 1
    assert "no feed" in result()["error"]["text"]


# --- golden ---


@pytest.fixture
def golden(tmp_path, job, linear, feeds):
    save_feeds(tmp_path / "in.npz", feeds)

    def write(change=lambda outputs: None, absolute=0.0, relative=0.0):
        outputs = expected(linear, feeds)
        change(outputs)
        save_feeds(tmp_path / "expected.npz", outputs)
        return job(expected=["expected.npz"], tolerance={"absolute": absolute, "relative": relative})

    return write


def test_golden_outputs_match(runner, result, golden):
    assert runner("golden", golden())[0] == 0
    assert result()["matches"] is True
    assert result()["count"] == 5
    assert result()["outputs"]["y"]["error"] == 0


@pytest.mark.parametrize(("absolute", "relative", "matches"), [(1e-4, 0, False), (2e-3, 0, True), (0, 1e-4, False)])
def test_golden_tolerance(runner, result, golden, absolute, relative, matches):
    def change(outputs):
        outputs[3]["y"][0, 0] += 1e-3

    assert runner("golden", golden(change, absolute, relative))[0] == 0
    assert result()["matches"] is matches
    assert result()["outputs"]["y"]["error"] == pytest.approx(1e-3, rel=1e-2)


def test_golden_of_other_shape_or_nan_never_matches(runner, result, golden):
    def reshape(outputs):
        outputs[1]["y"] = outputs[1]["y"][:, :2]

    def spoil(outputs):
        outputs[1]["y"][0, 0] = np.nan

    for change in (reshape, spoil):
        assert runner("golden", golden(change, 1e9, 1e9))[0] == 0
        assert result()["matches"] is False
        assert result()["outputs"]["y"]["error"] is None


def test_golden_needs_as_many_outputs_as_inputs(runner, result, golden):
    assert runner("golden", golden(lambda outputs: outputs.pop()))[0] == 1
    assert "not as many" in result()["error"]["text"]
    assert runner("golden", golden(lambda outputs: outputs[0].update(z=np.zeros(1))))[0] == 1
    assert "no output 'z'" in result()["error"]["text"]


def test_plain_layout_is_one_feed_a_file(tmp_path, runner, job, result, linear, feeds):
    np.savez(tmp_path / "in.npz", **feeds[0])
    np.savez(tmp_path / "expected.npz", **expected(linear, feeds)[0])
    path = job(layout="plain", expected=["expected.npz"], tolerance={"absolute": 0, "relative": 0})
    assert runner("golden", path)[0] == 0
    assert result()["matches"] is True


# --- killed ---


def test_killed_in_the_middle_leaves_no_half_result(tmp_path, runner, job):
    onnx_models.linear(tmp_path / "model.onnx", features=400, classes=400)
    x = np.random.default_rng(0).normal(size=(400, 400)).astype(np.float32)
    save_feeds(tmp_path / "in.npz", [{"x": x}] * 400)
    argv = [sys.executable, str(runner.path), "infer", str(job())]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    part = tmp_path / "out" / "in.npz.part"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (part.exists() and part.stat().st_size > 10 * x.nbytes):
        time.sleep(0.001)
    process.kill()
    assert process.wait() < 0
    assert part.exists()
    assert not (tmp_path / "out" / "in.npz").exists()
    assert not (tmp_path / "result.json").exists()
    assert runner("infer", job())[0] == 0
    assert not part.exists()
    assert len(list(arrays.read_feeds(str(tmp_path / "out" / "in.npz")))) == 400


def test_an_old_result_does_not_survive_a_new_run(tmp_path, runner, job, linear, feeds):
    (tmp_path / "result.json").write_text(json.dumps({"old": True}))
    (tmp_path / "onnxruntime.py").write_text("import os; os._exit(9)")
    save_feeds(tmp_path / "in.npz", feeds)
    assert runner("infer", job(), env={**os.environ, "PYTHONPATH": str(tmp_path)})[0] == 9
    assert not (tmp_path / "result.json").exists()
