"""Rules of the coupling for ATen operators: how the labels of a result follow from those of the arguments.

A rule gets the trace and the arguments and returns axes, a list of them for several results, or None when it does not
apply: then everything that goes in is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edgekit.networks.coupling import Arguments, Axes, Slot, Trace, name_of
from edgekit.networks.coupling_shapes import SHAPES, reshaped
from edgekit.networks.labels import Ids

_HEADS = 3
"""Products of two activations with more axes than this are attention: batch, heads, tokens, width of a head."""


def _pointwise(trace: Trace, given: Arguments) -> Axes:
    """Tie what is broadcast together, index by index."""
    shape = trace.shape()
    out: Axes = [np.zeros(size, np.int64) for size in shape]
    for axis, size in enumerate(shape):
        met = [axes[axis - len(shape)] for axes in given.tensors() if len(axes) >= len(shape) - axis]
        wide = [labels for labels in met if len(labels) == size]
        for labels in wide[1:]:
            trace.tie(wide[0], labels)
        if wide:
            out[axis] = wide[0]
    return out


def _same(_trace: Trace, given: Arguments) -> Axes:
    """Give the first tensor's axes on: the operator works on every element alone, or only marks it."""
    return list(given.tensors()[0])


def _along(trace: Trace, given: Arguments) -> Any:
    """Keep the axes that an operator looks along (softmax, cumsum, sort, flip); shape and the others stay."""
    axes = list(given.tensors()[0])
    stated = given["dim"] if "dim" in given.defaults or "dim" in given.raw else given["dims"]
    for dim in _dims(stated, len(axes)):
        trace.keep(axes[dim], f"{name_of(trace.node)} looks along it")
    value = trace.node.meta["val"]
    return [axes for _ in value] if isinstance(value, (tuple, list)) else axes


def _reduce(trace: Trace, given: Arguments) -> Any:
    """Keep the axes that are reduced; they are 1 long or gone afterwards."""
    axes = given.tensors()[0]
    if len(given.tensors()) > 1:  # `max` and `min` of two tensors
        return _pointwise(trace, given)
    dims = _dims(given["dim"], len(axes))
    for dim in dims:
        trace.keep(axes[dim], f"{name_of(trace.node)} reduces over it")
    value = trace.node.meta["val"]
    one = [np.zeros(1, np.int64) if i in dims else labels for i, labels in enumerate(axes)]
    gone = [labels for i, labels in enumerate(axes) if i not in dims]
    first = value[0] if isinstance(value, (tuple, list)) else value
    found = one if first.dim() == len(axes) else gone
    return [found for _ in value] if isinstance(value, (tuple, list)) else found


def _linear(trace: Trace, given: Arguments) -> Axes:
    x, weight, bias = given.axes("input"), given.axes("weight"), given.axes("bias")
    assert x is not None
    assert weight is not None
    trace.work(given.raw["weight"], x, macs=math.prod(trace.shape()) * len(weight[1]))
    _read(trace, given.raw["weight"], 1, x[-1], weight[1])
    return [*x[:-1], _made(trace, given.raw["weight"], 0, weight[0], bias)]


