"""Kinds of layers and code that networks for small devices have: what may go from each, and what has to stay."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from edgekit.errors import UnsupportedError
from edgekit.networks.changes import apply_changes
from edgekit.networks.coupling import trace_program
from edgekit.networks.network import Network
from edgekit.networks.prune import prune_network
from edgekit.networks.prune_check import difference
from edgekit.networks.prune_choice import Options
from edgekit.networks.prune_cost import Rates, count_macs
from pruned_nets import cell, seeded

RATES = Rates(compute=1e9, depthwise=1e8, grouped=5e8, bandwidth=1e8, bytes=4)
OPTIONS = {
    "ratio": 0.4, "of": "channels", "importance": "l1", "per": "channel", "scope": "layer", "multiple": 1, "least": 1,
    "layers": 0, "across_norms": False, "uniform": False, "skip": (),
}  # fmt: skip


class Plain(nn.Module):
    """A stem of 16 channels, what a test adds, and a head."""

    def __init__(self, width=16):
        super().__init__()
        self.stem = cell(3, 16)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        return self.head(self.inner(self.stem(x)).mean((2, 3)))

    def inner(self, x):
        return self.body(x)


class Linear1d(Plain):
    def __init__(self):
        super().__init__(12)
        self.body = nn.Sequential(nn.Flatten(2), nn.Upsample(scale_factor=2, mode="linear"), nn.Conv1d(16, 12, 3))

    def inner(self, x):
        return self.body(x)[..., None]


class Patches(Plain):
    def __init__(self):
        super().__init__(12)
        self.mix, self.back = nn.Linear(16 * 9, 8 * 9), nn.Conv2d(8, 12, 1)

    def inner(self, x):
        y = torch.relu(self.mix(functional.unfold(x, 3, padding=1).transpose(1, 2))).transpose(1, 2)
        return self.back(functional.fold(y, x.shape[-2:], 3, padding=1))


class Warped(Plain):
    def __init__(self):
        super().__init__(8)
        self.turn, self.body = nn.Linear(16, 6), cell(16, 8)

    def inner(self, x):
        turned = self.turn(x.mean((2, 3))).view(-1, 2, 3)
        grid = functional.affine_grid(turned, x.size(), align_corners=False)
        return self.body(functional.grid_sample(x, grid, align_corners=False))


class Padded(Plain):
    """ResNet for CIFAR, option A: the shortcut has zeros for the new channels."""

    def __init__(self):
        super().__init__(32)
        self.body = nn.Conv2d(16, 32, 3, 2, 1)

    def inner(self, x):
        return torch.relu(self.body(x) + functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 8, 8)))


class Bare(Plain):
    """GroupNorm without weights."""

    def __init__(self):
        super().__init__(12)
        self.norm, self.body = nn.GroupNorm(4, 16, affine=False), cell(16, 12)

    def inner(self, x):
        return self.body(self.norm(x))


class Unflattened(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(10, 256), nn.ReLU(), nn.Unflatten(1, (16, 4, 4)), nn.ConvTranspose2d(16, 3, 4)
        )

    def forward(self, x):
        return self.body(x)


class Blurred(Plain):
    """A filter that is a buffer outside the state, its number of groups an attribute; another made for each call."""

    def __init__(self):
        super().__init__(12)
        kernel = torch.tensor([1.0, 2, 1]).outer(torch.tensor([1.0, 2, 1]))[None, None] / 16
        self.register_buffer("kernel", kernel.repeat(16, 1, 1, 1), persistent=False)
        self.channels, self.body = 16, cell(16, 12)

    def inner(self, x):
        x = functional.conv2d(x, self.kernel, stride=2, groups=self.channels)
        return self.body(functional.conv2d(x, self.kernel[:1].expand(x.shape[1], -1, -1, -1), groups=x.shape[1]))


class Unequal(Plain):
    """Pieces of unequal sizes, which attributes give."""

    def __init__(self):
        super().__init__(8)
        self.first, self.one, self.two = 6, cell(6, 8), cell(10, 8)

    def inner(self, x):
        return self.one(x[:, : self.first]) + self.two(x[:, self.first :])


class Stateful(Plain):
    """A convolutional LSTM whose first state is made of zeros."""

    def __init__(self):
        super().__init__(8)
        self.hidden, self.gates = 8, nn.Conv2d(24, 32, 3, padding=1)

    def inner(self, x):
        h = c = x.new_zeros(x.shape[0], self.hidden, *x.shape[2:])
        for _ in range(2):
            i, f, o, g = self.gates(torch.cat([x, h], 1)).split(self.hidden, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


class Recurrent(Plain):
    """Characters read off an image: columns go through an LSTM in both directions, then a GRU and a cell."""

    def __init__(self):
        super().__init__(9)
        self.lstm = nn.LSTM(16 * 8, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.gru, self.cell, self.last = nn.GRU(24, 10), nn.GRUCell(10, 11), nn.Conv2d(11, 9, 1)

    def inner(self, x):
        n, c, h, w = x.shape
        y = self.gru(self.lstm(x.reshape(n, c * h, w).transpose(1, 2))[0])[0]
        return self.last(self.cell(y[:, 0], None)[..., None, None])


class Normed(Plain):
    def __init__(self):
        super().__init__(12)
        new, old = nn.utils.parametrizations, nn.utils
        self.body = nn.Sequential(
            new.weight_norm(nn.Conv2d(16, 20, 3, padding=1)), nn.ReLU(), new.spectral_norm(nn.Conv2d(20, 16, 1)),
            nn.ReLU(), old.weight_norm(nn.Conv2d(16, 14, 1)), nn.ReLU(), old.spectral_norm(nn.Conv2d(14, 12, 1)),
        )  # fmt: skip


class Adapted(Plain):
    """Weights that are computed: scaled, and with a low-rank part added."""

    def __init__(self):
        super().__init__(12)
        self.body, self.rest = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 12, 1)
        self.a, self.b = nn.Parameter(torch.randn(2, 16)), nn.Parameter(torch.randn(16, 2))

    def inner(self, x):
        x = torch.relu(functional.conv2d(x, self.body.weight + (self.b @ self.a)[..., None, None]))
        return functional.conv2d(x, self.rest.weight * 0.5)


class Biased(nn.Module):
    """Attention with a table of relative positions, a column for each head."""

    def __init__(self):
        super().__init__()
        self.heads, self.qkv, self.out = 4, nn.Linear(16, 48), nn.Linear(16, 5)
        self.table = nn.Embedding(9, 4)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, 4).permute(2, 0, 3, 1, 4)
        steps = torch.arange(t)
        bias = self.table((steps[:, None] - steps[None]).clamp(-4, 4) + 4).permute(2, 0, 1)
        y = (q @ k.transpose(-2, -1) + bias).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, -1))


class Paired(nn.Module):
    def __init__(self):
        super().__init__()
        self.p, self.q, self.both, self.out = (
            nn.Linear(6, 12),
            nn.Linear(6, 10),
            nn.Bilinear(12, 10, 16),
            nn.Linear(16, 3),
        )

    def forward(self, x):
        return self.out(torch.relu(self.both(self.p(x), self.q(x))))


IMAGE, FLAT = (2, 3, 8, 8), (2, 10)
KINDS = {
    Linear1d: IMAGE, Patches: IMAGE, Warped: IMAGE, Padded: IMAGE, Bare: IMAGE, Unflattened: FLAT, Blurred: IMAGE,
    Unequal: IMAGE, Stateful: IMAGE, Recurrent: IMAGE, Normed: IMAGE, Adapted: IMAGE, Biased: (2, 6, 16),
    Paired: (3, 6),
}  # fmt: skip
WHOLE = {"Padded": {"body.weight"}, "Warped": {"turn.weight"}}
"""Layers that lose less than the others: what pads it stays, a matrix has six numbers."""


def pruned(kind, **changes):
    torch.manual_seed(1)
    net = Network(module=seeded(kind), examples={"x": torch.randn(KINDS.get(kind, IMAGE))})
    return net, prune_network(net, Options(**{**OPTIONS, **changes}), RATES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_layer_gets_narrower_and_is_rebuilt(kind):
    original = Network(module=seeded(kind), examples={})
    net, done = pruned(kind)
    assert done.difference < (1e-9 if kind is not Blurred else 1e-4)
    assert not done.findings
    original.examples = net.examples
    assert count_macs(trace_program(net)) < 0.8 * count_macs(trace_program(original))
    before = original.module.state_dict()
    last = [name for name in before if name.startswith(("head", "out", "body.3"))]
    stays = WHOLE.get(kind.__name__, set()) | {*last}
    for name, value in net.module.state_dict().items():
        if value.dim() > 1 and name in before and name not in stays:
            assert value.shape[0] < before[name].shape[0] or "embed" in name or name in ("a", "table.weight"), name
    (new,), (old,) = net.run(net.examples).values(), original.run(net.examples).values()
    assert new.shape == old.shape
    again = apply_changes(seeded(kind), done.changes).eval()
    again.load_state_dict(net.module.state_dict())
    assert torch.equal(new, again(**net.examples))
    again.train()(**net.examples).square().mean().backward()
    assert {name for name, _ in again.named_parameters()} >= {n for n in before if n.endswith((".weight", ".bias"))}


class Literal(Plain):
    """A size that is a number in the code, beside layers that nothing holds."""

    def __init__(self):
        super().__init__(8)
        self.one, self.two, self.free = cell(6, 8), cell(10, 8), cell(8, 8)

    def inner(self, x):
        return self.free(self.one(x[:, :6]) + self.two(x[:, 6:]))


class Hidden(Plain):
    """The same where no operator shows the number."""

    def __init__(self):
        super().__init__(8)
        self.free = cell(16, 8)

    def inner(self, x):
        if x.shape[1] != 16:
            raise ValueError("16 channels are wanted")
        return self.free(x)


@pytest.mark.parametrize(("kind", "left"), [(Literal, 12), (Hidden, 16)])
def test_what_holds_others_back_stays_and_the_others_go(kind, left):
    net, done = pruned(kind)
    assert net.module.stem[0].out_channels == left
    assert net.module.free[0].out_channels < 8
    assert {value.dtype for value in net.module.parameters()} == {torch.float32}
    (finding,) = done.findings
    assert finding.rule == "prune-size-in-code"
    assert "stem.0.weight" in finding.text


class Chosen(nn.Module):
    """Tokens are picked by a mask: how many there are is known when it runs."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(16, 12), nn.Linear(12, 5)

    def forward(self, x):
        y = torch.relu(self.mix(x))
        last = torch.arange(x.shape[1]).expand(x.shape[:2]) > x.shape[1] - 3
        return self.head(y[last].view(x.shape[0], -1, y.shape[-1])[:, -1])


