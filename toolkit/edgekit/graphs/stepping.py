"""Runs a graph over samples tensor by tensor, in graph order, without running what lies before again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.graphs.calibrate import open_graph, run
from edgekit.graphs.edit import reads

if TYPE_CHECKING:
    import onnx

    from edgekit.data import Feed, Samples

MOST_KEPT = 48 << 20
"""Bytes of inner tensors that are kept of all samples together; where more are alive, the last ones are used longer."""


class Stepper:
    """Gives one tensor of a graph after another, later and later ones.

    Where few bytes are alive between two nodes they are kept for every sample, and what follows starts from them.
    Constants of the graph may change in place between calls, as long as only nodes behind the last tensor read them.
    """

    def __init__(
        self, model: onnx.ModelProto, folder: Path, samples: Samples, indices: Sequence[int], *, threads: int
    ) -> None:
        """Start at the graph's inputs; `folder` is where its external data lies."""
        self.model, self.folder, self.samples, self.threads = model, folder, samples, threads
        self.indices = list(indices)
        self._places = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
        self._last_use: dict[str, int] = {}
        for i, node in enumerate(model.graph.node):
            for name in reads(node):
                self._last_use[name] = i
        self._kept: dict[int, Feed] | None = None
        self._place = -1

    def values(self, name: str) -> Iterator[tuple[int, Any]]:
        """Yield sample index and value of a tensor, for every sample."""
        if self._places.get(name, -1) < self._place and name not in (self._kept or {}).get(self.indices[0], {}):
            self._kept, self._place = None, -1  # made before what is kept
        session = self._open([name])
        for index in self.indices:
            yield index, self._run(session, index)[name]

    def keep(self, name: str) -> None:
        """Start from here from now on, if little enough is alive where `name` has just been made."""
        place = self._places.get(name, -1)
        if place <= self._place:
            return
        made = {value.name for value in self.model.graph.input} | set(self._places)
        alive = [t for t in sorted(made) if self._places.get(t, -1) <= place < self._last_use.get(t, -1)]
        if not alive or not self.indices:
            return
        session = self._open(alive)
        kept: dict[int, Feed] = {}
        room = MOST_KEPT
        for index in self.indices:
            found = self._run(session, index)
            kept[index] = {tensor: found[tensor] for tensor in alive}
            if not all(isinstance(value, np.ndarray) for value in kept[index].values()):
                return  # a sequence or an optional value
            size = sum(array.nbytes for array in kept[index].values())
            room -= size
            if room < 0 or size * len(self.indices) > MOST_KEPT:
                return
        self._kept, self._place = kept, place

    def _feed(self, index: int) -> Feed:
        return self.samples.sample(index) if self._kept is None else self._kept[index]

    def _run(self, session: Any, index: int) -> Feed:
        feed = self._feed(index)
        if session is None:
            return feed
        return {**feed, **run(session, feed, sample=self.samples.ids[index])}

    def _open(self, names: list[str]) -> Any:
        """Open what computes tensors from what is kept; None when all of them are kept."""
        from onnx import helper

        start = self._feed(self.indices[0])
        wanted = [name for name in names if name not in start]
        if not wanted:
            return None
        made = type(self.model)(ir_version=self.model.ir_version)
        made.opset_import.extend(self.model.opset_import)
        made.functions.extend(self.model.functions)
        nodes, used = self._before(wanted, frozenset(start) if self._kept is not None else frozenset())
        made.graph.name = self.model.graph.name
        made.graph.node.extend(nodes)
        made.graph.initializer.extend(tensor for tensor in self.model.graph.initializer if tensor.name in used)
        if self._kept is None:
            made.graph.input.extend(value for value in self.model.graph.input if value.name in used)
        else:
            for name, array in start.items():
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                made.graph.input.append(helper.make_tensor_value_info(name, kind, self._common_shape(name)))
        made.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
        return open_graph(made, self.folder, threads=self.threads)

    def _common_shape(self, name: str) -> list[int | None]:
        """Return the sizes that a kept tensor has in every sample; None for others.

        Where sizes are unknown, the shape inference of some operators (Attention) takes them for 0.
        """
        shapes = [feed[name].shape for feed in (self._kept or {}).values()]
        return [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)]

    def _before(self, wanted: Sequence[str], known: frozenset[str]) -> tuple[list[onnx.NodeProto], set[str]]:
        """Return the nodes that make tensors from known ones, in graph order, and every name that they read."""
        nodes, used = [], set(wanted)
        for node in reversed(self.model.graph.node):
            if used.isdisjoint(node.output) or not known.isdisjoint(node.output):
                continue
            nodes.append(node)
            used.update(reads(node))
        return nodes[::-1], used
