"""The network of the vision sample: a depthwise CNN for 28 x 28 gray images, after MobileNetV2 (Sandler et al., 2018).

Inverted residuals with ReLU6, batch normalization and linear bottlenecks: 135 k parameters, 7 M multiply-adds. Its
depthwise layers have very different ranges from channel to channel, so it is a fair test of an int8 quantizer.
"""

from __future__ import annotations

import torch
from torch import nn

BLOCKS = ((32, 2, 1), (32, 1, 3), (64, 2, 4), (64, 1, 3), (64, 1, 3), (96, 1, 4))
"""Output channels, stride and expansion of each inverted residual."""


def convolution(inputs: int, outputs: int, size: int, stride: int = 1, *, depthwise: bool = False) -> nn.Sequential:
    """Return convolution and batch normalization, `same` padding."""
    groups = inputs if depthwise else 1
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class InvertedResidual(nn.Module):
    """Expand 1 x 1, depthwise 3 x 3, project 1 x 1 without activation; the input is added where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        expand = [] if expansion == 1 else [convolution(inputs, width, 1), nn.ReLU6()]
        self.body = nn.Sequential(
            *expand,
            convolution(width, width, 3, stride, depthwise=True),
            nn.ReLU6(),
            convolution(width, outputs, 1),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[n, inputs, h, w]` to `[n, outputs, h / stride, w / stride]`."""
        y = self.body(x)
        return x + y if self.residual else y


class FashionNet(nn.Module):
    """Ten classes from normalized gray images `x` float32 `[n, 1, 28, 28]`: returns `logits` float32 `[n, 10]`."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(1, 16, 3), nn.ReLU6()]
        channels = 16
        for outputs, stride, expansion in BLOCKS:
            layers.append(InvertedResidual(channels, outputs, stride, expansion))
            channels = outputs
        layers += [convolution(channels, 256, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `logits` for `x`."""
        return self.head(self.dropout(self.features(x)))


def build() -> FashionNet:
    """Return the network, untrained: the factory for `python:samples.vision.network:build`."""
    return FashionNet()