def test_sizes_that_depend_on_values_are_measured():
    net = Network(module=seeded(Chosen), examples={"x": torch.randn(2, 6, 16)})
    done = prune_network(net, Options(**OPTIONS), RATES)
    assert net.module.mix.out_features < 12
    assert done.difference < 1e-9


class Responses(Plain):
    """ConvNeXt V2: responses normalized by their mean over the channels."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Conv2d(16, 24, 1), nn.Conv2d(24, 16, 1)

    def inner(self, x):
        y = functional.gelu(self.up(x))
        norm = y.norm(dim=(2, 3), keepdim=True)
        return self.down(y * (norm / norm.mean(1, keepdim=True)) + y)


def test_means_over_channels_are_crossed_when_allowed():
    net, _ = pruned(Responses)
    assert net.module.up.out_channels == 24
    net, done = pruned(Responses, across_norms=True)
    assert net.module.up.out_channels < 24
    assert done.difference is None


class Caching(Plain):
    """Keeps what it computed of its weights for the next run in evaluation mode, as LeViT does with its biases."""

    def __init__(self):
        super().__init__(12)
        self.cache, self.factors, self.body = {}, nn.Parameter(torch.rand(16)), cell(16, 12)

    def inner(self, x):
        if self.training or "factors" not in self.cache:
            self.cache["factors"] = 2 * self.factors
        return self.body(x * self.cache["factors"][:, None, None])


def test_what_a_module_keeps_for_its_next_run_is_forgotten():
    net, done = pruned(Caching)
    assert not done.findings
    assert done.difference < 1e-9
    assert net.module.stem[0].out_channels < 16
    assert net.module.cache == {}
    (before,) = net.run(net.examples).values()
    net.module.factors.data.mul_(3)
    (after,) = net.run(net.examples).values()
    assert not torch.allclose(before, after)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x, factor):
        return x + factor * torch.tanh(self.mix(x))


class Kinds(nn.Module):
    """Layers of several kinds, which a configuration lists by number, as models with sliding windows do."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(layer_types=["half", "whole", "half", "whole"], name="kinds")
        self.layers = nn.ModuleList(Scaled() for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x, 0.5 if self.config.layer_types[index] == "half" else 1.0)
        return self.head(x)


