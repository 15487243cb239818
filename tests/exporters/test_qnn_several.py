"""One package for several SoCs: a binary for each, by Qualcomm's real compiler, and the right one is loaded or none."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest

import kinds
from contract import onnx_artifact
from edgekit.artifact import sha256_file
from edgekit.device import engine_qnn
from edgekit.errors import UsageError
from edgekit.exporter import load_exporter
from edgekit.profile import load_profile
from edgekit.target import Bundle
from edgekit.targets import open_target
from edgekit_exporters.qnn.several import profiles_of

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the extra qnn (onnxruntime-qnn, x86-64 Linux)"
)
EXPORTER = load_exporter("qnn")
PHONES = load_profile("snapdragon-8-phones")
PROFILES = {57: "snapdragon-8-gen3", 43: "snapdragon-8-gen2", 69: "snapdragon-8-elite"}
NAMES = {57: "SM8650", 43: "QCS8550", 69: "SM8750"}


def compiled(folder, profile=PHONES):
    artifact = onnx_artifact(kinds.residual_cnn()[0], folder / "in")
    (folder / "out").mkdir()
    facts = type(EXPORTER)().compile(artifact, folder / "in", profile, folder / "out")
    return Bundle(folder=folder / "out", facts=facts)


def with_others(*rows, name="snapdragon-8-gen3"):
    profile = load_profile(name)
    return msgspec.structs.replace(profile, settings={"htp": {**profile.settings["htp"], "also": list(rows)}})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("phones"))


def contexts(bundle):
    first = bundle.facts["context"]
    return {one["soc_model"]: one for one in (first, *first["others"])}


@needs_compiler
def test_each_soc_gets_a_binary_of_its_own(bundle):
    found = contexts(bundle)
    assert list(found) == [57, 43, 69]
    for soc, one in found.items():
        assert one["compatibility"].split(":")[5] == str(soc)
        assert engine_qnn.compatibility(str(bundle.folder / one["model"])) == one["compatibility"]
    assert len({sha256_file(bundle.folder / one["binary"]) for one in found.values()}) == 3
    assert bundle.facts["loads"] == ["model_ctx.onnx", "model_ctx_qnn.bin"], "a device loads one of them"


@needs_compiler
def test_that_the_others_are_not_run_is_told(tmp_path):
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path)
    found = [f for f in EXPORTER.lint(artifact, tmp_path, PHONES) if f.rule == "qnn-other-soc"]
    assert ["SM8550 or QCS8550" in found[0].text, "SM8750" in found[1].text] == [True, True]


@needs_compiler
@pytest.mark.parametrize("soc", [43, 69])
def test_each_of_them_runs_in_its_own_chips_simulator(bundle, soc):
    facts = {**bundle.facts, "context": contexts(bundle)[soc]}
    model, feeds = kinds.residual_cnn()
    (found,) = open_target("htp-sim", load_profile(PROFILES[soc])).run(
        Bundle(folder=bundle.folder, facts=facts), feeds[:1]
    )
    expected = kinds.run(model, feeds[0])[0]
    assert np.abs(next(iter(found.values())) - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.slow
@needs_compiler
def test_they_are_what_each_soc_gets_alone(bundle, tmp_path):
    for soc, name in PROFILES.items():
        (tmp_path / name).mkdir()
        alone = compiled(tmp_path / name, load_profile(name))
        kept = bundle.folder / contexts(bundle)[soc]["binary"]
        assert sha256_file(alone.folder / "model_ctx_qnn.bin") == sha256_file(kept)


@needs_compiler
def test_the_same_bytes_come_again(bundle, tmp_path):
    again = compiled(tmp_path)
    for path in bundle.folder.iterdir():
        assert sha256_file(path) == sha256_file(again.folder / path.name), path.name


@needs_compiler
def test_a_chip_loads_its_own_and_a_stranger_none(bundle):
    context = bundle.facts["context"]
    for soc, name in NAMES.items():
        chosen = engine_qnn.choose(context, [name, "339"])
        assert chosen["soc_model"] == soc
        engine_qnn.check(str(bundle.folder / chosen["model"]), chosen, [name], simulated=False)
    chosen = engine_qnn.choose(context, ["SM8450"])
    with pytest.raises(engine_qnn.MismatchError, match=r"for SM8650 or SM8550 or QCS8550 or SM8750; .* SM8450"):
        engine_qnn.check(str(bundle.folder / chosen["model"]), chosen, ["SM8450"], simulated=False)
    swapped = {**contexts(bundle)[43], "model": "model_ctx.onnx"}  # right name, another chip's file
    with pytest.raises(engine_qnn.MismatchError):
        engine_qnn.check(str(bundle.folder / "model_ctx.onnx"), swapped, ["SM8550"], simulated=False)


@needs_compiler
@pytest.mark.parametrize(("soc", "name"), NAMES.items())
def test_the_example_chooses_by_the_chips_name(bundle, soc, name):
    script = (
        f"import json, load; load.chip = lambda: {name!r};"
        "print(load.choose(json.load(open('context.json')))['soc_model'])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=bundle.folder, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(soc)
    assert json.loads((bundle.folder / "context.json").read_text())["others"][0]["soc_model"] == 43


@needs_compiler
def test_what_one_of_them_refuses_is_an_error_that_names_it(tmp_path):
    profile = with_others({"soc_model": 93, "soc": ["QCS6490"], "arch": 68, "fp16": False, "vtcm_mb": 2})
    assert EXPORTER.dialect(profile).whole == "must", "no layer may stay float where one chip has none"
    artifact = onnx_artifact(kinds.residual_cnn()[0], tmp_path)
    errors = [f for f in EXPORTER.lint(artifact, tmp_path, profile) if f.severity == "error"]
    assert errors
    assert all("for QCS6490 (SoC 93): " in finding.text for finding in errors)
    assert not [
        f for f in EXPORTER.lint(artifact, tmp_path, load_profile("snapdragon-8-gen3")) if f.severity == "error"
    ]


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"soc_model": 57, "soc": ["SM8650"]}, "SoC 57 is named twice"),
        ({"soc_model": 43}, "neither SoC nor its names"),
        ({"soc": ["SM8550"]}, "neither SoC nor its names"),
        ({"soc_model": 43, "soc": "SM8550"}, "neither SoC nor its names"),
        ({"soc_model": 43, "soc": ["SM8550"], "vtcm": 8}, "'vtcm' is no key"),
        ("snapdragon-8-gen2", "a list of tables"),
    ],
)
def test_an_entry_that_is_none(row, match):
    with pytest.raises(UsageError, match=match):
        profiles_of(with_others(row))


def test_the_shipped_entries_are_those_of_their_profiles():
    for one in profiles_of(PHONES)[1:]:
        alone = load_profile(PROFILES[one.settings["htp"]["soc_model"]])
        assert one.modules == alone.modules
        for key in ("soc_model", "arch", "fp16", "vtcm_mb"):
            assert one.settings["htp"][key] == alone.settings["htp"][key]
