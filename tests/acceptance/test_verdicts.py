"""Budgets decide what ships, and nothing else does: the verdict through the command line."""

from __future__ import annotations

import numpy as np
import pytest


def nothing_in(folder):
    return not folder.exists() or not list(folder.iterdir())


def test_a_budget_that_is_kept_ships(edgekit, given, package):
    ran = edgekit.build(given.model, "--data", given.data(), "--max-drop", "1%", "--out", package.parent)
    assert ran.status == 0
    assert ran.json["status"] == "pass"
    drop = ran.check("drop")
    assert drop["status"] == "pass"
    assert drop["budget"] == 0.01
    assert drop["provenance"] == "simulated"
    assert drop["n"] == 1244
    assert drop["low"] <= drop["value"] <= drop["high"] <= 0.01
    assert ran.json["coverage"]["weights"] == 1.0
    assert ran.json["package"] == str(package)


def test_an_impossible_size_is_refused_with_the_reason(edgekit, given, tmp_path):
    ran = edgekit.build(given.model, "--data", given.data(), "--max-size", "100B", "--out", tmp_path / "out")
    assert ran.status == 3
    assert ran.json["error"]["kind"] == "budget"
    size = ran.check("size")
    assert size["status"] == "fail"
    assert f"size is {size['value']:.0f} B, above 100 B" in ran.json["error"]["text"]
    assert nothing_in(tmp_path / "out")


def test_an_impossible_latency_is_refused_with_the_reason(edgekit, given, tmp_path):
    """It is measured: a real run on this machine, whose interval lies above the budget."""
    ran = edgekit.build(
        *(given.model, "--data", given.data(), "--latency-p95", "0.00001ms", "--target", "local"),
        *("--out", tmp_path / "out"),
        profile="host",
    )
    assert ran.status == 3
    check = ran.check("latency-p95")
    assert check["status"] == "fail"
    assert check["provenance"] == "measured"
    assert check["n"] >= 100
    assert "latency-p95 is above 1e-05 ms" in ran.json["error"]["text"]
    assert nothing_in(tmp_path / "out")


def test_a_predicted_latency_decides_only_beyond_its_interval(edgekit, given, tmp_path):
    tell = ("--data", given.data(), "--no-package", "--out", tmp_path)
    predicted = edgekit.build(given.model, *tell).check("latency-p50")
    assert predicted["provenance"] == "predicted"
    assert predicted["low"] < predicted["value"] < predicted["high"]
    between = f"{predicted['value']:.6f}ms"
    ran = edgekit.build(given.model, *tell, "--latency-p50", between)
    assert ran.check("latency-p50")["status"] == "unproven"
    assert ran.status == 0
    assert edgekit.build(given.model, *tell, "--latency-p50", between, "--strict").status == 3
    assert edgekit.build(given.model, *tell, "--latency-p50", f"{2 * predicted['high']:.6f}ms").json["status"] == "pass"
    assert edgekit.build(given.model, *tell, "--latency-p50", f"{predicted['low'] / 2:.6f}ms").status == 3


@pytest.fixture(scope="session")
def fifty(given):
    """256 calibration samples, 50 evaluation samples."""
    folder = given.folder / "fifty"
    folder.mkdir()
    for name, count, seed in (("calibration", 256, 1), ("evaluation", 50, 2)):
        with np.load(given.data(count=count, seed=seed)) as file:
            np.savez(folder / f"{name}.npz", x=file["x"], y=file["y"])
    return folder


def test_fifty_samples_cannot_prove_a_tenth_of_a_percent(edgekit, given, fifty, tmp_path):
    asked = (given.model, "--data", fifty, "--max-drop", "0.1%")
    ran = edgekit.build(*asked, "--out", tmp_path)
    assert ran.status == 0
    assert ran.json["status"] == "unproven"
    drop = ran.check("drop")
    assert drop["n"] == 50
    assert drop["status"] == "unproven"
    assert drop["high"] >= 0.058, "0 disagreements of 50 leave room for 5.8 % at 95 %, one-sided"
    assert "more samples" in drop["reason"] or "measurement would tell" in drop["reason"]
    assert ran.json["package"]

    strict = edgekit.build(*asked, "--strict", "--out", tmp_path / "strict")
    assert strict.status == 3
    assert strict.json["error"]["text"].startswith("drop may be within")
    assert nothing_in(tmp_path / "strict")


def test_without_labels_agreement_is_judged(edgekit, given, tmp_path):
    ran = edgekit.build(given.model, "--data", given.data("unlabelled"), "--max-drop", "2%", "--out", tmp_path)
    assert ran.status == 0
    assert ran.json["status"] == "pass"
    assert {"drop", "agreement"} <= {check["name"] for check in ran.json["checks"]}
    assert "accuracy" not in {check["name"] for check in ran.json["checks"]}


def test_a_metric_that_needs_labels_says_so_without_them(edgekit, given, tmp_path):
    ran = edgekit.build(given.model, "--data", given.data("unlabelled"), "--metric", "accuracy", "--out", tmp_path)
    assert ran.status == 2
    assert "needs labels" in ran.json["error"]["text"]
    assert "--metric agreement" in ran.json["error"]["remedy"]


def test_under_twenty_samples_all_calibrate_and_nothing_is_proven(edgekit, given, tmp_path):
    asked = (given.model, "--data", given.data(count=12), "--max-drop", "1%")
    ran = edgekit.build(*asked, "--out", tmp_path)
    assert ran.status == 0
    assert ran.json["status"] == "unproven"
    assert ran.check("drop")["reason"] == "accuracy was not looked at: too few samples for an evaluation split"
    assert "12 samples to calibrate with" in ran.rules["data-few-samples"]
    assert "accuracy stays unproven" in ran.rules["data-few-samples"]
    assert edgekit.build(*asked, "--strict", "--no-package").status == 3


def test_without_data_nothing_is_proven_and_int8_says_what_it_needs(edgekit, given, tmp_path):
    ran = edgekit.build(given.model, "--recipe", "fp32", "--out", tmp_path)
    assert ran.status == 0
    assert ran.json["status"] == "unproven"
    assert ran.check("drop")["reason"] == "accuracy was not looked at: there is no data"
    assert edgekit.build(given.model, "--recipe", "fp32", "--strict", "--no-package").status == 3


def test_int8_without_data_is_unproven_where_it_can_be_done_and_refused_elsewhere(edgekit, given, tmp_path):
    """On a CPU activations can be quantized as they come; a Jetson's engine needs their ranges beforehand."""
    ran = edgekit.build(given.model, "--recipe", "int8", "--out", tmp_path)
    assert ran.status == 0
    assert ran.json["status"] == "unproven"
    assert "random inputs only" in ran.rules["unchecked"]
    refused = edgekit.build(given.model, "--recipe", "int8", "--out", tmp_path / "jetson", profile="jetson")
    assert refused.status == 2
    assert refused.json["error"]["where"] == "quantize-int8"
    assert "--data DIR" in refused.json["error"]["remedy"]
    assert nothing_in(tmp_path / "jetson")
