"""Networks on which other pruners fail: what they must give is written beside them."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from edgekit.networks.network import Network
from edgekit.networks.prune import prune_network
from edgekit.networks.prune_choice import Options
from edgekit.networks.prune_cost import Rates

CASES = Path(__file__).parent.parent / "cases"
NAMES = sorted(path.name for path in CASES.glob("P*"))
RATES = Rates(compute=1e9, depthwise=1e8, grouped=5e8, bandwidth=1e8, bytes=4)


def load(name):
    spec = importlib.util.spec_from_file_location(name, CASES / name / "net.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    net = Network(module=module.Net().eval(), examples={"x": module.example()})
    return net, module, json.loads((CASES / name / "expect.json").read_text())


def options(**changes):
    values = {
        "ratio": 0.5, "of": "channels", "importance": "l1", "per": "channel", "scope": "global", "multiple": 1,
        "least": 1, "layers": 0, "across_norms": False, "uniform": False, "skip": (), **changes,
    }  # fmt: skip
    return Options(**values)


def test_all_cases_are_here():
    assert [name[:3] for name in NAMES] == ["P01", "P03", "P05", "P06"]


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("importance", ["l1", "l2", "batch-norm"])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("name", NAMES)
def test_a_case_is_right(name, ratio, importance, scope):
    net, module, expected = load(name)
    before = sum(value.numel() for value in net.module.parameters())
    done = prune_network(net, options(ratio=ratio, importance=importance, scope=scope), RATES)
    assert sum(value.numel() for value in net.module.parameters()) < before
    assert done.difference < 1e-9
    for size in (1, 3):
        found = net.module(module.example().repeat(size, *[1] * (module.example().dim() - 1)))
        assert found.isfinite().all() == expected["forward_ok"]
        assert found.shape[-1] == expected.get("out_features", found.shape[-1])
    for part in net.module.modules():
        if isinstance(part, torch.nn.modules.conv._ConvNd):
            assert part.in_channels % part.groups == part.out_channels % part.groups == 0
            assert min(part.weight.shape) >= expected.get("min_channels", 1)
    net.module.train()
    net.module(module.example()).square().mean().backward()


@pytest.mark.parametrize("ratio", [0.3, 0.6, 0.9])
def test_heads_go_in_whole_groups(ratio):
    net, _, _ = load("P03_gqa_attention")
    attention = net.module.at
    prune_network(net, options(ratio=ratio), RATES)
    assert (attention.hq, attention.hk) in {(8, 2), (4, 1)}
    assert attention.hd == 16
    assert attention.q.out_features == attention.hq * 16 == attention.o.in_features
    assert attention.k.out_features == attention.v.out_features == attention.hk * 16


def test_a_narrow_layer_is_not_emptied():
    net, _, _ = load("P06_all_channels_pruned")
    prune_network(net, options(ratio=0.99), RATES)
    assert net.module.b.out_channels >= 1
    assert min(net.module.a.out_channels, net.module.c.out_channels) >= 1
    net, _, _ = load("P06_all_channels_pruned")
    prune_network(net, options(ratio=0.99, least=4, multiple=4), RATES)
    assert net.module.b.out_channels == 2  # fewer than the multiple to begin with
    assert net.module.a.out_channels == net.module.c.out_channels == 4