def test_lists_of_kinds_are_cut_with_their_layers():
    torch.manual_seed(0)
    module, shared = Kinds().eval(), Kinds().config
    module.config = shared
    net = Network(module=module, examples={"x": torch.randn(3, 8)})
    module.layers[1].mix.weight.data *= 1e-3
    module.layers[1].mix.bias.data *= 1e-3
    done = prune_network(net, Options(**{**OPTIONS, "ratio": 0, "layers": 1}), RATES)
    assert done.layers == [0, 2, 3]
    assert module.config.layer_types == ["half", "half", "whole"]
    assert shared.layer_types == ["half", "whole", "half", "whole"]


def test_layers_that_the_code_counts_are_refused_by_name():
    module = Kinds().eval()
    module.forward = lambda x: Kinds.forward(module, x) * (1 if len(module.layers) == 4 else torch.ones(7))
    net = Network(module=module, examples={"x": torch.randn(3, 8)})
    with pytest.raises(UnsupportedError, match=r"without layers .*RuntimeError"):
        prune_network(net, Options(**{**OPTIONS, "ratio": 0, "layers": 1}), RATES)
    assert len(module.layers) == 4


def test_what_is_not_finite_is_compared_as_it_is():
    nan, inf = float("nan"), float("inf")
    one = [{"y": torch.tensor([1.0, nan, inf])}]
    assert difference(one, [{"y": torch.tensor([1.0, nan, inf])}]) == 0
    assert difference(one, [{"y": torch.tensor([1.5, nan, inf])}]) == 0.5
    for other in ([1.0, 2.0, inf], [nan, nan, inf], [1.0, nan, -inf]):
        assert difference(one, [{"y": torch.tensor(other)}]) == inf


def test_models_that_write_are_pruned_with_what_their_decoder_reads(tmp_path):
    from transformers import T5Config, T5ForConditionalGeneration

    from edgekit.networks.examples import pretrained_inputs

    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_heads": 4, "num_layers": 1, "vocab_size": 50}
    model = T5ForConditionalGeneration(T5Config(**sizes)).eval()
    (tmp_path / "config.json").write_text("{}")
    inputs = pretrained_inputs(model, tmp_path, "text2text-generation", {}, {})
    assert {"input_ids", "decoder_input_ids"} <= inputs.examples.keys()
    net = Network(module=model, examples=inputs.examples, call=lambda feed: {"logits": model(**feed).logits})
    done = prune_network(net, Options(**{**OPTIONS, "uniform": True}), RATES)
    attention = model.encoder.block[0].layer[0].SelfAttention
    heads = attention.relative_attention_bias.weight.shape[1]
    assert heads < 4
    assert attention.q.out_features == 4 * heads
    assert done.difference < 1e-9