def _convolution(trace: Trace, given: Arguments) -> Axes:
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
    name = trace.slot(node)
    thin = weight[1]
    count = len(thin) * groups if transposed else len(weight[0])
    made = np.tile(thin, groups) if transposed else weight[0]
    inner, outer = channels.reshape(groups, -1), made.reshape(groups, count // groups)
    whole = groups >= inner.shape[1] or not name
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
    if name := trace.slot(node):
        trace.coupling.reads.add(Slot(name, axis))
    else:
        trace.keep(weight, f"the weight of {name_of(trace.node)} is computed")


def _made(trace: Trace, node: Any, axis: int, labels: Ids, bias: Axes | None) -> Ids:
    """Note the channels that a layer computes, tied with its bias."""
    if name := trace.slot(node):
        trace.coupling.makes.add(Slot(name, axis))
    if bias is not None and len(bias[-1]) == len(labels):
        trace.tie(labels, bias[-1])
    return labels


def _matmul(trace: Trace, given: Arguments) -> Axes:
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
        if len(axes) > 1 and (name := trace.slot(given.raw[key])):
            trace.coupling.makes.add(Slot(name, axis))
    if min(len(a), len(b)) > _HEADS and not trace.slot(given.raw[left]) and not trace.slot(given.raw[right]):
        trace.keep(b[-1], "it is the width of a head")
    if added is not None:
        for labels, sums in zip(reversed(out), reversed(added), strict=False):
            if len(labels) == len(sums):
                trace.tie(labels, sums)
    return out


def _contract(trace: Trace, given: Arguments, *sides: tuple[str, Ids, int]) -> None:
    """Tie the axes that are multiplied and summed; without a weight among them they are kept."""
    trace.tie(sides[0][1], sides[1][1])
    slots = [Slot(name, axis) for key, _, axis in sides if (name := trace.slot(given.raw[key]))]
    trace.coupling.reads.update(slots)
    if not slots:
        trace.keep(sides[0][1], f"{name_of(trace.node)} sums over it without a weight")


def _einsum(trace: Trace, given: Arguments) -> Axes | None:
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
            slot = Slot(trace.slot(node), axis) if trace.slot(node) else None
            met.setdefault(letter, []).append((axes[axis], slot))
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


def _attention(trace: Trace, given: Arguments) -> Axes | None:
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


def _channelwise(trace: Trace, given: Arguments) -> Axes:
    """BatchNorm, InstanceNorm and PReLU: axis 1 is tied with the vectors of the layer."""
    x = given.tensors()[0]
    channels = x[1] if len(x) > 1 else x[0]
    for vector in given.tensors()[1:]:
        if len(vector) == 1 and len(vector[0]) == len(channels):
            trace.tie(channels, vector[0])
    if name_of(trace.node) == "instance_norm":
        for axis in x[2:]:
            trace.keep(axis, "instance_norm normalizes over it")
    return list(x)


def _group_norm(trace: Trace, given: Arguments) -> Axes | None:
    """GroupNorm: the channels of a group are normalized together, so they go together."""
    x, groups = given.tensors()[0], given["num_groups"]
    vectors = [vector[0] for vector in given.tensors()[1:]]
    for vector in vectors:
        trace.tie(x[1], vector)
    blocks = x[1].reshape(int(groups), -1)
    if len(blocks) == 1:
        _normalized(trace, x[1])
        return list(x)
    name = trace.slot(given.raw.get("weight"))
    if not name:
        trace.keep(x[1], "group_norm has no weight to tell its groups by")
        return list(x)
    trace.coupling.blocks[name] = blocks.shape[1]
    trace.tie(blocks[:, :1], blocks)
    return list(x)


def _layer_norm(trace: Trace, given: Arguments) -> Axes:
    x, shape = given.tensors()[0], given["normalized_shape"]
    count = len(shape)
    for vector in given.tensors()[1:]:
        for labels, weight in zip(x[-count:], vector, strict=True):
            trace.tie(labels, weight)
    for labels in x[-count:]:
        _normalized(trace, labels)
        trace.size(labels, len(labels))
    return list(x)


def _normalized(trace: Trace, labels: Ids) -> None:
    if trace.across_norms and trace.live(labels):
        trace.coupling.inexact.append(labels)
    else:
        trace.keep(labels, f"{name_of(trace.node)} normalizes over it")


def _pool(trace: Trace, given: Arguments) -> Any:
    """Pooling and resizing: what is left of the spatial axes passes, they themselves are kept."""
    x, value = given.tensors()[0], trace.node.meta["val"]
    spatial = next((int(digit) for digit in name_of(trace.node).replace("with_indices", "") if digit.isdigit()), 2)
    for axis in x[-spatial:]:
        trace.keep(axis, f"{name_of(trace.node)} works along it")

    def one(tensor: Any) -> Axes:
        return [*x[:-spatial], *(np.zeros(int(size), np.int64) for size in tensor.shape[-spatial:])]

    return [one(tensor) for tensor in value] if isinstance(value, (tuple, list)) else one(value)


def _pad(trace: Trace, given: Arguments) -> Axes:
    x, pads, shape = given.tensors()[0], list(given["pad"] or given["padding"]), trace.shape()
    out = list(x)
    for number in range(len(pads) // 2):
        axis = len(x) - 1 - number
        if pads[2 * number] or pads[2 * number + 1]:
            trace.keep(x[axis], "it is padded")
            out[axis] = np.zeros(shape[axis], np.int64)
    return out


def _embedding(trace: Trace, given: Arguments) -> Axes:
    weight, indices = given.axes("weight"), given.axes("indices")
    assert weight is not None
    assert indices is not None
    for labels in weight:
        trace.keep(labels, "it is an embedding")
    return [*indices, np.zeros(len(weight[1]), np.int64)]


def _glu(trace: Trace, given: Arguments) -> Axes:
    x, dim = list(given.tensors()[0]), int(given["dim"])
    first, second = np.split(x[dim], 2)
    trace.tie(first, second)
    x[dim] = first
    return x


def _shuffle(trace: Trace, given: Arguments) -> Axes:
    """channel_shuffle: the channels at one position of every group go together."""
    x = list(given.tensors()[0])
    blocks = x[1].reshape(int(given["groups"]), -1)
    trace.tie(blocks[:1], blocks)
    x[1] = blocks.T.ravel()
    return x


def _pixel_shuffle(trace: Trace, given: Arguments) -> Axes:
    x, shape = given.tensors()[0], trace.shape()
    blocks = x[-3].reshape(shape[-3], -1)
    trace.tie(blocks[:, :1], blocks)
    for axis in x[-2:]:
        trace.keep(axis, "pixel_shuffle works along it")
    return [*x[:-3], blocks[:, 0], *(np.zeros(size, np.int64) for size in shape[-2:])]


def _pixel_unshuffle(trace: Trace, given: Arguments) -> Axes:
    x, shape = given.tensors()[0], trace.shape()
    for axis in x[-2:]:
        trace.keep(axis, "pixel_unshuffle works along it")
    wide = np.repeat(x[-3], shape[-3] // len(x[-3]))
    return [*x[:-3], wide, *(np.zeros(size, np.int64) for size in shape[-2:])]


def _reshape(trace: Trace, given: Arguments) -> Axes | None:
    stated = given["size"] or given["shape"] or given["sizes"] or ()
    return reshaped(trace, list(given.tensors()[0]), trace.shape(), stated if isinstance(stated, (list, tuple)) else ())


def _nothing(_trace: Trace, _given: Arguments) -> list[Any]:
    return []


def _dims(stated: Any, rank: int) -> list[int]:
    if stated is None or stated == []:
        return list(range(rank))
    return [int(dim) % max(rank, 1) for dim in (stated if isinstance(stated, (list, tuple)) else [stated])]


def _table() -> dict[str, Callable[[Trace, Arguments], Any]]:
    rules: dict[str, Callable[[Trace, Arguments], Any]] = {**SHAPES}
    groups: list[tuple[Callable[[Trace, Arguments], Any], str]] = [
        (
            _same,
            (
                "clone contiguous to alias detach lift_fresh_copy dropout feature_dropout alpha_dropout _to_copy "
                "type_as float double zeros_like ones_like empty_like full_like rand_like randn_like bernoulli"
            ),
        ),
        (
            _pointwise,
            (
                "where masked_fill __and__ __or__ __xor__ clamp clip hardswish hardsigmoid hardtanh relu6 rsub "
                "true_divide divide multiply subtract square addcmul addcdiv lerp mish"
            ),
        ),
        (
            _along,
            ("softmax log_softmax _softmax _log_softmax cumsum cumprod flip roll sort logcumsumexp"),
        ),
        (
            _reduce,
            (
                "mean sum amax amin max min var std var_mean std_mean prod norm linalg_vector_norm logsumexp "
                "argmax argmin any all"
            ),
        ),
        (_linear, "linear"),
        (
            _convolution,
            ("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution"),
        ),
        (_matmul, "matmul mm bmm addmm baddbmm"),
        (_einsum, "einsum"),
        (_attention, "scaled_dot_product_attention"),
        (_channelwise, "batch_norm instance_norm prelu"),
        (_group_norm, "group_norm"),
        (_layer_norm, "layer_norm rms_norm"),
        (
            _pool,
            (
                "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
                "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
                "adaptive_max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
                "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d "
                "_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_nearest_exact2d"
            ),
        ),
        (
            _pad,
            ("pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d"),
        ),
        (_embedding, "embedding"),
        (_glu, "glu"),
        (_shuffle, "channel_shuffle native_channel_shuffle"),
        (_pixel_shuffle, "pixel_shuffle"),
        (_pixel_unshuffle, "pixel_unshuffle"),
        (_reshape, "view reshape _unsafe_view flatten unflatten view_as reshape_as"),
        (_nothing, "_assert_tensor_metadata"),
    ]
    for rule, names in groups:
        rules.update(dict.fromkeys(names.split(), rule))
    return rules


OPERATORS = _table()
"""Operator name -> its rule; what torch tags as pointwise needs none."""
