"""Measured on a real machine: this one, locally and through a real sshd; and never shipping what is worse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from edgekit.artifact import MAIN
from edgekit.build import build
from edgekit.stage import STAGES


def test_a_package_is_validated_on_this_machine(edgekit, given, package):
    """With the data that it was built with, the delta needs no original: the package brings its outputs."""
    ran = edgekit("validate", package, "--target", "local", "--data", given.data(), "--max-drop", "1%", "--json")
    assert ran.status == 0, ran.err
    drop = ran.check("drop")
    assert drop["provenance"] == "measured"
    assert drop["status"] == "pass"
    assert drop["n"] == 1244
    latency = ran.check("latency-p95")
    assert latency["provenance"] == "measured"
    assert latency["n"] >= 100
    assert 0 < latency["low"] <= latency["value"] <= latency["high"]
    assert ran.check("memory")["value"] > 1e6
    assert "golden-mismatch" not in ran.rules
    assert "target-other-device" in ran.rules, "this machine is no Raspberry Pi, and that is said"


def test_validation_with_other_data_is_refused(edgekit, given, package):
    ran = edgekit("validate", package, "--target", "local", "--data", given.data(seed=9), "--json")
    assert ran.status == 4
    assert "not the data that the package was built with" in ran.json["error"]["text"]
    assert ran.json["error"]["where"] == str(given.data(seed=9))


def test_a_model_is_validated_against_its_original(edgekit, given, tmp_path):
    """Not a package: a worse model is held against its float original and fails."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(given.model)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "W")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight)[::-1].copy(), "W"))
    onnx.save(model, tmp_path / "worse.onnx")
    ran = edgekit(
        *("validate", tmp_path / "worse.onnx", "--reference", given.model, "--target", "local"),
        *("--data", given.data(), "--max-drop", "5%", "--json"),
    )
    assert ran.status == 3
    assert ran.check("drop")["value"] > 0.2
    assert "drop" in ran.json["error"]["text"]


@pytest.mark.system("openssh-server")
def test_a_package_is_validated_over_ssh(edgekit, given, package, sshd):
    url, environment = sshd
    ran = edgekit(
        *("validate", package, "--target", url, "--data", given.data(), "--max-drop", "1%", "--json"), **environment
    )
    assert ran.status == 0, ran.err
    drop = ran.check("drop")
    assert drop["provenance"] == "measured"
    assert drop["status"] == "pass"
    assert url.removeprefix("ssh://").partition(":")[0] in drop["on"]
    assert ran.check("latency-p99")["n"] >= 100


@pytest.mark.system("openssh-server")
def test_a_build_measures_over_ssh(edgekit, given, sshd, tmp_path):
    url, environment = sshd
    asked = (given.model, "--recipe", "fp32", "--data", given.data(count=60), "--out", tmp_path)
    ran = edgekit.build(*asked, "--target", url, "--latency-p50", "10s", profile="host", **environment)
    assert ran.status == 0, ran.err
    latency = ran.check("latency-p50")
    assert latency["status"] == "pass"
    assert latency["provenance"] == "measured"
    assert ran.check("agreement")["value"] == 1.0


def test_an_unreachable_target_is_told_before_any_stage_runs(given, tmp_path):
    from edgekit.errors import TargetError
    from sshd import free_port

    told = []
    with pytest.raises(TargetError) as caught:
        build(
            str(given.model),
            profile="host",
            recipe="int8",
            data=str(given.data(count=60)),
            target=f"ssh://127.0.0.1:{free_port()}",
            store=tmp_path / "store",
            listen=told.append,
        )
    assert caught.value.exit_status == 5
    assert {one.name for one in told if type(one).__name__ == "StageStarted"} <= {"ingest"}


# --- never ship worse


@dataclass(frozen=True, kw_only=True)
class Spoil:
    """Makes a model bigger, slower, hungrier and less accurate: products with a large matrix that changes classes."""

    width: int = 1500

    name: ClassVar[str] = "spoil"
    revision: ClassVar[int] = 1
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ()

    def run(self, inputs: Any, out: Any, context: Any) -> dict[str, Any]:
        import onnx
        from onnx import helper, numpy_helper

        model = onnx.load(inputs.folder / MAIN)
        graph = model.graph
        next(node for node in graph.node if "y" in node.output).output[0] = "good"
        rng = np.random.default_rng(0)
        arrays = {
            "into": rng.normal(size=(3, self.width)) / 3,
            "through": rng.normal(size=(self.width, self.width)) / self.width,
            "out": rng.normal(size=(self.width, 3)) / self.width,
        }
        names = ["good", "s0", "s1", "y"]
        for index, (name, array) in enumerate(arrays.items()):
            graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
            graph.node.append(helper.make_node("MatMul", [names[index], name], [names[index + 1]], name=name))
        onnx.save(model, out / MAIN)
        return {}


@pytest.fixture
def spoiled(monkeypatch, given, tmp_path):
    """Build, in this process, with a recipe that makes the model worse in every way."""
    import sys
    from types import SimpleNamespace

    monkeypatch.setitem(STAGES, "spoil", "spoiling:Spoil")
    monkeypatch.setitem(sys.modules, "spoiling", SimpleNamespace(Spoil=Spoil))
    (tmp_path / "spoil.toml").write_text('[[stage]]\nuse = "spoil"\n')

    def run(**options):
        return build(
            str(given.model),
            profile="host",
            data=str(given.data()),
            recipe=str(tmp_path / "spoil.toml"),
            out=tmp_path / "out",
            **options,
        )

    return run


def test_a_candidate_that_is_worse_in_every_way_does_not_ship(spoiled, tmp_path):
    """No budget is given, so none is missed; all four axes are really measured, and all are lost."""
    store = tmp_path / "home"
    refused = spoiled(store=store)
    assert refused.exit == 3
    assert refused.status == "fail"
    assert refused.package is None
    assert not (tmp_path / "out").exists()
    for word in ("less accurate", "slower", "bigger", "hungrier for memory", "better at nothing"):
        assert word in refused.error.text
    assert "--allow-dominated" in refused.error.remedy
    figures = {check.name: check for check in refused.checks}
    assert figures["drop"].low > 0
    assert all(check.provenance == "measured" for check in refused.checks)

    shipped = spoiled(store=store, allow_dominated=True)
    assert shipped.exit == 0
    assert shipped.package is not None


def test_a_candidate_that_is_better_at_one_thing_ships(edgekit, given, tmp_path):
    """The int8 model of eight weights is bigger than its float original, yet not slower and worse as well."""
    ran = edgekit.build(given.model, "--data", given.data(), "--out", tmp_path)
    assert ran.status == 0
    assert ran.check("size")["value"] > given.model.stat().st_size
