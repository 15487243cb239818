"""The shipped sample, as the README builds it; and the budgets of the acceptance list on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import ROOT
from edgekit.package import read_package

VISION = ROOT / "samples" / "vision"
ASKED = (VISION / "model.onnx", "--data", VISION / "data")


@pytest.fixture(scope="module")
def demo(edgekit, tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    return edgekit.build(*ASKED, "--max-drop", "1%", "--out", out, profile="jetson")


def test_the_demo_is_a_plain_pass(demo):
    assert demo.status == 0, demo.err
    assert demo.json["status"] == "pass"
    drop = demo.check("drop")
    assert drop["status"] == "pass"
    assert drop["n"] == 5000
    assert demo.check("accuracy-original")["value"] > 0.9
    assert demo.json["coverage"]["weights"] > 0.9
    assert demo.check("size")["value"] < (VISION / "model.onnx").stat().st_size / 2


def test_its_package_holds_what_a_device_needs(demo, edgekit):
    package = Path(demo.json["package"])
    manifest = read_package(package).manifest
    assert manifest.labels[0] == "T-shirt/top"
    assert manifest.preprocessing["inputs"]["x"]["kind"] == "image"
    assert {"model", "golden", "reference", "runner"} <= {file.role for file in manifest.files}
    assert edgekit("verify", package).status == 0


@pytest.mark.parametrize(
    ("budget", "check"), [(["--max-size", "1kB"], "size"), (["--latency-p50", "0.0001ms"], "latency-p50")]
)
def test_an_impossible_budget_does_not_ship(edgekit, demo, tmp_path, budget, check):
    ran = edgekit.build(*ASKED, *budget, "--out", tmp_path / "out", profile="jetson")
    assert ran.status == 3
    assert ran.check(check)["status"] == "fail"
    assert check in ran.json["error"]["text"]
    assert all(ran.cached.values())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_impossible_latency_is_measured_and_does_not_ship(edgekit, demo, tmp_path):
    budget = ("--latency-p95", "0.01ms", "--target", "local")
    ran = edgekit.build(*ASKED, *budget, "--out", tmp_path / "out", profile="host")
    assert ran.status == 3
    check = ran.check("latency-p95")
    assert (check["status"], check["provenance"]) == ("fail", "measured")
    assert not (tmp_path / "out").exists()
