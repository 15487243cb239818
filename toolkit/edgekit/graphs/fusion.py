"""Which nodes run as one kernel: a convolution and its activation, chains of pointwise operators, Q and DQ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from edgekit.graphs.cost import Cost, Row

_COMPUTE = frozenset({"compute", "depthwise", "grouped"})


@dataclass
class Group:
    """Rows that run as one kernel.

    Attributes:
        rows: in execution order; the first gives the group its kind.
        read_bytes: bytes read from outside: activations of other groups and weights.
        written_bytes: bytes that other groups or the model's outputs need.
    """

    rows: list[Row] = field(default_factory=list)
    read_bytes: int = 0
    written_bytes: int = 0


def fuse(cost: Cost) -> list[Group]:
    """Group a model's rows as its runtime would run them.

    Pointwise rows and QuantizeLinear join the group that makes their latest input when sizes agree; views and
    DequantizeLinear cost nothing, because their readers see through them. What a fused group makes for itself is
    neither read nor written.
    """
    alias = _aliases(cost)
    owner: dict[str, int] = {}
    groups: list[Group] = []
    for row in cost.rows:
        if _is_free(row, cost):
            continue
        index = _joined(row, cost, alias, owner, groups)
        if index is None:
            groups.append(Group())
            index = len(groups) - 1
        groups[index].rows.append(row)
        owner.update(dict.fromkeys(row.writes, index))
    _count_bytes(groups, cost, alias, owner)
    return groups


def _is_free(row: Row, cost: Cost) -> bool:
    return row.kind == "view" or (row.op == "DequantizeLinear" and not set(row.writes) & set(cost.outputs))


def _aliases(cost: Cost) -> dict[str, str]:
    """Map what views and DequantizeLinear make to the tensor whose bytes they show."""
    alias: dict[str, str] = {}
    for row in cost.rows:
        if _is_free(row, cost) and row.reads:
            source = row.reads[0]
            alias.update(dict.fromkeys(row.writes, alias.get(source, source)))
    return alias


def _joined(row: Row, cost: Cost, alias: dict[str, str], owner: dict[str, int], groups: Sequence[Group]) -> int | None:
    if row.kind != "elementwise" and row.op != "QuantizeLinear":
        return None
    makers = [(owner[name], name) for read in row.reads if (name := alias.get(read, read)) in owner]
    if not makers:
        return None
    index, name = max(makers)
    kind = groups[index].rows[0].kind
    if row.op == "QuantizeLinear":
        return index
    elements = max((_elements(shape) for shape in row.output_shapes), default=0)
    made = next(
        (
            _elements(shape)
            for item in groups[index].rows
            for n, shape in zip(item.writes, item.output_shapes, strict=True)
            if n == name
        ),
        0,
    )
    return index if (kind in _COMPUTE or kind == "elementwise") and made == elements and cost.sizes.get(name) else None


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count


def _count_bytes(groups: list[Group], cost: Cost, alias: dict[str, str], owner: dict[str, int]) -> None:
    readers: dict[str, set[int]] = {}
    for index, group in enumerate(groups):
        for row in group.rows:
            for read in row.reads:
                readers.setdefault(alias.get(read, read), set()).add(index)
    kept = {alias.get(name, name) for name in cost.outputs}
    for index, group in enumerate(groups):
        outside: set[str] = set()
        for row in group.rows:
            names = {alias.get(read, read) for read in row.reads}
            foreign = {name for name in names if owner.get(name) != index}
            if len(group.rows) == 1 and row.kind == "other":
                group.read_bytes += row.input_bytes + row.weight_reads
            else:
                group.read_bytes += row.weight_reads + sum(cost.sizes.get(name, 0) for name in foreign - outside)
            outside |= foreign
            group.written_bytes += sum(
                cost.sizes.get(name, 0) for name in row.writes if name in kept or readers.get(name, set()) - {index}
            )
