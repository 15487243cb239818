"""Training that gives the same numbers again: seeds of every generator, and torch's deterministic algorithms."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


def seed_all(*numbers: int) -> None:
    """Seed the generators of Python, numpy and torch from some numbers."""
    import numpy as np
    import torch

    seed = int(np.random.SeedSequence(list(numbers)).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the user's modules may use the global generator
    torch.manual_seed(seed)


@contextmanager
def deterministic() -> Iterator[None]:
    """Let torch use deterministic algorithms only, as far as it has them, and put its choice back."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=before)
