"""ONNX operators in torch that reduce axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.networks.graph_ops import OPERATORS, Attributes, Operator

_REDUCTIONS = {
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: x.pow(2).sum(axes, keepdim=keep).sqrt(),
    "ReduceSumSquare": lambda x, axes, keep: x.pow(2).sum(axes, keepdim=keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "ReduceProd": lambda x, axes, keep: _product(x, axes, keep=keep),
    "ReduceLogSumExp": lambda x, axes, keep: x.logsumexp(axes, keepdim=keep),
}


def _product(x: Any, axes: Sequence[int], *, keep: bool) -> Any:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _reduction(name: str) -> Operator:
    def reduce(x: list[Any], a: Attributes) -> Any:
        axes = x[1].tolist() if len(x) > 1 and x[1] is not None else a.get("axes", [])
        if not axes and a.get("noop_with_empty_axes", 0):
            return x[0]
        return _REDUCTIONS[name](x[0], tuple(axes) or tuple(range(x[0].dim())), bool(a.get("keepdims", 1)))

    return reduce


OPERATORS |= {name: _reduction(name) for name in _REDUCTIONS}
