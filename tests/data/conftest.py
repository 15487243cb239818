from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit.artifact import TensorSpec


@pytest.fixture
def cases() -> Path:
    return Path(__file__).parent.parent / "cases"


@pytest.fixture
def image_spec() -> TensorSpec:
    return TensorSpec(name="x", dtype="float32", shape=("batch", 3, 16, 12))


@pytest.fixture
def vector_spec() -> TensorSpec:
    return TensorSpec(name="x", dtype="float32", shape=("batch", 4))


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((100, 4)).astype(np.float32)
