"""How much error a node makes on its own: a twin of it reads the original's values, and both results are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.graphs.calibrate import open_graph, run
from edgekit.graphs.edit import GraphIndex
from edgekit.numerics.output_distance import decibels

if TYPE_CHECKING:
    import onnx

    from edgekit.data import Samples

_CHANNELS_SECOND = frozenset({"Conv", "ConvTranspose"})
_CHANNELS_LAST = frozenset({"MatMul", "Gemm"})
_MATRIX = 2


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Names of the outputs that tell about one node.

    Attributes:
        total: sum of its result over everything but the channels, `[channels]`. Where no constant gives them, the last
            axis may be positions, whose number differs from sample to sample: all counts as one channel then.
        square: the same of its square.
        noise: sum of squares of the twin's difference, `[]`.
        count: elements per channel, `[]`.
    """

    total: str
    square: str
    noise: str
    count: str


def twin_name(node: str) -> str:
    """Return the name of a node's twin."""
    return node + "/probe"


def probed(model: onnx.ModelProto, names: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, Probe]]:
    """Return a copy in which chosen nodes have a twin, with outputs that compare both; and their names by node."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    index = GraphIndex(copy.graph)
    first, column = index.fresh_name("probe/axes"), index.fresh_name("probe/column")
    for name, values in ((first, [0]), (column, [-1, 1])):
        copy.graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, np.int64), name))
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    wanted = set(names)
    probes: dict[str, Probe] = {}
    extra: list[onnx.NodeProto] = []
    for node in copy.graph.node:
        if node.name in wanted:
            whole = "" if _has_channels(index, node) else column
            probes[node.name] = _add_twin(index, node, first, ranks, extra, whole)
    copy.graph.node.extend(extra)
    for probe in probes.values():
        for name, kind in ((probe.total, 1), (probe.square, 1), (probe.noise, 1), (probe.count, 7)):
            copy.graph.output.add().name = name
            copy.graph.output[-1].type.tensor_type.elem_type = kind
    return copy, probes


def _has_channels(index: GraphIndex, node: onnx.NodeProto) -> bool:
    """Say whether a constant second operand gives the result its channels."""
    if node.op_type not in _CHANNELS_SECOND | _CHANNELS_LAST:
        return False
    maker = index.producers.get(node.input[1])
    stored = maker.input[0] if maker is not None and maker.op_type == "Transpose" else node.input[1]
    return stored in index.initializers and len(index.initializers[stored].dims) >= _MATRIX


def _add_twin(
    index: GraphIndex, node: onnx.NodeProto, first: str, ranks: dict[str, int], extra: list[onnx.NodeProto], whole: str
) -> Probe:
    import onnx

    def add(op: str, inputs: list[str], end: str, **attributes: Any) -> str:
        name = index.fresh_name(f"{node.output[0]}/probe/{end}")
        extra.append(onnx.helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    twin = onnx.NodeProto()
    twin.CopyFrom(node)
    twin.name = twin_name(node.name)
    twin.output[0] = index.fresh_name(node.output[0] + "/probe")
    extra.append(twin)
    difference = add("Sub", [node.output[0], twin.output[0]], "difference")
    noise = add("ReduceSumSquare", [difference], "noise", keepdims=0)
    last = node.output[0]
    rank = ranks.get(node.input[1], 0) if len(node.input) > 1 else 0
    if node.op_type in _CHANNELS_SECOND and rank:
        last = add("Transpose", [last], "channels", perm=[0, *range(2, rank), 1])
    rows = add("Reshape", [last, whole], "rows") if whole else add("Flatten", [last], "rows", axis=-1)
    square = add("Mul", [rows, rows], "square")
    shape = add("Shape", [rows], "shape")
    return Probe(
        total=add("ReduceSum", [rows, first], "sums", keepdims=0),
        square=add("ReduceSum", [square, first], "squares", keepdims=0),
        noise=noise,
        count=add("Gather", [shape, first], "count", axis=0),
    )


def local_ratios(
    model: onnx.ModelProto,
    folder: Path,
    probes: dict[str, Probe],
    samples: Samples,
    indices: Sequence[int],
    *,
    threads: int,
) -> list[tuple[str, float]]:
    """Run a probed model and order the nodes by how far their twins lie off, worst first.

    The ratio (dB) is that of the variation around each channel's mean to the noise: a channel that is large and always
    the same carries nothing that noise could not hide behind.
    """
    session = open_graph(model, folder, threads=threads)
    sums: dict[str, list[Any]] = {name: [0.0, 0.0, 0.0, 0.0] for name in probes}
    for index in indices:
        found = run(session, samples.sample(index), sample=samples.ids[index])
        for name, probe in probes.items():
            for position, output in enumerate((probe.total, probe.square, probe.noise, probe.count)):
                value = np.nan_to_num(np.asarray(found[output], np.float64), nan=np.inf)
                sums[name][position] = sums[name][position] + value
    ratios = []
    for name, (total, square, noise, count) in sums.items():
        variation = float(np.maximum(square - total**2 / np.maximum(count, 1), 0).sum())
        signal = variation if variation > 0 else float(np.sum(square))
        ratios.append((name, decibels(signal, float(np.sum(noise)))))
    return sorted(ratios, key=lambda item: (item[1], item[0]))
