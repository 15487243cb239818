"""Rules of the coupling for layers with weights and for products: what makes channels, and what reads them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgekit.networks.coupled import Axes, Slot
from edgekit.networks.coupling_trace import Arguments, Trace, name_of
from edgekit.networks.labels import Ids

_HEADS = 3
"""Products of two activations with more axes than this are attention: batch, heads, tokens, width of a head."""


def linear(trace: Trace, given: Arguments) -> Axes:
    """Sum over the last axis."""
    x, weight, bias = given.axes("input"), given.axes("weight"), given.axes("bias")
    assert x is not None
    assert weight is not None
    trace.work(given.raw["weight"], x, macs=math.prod(trace.shape()) * len(weight[1]))
    _read(trace, given.raw["weight"], 1, x[-1], weight[1])
    return [*x[:-1], _made(trace, given.raw["weight"], 0, weight[0], bias)]


def convolution(trace: Trace, given: Arguments) -> Axes:
    """Sum over the channels, within groups where there are several; transposed ones store [in, out / groups]."""
    transposed = "transpose" in name_of(trace.node) or bool(given["transposed"])
    x, weight, bias = given.axes("input"), given.axes("weight"), given.axes("bias")
    assert x is not None
    assert weight is not None
    groups, spatial, node = int(given["groups"] or 1), len(weight) - 2, given.raw["weight"]
    channels = x[-spatial - 1]
    for axis in x[-spatial:]:
        trace.keep(axis, "it is convolved along")
    if groups == 1:
        _read(trace, node, 0 if transposed else 1, channels, weight[0 if transposed else 1])
        made = _made(trace, node, 1 if transposed else 0, weight[1 if transposed else 0], bias)
    else:
        made = _grouped(trace, node, channels, weight, groups, transposed=transposed)
        if bias is not None:
            trace.tie(made, bias[0])
    shape = trace.shape()
    kind = "compute" if groups == 1 else "depthwise" if groups == len(channels) else "grouped"
    per = math.prod(map(len, weight[1:]))
    trace.work(node, x, macs=per * (math.prod(map(len, x)) if transposed else math.prod(shape)), kind=kind)
    return [*x[: -spatial - 1], made, *(np.zeros(size, np.int64) for size in shape[-spatial:])]


def _grouped(trace: Trace, node: Any, channels: Ids, weight: Axes, groups: int, *, transposed: bool) -> Ids:
    """Tie a convolution with groups: groups go whole where there are many, else every group gets equally thinner."""
    name = trace.stored(node)
    thin = weight[1]
    count = len(thin) * groups if transposed else len(weight[0])
    made = np.tile(thin, groups) if transposed else weight[0]
    inner, outer = channels.reshape(groups, -1), made.reshape(groups, count // groups)
    whole = groups >= inner.shape[1] or not name
    if name != f"{trace.module}.weight".removeprefix("."):  # not a layer of its own, whose number of groups follows
        trace.size(inner[:, 0], groups)
    if transposed:
        trace.tie(channels, weight[0])
    if name:
        trace.coupling.grouped[name] = whole
    if whole:
        first = inner[:, :1]
        trace.tie(first, inner)
        if transposed:  # the outputs of a group are positions that all groups share in the weight: labels of their own
            trace.keep(thin, "the groups of a transposed convolution go whole")
            return np.repeat(inner[:, 0], outer.shape[1])
        trace.keep(thin, "the groups of a convolution go whole")
        trace.tie(first, outer)
        return made
    trace.tie(inner[:1], inner)
    trace.tie(outer[:1], outer)
    if not transposed:
        trace.tie(inner[0], thin)
    trace.coupling.makes.add(Slot(name, 1 if transposed else 0))
    trace.coupling.reads.add(Slot(name, 0 if transposed else 1))
    return made


def _read(trace: Trace, node: Any, axis: int, channels: Ids, weight: Ids) -> None:
    """Tie what a layer sums over with its weight."""
    trace.tie(channels, weight)
    found = [slot] if (slot := trace.slot(node, axis)) else trace.sources(node, weight)
    trace.coupling.reads.update(found)
    if not found:
        trace.keep(weight, f"the weight of {name_of(trace.node)} is computed")


def _made(trace: Trace, node: Any, axis: int, labels: Ids, bias: Axes | None) -> Ids:
    """Note the channels that a layer computes, tied with its bias."""
    trace.coupling.makes.update([slot] if (slot := trace.slot(node, axis)) else trace.sources(node, labels))
    if bias is not None and len(bias[-1]) == len(labels):
        trace.tie(labels, bias[-1])
    return labels


def bilinear(trace: Trace, given: Arguments) -> Axes:
    """Sum over the products of two inputs' last axes; the weight is [out, first, second]."""
    first, second = given.axes("input1"), given.axes("input2")
    weight, bias = given.axes("weight"), given.axes("bias")
    assert first is not None
    assert second is not None
    assert weight is not None
    node = given.raw["weight"]
    trace.work(node, first, macs=math.prod(trace.shape()) * len(weight[1]) * len(weight[2]))
    _read(trace, node, 1, first[-1], weight[1])
    _read(trace, node, 2, second[-1], weight[2])
    return [*first[:-1], _made(trace, node, 0, weight[0], bias)]


