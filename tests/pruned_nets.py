"""Small networks in the styles that pruning must get right: what the tests of pruning build with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def seeded(made: Any) -> Any:
    """Build a network with seeded weights and BatchNorm statistics that are not those of a new one."""
    torch.manual_seed(0)
    net = made().eval()
    for part in net.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            if part.affine:
                part.weight.data.uniform_(0.5, 2)
                part.bias.data.normal_()
    return net


def cell(cin: int, cout: int, size: int = 3, **more: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(cin, cout, size, padding=size // 2, bias=False, **more), nn.BatchNorm2d(cout), nn.ReLU()
    )


class Residual(nn.Module):
    """ResNet: basic blocks, a projected shortcut, a stem with pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = cell(3, 16)
        self.pool = nn.MaxPool2d(2)
        self.blocks = nn.ModuleList()
        self.shortcuts = nn.ModuleList()
        for cin, cout in ((16, 16), (16, 32), (32, 32)):
            self.blocks.append(
                nn.Sequential(cell(cin, cout), nn.Conv2d(cout, cout, 3, padding=1), nn.BatchNorm2d(cout))
            )
            same = nn.Identity()
            self.shortcuts.append(same if cin == cout else nn.Sequential(nn.Conv2d(cin, cout, 1), nn.BatchNorm2d(cout)))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        for block, shortcut in zip(self.blocks, self.shortcuts, strict=True):
            x = functional.relu(block(x) + shortcut(x))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Inverted(nn.Module):
    """MobileNet: inverted residuals with squeeze and excitation, depthwise with a multiplier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = cell(3, 8)
        self.expand = nn.ModuleList(cell(8, 24, 1) for _ in range(2))
        self.depthwise = nn.ModuleList(cell(24, 24, groups=24) for _ in range(2))
        self.down = nn.ModuleList(nn.Conv2d(24, 8, 1) for _ in range(2))
        self.squeeze = nn.ModuleList(nn.Conv2d(24, 4, 1) for _ in range(2))
        self.excite = nn.ModuleList(nn.Conv2d(4, 24, 1) for _ in range(2))
        self.wide = nn.Conv2d(8, 16, 3, groups=8, padding=1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for index in range(2):
            y = self.depthwise[index](self.expand[index](x))
            gate = self.excite[index](functional.relu(self.squeeze[index](y.mean((2, 3), keepdim=True))))
            x = x + self.down[index](y * functional.hardsigmoid(gate))
        return self.head(functional.hardswish(self.wide(x)).mean((2, 3)))


class Dense(nn.Module):
    """DenseNet: every layer reads the concatenation of all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 + 6 * index) for index in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(8 + 6 * index, 6, 3, padding=1) for index in range(3))
        self.head = nn.Linear(26, 5)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            found.append(conv(functional.relu(norm(torch.cat(found, 1)))))
        return self.head(torch.cat(found, 1).mean((2, 3)))


class Cross(nn.Module):
    """YOLO: C2f with chunk and concat, SPPF, upsampling, two heads whose outputs stay."""

    def __init__(self) -> None:
        super().__init__()
        self.c = 8
        self.stem = cell(3, 16)
        self.one = cell(16, 16, 1)
        self.inner = nn.ModuleList(nn.Sequential(cell(8, 8), cell(8, 8)) for _ in range(2))
        self.two = cell(32, 16, 1)
        self.down = cell(16, 24, stride=2)
        self.fast = nn.Conv2d(24, 12, 1)
        self.spp = nn.Conv2d(48, 24, 1)
        self.heads = nn.ModuleList([nn.Conv2d(40, 7, 1), nn.Conv2d(24, 7, 1)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = list(self.one(self.stem(x)).chunk(2, 1))
        for block in self.inner:
            found.append(found[-1] + block(found[-1]))
        high = self.two(torch.cat(found, 1))
        low = self.fast(self.down(high))
        pools = [low]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
        low = self.spp(torch.cat(pools, 1))
        return self.heads[0](torch.cat([high, functional.interpolate(low, scale_factor=2)], 1)), self.heads[1](low)


class CrossSplit(Cross):
    """The same with `split` by an attribute, as Ultralytics has it."""

    def __init__(self) -> None:
        super().__init__()
        del self.fast, self.spp

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = list(self.one(self.stem(x)).split((self.c, self.c), 1))
        for block in self.inner:
            found.append(found[-1] + block(found[-1]))
        high = self.two(torch.cat(found, 1))
        low = functional.interpolate(self.down(high), scale_factor=2)
        return self.heads[0](torch.cat([high, low], 1)), self.heads[1](self.down(high))


class Shuffle(nn.Module):
    """ShuffleNet: grouped 1x1 convolutions and a channel shuffle written with views."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = cell(3, 24)
        self.first = nn.Conv2d(24, 24, 1, groups=2)
        self.depth = cell(24, 24, groups=24)
        self.second = nn.Conv2d(24, 24, 1, groups=2)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.first(x)
        n, c, h, w = y.shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head((x + self.second(self.depth(y))).mean((2, 3)))


class Next(nn.Module):
    """ResNeXt (many groups) with GroupNorm, and a decoder of transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.GroupNorm(8, 32)
        self.group = nn.Conv2d(32, 32, 3, padding=1, groups=16)
        self.mix = nn.Conv2d(32, 16, 1)
        self.up = nn.ConvTranspose2d(16, 16, 2, 2, groups=4)
        self.prelu = nn.PReLU(16)
        self.out = nn.ConvTranspose2d(16, 3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.group(functional.silu(self.norm(self.stem(x))))
        return self.out(self.prelu(self.up(self.mix(x))))


class Attention(nn.Module):
    """Attention with one projection for query, key and value, and a number of heads in the code."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = (q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, -1))


class Patches(nn.Module):
    """ViT as timm writes it: class token, positions, pre-norm blocks, LayerScale."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.positions = nn.Parameter(torch.randn(1, 5, 32))
        self.attention = nn.ModuleList(Attention() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(5))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2))
        self.scale = nn.Parameter(torch.rand(2, 32))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for index in range(2):
            x = x + self.scale[index] * self.attention[index](self.norms[2 * index](x))
            x = x + self.mlp[index](self.norms[2 * index + 1](x))
        return self.head(self.norms[4](x)[:, 0])


class Gated(nn.Module):
    """Tied embeddings, a gated MLP with one projection, attention by torch's fused operator with grouped queries."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv, self.width = 8, 2, 4
        self.embed = nn.Embedding(40, 32)
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.o = nn.Linear(32, 32)
        self.gate = nn.Linear(32, 96)
        self.down = nn.Linear(48, 32)
        self.lm = nn.Linear(32, 40, bias=False)
        self.lm.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        n, t, _ = x.shape
        q = self.q(x).view(n, t, self.num_heads, self.width).transpose(1, 2)
        k, v = (part(x).view(n, t, self.num_kv, self.width).transpose(1, 2) for part in (self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(n, t, self.num_heads * self.width))
        return self.lm(x + self.down(functional.glu(self.gate(x), -1)))


class Shared(nn.Module):
    """One module called twice, one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 16)
        self.twice = nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.twice.weight
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.enter(x))
        return self.head(self.tied(functional.relu(self.twice(functional.relu(self.twice(x))))))


