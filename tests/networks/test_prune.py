"""Pruning of networks in many styles: what is left computes what the original did with these channels unread."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.errors import UnsupportedError, UsageError
from edgekit.networks.changes import apply_changes
from edgekit.networks.coupled import Slot
from edgekit.networks.coupling import couple, trace_program
from edgekit.networks.network import Network, flatten
from edgekit.networks.prune import prune_network
from edgekit.networks.prune_check import run_all, unread
from edgekit.networks.prune_choice import Options
from edgekit.networks.prune_cost import Rates, channel_cost, count_macs, macs_after
from edgekit.networks.prune_groups import groups_of
from edgekit.networks.prune_remove import kept_of, remove
from edgekit.numerics.importance import taylor
from pruned_nets import NETS, examples, seeded

RATES = Rates(compute=1e9, depthwise=1e8, grouped=5e8, bandwidth=1e8, bytes=4)
OPTIONS = {
    "ratio": 0.4, "of": "channels", "importance": "l1", "per": "channel", "scope": "global", "multiple": 1, "least": 1,
    "layers": 0, "across_norms": False, "uniform": False, "skip": (),
}  # fmt: skip


def options(**changes):
    return Options(**{**OPTIONS, **changes})


def network(name):
    made, shapes = NETS[name]
    return Network(module=seeded(made), examples=examples(shapes))


def outputs(net):
    return list(net.run(net.examples).values())


def parameters(net):
    return sum(value.numel() for value in net.module.parameters())


@pytest.mark.parametrize("name", NETS)
def test_a_pruned_network_computes_what_it_did_without_the_channels(name):
    net, original = network(name), network(name)
    done = prune_network(net, options(), RATES)
    assert done.difference < 1e-9
    assert parameters(net) < 0.85 * parameters(original)
    coupling = couple(original)  # the same again, by hand: zeros where weights read what went
    groups = {group.name: group for group in groups_of(coupling)}
    _, reads = kept_of(coupling, [(groups[group.name], channels) for group, channels in done.gone])
    before = outputs(original)
    with unread(original.module, reads):
        wanted = outputs(original)
    assert any(not torch.allclose(old, new) for old, new in zip(before, wanted, strict=True)), "nothing was lost"
    for new, old in zip(outputs(net), wanted, strict=True):
        torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-5)
    for new, old in zip(outputs(original), before, strict=True):
        assert torch.equal(new, old), "zeros were left in the original"


@pytest.mark.parametrize("name", NETS)
def test_the_record_rebuilds_it_and_it_trains(name):
    net = network(name)
    done = prune_network(net, options(), RATES)
    again = apply_changes(NETS[name][0](), done.changes).eval()
    again.load_state_dict(net.module.state_dict())
    rebuilt = Network(module=again, examples=net.examples)
    assert all(torch.equal(one, two) for one, two in zip(outputs(net), outputs(rebuilt), strict=True))
    assert all(value.dtype == torch.float32 for value in net.module.parameters())
    again.train()
    found = flatten(again(**net.examples), taken=set())
    sum(value.square().mean() for value in found.values()).backward()
    assert all(value.grad is None or value.grad.shape == value.shape for value in again.parameters())
    assert sum(value.grad is not None for value in again.parameters()) >= len(list(again.parameters())) - 1


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["residual", "dense", "cross", "cross-split", "shuffle", "next", "patches", "gated", "inverted"]),
    st.data(),
)
def test_any_channels_may_go(name, data):
    net = network(name)
    coupling = couple(net)
    gone = []
    for group in groups_of(coupling):
        count = data.draw(st.integers(0, group.size - 1))
        channels = data.draw(st.permutations(range(group.size)))[:count]
        gone.append((group, np.array(sorted(channels), np.int64)))
    if any(channels.size for _, channels in gone):
        assert remove(net, coupling, gone).difference < 1e-9


def keep_on(net):
    for _ in range(40):
        prune_network(net, options(ratio=0.9), RATES)


@pytest.mark.parametrize("name", ["residual", "cross", "patches", "gated", "next"])
def test_rounds_go_on_until_nothing_may_go(name):
    net, sizes = network(name), []
    for _ in range(3):
        prune_network(net, options(ratio=0.3), RATES)
        sizes.append(parameters(net))
    assert sizes == sorted(set(sizes), reverse=True)
    with pytest.raises(UnsupportedError, match="would empty layers"):
        keep_on(net)
    assert all(value.numel() for value in net.module.parameters())


def test_tied_weights_stay_tied_and_outputs_stay_whole():
    net = network("gated")
    prune_network(net, options(ratio=0.5), RATES)
    assert net.module.lm.weight is net.module.embed.weight
    assert net.module.lm.weight.shape == (40, 32)
    assert net.module.num_heads % net.module.num_kv == 0
    assert net.module.width == 4
    shared = network("shared")
    prune_network(shared, options(), RATES)
    assert shared.module.tied.weight is shared.module.twice.weight


@pytest.mark.parametrize("name", ["residual", "inverted", "cross", "patches", "gated"])
@pytest.mark.parametrize("multiple", [2, 4, 8])
def test_widths_are_multiples(name, multiple):
    net = network(name)
    whole = {key for key, value in shapes(net).items() if value[0] % multiple == 0}
    prune_network(net, options(multiple=multiple), RATES)
    assert all(value[0] % multiple == 0 for key, value in shapes(net).items() if key in whole)


def shapes(net):
    return {
        path: part.weight.shape
        for path, part in net.module.named_modules()
        if isinstance(part, (torch.nn.Conv2d, torch.nn.Linear))
        and getattr(part, "groups", 1) in (1, part.weight.shape[0])
    }


def total(net):
    return sum(group.weight * group.size for group in groups_of(couple(net)))


def test_channels_that_matter_least_go():
    net = network("residual")
    weight = net.module.blocks[0][0][0].weight
    with torch.no_grad():
        weight[[2, 5, 11]] *= 1e-3
        net.module.blocks[0][1].weight[:, [2, 5, 11]] *= 1e-3
    kept = weight.detach()[[i for i in range(16) if i not in (2, 5, 11)]]
    done = prune_network(net, options(ratio=3 / total(net)), RATES)
    assert [(g.name, c.tolist()) for g, c in done.gone if c.size] == [("blocks.0.0.0.weight", [2, 5, 11])]
    assert torch.equal(net.module.blocks[0][0][0].weight, kept)


def test_importance_by_batch_norm():
    net = network("residual")
    net.module.blocks[0][0][1].weight.data[[1, 3]] = 1e-4
    net.module.blocks[0][0][0].weight.data[[1, 3]] *= 100
    done = prune_network(net, options(ratio=2 / total(net), importance="batch-norm"), RATES)
    assert {tuple(c.tolist()) for g, c in done.gone if g.name == "blocks.0.0.0.weight"} == {(1, 3)}


def test_importance_by_gradients_is_what_the_loss_loses():
    net = network("shared")
    target = torch.zeros(2, 3)

    def loss():
        return (net.module(net.examples["x"]) - target).square().mean()

    loss().backward()
    named = net.module.named_parameters(remove_duplicate=False)
    values = {name: (value.detach().numpy(), value.grad.numpy()) for name, value in named if value.grad is not None}

    def sensitive(coupling):
        found = {slot: taylor(*values[slot.tensor], slot.axis)[None] for slot in coupling.makes | coupling.reads}
        for changes in found.values():
            if changes.shape[1] == 16:
                changes[:, 7] = 0  # as where nothing reads a channel
        return found

    with torch.no_grad():
        net.module.enter.weight[7] *= 100  # its size says nothing about what the loss needs
        net.module.twice.weight[:, 7] = 0
        net.module.head.weight[:, 7] = 0
        before = loss()
        done = prune_network(net, options(ratio=1 / total(net), importance="taylor"), RATES, sensitive)
        assert [channels.tolist() for _, channels in done.gone] == [[7]]
        torch.testing.assert_close(loss(), before)


def test_importance_for_time_takes_what_is_slow():
    slow = Rates(compute=1e12, depthwise=1e5, grouped=1e12, bandwidth=1e12, bytes=4)

    def milliseconds(per):
        done, coupling = (
            prune_network(network("inverted"), options(per=per, ratio=0.1), slow),
            couple(network("inverted")),
        )
        return sum(channels.size * channel_cost(group, coupling, slow) for group, channels in done.gone)

    assert milliseconds("millisecond") > 1.1 * milliseconds("channel")


@pytest.mark.parametrize("name", ["residual", "inverted", "cross", "patches"])
def test_the_share_of_work_is_met(name):
    net = network(name)
    before = count_macs(trace_program(net))
    done = prune_network(net, options(ratio=0.5, of="macs"), RATES)
    after = count_macs(trace_program(net))
    assert 0.4 < after / before < 0.6
    assert macs_after(couple(network(name)), done.gone) == pytest.approx(after / before, abs=0.03)  # attention is extra


def test_every_layer_loses_the_same_share():
    done = prune_network(network("residual"), options(ratio=0.25, scope="layer"), RATES)
    assert all(abs(channels.size - 0.25 * group.size) <= 1 for group, channels in done.gone)


def test_alike_layers_lose_equally_many():
    done = prune_network(network("patches"), options(uniform=True), RATES)
    counts = {}
    for group, channels in done.gone:
        counts.setdefault(group.role, set()).add(channels.size)
    assert all(len(found) == 1 for found in counts.values())


def test_what_is_skipped_stays():
    done = prune_network(network("residual"), options(skip=("blocks.0", "shortcuts.*.0.weight")), RATES)
    gone = {slot.tensor for group, channels in done.gone if channels.size for slot in group.places}
    assert gone
    assert not any(name.startswith("blocks.0") or name == "shortcuts.1.0.weight" for name in gone)
    with pytest.raises(UnsupportedError):  # a shared weight goes by any of its names
        prune_network(network("shared"), options(skip=("twice",)), RATES)


def test_norms_are_crossed_when_allowed():
    net = network("patches")
    done = prune_network(net, options(across_norms=True, ratio=0.3), RATES)
    assert done.difference is None
    assert net.module.embed.weight.shape[0] < 32
    assert net.module.norms[0].normalized_shape == (net.module.embed.weight.shape[0],)
    assert outputs(net)[0].isfinite().all()


def test_heads_of_torchs_own_attention_stay_and_it_is_told():
    net = network("encoder")
    done = prune_network(net, options(ratio=0.9), RATES)
    assert net.module.layer.self_attn.in_proj_weight.shape == (48, 16)
    assert net.module.layer.linear1.out_features < 32
    assert done.difference < 1e-9
    (told,) = [finding for finding in done.findings if finding.rule == "prune-size-in-code"]
    assert "layer.self_attn" in told.node
    assert "in_proj_weight" in told.text


def test_zeros_as_example_inputs_prove_as_much():
    net = network("patches")
    net.examples["x"].zero_()
    seen = run_all(net, double=False)[0]["output"]
    assert not torch.equal(seen, net.run(net.examples)["output"])
    assert prune_network(net, options(), RATES).difference < 1e-9


class Literal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(4, 24)
        self.two = torch.nn.Linear(24, 2)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)).view(-1, 6, 4).flatten(1))


def test_a_size_written_as_a_number_is_refused_by_name():
    net = Network(module=Literal().eval(), examples={"x": torch.randn(2, 4)})
    before = outputs(net)
    with pytest.raises(UnsupportedError, match=r"one\.weight"):
        prune_network(net, options(), RATES)
    assert torch.equal(outputs(net)[0], before[0])


class Sorted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Conv2d(3, 16, 3)
        self.two = torch.nn.Conv2d(16, 8, 1)
        self.three = torch.nn.Conv2d(8, 2, 1)

    def forward(self, x):
        y = self.one(x)
        return self.three(torch.relu(self.two(torch.bucketize(y, torch.tensor([0.0, 1.0])).float() + y)))


def test_what_is_not_understood_keeps_its_channels_by_name():
    net = Network(module=Sorted().eval(), examples={"x": torch.randn(2, 3, 6, 6)})
    done = prune_network(net, options(), RATES)
    assert net.module.one.weight.shape[0] == 16
    assert net.module.two.weight.shape[0] < 8
    assert any("bucketize" in finding.text for finding in done.findings)


class Branch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.one(x) if x.sum() > 0 else x


def test_a_network_that_cannot_be_traced_is_refused_by_name():
    net = Network(module=Branch().eval(), examples={"x": torch.randn(2, 4)})
    with pytest.raises(UnsupportedError, match="cannot be traced") as caught:
        prune_network(net, options(), RATES)
    assert caught.value.where == "Branch"


def test_a_network_of_outputs_only_is_refused():
    net = Network(module=torch.nn.Sequential(torch.nn.Linear(4, 3)).eval(), examples={"input": torch.randn(2, 4)})
    with pytest.raises(UnsupportedError, match="reaches an output"):
        prune_network(net, options(), RATES)


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(8, 16)
        self.two = torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.two(torch.relu(self.one(x)))


def test_whole_layers_go_those_that_change_least():
    torch.manual_seed(0)
    net = Network(module=Stack().eval(), examples={"x": torch.randn(2, 8)})
    net.module.layers[2].two.weight.data *= 1e-3
    net.module.layers[2].two.bias.data *= 1e-3
    left = [net.module.layers[index] for index in (0, 1, 3)]
    done = prune_network(net, options(ratio=0, layers=1), RATES)
    assert done.layers == [0, 1, 3]
    assert list(net.module.layers) == left
    with pytest.raises(UsageError, match="3 layers: 3 cannot go"):
        prune_network(net, options(ratio=0, layers=3), RATES)


def test_depthwise_and_grouped_kernels_keep_their_shape():
    net = network("next")
    coupling = couple(net)
    assert coupling.grouped == {"group.weight": True, "up.weight": True}
    assert coupling.labels.kept(coupling.axes[Slot("group.weight", 1)]).all()
    prune_network(net, options(), RATES)
    for part in (net.module.group, net.module.up):
        assert part.in_channels % part.groups == 0
        assert part.weight.shape[1] == 2 if part is net.module.group else 4
