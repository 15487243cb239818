"""Rules of the coupling for ATen operators: how the labels of a result follow from those of the arguments.

A rule gets the trace and the arguments and returns axes, a list of them for several results, or None when it does not
apply: then everything that goes in is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgekit.networks.coupled import Axes
from edgekit.networks.coupling_picks import PICKS
from edgekit.networks.coupling_products import attention, bilinear, convolution, einsum, linear, matmul
from edgekit.networks.coupling_recurrent import cell, layers
from edgekit.networks.coupling_shapes import SHAPES, reshaped
from edgekit.networks.coupling_trace import Arguments, Trace, name_of
from edgekit.networks.coupling_windows import (
    channel_shuffle,
    folded,
    grid,
    pad,
    pixel_shuffle,
    pixel_unshuffle,
    pool,
    sampled,
    slid,
    windows,
)
from edgekit.networks.labels import Ids

_NORMS = frozenset({"mean", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm"})
"""Reductions that norms are written with."""


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
        if trace.across_norms and name_of(trace.node) in _NORMS and trace.live(axes[dim]):
            trace.coupling.inexact.append(axes[dim])
        else:
            trace.keep(axes[dim], f"{name_of(trace.node)} reduces over it")
    value = trace.node.meta["val"]
    one = [np.zeros(1, np.int64) if i in dims else labels for i, labels in enumerate(axes)]
    gone = [labels for i, labels in enumerate(axes) if i not in dims]
    first = value[0] if isinstance(value, (tuple, list)) else value
    found = one if first.dim() == len(axes) else gone
    return [found for _ in value] if isinstance(value, (tuple, list)) else found


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
    name = trace.stored(given.raw.get("weight"))
    trace.tie(blocks[:, :1], blocks)
    if name:
        trace.coupling.blocks[name] = blocks.shape[1]
    else:  # no tensor of its own tells how many there are
        trace.size(blocks[:, 0], int(groups))
        trace.size(x[1], len(x[1]))
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


def _embedding(trace: Trace, given: Arguments) -> Axes:
    """A table that the data reads is kept; one of positions has a column for each head, as biases of attention do."""
    weight, indices = given.axes("weight"), given.axes("indices")
    assert weight is not None
    assert indices is not None
    trace.keep(weight[0], "it is an embedding")
    if trace.fed(given.raw["indices"]):
        trace.keep(weight[1], "it is an embedding")
    return [*indices, weight[1]]


def _constant(trace: Trace, given: Arguments) -> Axes:
    """A tensor of one value: any of its indices may go, where the code takes its sizes from what goes with them."""
    sizes = given["size"] or ()
    found = [trace.loose(int(size)) for size in trace.shape()]
    for labels, size in zip(found, sizes, strict=False):
        trace.size(labels, size)
    return found


def _weight_norm(trace: Trace, given: Arguments) -> Axes:
    """Weight normalization: a magnitude for each index of one axis, a direction along the others."""
    direction, magnitude, dim = list(given.tensors()[0]), given.tensors()[1], int(given["dim"])
    trace.tie(direction[dim], magnitude[dim])
    for at, labels in enumerate(direction):
        if at != dim % len(direction):
            trace.keep(labels, "the weight is normalized over it")
    return direction


def _glu(trace: Trace, given: Arguments) -> Axes:
    x, dim = list(given.tensors()[0]), int(given["dim"])
    first, second = np.split(x[dim], 2)
    trace.tie(first, second)
    x[dim] = first
    return x


def _reshape(trace: Trace, given: Arguments) -> Axes | None:
    stated = given["size"] or given["shape"] or given["sizes"] or ()
    stated = stated if isinstance(stated, (list, tuple)) else ()
    if name_of(trace.node) == "unflatten":  # its sizes are those of one axis
        stated = [-1] * (int(given["dim"]) % len(given.tensors()[0])) + list(stated)
    return reshaped(trace, list(given.tensors()[0]), trace.shape(), stated)


def _nothing(_trace: Trace, _given: Arguments) -> list[Any]:
    return []


def _dims(stated: Any, rank: int) -> list[int]:
    if stated is None or stated == []:
        return list(range(rank))
    return [int(dim) % max(rank, 1) for dim in (stated if isinstance(stated, (list, tuple)) else [stated])]


def _table() -> dict[str, Callable[[Trace, Arguments], Any]]:
    rules: dict[str, Callable[[Trace, Arguments], Any]] = {**SHAPES, **PICKS}
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
        (linear, "linear"),
        (
            convolution,
            ("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution"),
        ),
        (matmul, "matmul mm bmm addmm baddbmm"),
        (einsum, "einsum"),
        (attention, "scaled_dot_product_attention"),
        (_channelwise, "batch_norm instance_norm prelu"),
        (_group_norm, "group_norm"),
        (_layer_norm, "layer_norm rms_norm"),
        (
            pool,
            (
                "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
                "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
                "adaptive_max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
                "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
                "upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
                "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d max_unpool2d "
                "max_unpool3d"
            ),
        ),
        (
            pad,
            (
                "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d "
                "replication_pad1d replication_pad2d replication_pad3d"
            ),
        ),
        (_embedding, "embedding"),
        (_glu, "glu"),
        (channel_shuffle, "channel_shuffle native_channel_shuffle"),
        (pixel_shuffle, "pixel_shuffle"),
        (pixel_unshuffle, "pixel_unshuffle"),
        (_reshape, "view reshape _unsafe_view flatten unflatten view_as reshape_as"),
        (windows, "im2col"),
        (folded, "col2im"),
        (slid, "unfold"),
        (sampled, "grid_sampler grid_sampler_2d grid_sampler_3d"),
        (grid, "affine_grid_generator"),
        (layers, "lstm gru rnn_tanh rnn_relu"),
        (cell, "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"),
        (bilinear, "bilinear"),
        (_constant, "zeros ones full new_zeros new_ones new_full"),
        (_weight_norm, "_weight_norm"),
        (_nothing, "_assert_tensor_metadata sym_size sym_numel sym_constrain_range_for_size"),
    ]
    for rule, names in groups:
        rules.update(dict.fromkeys(names.split(), rule))
    return rules


OPERATORS = _table()
"""Operator name -> its rule; what torch tags as pointwise needs none."""