class Encoder(nn.Module):
    """torch's own transformer layer behind a convolution: its heads stay, its neurons may go."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(4, 16, 3, padding=1)
        self.enter = nn.Conv1d(16, 16, 1)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.enter(functional.relu(self.front(x))).transpose(1, 2)).mean(1))


class Skips(nn.Module):
    """U-Net: skips joined after transposed convolutions, a sub-pixel head, a gate of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = cell(3, 12), cell(12, 20, stride=2)
        self.up = nn.ConvTranspose2d(20, 10, 2, 2)
        self.join = cell(22, 16)
        self.gate = nn.Conv2d(16, 1, 1)
        self.norm = nn.InstanceNorm2d(16, affine=True)
        self.wide = nn.Conv2d(16, 24, 1)
        self.shuffle = nn.PixelShuffle(2)
        self.fold = nn.PixelUnshuffle(2)
        self.last = nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.one(x)
        y = self.join(torch.cat([self.up(self.two(high)), high], 1))
        y = self.norm(y * torch.sigmoid(self.gate(y)))
        return self.last(self.fold(torch.relu(self.shuffle(self.wide(y)))))


class Sequence(nn.Module):
    """A recurrent layer between convolutions in time: what it reads and gives is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(4, 16, 3, padding=2, dilation=2), nn.Conv1d(16, 8, 1)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.two(functional.leaky_relu(self.one(x)))
        y, _ = self.lstm(y.transpose(1, 2))
        return {"steps": self.mlp(y), "last": self.mlp(y[:, -1])}


class Equations(nn.Module):
    """Attention by einsum, one key for all heads, weights used as plain tensors and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.randn(16, 6, 4) / 4)
        self.k, self.v = nn.Parameter(torch.randn(16, 4) / 4), nn.Parameter(torch.randn(16, 4) / 4)
        self.o = nn.Parameter(torch.randn(6, 4, 16) / 4)
        self.up, self.down = nn.Parameter(torch.randn(32, 16) / 4), nn.Parameter(torch.randn(16, 32) / 4)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        q = torch.einsum("btd,dhk->bthk", x, self.q)
        weights = torch.einsum("bthk,bsk->bhts", q, x @ self.k).softmax(-1)
        y = torch.einsum("bhts,bsk->bthk", weights, x @ self.v)
        x = x + torch.einsum("bthk,hkd->btd", y, self.o)
        return self.head(x + torch.relu(x @ self.up.t()) @ self.down.T)


class Twins(nn.Module):
    """One encoder for two inputs, compared and joined; a head for each."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 12))
        self.join = nn.Linear(36, 10)
        self.head = nn.Linear(10, 2)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.encode(a), self.encode(b)
        joined = torch.relu(self.join(torch.cat([a, b, (a - b).abs()], -1)))
        return self.head(joined), functional.cosine_similarity(a, b)


IMAGES = {"x": (2, 3, 8, 8)}
NETS: dict[str, tuple[Any, dict[str, tuple[int, ...]]]] = {
    "residual": (Residual, IMAGES), "inverted": (Inverted, IMAGES), "dense": (Dense, IMAGES), "cross": (Cross, IMAGES),
    "cross-split": (CrossSplit, IMAGES), "shuffle": (Shuffle, IMAGES), "next": (Next, IMAGES),
    "patches": (Patches, IMAGES), "gated": (Gated, {"ids": (2, 6)}), "shared": (Shared, {"x": (2, 6)}),
    "encoder": (Encoder, {"x": (2, 4, 10)}), "skips": (Skips, IMAGES), "sequence": (Sequence, {"x": (2, 4, 10)}),
    "equations": (Equations, {"x": (2, 5, 16)}), "twins": (Twins, {"a": (2, 6), "b": (2, 6)}),
}  # fmt: skip


def examples(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return seeded inputs: ids are integers."""
    torch.manual_seed(1)
    return {k: torch.randint(0, 40, s) if k == "ids" else torch.randn(s) for k, s in shapes.items()}
