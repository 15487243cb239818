"""EfficientNet-Lite0 (Liu, 2020, after Tan and Le, 2019) with a linear head: no squeeze-and-excitation, ReLU6.

Written for the published weights: same arithmetic, padding as TensorFlow's `SAME` for even sizes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

STAGES = (
    # channels, kernel, stride, expansion, repeats
    (16, 3, 1, 1, 1),
    (24, 3, 2, 6, 2),
    (40, 5, 2, 6, 2),
    (80, 3, 2, 6, 3),
    (112, 5, 1, 6, 3),
    (192, 5, 2, 6, 4),
    (320, 3, 1, 6, 1),
)
FEATURES = 1280
EPSILON = 1e-3


class ConvNorm(nn.Module):
    """Convolution, padded like `SAME`, and batch normalization, then ReLU6 unless `linear`."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, *, linear: bool = False
    ) -> None:
        super().__init__()
        symmetric = (kernel - 1) // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, symmetric, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=EPSILON)
        self.before, self.after = ((kernel - stride) // 2, (kernel - stride + 1) // 2) if stride > 1 else (0, 0)
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[n, inputs, h, w]` to `[n, outputs, h / stride, w / stride]`."""
        if self.after:
            x = functional.pad(x, (self.before, self.after, self.before, self.after))
        x = self.norm(self.conv(x))
        return x if self.linear else functional.relu6(x)


class Block(nn.Module):
    """Inverted residual: expand, depthwise, project; the input is added where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.expand = ConvNorm(inputs, width, 1) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(width, width, kernel, stride, width)
        self.project = ConvNorm(width, outputs, 1, linear=True)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[n, inputs, h, w]` to `[n, outputs, h / stride, w / stride]`."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class EfficientNetLite0(nn.Module):
    """Images `x` float32 `[n, 3, h, w]`, h and w multiples of 32, to `logits` float32 `[n, classes]`."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 32, 3, 2)
        blocks, channels = [], 32
        for outputs, kernel, stride, expansion, repeats in STAGES:
            for repeat in range(repeats):
                blocks.append(Block(channels, outputs, kernel, 1 if repeat else stride, expansion))
                channels = outputs
        self.blocks = nn.ModuleList(blocks)
        self.top = ConvNorm(channels, FEATURES, 1)
        self.head = nn.Linear(FEATURES, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the head sees, float32 `[n, 1280]`."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.top(x).mean((2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `logits` for `x`."""
        return self.head(self.features(x))


_RENAMED = (
    (r"^_conv_stem\.", "stem.conv."),
    (r"^_bn0\.", "stem.norm."),
    (r"^_conv_head\.", "top.conv."),
    (r"^_bn1\.", "top.norm."),
    (r"^_blocks\.(\d+)\._expand_conv\.", r"blocks.\1.expand.conv."),
    (r"^_blocks\.(\d+)\._bn0\.", r"blocks.\1.expand.norm."),
    (r"^_blocks\.(\d+)\._depthwise_conv\.", r"blocks.\1.depthwise.conv."),
    (r"^_blocks\.(\d+)\._bn1\.", r"blocks.\1.depthwise.norm."),
    (r"^_blocks\.(\d+)\._project_conv\.", r"blocks.\1.project.conv."),
    (r"^_blocks\.(\d+)\._bn2\.", r"blocks.\1.project.norm."),
)
"""The published names -> ours."""


def load_published(network: EfficientNetLite0, state: Mapping[str, torch.Tensor]) -> None:
    """Load the published ImageNet weights into everything but the head; raises when a tensor is left over."""
    renamed = {}
    for name, tensor in state.items():
        new = name
        for pattern, replacement in _RENAMED:
            new = re.sub(pattern, replacement, new)
        if not name.startswith("_fc."):
            renamed[new] = tensor
    head = {f"head.{name}": tensor for name, tensor in network.head.state_dict().items()}
    network.load_state_dict({**renamed, **head})


def build() -> EfficientNetLite0:
    """Return the untrained ten-class network: the factory for `python:samples.vision_effnet.network:build`."""
    return EfficientNetLite0(10)
