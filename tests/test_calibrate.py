"""Calibration as a use case: what is measured, what is written, and that the written profile predicts it."""

import json
import tomllib
from dataclasses import replace

import pytest

from edgekit import calibrate as use_case
from edgekit import cli, events
from edgekit.budget import Figure
from edgekit.calibrate import calibrate
from edgekit.errors import TargetError, UsageError
from edgekit.graphs import workouts as drawn
from edgekit.graphs.calibration import milliseconds
from edgekit.graphs.cost import cost_of
from edgekit.graphs.fusion import fuse, rules_of
from edgekit.graphs.roofline import constants_of
from edgekit.graphs.work import work_of
from edgekit.predict import predict
from edgekit.profile import explain_profile, load_profile
from graph_models import floats, model, node, value


class Machine:
    """A target that takes as long as constants say, every fifth run twice as long."""

    url, provenance, findings = "stand-in", "measured", []

    def __init__(self, known, runtime):
        self.known, self.runtime, self.details = known, runtime, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def fingerprint(self):
        return {"cpu": "Stand-in CPU", "features": "avx2 " * 50, "onnxruntime": "1.32.0"}

    def measure(self, bundle, feed, *, runs, threads):
        assert threads == 1
        work = work_of(fuse(cost_of(bundle.folder / bundle.facts["model"]), rules_of(self.runtime)))
        ms = milliseconds(work, self.known)
        self.details = {"series_ms": [2 * ms if at % 5 == 0 else ms for at in range(runs)]}
        return (Figure(name="latency-p50", value=ms, unit="ms", provenance="measured", on=self.url, n=runs),)


@pytest.fixture
def few(monkeypatch):
    kept = {"inverted-112", "mobile", "residual", "encoder-32", "recurrent", "functions", "moves", "many", "stored"}
    kept |= {"residual-int8", "mobile-int8"}
    every = drawn.workouts
    monkeypatch.setattr(drawn, "workouts", lambda *a, **o: [w for w in every(*a, **o) if w.name in kept])


@pytest.fixture
def machine(monkeypatch):
    known = constants_of(load_profile("host"))
    known = replace(known, peaks=tuple(3 * peak for peak in known.peaks), launch=1e-6, bandwidth=3 * known.bandwidth)

    def open_target(_url, profile, **_):
        return Machine(known, profile.runtime)

    monkeypatch.setattr(use_case, "open_target", open_target)
    return known


@pytest.fixture
def network(tmp_path):
    made = model(
        [
            node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"]),
            node("Conv", ["r", "v"], ["y"], pads=[1, 1, 1, 1]),
        ],
        [value("x", [1, 32, 64, 64])],
        [value("y", [1, 32, 64, 64])],
        {"w": floats(32, 32, 3, 3), "v": floats(32, 32, 3, 3)},
    )
    path = tmp_path / "network.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_the_written_profile_predicts_what_was_measured(tmp_path, few, machine, network):
    out = tmp_path / "gateway.toml"
    found = calibrate("host", target="stand-in", out=str(out))
    assert found.path == out
    assert len(found.measured) == 11
    assert found.spread < 1.3
    profile = load_profile(str(out))
    assert profile.family == "host"
    path = cost_of(network)
    expected = milliseconds(work_of(fuse(path, rules_of("onnx"))), machine)
    figure = predict(str(network), profile=str(out), store=tmp_path / "store").figures[0]
    assert figure.value == pytest.approx(expected, rel=0.1)
    assert figure.high / figure.value == pytest.approx(found.spread, rel=1e-4)


def test_what_is_written_says_where_it_comes_from(tmp_path, few, machine):
    out = tmp_path / "gateway.toml"
    calibrate("host", target="stand-in", out=str(out))
    text = tomllib.loads(out.read_text(encoding="utf-8"))
    assert text["extends"] == "host"
    for row in explain_profile(str(out)):
        if row.key.startswith("roofline.") and row.key != "roofline.spread":
            assert row.source.startswith("measured on stand-in (Stand-in CPU, onnxruntime 1.32.0), 20"), row.key
            assert row.source.endswith("fitted to 11 small graphs")
    assert "each of 3 small networks predicted by a fit without it" in load_profile(str(out)).roofline.spread.source


