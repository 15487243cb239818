"""Zeros in weights: which, how many, and that training leaves them alone."""

import inspect

import numpy as np
import pytest
import torch

from edgekit.networks.changes import apply_changes
from edgekit.networks.intake import intake_torch
from edgekit.networks.network import Network
from edgekit.networks.prune import prune_network
from edgekit.networks.prune_choice import Options
from edgekit.networks.prune_cost import Rates
from edgekit.networks.prune_weights import masks_of, sparsify, weights_of
from edgekit.networks.rebuild import rebuild
from edgekit.networks.record import Change
from pruned_nets import NETS, examples, seeded

RATES = Rates(compute=1e9, depthwise=1e8, grouped=5e8, bandwidth=1e8, bytes=4)


def options():
    values = {
        "ratio": 0.3, "of": "channels", "importance": "l1", "per": "channel", "scope": "global", "multiple": 1,
        "least": 1, "layers": 0, "across_norms": False, "uniform": False, "skip": (),
    }  # fmt: skip
    return Options(**values)


def net(name):
    return seeded(NETS[name][0])


@pytest.mark.parametrize("name", NETS)
def test_of_every_four_inputs_two_stay(name):
    weights = dict(weights_of(net(name), ()))
    for key, mask in masks_of(weights, 0.5, "2:4", "layer").items():
        weight, axis = weights[key]
        rows = np.moveaxis(mask, axis, -1)
        whole = rows.shape[-1] // 4 * 4
        assert (rows[..., :whole].reshape(-1, 4).sum(1) == 2).all()
        values = np.moveaxis(np.abs(weight.detach().numpy()), axis, -1)[..., :whole].reshape(-1, 4)
        held = rows[..., :whole].reshape(-1, 4)
        assert (np.where(held, values, np.inf).min(1) >= np.where(held, 0, values).max(1)).all()


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_the_share_is_met(scope):
    weights = dict(weights_of(net("residual"), ()))
    masks = masks_of(weights, 0.7, "", scope)
    total = sum(mask.size for mask in masks.values())
    assert sum((~mask).sum() for mask in masks.values()) == pytest.approx(0.7 * total, abs=len(masks))
    shares = {round(float((~mask).mean()), 2) for mask in masks.values()}
    assert shares == {0.7} if scope == "layer" else len(shares) > 1


def test_embeddings_stay_and_shared_weights_count_once():
    assert "lm.weight" not in dict(weights_of(net("gated"), ()))
    assert [name for name, _ in weights_of(net("shared"), ())] == ["enter.weight", "twice.weight", "head.weight"]
    assert [name for name, _ in weights_of(net("shared"), ("twice", "h*"))] == ["enter.weight"]


def test_training_leaves_the_zeros_alone():
    module = net("residual")
    weights = dict(weights_of(module, ()))
    masks = masks_of(weights, 0.6, "", "layer")
    change = Change(kind="zeros", details={"tensors": sorted(weights)})
    again = apply_changes(NETS["residual"][0](), [change])
    with torch.no_grad():
        for name, (weight, _) in weights.items():
            weight.mul_(torch.from_numpy(masks[name]))
    again.load_state_dict(module.state_dict())
    again.train()
    optimizer = torch.optim.AdamW(again.parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        again(examples(NETS["residual"][1])["x"]).square().mean().backward()
        optimizer.step()
    for name, value in again.named_parameters():
        if name in masks:
            assert torch.equal(value != 0, torch.from_numpy(masks[name]))
    assert not torch.equal(again.head.weight, module.head.weight)


def test_zeros_are_left_alone_after_channels_went():
    module = net("residual")
    network = Network(module=module, examples=examples(NETS["residual"][1]))
    weights = dict(weights_of(module, ()))
    with torch.no_grad():
        for name, mask in masks_of(weights, 0.6, "", "layer").items():
            weights[name][0].mul_(torch.from_numpy(mask))
    zeros = Change(kind="zeros", details={"tensors": sorted(weights)})
    done = prune_network(network, options(), RATES)
    again = apply_changes(NETS["residual"][0](), [zeros, *done.changes])
    again.load_state_dict(module.state_dict())
    held = {name: value == 0 for name, value in again.named_parameters() if name in weights}
    again.train()
    optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
    again(network.examples["x"]).square().mean().backward()
    optimizer.step()
    assert sum(int(mask.sum()) for mask in held.values()) > 1000
    assert all(bool((value[held[name]] == 0).all()) for name, value in again.named_parameters() if name in held)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 16))
        self.two = torch.nn.Linear(16, 3)
        self.example_inputs = {"x": torch.randn(2, 8, generator=torch.Generator().manual_seed(0))}

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


def test_weights_that_a_parametrization_computes_become_zero_too(tmp_path, monkeypatch):
    (tmp_path / "normed_of_zeros.py").write_text(
        "import torch\n" + inspect.getsource(Normed) + "\ndef net():\n    torch.manual_seed(0)\n    return Normed()\n"
    )
    monkeypatch.chdir(tmp_path)
    intake_torch("python:normed_of_zeros:net", tmp_path / "a")
    (tmp_path / "b").mkdir()
    given = {"folder": str(tmp_path / "a"), "out": str(tmp_path / "b"), "ratio": 0.5, "pattern": "2:4", "skip": ()}
    facts = sparsify({**given, "scope": "layer", "shapes": {}, "dtypes": {}, "threads": 1}, lambda _: None)
    assert facts["sparsity"]["layers"] == {"one.weight": 0.5, "two.weight": 0.5}
    state = rebuild(tmp_path / "b").module.state_dict()
    assert sorted(state) == ["one.bias", "one.weight", "two.bias", "two.weight"]
    assert float((state["one.weight"] == 0).float().mean()) == 0.5
