"""A float model whose matrices can be replaced from run to run: what rounding some of them costs, with one session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.blame import Blame, blame
from edgekit.graphs.block_choice import BlockJob
from edgekit.graphs.block_plan import BlockWeight
from edgekit.graphs.block_solve import Solved, inputs_of
from edgekit.graphs.calibrate import Reference, open_graph, spread
from edgekit.graphs.edit import GraphIndex
from edgekit.graphs.sensitivity import Checkpoint
from edgekit.numerics.blockwise import BlockCodes

if TYPE_CHECKING:
    import onnx

Key = tuple[int, str]
Array = npt.NDArray[np.floating]

MOST_SWAPPED = 4
"""Held-out samples that single matrices are measured on: one run each per matrix."""

ENOUGH_OUTPUTS = 1 << 23
"""Elements of outputs that are enough to measure noise by: more samples are taken only below."""

AIM = 20.0
"""Ratio in dB for which blame looks for the smallest set of layers to leave float."""


@dataclass(frozen=True)
class Swapped:
    """The model with some matrices replaced; runs like a session, see `SwapModel.opened`."""

    session: Any
    weights: Mapping[str, Array]

    def get_inputs(self) -> list[Any]:
        """Return the model's own inputs."""
        return [item for item in self.session.get_inputs() if item.name not in self.weights]

    def get_outputs(self) -> list[Any]:
        """Return the model's outputs."""
        return list(self.session.get_outputs())

    def run(self, names: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        """Run one sample."""
        return list(self.session.run(names, {**feed, **self.weights}))


@dataclass
class SwapModel:
    """One session whose matrices are inputs, so that another rounding of one costs a run and not a session.

    Attributes:
        job: the model being quantized.
        weights: its matrices in the main graph, by key; those of inner graphs cannot be inputs.
    """

    job: BlockJob
    weights: dict[Key, BlockWeight] = field(init=False)

    def __post_init__(self) -> None:
        """Open the session; the weights are not copied."""
        self.weights = {weight.key: weight for weight in self.job.plan.weights if not weight.key[0]}
        source = self.job.source
        model = _with_inputs(source.model, {name for _, name in self.weights})
        self._inputs = inputs_of(self.job.plan.weights, GraphIndex(source.model.graph, source.folder))
        self._session = open_graph(model, source.folder, threads=self.job.threads)
        self._float: dict[str, Array] = {
            name: np.ascontiguousarray(self.job.weights.values(weight.operands[0]), np.float32)
            for (_, name), weight in self.weights.items()
        }

    def opened(self, rounded: Mapping[Key, BlockCodes], factors: Mapping[str, Array]) -> Swapped:
        """Return the model with some matrices as their codes give them back.

        Args:
            rounded: weight key -> its codes.
            factors: see `Solved`.
        """
        found = {key[1]: self._laid(self.weights[key], codes, factors) for key, codes in rounded.items()}
        return Swapped(session=self._session, weights=self._float | found)

    def _laid(self, weight: BlockWeight, codes: BlockCodes, factors: Mapping[str, Array]) -> Array:
        """Return the floats of a matrix as its initializer lies, what its input is divided by taken out again."""
        near = codes.dequantized()
        scaled = factors.get(self._inputs[weight.key]) if weight.products else None
        if scaled is not None:
            near = (near / scaled).astype(np.float32)
        return weight.laid(near)


def _with_inputs(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """Return a copy of a model in which some initializers are inputs, without their values."""
    import onnx

    copy = onnx.ModelProto()
    graph = model.graph
    for found, value in model.ListFields():
        if found.name != "graph":
            target = getattr(copy, found.name)
            target.MergeFrom(value) if hasattr(target, "MergeFrom") else setattr(copy, found.name, value)
    copy.graph.name = graph.name
    for part in ("node", "input", "output", "sparse_initializer"):
        getattr(copy.graph, part).extend(getattr(graph, part))
    for tensor in graph.initializer:
        if tensor.name in names:
            made = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            copy.graph.input.append(made)
        else:
            copy.graph.initializer.append(tensor)
    return copy


def few_judged(job: BlockJob) -> Reference:
    """Return the original's outputs on the few held-out samples that single matrices are measured on."""
    assert job.samples is not None
    first = Reference(job.session, job.samples, job.held[:1])
    size = sum(np.size(array) for array in first.outputs(job.held[0]).values())
    count = min(max(ENOUGH_OUTPUTS // max(size, 1), 1), MOST_SWAPPED)
    return Reference(job.session, job.samples, [job.held[place] for place in spread(len(job.held), count)])


def block_blame(job: BlockJob, solved: Solved, *, scratch: Path, tell: Callable[[int, int], None]) -> Blame:
    """Measure what rounding every matrix costs.

    Args:
        job: the model being quantized; it needs samples.
        solved: its matrices as the chosen method rounds them.
        scratch: a folder for what is measured, so that a kill loses nothing.
        tell: gets measurements done and in all.
    """
    model = SwapModel(job)
    ops = {node.name: node.op_type for graph in job.weights.graphs for node in graph.node}
    named = {weight.operands[0].node: weight for weight in model.weights.values()}
    layers = {}
    for name, weight in named.items():
        fmt = solved.codes[weight.key].format
        layers[name] = (ops[name], f"{fmt.bits} bits, block-{fmt.block}")
    inner = len(job.plan.weights) - len(named)

    def some(names: frozenset[str]) -> Swapped:
        return model.opened({named[name].key: solved.codes[named[name].key] for name in names}, solved.factors)

    return blame(
        layers,
        stage="quantize-int4",
        alone=lambda name: some(frozenset({name})),
        together=some,
        reference=few_judged(job),
        aim=AIM,
        checkpoint=Checkpoint(scratch / "blame.jsonl"),
        tell=tell,
        told=f"{inner} weights of branches and loop bodies are not measured" if inner else "",
    )