def matmul(trace: Trace, given: Arguments) -> Axes:
    """Multiply matrices: addmm, mm, bmm, baddbmm, matmul; a parameter is a weight, two activations keep their sum."""
    names = [name for name in given.raw if given.axes(name) is not None]
    added = given.axes(names[0]) if name_of(trace.node) in ("addmm", "baddbmm") else None
    left, right = names[-2:]
    a, b = given.axes(left), given.axes(right)
    assert a is not None
    assert b is not None
    _contract(trace, given, (left, a[-1], len(a) - 1), (right, b[-2] if len(b) > 1 else b[0], max(len(b) - 2, 0)))
    shape = trace.shape()
    for key, other in ((left, b), (right, a)):
        trace.work(given.raw[key], other, macs=math.prod(shape) * len(a[-1]))
    batch: Axes = [np.zeros(size, np.int64) for size in shape[: len(shape) - (len(a) > 1) - (len(b) > 1)]]
    for axis, size in enumerate(batch):
        at = axis - len(batch) - 2
        met = [axes[at] for axes in (a, b) if len(axes) >= -at and len(axes[at]) == len(size)]
        for labels in met[1:]:
            trace.tie(met[0], labels)
        batch[axis] = met[0] if met else size
    out = [*batch, *([a[-2]] if len(a) > 1 else []), *([b[-1]] if len(b) > 1 else [])]
    for key, axes, axis in ((left, a, len(a) - 2), (right, b, len(b) - 1)):
        if len(axes) > 1 and (slot := trace.slot(given.raw[key], axis)):
            trace.coupling.makes.add(slot)
    if min(len(a), len(b)) > _HEADS and not any(trace.slot(given.raw[key], 0) for key in (left, right)):
        trace.keep(b[-1], "it is the width of a head")
    if added is not None:
        for labels, sums in zip(reversed(out), reversed(added), strict=False):
            if len(labels) == len(sums):
                trace.tie(labels, sums)
    return out


def _contract(trace: Trace, given: Arguments, *sides: tuple[str, Ids, int]) -> None:
    """Tie the axes that are multiplied and summed; without a weight among them they are kept."""
    trace.tie(sides[0][1], sides[1][1])
    slots = [slot for key, _, axis in sides if (slot := trace.slot(given.raw[key], axis))]
    trace.coupling.reads.update(slots)
    if not slots:
        trace.keep(sides[0][1], f"{name_of(trace.node)} sums over it without a weight")


def einsum(trace: Trace, given: Arguments) -> Axes | None:
    """Interpret an equation of two or more operands without ellipsis or repeated letters in one operand."""
    equation = str(given["equation"]).replace(" ", "")
    before, arrow, after = equation.partition("->")
    terms, nodes = before.split(","), list(given.raw["tensors"])
    plain = all(term.isalpha() and len(set(term)) == len(term) for term in terms)
    if not arrow or not plain or len(set(after)) != len(after):
        return None
    met: dict[str, list[tuple[Ids, Slot | None]]] = {}
    for term, node in zip(terms, nodes, strict=True):
        for axis, letter in enumerate(term):
            axes = given.look(node)
            assert axes is not None
            met.setdefault(letter, []).append((axes[axis], trace.slot(node, axis)))
    for letter, places in met.items():
        for labels, _ in places[1:]:
            trace.tie(places[0][0], labels)
        slots = {slot for _, slot in places if slot}
        if letter in after:
            trace.coupling.makes.update(slots)
        elif slots and len(places) > 1:
            trace.coupling.reads.update(slots)
        else:
            trace.keep(places[0][0], "einsum sums over it without a weight")
    return [met[letter][0][0] for letter in after]


def attention(trace: Trace, given: Arguments) -> Axes | None:
    """Scaled dot product attention: the heads of query, key and value are tied; what is summed over is kept."""
    query, key, value = given.axes("query"), given.axes("key"), given.axes("value")
    if query is None or key is None or value is None:
        return None
    for labels in (query[-1], key[-1], key[-2], value[-2], query[-2]):
        trace.keep(labels, "attention sums over it")
    if len(value) > _HEADS:
        trace.keep(value[-1], "it is the width of a head")
    mask = given.axes("attn_mask") or []
    for axis in range(len(query) - 2):
        times = len(query[axis]) // max(1, len(key[axis]))
        for other in (key[axis], value[axis]):
            trace.tie(query[axis], np.repeat(other, times) if len(other) > 1 or given["enable_gqa"] else query[axis])
        at = axis - len(query)
        if len(mask) >= -at and len(mask[at]) == len(query[axis]):
            trace.tie(query[axis], mask[at])
    return [*query[:-1], value[-1]]
