"""The network that `compress.py vision` makes smaller: the one of the vision sample, one and a half times as wide."""

from __future__ import annotations

import torch
from torch import nn

from samples.vision.network import InvertedResidual, convolution

STEM, LAST = 24, 448
BLOCKS = ((48, 2, 1), (48, 1, 3), (96, 2, 4), (96, 1, 3), (96, 1, 3), (160, 1, 4))


class WideNet(nn.Module):
    """Ten classes from `x` float32 `[n, 1, 28, 28]`: `logits` float32 `[n, 10]`; 21 M multiply-accumulates."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(1, STEM, 3), nn.ReLU6()]
        channels = STEM
        for outputs, stride, expansion in BLOCKS:
            layers.append(InvertedResidual(channels, outputs, stride, expansion))
            channels = outputs
        layers += [convolution(channels, LAST, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(LAST, 10)
        self.example_inputs = {"x": torch.zeros(2, 1, 28, 28)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `logits` for `x`."""
        return self.head(self.features(x))


def build() -> WideNet:
    """Return the network, untrained: the factory for `python:benchmarks.compress_net:build`."""
    return WideNet()
