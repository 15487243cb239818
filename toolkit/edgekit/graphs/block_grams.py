"""What the layers of a graph take in, as sums that do not grow with the samples: `X^T X` of each input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgekit.data import Samples
from edgekit.graphs.calibrate import open_graph, problem_in, refuse_bad, run

if TYPE_CHECKING:
    import onnx

Gram = npt.NDArray[np.float32]

MOST_AT_ONCE = 512 << 20
"""Bytes of sums that are held at once; more inputs are taken in several passes over the samples."""

LARGEST = 1 << 28
"""Bytes of one sum above which an input gets none."""


class Grams:
    """`X^T X` of the inputs of layers over chosen samples, taken in as few passes as memory allows.

    Sums that fit into `MOST_AT_ONCE` together are kept, so that several methods share one pass.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path,
        samples: Samples,
        indices: Sequence[int],
        depths: Mapping[str, int],
        *,
        threads: int,
        tell: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """Prepare; nothing runs before `each` is asked.

        Args:
            model: the graph in float.
            folder: where its external data lies.
            samples: calibration samples.
            indices: which of them count.
            depths: input tensor -> size of its last axis.
            threads: CPU threads.
            tell: gets runs done and runs in all.
        """
        self._model, self._folder, self._samples = model, folder, samples
        self._indices, self._threads, self._tell = list(indices), threads, tell
        self._groups = list(_groups({name: 4 * depth * depth for name, depth in depths.items()}))
        self._depths = dict(depths)
        self._kept: dict[str, Gram] | None = None

    def each(self) -> Iterator[dict[str, Gram]]:
        """Yield the sums, group by group; every input is in exactly one group, unless its sum would be too large.

        Raises:
            InputError: samples with NaN or infinite values, by name, or that the model does not run on.
        """
        if self._kept is not None:
            yield self._kept
            return
        for number, group in enumerate(self._groups):
            found = self._pass(group, number)
            if len(self._groups) == 1:
                self._kept = found
            yield found

    def _pass(self, group: Sequence[str], number: int) -> dict[str, Gram]:
        session = open_graph(self._model, self._folder, threads=self._threads, extra_outputs=group)
        sums = {name: np.zeros((self._depths[name],) * 2, np.float32) for name in group}
        outputs = [value.name for value in self._model.graph.output]
        bad: dict[str, str] = {}
        for done, index in enumerate(self._indices, 1):
            feed, name = self._samples.sample(index), self._samples.ids[index]
            problem = problem_in(feed, "input")
            if not problem:
                values = run(session, feed, sample=name)
                problem = problem_in({key: values[key] for key in outputs}, "output")
            if problem:
                bad[name] = problem
                continue
            for key in group:
                rows = np.asarray(values[key], np.float32).reshape(-1, self._depths[key])
                sums[key] += rows.T @ rows
            self._tell(number * len(self._indices) + done, len(self._groups) * len(self._indices))
        refuse_bad(bad)
        return {key: value for key, value in sums.items() if np.isfinite(value).all()}


def _groups(sizes: Mapping[str, int]) -> Iterable[list[str]]:
    groups: list[list[str]] = [[]]
    room = MOST_AT_ONCE
    for name, size in sizes.items():
        if size > LARGEST:
            continue
        if size > room and groups[-1]:
            groups.append([])
            room = MOST_AT_ONCE
        groups[-1].append(name)
        room -= size
    return [group for group in groups if group]
