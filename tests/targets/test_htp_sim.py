"""Qualcomm's real simulator as a target: what it gives for the compiled artifact, and what it must not be used for."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

import house
import kinds
from contract import onnx_artifact
from edgekit.device import engine_qnn
from edgekit.errors import TargetError, UnsupportedError, UsageError
from edgekit.evaluate import compare, distance_findings, with_disagreement
from edgekit.exporter import load_exporter
from edgekit.jobs import encode_feeds, read_feeds, run_job
from edgekit.metrics import find_metric
from edgekit.profile import load_profile
from edgekit.target import Bundle, is_simulator
from edgekit.targets import default_target, htp_sim, open_target

needs_simulator = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the extra qnn (onnxruntime-qnn, x86-64 Linux)"
)
PHONE = load_profile("snapdragon-8-gen3")
EXPORTER = load_exporter("qnn")


def compiled(model, folder, profile=PHONE):
    artifact = onnx_artifact(model, folder / "in")
    (folder / "out").mkdir()
    return Bundle(folder=folder / "out", facts=EXPORTER.compile(artifact, folder / "in", profile, folder / "out"))


def ratio(expected, found):
    noise = np.square(expected.astype(np.float64) - found).sum()
    return 10 * np.log10(np.square(expected.astype(np.float64)).sum() / noise)


def gate(named, *, first="x"):
    """Conv, then x * HardSigmoid(x) read in the order that the compiler gets wrong when the nodes have names."""
    nodes = [
        kinds.node("Conv", ["in", "w"], ["x"], name="conv" * named, pads=[1, 1, 1, 1]),
        kinds.node("HardSigmoid", ["x"], ["h"], name="gate" * named, alpha=1 / 6, beta=0.5),
        kinds.node("Mul", ["x", "h"] if first == "x" else ["h", "x"], ["y"], name="product" * named),
    ]
    weights = {"w": kinds.normal(1, 8, 3, 3, 3) * np.float32(0.5)}
    return kinds.build(nodes, [kinds.value("in", [1, 3, 12, 12])], [kinds.value("y", [1, 8, 12, 12])], weights)


@needs_simulator
def test_the_simulator_gives_what_the_graph_says(tmp_path):
    model, feeds = kinds.residual_cnn()
    bundle = compiled(model, tmp_path)
    target = open_target("htp-sim", PHONE)
    assert is_simulator(target)
    found = list(target.run(bundle, feeds[:3]))
    for feed, outputs in zip(feeds, found, strict=False):
        assert ratio(kinds.run(model, feed)[0], outputs["y"]) > 40, "float16 against float32"
    assert target.fingerprint()["soc_model"] == "57"
    assert "SoC 57" in target.place


@needs_simulator
def test_its_time_is_never_a_latency(tmp_path):
    model, feeds = kinds.residual_cnn()
    figures = open_target("htp-sim", PHONE).measure(compiled(model, tmp_path), feeds[0], runs=10, threads=1)
    assert {figure.value for figure in figures} == {None}
    assert all("no latency" in figure.note for figure in figures)


@needs_simulator
def test_a_binary_of_another_soc_is_refused(tmp_path):
    bundle = compiled(kinds.residual_cnn()[0], tmp_path, load_profile("snapdragon-8-gen1"))
    feed = kinds.residual_cnn()[1][0]
    with pytest.raises(UnsupportedError, match="is for SoC 36, the profile's is 57"):
        list(open_target("htp-sim", PHONE).run(bundle, [feed]))
    lied = {**bundle.facts, "context": {**bundle.facts["context"], "soc_model": 57}}
    with pytest.raises(UnsupportedError, match="binary is for SoC 36, not for 57"):
        list(open_target("htp-sim", PHONE).run(Bundle(folder=bundle.folder, facts=lied), [feed]))
    lied["context"]["compatibility"] = lied["context"]["compatibility"].replace(":36:", ":57:")
    with pytest.raises(UnsupportedError, match="the package says"):
        list(open_target("htp-sim", PHONE).run(Bundle(folder=bundle.folder, facts=lied), [feed]))


@needs_simulator
def test_on_a_device_the_chips_own_name_counts(tmp_path):
    bundle = compiled(kinds.residual_cnn()[0], tmp_path)
    path, context = str(bundle.folder / "model_ctx.onnx"), bundle.facts["context"]
    engine_qnn.check(path, context, ["SM8650", "357"], simulated=False)
    with pytest.raises(engine_qnn.MismatchError, match="for SM8650; this chip calls itself QCS9075"):
        engine_qnn.check(path, context, ["QCS9075"], simulated=False)
    with pytest.raises(engine_qnn.MismatchError, match="does not say"):
        engine_qnn.check(str(bundle.folder / "model.onnx"), context, ["SM8650"], simulated=False)


@needs_simulator
def test_the_runner_falls_back_to_the_graph_only_where_that_is_asked_and_says_so(tmp_path):
    model, feeds = kinds.residual_cnn()
    bundle = compiled(model, tmp_path)
    np.savez(tmp_path / "in.npz", **{f"0:{name}": array for name, array in feeds[0].items()})
    job = {
        "model": str(bundle.folder / "model.onnx"),
        "context": {**bundle.facts["context"], "soc_model": 93},
        "runtime": "onnxruntime",
        "providers": ["QNNExecutionProvider", "CPUExecutionProvider"],
        "inputs": ["in.npz"],
        "outputs": "out",
    }
    result = run_job("infer", job, tmp_path, timeout=120)
    assert result["engine"]["providers"] == ["CPUExecutionProvider"]
    assert "not for 93" in result["fallback"]["reason"]
    whole = run_job("infer", {**job, "context": bundle.facts["context"]}, tmp_path, timeout=120)
    assert whole["fallback"] is None
    assert whole["engine"]["providers"][0] == "QNNExecutionProvider"
    assert whole["engine"]["simulated"] is True


@needs_simulator
@pytest.mark.parametrize("named", [True, False])
def test_hard_sigmoid_gates_come_out_right(named, tmp_path):
    feed = {"in": kinds.normal(2, 1, 3, 12, 12) * np.float32(2)}
    bundle = compiled(gate(named), tmp_path)
    (found,) = open_target("htp-sim", PHONE).run(bundle, [feed])
    assert ratio(kinds.run(gate(named), feed)[0], found["y"]) > 40
    assert ("rewritten" in bundle.facts) is True


@needs_simulator
def test_without_the_rewrite_the_named_gate_is_wrong_and_that_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("edgekit_exporters.qnn.desk.order_gates", lambda model: [])
    feeds = [{"in": kinds.normal(seed, 1, 3, 12, 12) * np.float32(2)} for seed in (2, 3)]
    monkeypatch.setattr(EXPORTER, "_desk", type(EXPORTER._desk)())
    found = list(open_target("htp-sim", PHONE).run(compiled(gate(named=True), tmp_path), feeds))
    expected = np.concatenate([kinds.run(gate(named=True), feed)[0] for feed in feeds])
    apart = compare({"y": expected}, {"y": np.concatenate([f["y"] for f in found])}, None, find_metric("agreement"))
    (told,) = distance_findings(apart, apart, apart, floats={"y"}, place="simulator")
    assert (told.severity, told.rule, told.node) == ("error", "htp-disagrees", "y")


def test_what_simulator_and_stand_in_differ_by_is_added_to_the_drop():
    rng = np.random.default_rng(0)
    original = rng.normal(size=(1000, 5)).astype(np.float32)
    stand_in = original + rng.normal(size=original.shape).astype(np.float32) * np.float32(0.02)
    metric = find_metric("agreement")
    whole = compare({"y": original}, {"y": stand_in}, None, metric)
    few = slice(0, 50)
    apart = compare({"y": stand_in[few]}, {"y": stand_in[few]}, None, metric)
    both = with_disagreement(whole, apart)
    assert both.drop == whole.drop
    assert both.high == pytest.approx(whole.high + apart.high)
    assert apart.high > 0.05, "fifty samples without a difference leave 5.8 % open"
    assert both.low == pytest.approx(whole.low + apart.low)
    assert both.n == 1000


def test_integer_outputs_that_flip_are_no_wrong_fusion():
    metric = find_metric("agreement")
    before, after = np.array([[1], [2], [3]]), np.array([[1], [9], [3]])
    apart = compare({"class": before}, {"class": after}, None, metric)
    (told,) = distance_findings(apart, apart, apart, floats=set(), place="simulator")
    assert told.severity == "note"


def test_the_number_of_samples_follows_the_cost_in_round_steps(monkeypatch):
    monkeypatch.setattr(htp_sim, "is_installed", lambda: True)
    target = htp_sim.HtpSimTarget(PHONE)
    bundle = Bundle(folder=Path(), facts={"context": {"soc_model": 57}})
    for seconds, wanted, expected in ((0.02, 5000, 2000), (0.02, 700, 700), (5, 5000, 10), (50, 5000, 4), (50, 3, 3)):
        monkeypatch.setattr(
            target,
            "_infer",
            lambda _, scratch, stop=None, told=seconds: {"cpu_seconds": told * len(read_feeds(scratch / "feeds.npz"))},
        )
        assert target.affordable(bundle, {"x": np.zeros(1)}, wanted) == expected


def test_a_number_or_a_time_can_be_asked_for(monkeypatch):
    monkeypatch.setattr(htp_sim, "is_installed", lambda: True)
    bundle = Bundle(folder=Path(), facts={"context": {"soc_model": 57}})
    for asked, wanted, expected in (("300", 5000, 300), ("300", 200, 200), ("1", 5000, 1), ("10m", 5000, 200)):
        target = open_target("htp-sim", PHONE, simulate=asked)
        monkeypatch.setattr(target, "_infer", lambda *_: {"cpu_seconds": 3.0})
        assert target.affordable(bundle, {}, wanted) == expected, asked
    for wrong in ("0", "-3", "10 parsecs", "many"):
        with pytest.raises(UsageError, match="simulate"):
            open_target("htp-sim", PHONE, simulate=wrong)
    with pytest.raises(UsageError, match="local is no simulator"):
        open_target("local", PHONE, simulate="300")


def test_no_chunk_is_simulated_twice_and_a_killed_run_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(htp_sim, "is_installed", lambda: True)
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "model.onnx").write_bytes(b"one")
    bundle = Bundle(folder=tmp_path / "bundle", facts={"context": {"soc_model": 57}, "model": "model.onnx"})
    feeds = [{"x": np.full(3, number, np.float32)} for number in range(100)]
    sizes = []

    def simulated(_, scratch, stop):
        if len(sizes) == 2:
            raise TargetError("killed", where="here")
        given = read_feeds(scratch / "feeds.npz")
        sizes.append(len(given))
        (scratch / "out").mkdir()
        (scratch / "out" / "feeds.npz").write_bytes(encode_feeds([{"y": 2 * feed["x"]} for feed in given]))
        return {"outputs": ["out/feeds.npz"], "cpu_seconds": 0.5 * len(given)}

    def run():
        target = open_target("htp-sim", PHONE, keep=tmp_path / "keep")
        monkeypatch.setattr(target, "_infer", simulated)
        return target, [float(outputs["y"][0]) for outputs in target.run(bundle, feeds)]

    with pytest.raises(TargetError, match="killed"):
        run()
    assert sizes == [16, 16]
    sizes[:] = []
    run()
    assert sizes == [32, 36], "what was done is not done again"
    sizes[:] = [0, 0]  # were anything simulated now, that would be seen
    target, found = run()
    assert found == [2.0 * number for number in range(100)]
    assert "4 of 4 chunks come from an earlier run" in target.findings[0].text
    (tmp_path / "bundle" / "model.onnx").write_bytes(b"another")
    with pytest.raises(TargetError, match="killed"):
        run()


@pytest.mark.parametrize("threads", [1, 3])
def test_several_children_simulate_at_a_time_and_the_order_stays(threads, monkeypatch):
    monkeypatch.setattr(htp_sim, "is_installed", lambda: True)
    bundle = Bundle(folder=Path(), facts={"context": {"soc_model": 57}, "model": "model.onnx"})
    target = open_target("htp-sim", PHONE, threads=threads)
    together, most, meet = [], [], threading.Barrier(threads)

    def simulated(_, scratch, stop):
        together.append(scratch)
        with contextlib.suppress(threading.BrokenBarrierError):
            meet.wait(5)  # no child is done before as many run as may
            most.append(len(together))
        given = read_feeds(scratch / "feeds.npz")
        together.remove(scratch)
        (scratch / "out").mkdir()
        (scratch / "out" / "feeds.npz").write_bytes(encode_feeds([{"y": 2 * feed["x"]} for feed in given]))
        return {"outputs": ["out/feeds.npz"], "cpu_seconds": 0.5 * len(given)}

    monkeypatch.setattr(target, "_infer", simulated)
    feeds = ({"x": np.full(2, number, np.float32)} for number in range(16 * 2 * threads))
    found = [float(outputs["y"][0]) for outputs in target.run(bundle, feeds)]
    assert found == [2.0 * number for number in range(16 * 2 * threads)]
    assert max(most) <= threads
    assert target.seconds_each == 0.5


def test_what_simulates_is_ended_with_who_asked(monkeypatch):
    monkeypatch.setattr(htp_sim, "is_installed", lambda: True)
    bundle = Bundle(folder=Path(), facts={"context": {"soc_model": 57}, "model": "model.onnx"})
    target = open_target("htp-sim", PHONE, threads=2)
    begun, ended = threading.Event(), threading.Event()

    def simulated(_, scratch, stop):
        if read_feeds(scratch / "feeds.npz")[0]["x"][0] == 0:
            begun.wait(30)
            raise TargetError("the first is lost", where="here")
        begun.set()
        while not stop():
            time.sleep(0.01)
        ended.set()
        raise TargetError("ended", where="here")

    monkeypatch.setattr(target, "_infer", simulated)
    with pytest.raises(TargetError, match="the first is lost"):
        list(target.run(bundle, ({"x": np.full(2, number)} for number in range(40))))
    assert ended.is_set()


def test_without_the_extra_a_named_simulator_is_missing_and_a_default_one_is_left_out(monkeypatch):
    monkeypatch.setattr(htp_sim, "is_installed", lambda: False)
    assert PHONE.target == "htp-sim"
    assert default_target(PHONE) == ""
    with pytest.raises(TargetError, match="not installed"):
        open_target("htp-sim", PHONE)


def test_other_chips_are_not_simulated(monkeypatch):
    monkeypatch.setattr(htp_sim, "is_installed", lambda: True)
    with pytest.raises(UnsupportedError, match="no Qualcomm HTP"):
        open_target("htp-sim", house.profile())


def test_a_bundle_that_was_not_compiled_cannot_be_simulated(monkeypatch, tmp_path):
    monkeypatch.setattr(htp_sim, "is_installed", lambda: True)
    bundle = Bundle(folder=tmp_path, facts=json.loads(msgspec.json.encode({"model": "model.onnx"})))
    with pytest.raises(UnsupportedError, match="no context binary"):
        list(open_target("htp-sim", PHONE).run(bundle, [{}]))
