"""Small parts that several tests build with: a profile by hand, and a data set in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgekit.data import Dataset, Feed
from edgekit.profile import Compute, Cpu, Graph, Memory, Profile, Roofline, Sourced


def sourced(value: float) -> Sourced:
    return Sourced(value=value, source="estimated")


def profile(**changes: Any) -> Profile:
    values: dict[str, Any] = {
        "name": "test-device",
        "title": "A device for tests",
        "family": "host",
        "runtime": "onnx",
        "recipe": "fp32",
        "precisions": ("fp32", "fp16", "w8a8"),
        "cpu": Cpu(arch="x86_64", cores=sourced(2), features=("avx512_vnni",)),
        "memory": Memory(ram_mb=sourced(8000), bandwidth_gbs=sourced(20)),
        "compute": Compute(fp32_tops=sourced(0.1), fp16_tops=sourced(0.1), int8_tops=sourced(0.4)),
        "roofline": Roofline(
            fp32=sourced(0.5),
            fp16=sourced(0.5),
            int8=sourced(0.5),
            bandwidth=sourced(0.5),
            depthwise=sourced(0.3),
            grouped=sourced(0.3),
            launch_us=sourced(5),
            spread=sourced(2),
        ),
        "graph": Graph(),
    }
    return Profile(**{**values, **changes})


@dataclass
class MemorySamples:
    arrays: list[Feed]
    labels: Any = None

    @property
    def ids(self) -> list[str]:
        return [f"memory[{i}]" for i in range(len(self.arrays))]

    def __len__(self) -> int:
        return len(self.arrays)

    def sample(self, index: int) -> Feed:
        return self.arrays[index]

    def batches(self, size: int) -> Iterator[Feed]:
        for start in range(0, len(self.arrays), size):
            part = self.arrays[start : start + size]
            yield {name: np.concatenate([feed[name] for feed in part]) for name in part[0]}


def dataset(feeds: list[Feed], *, name: str = "data") -> Dataset:
    """A data set of which half is for calibration and half for evaluation."""
    half = len(feeds) // 2
    return replace(calibration_data(feeds[:half]), id=name, evaluation=MemorySamples(feeds[half:]))


def calibration_data(feeds: list[Feed]) -> Dataset:
    """A data set that is there for calibration alone."""
    none = MemorySamples([])
    return Dataset(
        id="d",
        calibration=MemorySamples(feeds),
        training=none,
        evaluation=none,
        preprocessing={},
        labels=(),
        findings=(),
    )
