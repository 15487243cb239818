"""Zeros in weights: which, how many, and that training leaves them alone."""

import numpy as np
import pytest
import torch

from edgekit.networks.changes import apply_changes
from edgekit.networks.prune_weights import masks_of, weights_of
from edgekit.networks.record import Change
from pruned_nets import NETS, examples, seeded


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
