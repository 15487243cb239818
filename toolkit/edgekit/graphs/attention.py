"""Finding attention among the rows of a model: queries x keys, a softmax, x values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgekit.graphs.cost import Row

_SCALING = frozenset({"elementwise", "quantize"})


def find_attention(rows: Sequence[Row], alias: Mapping[str, str], outputs: Sequence[str]) -> dict[int, int]:
    """Return for each row that is part of an attention the number of that attention.

    An attention is a product of two activations, whatever is pointwise after it, a Softmax, and a product with another
    activation; every value between is read once and is no output. Transpositions whose result only it reads, and one
    that alone reads its result, belong to it.

    Args:
        rows: of a model, in execution order.
        alias: what views make -> the tensor that they show.
        outputs: names of the model's outputs.
    """
    graph = _Graph(rows, alias, outputs)
    found: dict[int, int] = {}
    for at, row in enumerate(rows):
        if row.op != "Softmax" or at in found:
            continue
        members = _around(graph, at)
        if members and not members & found.keys():
            found.update(dict.fromkeys(members, at))
    return found


class _Graph:
    """Who makes and who reads each tensor, views seen through."""

    def __init__(self, rows: Sequence[Row], alias: Mapping[str, str], outputs: Sequence[str]) -> None:
        self.rows, self.alias = rows, alias
        self.kept = {alias.get(name, name) for name in outputs}
        self.makers: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        for at, row in enumerate(rows):
            if row.kind == "view" or (row.op == "DequantizeLinear" and row.reads):
                continue
            self.makers.update(dict.fromkeys(row.writes, at))
            for name in dict.fromkeys(alias.get(read, read) for read in row.reads):
                self.readers.setdefault(name, []).append(at)

    def before(self, at: int) -> list[int]:
        """Return the rows that make what a row reads."""
        names = [self.alias.get(read, read) for read in self.rows[at].reads]
        return [self.makers[name] for name in names if name in self.makers]

    def after(self, at: int) -> int | None:
        """Return the only reader of a row's only result."""
        row = self.rows[at]
        if len(row.writes) != 1 or row.writes[0] in self.kept:
            return None
        readers = self.readers.get(row.writes[0], [])
        return readers[0] if len(readers) == 1 else None

    def is_product(self, at: int) -> bool:
        """Tell whether a row multiplies two activations."""
        row = self.rows[at]
        return row.kind == "compute" and len(row.reads) == 2 and not row.weight_reads  # noqa: PLR2004


def _around(graph: _Graph, softmax: int) -> set[int]:
    """Return the rows of the attention around a Softmax; empty when there is none."""
    members = {softmax}
    at = softmax
    while True:
        makers = [maker for maker in graph.before(at) if graph.after(maker) == at]
        chain = [maker for maker in makers if graph.is_product(maker) or graph.rows[maker].kind in _SCALING]
        if not chain:
            return set()
        at = max(chain)
        members.add(at)
        if graph.is_product(at):
            break
    last = graph.after(softmax)
    while last is not None and not graph.is_product(last):
        if graph.rows[last].op != "Transpose" and graph.rows[last].kind not in _SCALING:
            return set()
        members.add(last)
        last = graph.after(last)
    if last is None:
        return set()
    members.add(last)
    members.update(
        maker
        for product in (at, last)
        for maker in graph.before(product)
        if graph.rows[maker].op == "Transpose" and graph.after(maker) == product
    )
    end = graph.after(last)
    if end is not None and graph.rows[end].op == "Transpose":
        members.add(end)
    return members
