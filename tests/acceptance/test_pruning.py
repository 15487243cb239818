"""Pruning in rounds through the command line: each round is judged, the last good one is packaged."""

from __future__ import annotations

import tarfile

import numpy as np
import onnx
import pytest

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Conv2d(1, 64, 3, padding=1)
        self.two = torch.nn.Conv2d(64, 64, 3, padding=1)
        self.head = torch.nn.Linear(64, 4)

    def forward(self, x):
        x = torch.relu(self.one(x))
        return self.head(torch.relu(self.two(x)).mean((2, 3)))

def build():
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        for layer in (net.one, net.two):  # three channels in four hardly matter
            layer.weight[16:] *= 1e-3
            layer.bias[16:] *= 1e-3
    net.example_inputs = {"x": torch.zeros(2, 1, 8, 8)}
    return net.eval()
"""

ROUNDS = """
title = "Rounds of pruning"
[[repeat]]
rounds = 3
[[repeat.stage]]
use = "prune-channels"
ratio = 0.4
[[repeat.stage]]
use = "finetune"
epochs = 1
[[stage]]
use = "simplify"
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    """A network whose labels are its own decisions, and a recipe of rounds."""
    import torch

    (tmp_path / "net_in_rounds.py").write_text(NET)
    (tmp_path / "rounds.toml").write_text(ROUNDS)
    scope: dict[str, object] = {}
    exec(NET, scope)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1, 8, 8)).astype(np.float32) * rng.uniform(0.2, 3, size=(300, 1, 1, 1)).astype(np.float32)
    with torch.no_grad():
        y = scope["build"]()(torch.from_numpy(x)).numpy()
    y -= np.median(y, 0)
    np.savez(tmp_path / "data.npz", x=x, y=y.argmax(1))
    return tmp_path


@pytest.mark.slow
def test_rounds_end_at_the_budget_and_the_last_good_one_ships(edgekit, net):
    asked = ("python:net_in_rounds:build", "--data", "data.npz", "--recipe", "rounds.toml", "--out", net / "out")
    ran = edgekit.build(*asked, "--max-drop", "4%", cwd=net)
    assert ran.status == 0, ran.err
    stages = ran.json["stages"]
    rounds = [stage["facts"] for stage in stages if stage["name"] == "repeat"]
    pruned = [stage["facts"]["pruning"] for stage in stages if stage["name"] == "prune-channels"]
    assert rounds[0]["kept"]
    assert all(row["kept"] for row in rounds[:-1])
    assert [row["latency_ms"] for row in rounds] == sorted((row["latency_ms"] for row in rounds), reverse=True)
    good = [one for one, row in zip(pruned, rounds, strict=False) if row["kept"]][-1]
    with tarfile.open(ran.json["package"]) as archive:
        (name,) = [name for name in archive.getnames() if name.endswith(".onnx")]
        model = onnx.load_model_from_string(archive.extractfile(name).read())
    weights = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert abs(weights - good["after"]["parameters"]) < 16  # shapes and the like are initializers too
    assert good["after"]["parameters"] < 0.5 * pruned[0]["before"]["parameters"]
    again = edgekit.build(*asked, "--max-drop", "4%", cwd=net)
    assert all(done for name, done in again.cached.items() if name != "repeat")


@pytest.mark.slow
def test_a_round_that_loses_too_much_is_undone(edgekit, net):
    (net / "rounds.toml").write_text(
        ROUNDS.replace("0.4", "0.9").replace('[[repeat.stage]]\nuse = "finetune"\nepochs = 1\n', "")
    )
    asked = ("python:net_in_rounds:build", "--data", "data.npz", "--recipe", "rounds.toml", "--out", net / "out")
    ran = edgekit.build(*asked, "--max-drop", "1%", "--allow-dominated", cwd=net)
    assert ran.status == 0, ran.err
    (told,) = [stage["facts"] for stage in ran.json["stages"] if stage["name"] == "repeat"]
    assert told["kept"] is False
    assert told["drop"] > 0.01
    assert ran.check("agreement")["value"] == 1.0
