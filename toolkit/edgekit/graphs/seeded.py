"""Random inputs in the form of samples, for checks without data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.artifact import TensorSpec
from edgekit.data import Feed
from edgekit.errors import InputError
from edgekit.graphs.dynamic import working_sizes
from edgekit.graphs.feeds import index_bounds, random_feed

if TYPE_CHECKING:
    import onnx


class SeededSamples:
    """Random inputs that a model accepts.

    Attributes:
        ids: `random input SEED`.
        labels: None.
    """

    labels: npt.NDArray[np.generic] | None = None

    def __init__(
        self,
        session: Any,
        model: onnx.ModelProto,
        folder: Path,
        specs: Sequence[TensorSpec],
        *,
        seed: int,
        count: int = 2,
    ) -> None:
        """Find sizes of dynamic axes with which `session` runs.

        Raises:
            InputError: there are none; data must be given.
        """
        self._specs = specs
        self._bounds = index_bounds(model, specs, folder)
        sizes, reason = working_sizes(session, specs, self._bounds)
        if sizes is None:
            raise InputError(
                f"the model does not run on random inputs: {reason}", remedy="Give real inputs with --data DIR."
            )
        self._sizes = sizes
        self._seeds = [seed + number for number in range(count)]
        self.ids: Sequence[str] = [f"random input {number}" for number in self._seeds]

    def __len__(self) -> int:
        """Return the number of inputs."""
        return len(self._seeds)

    def sample(self, index: int) -> Feed:
        """Return one random input; the same for the same seed."""
        return random_feed(self._specs, self._sizes, self._bounds, seed=self._seeds[index])

    def batches(self, size: int) -> Iterator[Feed]:
        """Yield them one by one, whatever `size`."""
        del size
        for index in range(len(self)):
            yield self.sample(index)
