"""Which nodes run as one kernel: a convolution and its activation, chains of pointwise operators, Q and DQ.

What holds for every runtime stands in `fuse`; what only some do stands in `Rules`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgekit.graphs.attention import find_attention
from edgekit.graphs.cost import Cost, Row

COMPUTE = frozenset({"compute", "depthwise", "grouped"})
"""Kinds of rows that do multiply-accumulates."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a runtime fuses beyond pointwise operators.

    Attributes:
        attention: products of queries and keys, their softmax and the product with the values are one kernel, and so
            are the transpositions around them; the scores are never written.
        joins: pointwise operators that join the product before them; None: all.
        int8_joins: the same for products of 8-bit integers.
        slow: operator -> how many times more operations than counted its kernel takes; `SUM_NORM` stands for a
            LayerNormalization of a sum. Measured, for kernels that are far from what the machine can do.
    """

    attention: bool = False
    joins: frozenset[str] | None = None
    int8_joins: frozenset[str] | None = None
    slow: Mapping[str, float] = field(default_factory=dict)


SUM_NORM = "Add+LayerNormalization"

PLAIN = Rules()
TENSORRT = Rules(attention=True)
ONNXRUNTIME = Rules(
    joins=frozenset({"Add", "Sum", "Relu", "LeakyRelu", "Clip", "HardSigmoid", "BatchNormalization", "Cast"}),
    int8_joins=frozenset({"Relu", "Clip", "BatchNormalization"}),
    # version 1.32 on x86: LRN takes a power per element, the sum in front of a normalization is not vectorized, limits
    # other than Relu's are a pass of their own over the output
    slow={"LRN": 40.0, SUM_NORM: 13.0, "Clip": 3.0, "QuantizeLinear": 2.5},
)


_BY_RUNTIME = {"tensorrt": TENSORRT, "onnx": ONNXRUNTIME}


def rules_of(runtime: str) -> Rules:
    """Return what a runtime fuses, by its exporter's name; what every runtime does when nothing more is known."""
    return _BY_RUNTIME.get(runtime, PLAIN)


@dataclass
class Group:
    """Rows that run as one kernel.

    Attributes:
        rows: in execution order; the first gives the group its kind.
        read_bytes: bytes read from outside: activations of other groups and weights.
        written_bytes: bytes that other groups or the model's outputs need.
        operations: besides multiply-accumulates, as many as the runtime's kernels take the time of.
        reads: names of the activations read from outside, views seen through.
        writes: names of what is written.
        whole: nothing more may join it.
    """

    rows: list[Row] = field(default_factory=list)
    read_bytes: int = 0
    written_bytes: int = 0
    operations: float = 0.0
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    whole: bool = False


def fuse(cost: Cost, rules: Rules = PLAIN) -> list[Group]:
    """Group a model's rows as its runtime would run them.

    Pointwise rows (activations, the sum of a residual branch, a batch norm that was not folded) and QuantizeLinear
    join the group that makes their latest input when sizes agree; views and DequantizeLinear cost nothing, because
    their readers see through them. What a fused group makes for itself is neither read nor written.
    """
    alias = aliases(cost)
    together = find_attention(cost.rows, alias, cost.outputs) if rules.attention else {}
    owner: dict[str, int] = {}
    groups: list[Group] = []
    started: dict[int, int] = {}
    makers: dict[str, str] = {}
    for at, row in enumerate(cost.rows):
        if is_free(row, cost):
            continue
        index = started.get(together[at]) if at in together else _joined(row, cost, rules, alias, owner, groups)
        if index is None:
            groups.append(Group(whole=at in together))
            index = len(groups) - 1
        if at in together:
            started[together[at]] = index
        groups[index].rows.append(row)
        groups[index].operations += _operations(row, rules, makers, alias)
        makers.update(dict.fromkeys(row.writes, row.op))
        owner.update(dict.fromkeys(row.writes, index))
    _count_bytes(groups, cost, alias, owner)
    return groups


def is_free(row: Row, cost: Cost) -> bool:
    """Tell whether a row moves nothing: its readers see through it."""
    return row.kind == "view" or (row.op == "DequantizeLinear" and not set(row.writes) & set(cost.outputs))


def aliases(cost: Cost) -> dict[str, str]:
    """Map what views and DequantizeLinear make to the tensor whose bytes they show."""
    alias: dict[str, str] = {}
    for row in cost.rows:
        if is_free(row, cost) and row.reads:
            source = row.reads[0]
            alias.update(dict.fromkeys(row.writes, alias.get(source, source)))
    return alias


def _operations(row: Row, rules: Rules, makers: Mapping[str, str], alias: Mapping[str, str]) -> float:
    """Return the operations of a row besides multiply-accumulates, times how slow its kernel is."""
    factor = rules.slow.get(row.op, 1.0)
    if row.op == "LayerNormalization" and any(makers.get(alias.get(read, read)) == "Add" for read in row.reads):
        factor = rules.slow.get(SUM_NORM, factor)
    return (row.flops - 2 * row.macs) * factor


def _joined(
    row: Row, cost: Cost, rules: Rules, alias: dict[str, str], owner: dict[str, int], groups: Sequence[Group]
) -> int | None:
    if row.kind != "elementwise" and row.op != "QuantizeLinear":
        return None
    makers = [(owner[name], name) for read in row.reads if (name := alias.get(read, read)) in owner]
    if not makers:
        return None
    index, name = max(makers)
    if groups[index].whole:
        return None
    first = groups[index].rows[0]
    if row.op == "QuantizeLinear":
        return index
    wanted = rules.int8_joins if first.dtype == "int8" else rules.joins
    if first.kind in COMPUTE and wanted is not None and row.op not in wanted:
        return None
    elements = max((math.prod(shape) for shape in row.output_shapes), default=0)
    made = next(
        (
            math.prod(shape)
            for item in groups[index].rows
            for n, shape in zip(item.writes, item.output_shapes, strict=True)
            if n == name
        ),
        0,
    )
    fits = first.kind in COMPUTE or first.kind == "elementwise"
    return index if fits and made == elements and cost.sizes.get(name) else None


def _count_bytes(groups: list[Group], cost: Cost, alias: dict[str, str], owner: dict[str, int]) -> None:
    readers: dict[str, set[int]] = {}
    for index, group in enumerate(groups):
        for row in group.rows:
            for read in row.reads:
                readers.setdefault(alias.get(read, read), set()).add(index)
    kept = {alias.get(name, name) for name in cost.outputs}
    for index, group in enumerate(groups):
        outside: dict[str, None] = {}
        written: list[str] = []
        for row in group.rows:
            names = dict.fromkeys(alias.get(read, read) for read in row.reads)
            foreign = [name for name in names if owner.get(name) != index]
            if len(group.rows) == 1 and row.kind == "other":
                group.read_bytes += row.input_bytes + row.weight_reads
            else:
                group.read_bytes += row.weight_reads
                group.read_bytes += sum(cost.sizes.get(name, 0) for name in foreign if name not in outside)
            outside.update(dict.fromkeys(foreign))
            written += [name for name in row.writes if name in kept or readers.get(name, set()) - {index}]
        group.written_bytes = sum(cost.sizes.get(name, 0) for name in written)
        group.reads, group.writes = tuple(outside), tuple(written)