def test_one_model_scales_a_profile(tmp_path, machine, network):
    out = tmp_path / "gateway.toml"
    options = {"store": tmp_path / "store"}
    found = calibrate("host", target="stand-in", models=[str(network)], out=str(out), **options)
    assert found.ratios["network"] == pytest.approx(1)
    before = predict(str(network), profile="host", **options).figures[0]
    after = predict(str(network), profile=str(out), **options).figures[0]
    assert after.value == pytest.approx(found.measured["network"])
    assert after.high / after.value == pytest.approx(before.high / before.value), "one run does not tell the spread"
    source = load_profile(str(out)).roofline.launch_us.source
    assert f"host scaled by {before.value / after.value:.3g}, because network took" in source


def test_the_interval_of_a_jetson_stays_when_it_is_scaled(tmp_path, machine, network):
    out = tmp_path / "orin.toml"
    calibrate("jetson", target="stand-in", models=[str(network)], out=str(out), store=tmp_path / "store")
    before, after = load_profile("jetson"), load_profile(str(out))
    assert after.roofline.spread_unlike == before.roofline.spread_unlike
    assert after.roofline.fitted_on == before.roofline.fitted_on
    assert after.compute.units == before.compute.units
    graph, plain = after.roofline.launch_us.value, after.roofline.launch_plain_us.value
    ratio = before.roofline.launch_plain_us.value / before.roofline.launch_us.value
    assert plain / graph == pytest.approx(ratio, rel=1e-3)


def test_a_simulated_time_calibrates_nothing(tmp_path, few, machine, monkeypatch):
    def measure(self, bundle, feed, *, runs, threads):
        return (Figure(name="latency-p50", value=1.0, unit="ms", provenance="simulated", on="htp-sim"),)

    monkeypatch.setattr(Machine, "measure", measure)
    with pytest.raises(TargetError, match="no latency of 'encoder-32' was measured"):
        calibrate("host", target="stand-in", out=str(tmp_path / "gateway.toml"))
    assert not list(tmp_path.iterdir())


def test_a_machine_that_is_busy_is_told(tmp_path, few, machine, monkeypatch):
    quiet = Machine.measure

    def measure(self, bundle, feed, **options):
        figures = quiet(self, bundle, feed, **options)
        factor = 6 if feed["x"].shape == (1, 3, 192, 192) else 1
        self.details = {"series_ms": [factor * ms for ms in self.details["series_ms"]]}
        return figures

    heard = []
    calibrate("host", target="stand-in", out=str(tmp_path / "a.toml"), listen=heard.append)
    assert not [event for event in heard if isinstance(event, events.Found)]
    monkeypatch.setattr(Machine, "measure", measure)
    calibrate("host", target="stand-in", out=str(tmp_path / "b.toml"), listen=heard.append)
    (found,) = [event.finding for event in heard if isinstance(event, events.Found)]
    assert found.rule == "calibration-loose"
    assert "stand-in" in found.text


def test_where_it_can_be_written(tmp_path, few, machine, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no target of its own"):
        calibrate("jetson")
    with pytest.raises(UsageError, match="cannot extend itself"):
        calibrate("host", target="stand-in", out="host.toml")
    with pytest.raises(UsageError, match=r"ends in \.toml"):
        calibrate("host", target="stand-in", out="gateway")
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "mine.toml").write_text('extends = "host"\ntitle = "mine"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="which lies in"):
        calibrate("boards/mine.toml", target="stand-in")
    found = calibrate("boards/mine.toml", target="stand-in", out="boards/mine-calibrated.toml")
    assert load_profile(str(found.path)).title == "mine, calibrated"


def test_the_command_measures_this_machine(tmp_path, monkeypatch, capsys):
    every = drawn.workouts
    monkeypatch.setattr(drawn, "workouts", lambda *a, **o: [w for w in every(*a, **o) if w.name in {"many", "stem"}])
    out = tmp_path / "here.toml"
    assert cli.run_cli(["profiles", "calibrate", "host", "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(out)
    assert set(told["measured"]) == {"many", "stem"}
    assert all(ms > 0 for ms in told["measured"].values())
    assert load_profile(str(out)).roofline.launch_us.value < 1000
