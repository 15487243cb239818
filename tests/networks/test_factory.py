"""A user's factory, run in child processes as a build does."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from edgekit.errors import InputError
from edgekit.networks.child import run_in_child
from edgekit.networks.factory import call_factory
from edgekit.networks.intake import intake_torch, is_current
from edgekit.networks.record import read_record
from torch_models import safetensors_bytes

NET = """
import json
from pathlib import Path
import torch
from blocks_of_net import Head

class Net(torch.nn.Module):
    labels = ["cat", "dog", "bird"]
    task = "text-classification"
    dynamic_axes = {"ids": {1: "length"}}

    def __init__(self):
        super().__init__()
        width = json.loads((Path(__file__).parent / "width.json").read_text())["width"]
        words = len(open("words.txt").read().split())
        self.table = torch.nn.Embedding(words, width)
        self.head = Head(width)
        self.out = torch.nn.Linear(width, words, bias=False)
        self.out.weight = self.table.weight
        self.register_buffer("noise", torch.randn(width), persistent=False)

    def example_inputs(self):
        return {"ids": torch.arange(6).reshape(1, 6)}

    def forward(self, ids):
        return self.out(self.head(self.table(ids)) + self.noise)

def build():
    return Net().train()

def fails():
    raise KeyError("what is this")

def wrong():
    return "no module"

def plain():
    return torch.nn.Linear(3, 2)

constant = 3
"""
BLOCKS = """
import torch

class Head(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.line = torch.nn.Linear(width, width)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        from late_of_net import activate
        return activate(self.drop(self.line(x)))
"""


def project(folder):
    folder.mkdir(exist_ok=True)
    for name, text in {
        "net_of_factory.py": NET,
        "blocks_of_net.py": BLOCKS,
        "late_of_net.py": "import torch\nactivate = torch.relu\n",
        "width.json": '{"width": 8}',
        "words.txt": "a b c d e f g",
        "LICENSE": "mine",
    }.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    folder, out = project(tmp_path_factory.mktemp("project")), tmp_path_factory.mktemp("artifact")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        facts = intake_torch("python:net_of_factory:build", out)
    return folder, out, facts


def test_source_weights_and_ties_are_kept(taken):
    folder, out, facts = taken
    record = read_record(out)
    assert record["aliases"] == {"table.weight": "out.weight"}
    assert set(record["files"]) == {
        "net_of_factory.py",
        "blocks_of_net.py",
        "late_of_net.py",
        "width.json",
        "words.txt",
    }
    assert facts["labels"] == ["cat", "dog", "bird"]
    assert facts["task"] == "text-classification"
    assert facts["license"] == {"text": "mine"}
    assert facts["source"]["files"] == record["files"]
    assert not list(folder.rglob("__pycache__")), "the user's folder was written to"
    text = json.dumps([facts, record])
    assert str(folder) not in text
    assert str(out) not in text


def digest(artifact):
    here = {"PYTHONPATH": str(Path(__file__).parent)}
    return run_in_child("digest_jobs:outputs", {"folder": str(artifact)}, environment=here)


def test_a_fresh_process_elsewhere_gives_the_same_bits(taken, tmp_path, monkeypatch):
    folder, out, _ = taken
    monkeypatch.chdir(folder)
    first = digest(out)
    moved = shutil.copytree(out, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert digest(moved) == first
    assert first["tied"] is True
    assert first["training"] is True, "the module's own mode is restored after it ran"


def test_a_change_of_any_file_is_seen_without_torch(taken, monkeypatch, tmp_path):
    folder, out, _ = taken
    model = "python:net_of_factory:build"
    copy = shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(copy)
    assert is_current(model, out)
    assert not is_current("python:net_of_factory:plain", out)
    assert not is_current("some/directory", out)
    (tmp_path / "w.safetensors").write_bytes(b"x")
    assert not is_current(model, out, weights=tmp_path / "w.safetensors")
    for name in read_record(out)["files"]:
        before = (copy / name).read_bytes()
        (copy / name).write_bytes(before + b" ")
        assert not is_current(model, out), name
        (copy / name).write_bytes(before)
        assert is_current(model, out), name


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("net_of_factory:fails", r"net_of_factory.py:\d+\): KeyError: 'what is this'"),
        ("net_of_factory:wrong", "returned str"),
        ("net_of_factory:biuld", "no 'biuld'"),
        ("net_of_factory:constant", "cannot be called"),
        ("net_of_elsewhere:build", "no module 'net_of_elsewhere'"),
    ],
)
def test_a_factory_that_does_not_work_is_told_where(taken, monkeypatch, factory, said):
    monkeypatch.chdir(taken[0])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(InputError, match=said) as caught:
        call_factory(*factory.split(":"), taken[0])
    assert caught.value.where == factory
    assert caught.value.remedy


def test_weights_are_loaded_into_the_module(taken, tmp_path, monkeypatch):
    from safetensors.numpy import load_file

    monkeypatch.chdir(taken[0])
    given = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(2, np.float32)}
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors_bytes(given))
    intake_torch("python:net_of_factory:plain", tmp_path / "out", weights=path)
    kept = load_file(tmp_path / "out" / "weights.safetensors")
    assert all(np.array_equal(kept[name], given[name]) for name in given)
    assert is_current("python:net_of_factory:plain", tmp_path / "out", weights=path)


def test_weights_that_are_none_are_refused_before_any_code_runs(tmp_path):
    for name, data, said in (("w.pth", b"x", "pickles"), ("w.safetensors", b"x", "cut short")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=said):
            intake_torch("python:never:run", tmp_path / "out", weights=tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        intake_torch("python:never:run", tmp_path / "out", weights=tmp_path / "gone.safetensors")
    with pytest.raises(InputError, match="only be given for python"):
        intake_torch(str(tmp_path), tmp_path / "out", weights=tmp_path / "w.safetensors")


@pytest.mark.parametrize("model", ["python:net.py:build", "python:net", "python::build", "python:net:build()"])
def test_a_badly_written_factory_is_told_how(tmp_path, model):
    with pytest.raises(InputError, match="not of the form") as caught:
        intake_torch(model, tmp_path / "out")
    assert "python:net:build" in caught.value.remedy
