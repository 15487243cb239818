"""What stages change in a model: saved without pickle, rebuilt bit-equal in a fresh process, captured as any other."""

import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import house
from edgekit.artifact import Artifact
from edgekit.errors import InputError, UnsupportedError
from edgekit.networks.child import run_in_child
from edgekit.networks.intake import intake_torch
from edgekit.networks.record import changes_of, read_record
from edgekit.stage import Context, Inputs
from edgekit.stages.capture import Capture
from torch_models import bert, saved

FACTORY = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.back = torch.nn.ConvTranspose2d(4, 3, 3, padding=1)
        self.one = torch.nn.Linear(8, 8, bias=False)
        self.two = torch.nn.Linear(8, 8, bias=False)
        self.two.weight = self.one.weight
        self.register_buffer("noise", torch.randn(3, 1, 1), persistent=False)

    def forward(self, x):
        return self.two(self.one(self.back(self.norm(self.conv(x))) + self.noise))

    def example_inputs(self):
        return {"x": torch.zeros(1, 3, 8, 8)}

def build():
    return Net()

def half():
    return Net().half()
"""


@pytest.fixture
def jobs(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def taken_in(kind, tmp_path, monkeypatch):
    folder = tmp_path / "artifact"
    if kind.startswith("factory"):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "net_of_changes.py").write_text(FACTORY)
        intake_torch(f"python:net_of_changes:{'half' if 'half' in kind else 'build'}", folder)
    elif kind == "huggingface":
        intake_torch(str(saved(bert(), tmp_path / "hf")), folder)
    elif kind == "pooled":
        from transformers import BertConfig, BertModel

        from torch_models import TEXT

        intake_torch(str(saved(BertModel(BertConfig(**TEXT), add_pooling_layer=False), tmp_path / "hf")), folder)
    elif kind == "tied":
        from transformers import BertConfig, BertForMaskedLM

        from torch_models import TEXT

        intake_torch(str(saved(BertForMaskedLM(BertConfig(**TEXT)), tmp_path / "hf")), folder)
    else:
        import torch

        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).eval()
        program = torch.export.export(net, (torch.randn(2, 3, 8, 8),))
        torch.export.save(program, tmp_path / "net.pt2")
        intake_torch(str(tmp_path / "net.pt2"), folder)
    return folder


def change(folder, *outs, **more):
    for out in outs:
        out.mkdir()
    arguments = {"folder": str(folder), "outs": [str(out) for out in outs], "shapes": {}, **more}
    return run_in_child("change_jobs:change", arguments)


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("factory half", "pooled", "tied")]


@pytest.mark.parametrize("kind", ["factory", "huggingface", "program", *SLOW])
def test_a_changed_model_is_rebuilt_bit_equal_in_a_fresh_process(kind, tmp_path, monkeypatch, jobs):
    folder = taken_in(kind, tmp_path, monkeypatch)
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    places = [tmp_path / "once", tmp_path / "twice"]
    made = change(folder, *places)
    shutil.rmtree(folder)  # nothing of the origin is needed any more
    before, *found = run_in_child("change_jobs:again", {"folders": [str(kept), *map(str, places)], "shapes": {}})
    assert found == made
    assert len({row["digest"] for row in (before, *found)}) == 3
    assert all(row["tied"] == before["tied"] for row in found)
    for place in places:
        assert [change.kind for change in changes_of(read_record(place))] == ["weights"]
        files = {path.name for path in place.rglob("*") if path.suffix in (".safetensors", ".bin", ".pt")}
        assert files <= {"weights.safetensors", "examples.safetensors"}


def numpy_ones(value):
    dtype = {"tensor(float)": np.float32, "tensor(int64)": np.int64}[value.type]
    return np.ones([size if isinstance(size, int) else 2 for size in value.shape], dtype)


@pytest.mark.parametrize(
    "kind", ["factory", *(pytest.param(k, marks=pytest.mark.slow) for k in ("huggingface", "program"))]
)
def test_capture_takes_a_changed_model(kind, tmp_path, monkeypatch, jobs):
    folder = taken_in(kind, tmp_path, monkeypatch)
    change(folder, tmp_path / "changed")
    found = []
    for place in (folder, tmp_path / "changed"):
        out = tmp_path / f"{place.name}-onnx"
        out.mkdir()
        record = read_record(place)
        artifact = Artifact(kind="torch", files={}, facts={"source": {"from": record["from"]}})
        inputs = Inputs(artifact=artifact, folder=place, profile=house.profile())
        facts = Capture().run(inputs, out, Context(scratch=tmp_path))
        session = onnxruntime.InferenceSession(out / "model.onnx")
        feed = {value.name: numpy_ones(value) for value in session.get_inputs()}
        found.append(session.run(None, feed)[0])
        assert max(facts["capture"]["model.onnx"]["parity"].values()) < 1e-4
    assert not np.allclose(found[0], found[1])


def test_an_unknown_change_is_refused(tmp_path, monkeypatch, jobs):
    folder = taken_in("factory", tmp_path, monkeypatch)
    change(folder, tmp_path / "changed", kinds=["melted"])
    with pytest.raises(UnsupportedError, match="melted"):
        run_in_child("change_jobs:again", {"folders": [str(tmp_path / "changed")], "shapes": {}})


def test_changes_that_are_none_are_refused():
    with pytest.raises(InputError, match="changes"):
        changes_of({"changes": [{"details": {}}]})
