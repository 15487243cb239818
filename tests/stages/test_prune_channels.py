"""The stage prune-channels as the pipeline runs it: in a child process, on an artifact's folder."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import house
from edgekit.artifact import Artifact, Step, canonical_json, sha256_file
from edgekit.errors import UsageError
from edgekit.networks.child import run_in_child
from edgekit.networks.intake import intake_torch
from edgekit.networks.record import changes_of, read_record
from edgekit.plan import make_stage
from edgekit.profile import Preferences
from edgekit.stage import Context, Inputs
from edgekit.stages.prune_channels import PruneChannels

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(32)
        self.two = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.head = torch.nn.Linear(32, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.one(x)))
        return self.head(torch.relu(x + self.two(x)).mean((2, 3)))

    def example_inputs(self):
        return {"x": torch.zeros(1, 1, 8, 8)}

def build():
    torch.manual_seed(0)
    return Net()

class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.one(x)

    def example_inputs(self):
        return {"x": torch.zeros(1, 4)}
"""


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    base = tmp_path_factory.mktemp("net")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        (base / "net_to_prune.py").write_text(NET)
        found = {}
        for name in ("build", "Flat"):
            facts = intake_torch(f"python:net_to_prune:{name}", base / name)
            found[name] = (base / name, facts)
    return found


def artifact_of(folder, facts, *steps):
    files = {path.relative_to(folder).as_posix(): sha256_file(path) for path in folder.rglob("*") if path.is_file()}
    return Artifact(kind="torch", files=files, facts=facts, lineage=steps)


def run(stage, taken, out, *, data=None, steps=(), **profile):
    folder, facts = taken
    out.mkdir()
    scratch = out.with_name(f"{out.name}-scratch")
    scratch.mkdir()
    inputs = Inputs(
        artifact=artifact_of(folder, facts, *steps), folder=folder, profile=house.profile(**profile), data=data
    )
    return stage.run(inputs, out, Context(scratch=scratch))


def files(folder):
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in folder.rglob("*") if path.is_file()}


def test_the_same_bytes_twice_and_the_facts(taken, tmp_path, monkeypatch):
    before = files(taken["build"][0])
    stage = make_stage("prune-channels", {"ratio": 0.25}, "test")
    one, two = (run(stage, taken["build"], tmp_path / name) for name in ("one", "two"))
    assert canonical_json(one) == canonical_json(two)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert files(taken["build"][0]) == before
    assert str(tmp_path) not in json.dumps(one)
    pruning = one["pruning"]
    assert pruning["groups"] == [{"group": "one.weight", "before": 32, "after": 24}]
    assert pruning["after"]["macs"] == 64 * (24 * 9 + 24 * 24 * 9) + 24 * 3
    assert pruning["before"]["macs"] == 64 * (32 * 9 + 32 * 32 * 9) + 32 * 3
    (change,) = changes_of(read_record(tmp_path / "one"))
    assert change.kind == "channels"
    kept = change.details["kept"]
    assert kept["one.weight"]["0"] == kept["norm.running_mean"]["0"] == kept["head.weight"]["1"]
    here = Path(__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", f"{here}:{here / 'networks'}")
    (row,) = run_in_child("prune_jobs:again", {"folders": [str(tmp_path / "one")]})
    assert row["sizes"]["two.weight"] == [24, 24, 3, 3]


def test_widths_follow_the_profile(taken, tmp_path):
    facts = run(PruneChannels(ratio=0.1), taken["build"], tmp_path / "out", layers=Preferences(multiple=16))
    assert facts["pruning"]["groups"][0]["after"] == 16


@pytest.mark.slow
def test_what_the_loss_needs_stays(taken, tmp_path):
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 1, 8, 8)).astype(np.float32)} for _ in range(80)]
    data = dataclasses.replace(house.dataset([]), training=house.MemorySamples(feeds, np.arange(80) % 3))
    stage = PruneChannels(ratio=0.25, importance="taylor")
    assert stage.needs == {"data", "training"}
    one = run(stage, taken["build"], tmp_path / "one", data=data)
    two = run(stage, taken["build"], tmp_path / "two", data=data)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert one == two
    run(PruneChannels(ratio=0.25), taken["build"], tmp_path / "norm")
    kept = [changes_of(read_record(tmp_path / name))[0].details["kept"]["one.weight"] for name in ("one", "norm")]
    assert kept[0] != kept[1]


def test_nothing_more_to_remove_is_no_error_in_later_rounds(taken, tmp_path):
    step = Step(stage="prune-channels", revision=1, options={}, inputs={}, libraries={}, facts={})
    facts = run(PruneChannels(), taken["Flat"], tmp_path / "later", steps=[step])
    assert files(tmp_path / "later") == files(taken["Flat"][0])
    assert facts["findings"][0]["rule"] == "prune-nothing"


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"ratio": 1.0}, "ratio"), ({"ratio": -0.1}, "ratio"), ({"multiple": -1}, "multiple"), ({"least": 0}, "least"),
        ({"layers": -1}, "layers"), ({"ratio": 0}, "prune-channels"), ({"of": "neurons"}, "test"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options, where):
    with pytest.raises(UsageError) as caught:
        make_stage("prune-channels", options, "test")
    assert where in str(caught.value)
