"""ONNX operators that move values about: shapes, slices, gathers, casts."""

from __future__ import annotations

from typing import Any

from edgekit.networks.graph_ops import Attributes, operator


@operator("Shape")
def _shape(x: list[Any], a: Attributes) -> Any:
    import torch

    return torch.tensor(list(x[0].shape)[a.get("start", 0) : a.get("end")], dtype=torch.int64)


@operator("Size")
def _size(x: list[Any], _a: Attributes) -> Any:
    import torch

    return torch.tensor(x[0].numel(), dtype=torch.int64)


@operator("Reshape")
def _reshape(x: list[Any], a: Attributes) -> Any:
    wanted = x[1].tolist()
    if not a.get("allowzero", 0):
        wanted = [x[0].shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    return x[0].reshape(wanted)


@operator("Flatten")
def _flatten(x: list[Any], a: Attributes) -> Any:
    axis = a.get("axis", 1)
    axis = axis + x[0].dim() if axis < 0 else axis
    rows = 1
    for size in x[0].shape[:axis]:
        rows *= size
    return x[0].reshape(rows, -1)


@operator("Transpose")
def _transpose(x: list[Any], a: Attributes) -> Any:
    return x[0].permute(a.get("perm", list(range(x[0].dim()))[::-1]))


@operator("Squeeze")
def _squeeze(x: list[Any], a: Attributes) -> Any:
    axes = _axes(x, a)
    if axes is None:
        return x[0].squeeze()
    return x[0].squeeze(tuple(axes))


@operator("Unsqueeze")
def _unsqueeze(x: list[Any], a: Attributes) -> Any:
    axes = _axes(x, a) or []
    rank = x[0].dim() + len(axes)
    found = x[0]
    for axis in sorted(axis % rank for axis in axes):
        found = found.unsqueeze(axis)
    return found


def _axes(x: list[Any], a: Attributes) -> list[int] | None:
    given = x[1].tolist() if len(x) > 1 and x[1] is not None else a.get("axes")
    return None if given is None else [int(axis) for axis in (given if isinstance(given, list) else [given])]


@operator("Concat")
def _concat(x: list[Any], a: Attributes) -> Any:
    import torch

    return torch.cat(x, a["axis"])


@operator("Split")
def _split(x: list[Any], a: Attributes) -> Any:
    axis = a.get("axis", 0)
    if len(x) > 1 and x[1] is not None:
        return tuple(x[0].split(x[1].tolist(), axis))
    parts = a.get("num_outputs") or a["outputs"]
    return tuple(x[0].split(-(-x[0].shape[axis] // parts), axis))


@operator("Slice")
def _slice(x: list[Any], _a: Attributes) -> Any:
    import torch

    starts, ends = x[1].tolist(), x[2].tolist()
    axes = x[3].tolist() if len(x) > 3 and x[3] is not None else list(range(len(starts)))  # noqa: PLR2004
    steps = x[4].tolist() if len(x) > 4 and x[4] is not None else [1] * len(starts)  # noqa: PLR2004
    found = x[0]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        places = range(found.shape[axis])[slice(*_bounds(start, end, step, found.shape[axis]), step)]
        if step == 1:
            found = found.narrow(axis, places.start if len(places) else 0, len(places))
        else:
            found = found.index_select(axis, torch.tensor(list(places), dtype=torch.int64, device=found.device))
    return found


def _bounds(start: int, end: int, step: int, size: int) -> tuple[int, int | None]:
    """Return Python's bounds for ONNX's: with a negative step an end before the first element is None."""
    if step < 0 and end < -size:
        return start, None
    return start, end


@operator("Gather")
def _gather(x: list[Any], a: Attributes) -> Any:
    axis = a.get("axis", 0) % x[0].dim()
    places = x[1].long()
    places = places + (places < 0) * x[0].shape[axis]
    shape = [*x[0].shape[:axis], *places.shape, *x[0].shape[axis + 1 :]]
    return x[0].index_select(axis, places.reshape(-1)).reshape(shape)


@operator("GatherElements")
def _gather_elements(x: list[Any], a: Attributes) -> Any:
    axis = a.get("axis", 0)
    return x[0].gather(axis, x[1] + (x[1] < 0) * x[0].shape[axis])


@operator("GatherND")
def _gather_nd(x: list[Any], a: Attributes) -> Any:
    if a.get("batch_dims", 0):
        raise NotImplementedError("GatherND with batch_dims")
    return x[0][tuple(x[1].movedim(-1, 0))]


@operator("Expand")
def _expand(x: list[Any], _a: Attributes) -> Any:
    import torch

    shape = torch.broadcast_shapes(tuple(x[0].shape), tuple(x[1].tolist()))  # type: ignore[no-untyped-call]
    return x[0].expand(shape)


@operator("Tile")
def _tile(x: list[Any], _a: Attributes) -> Any:
    return x[0].repeat(x[1].tolist())


@operator("Pad")
def _pad(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    mode = a.get("mode", b"constant")
    name = mode.decode() if isinstance(mode, bytes) else mode
    half, rank = x[1].tolist(), x[0].dim()
    axes = x[3].tolist() if len(x) > 3 and x[3] is not None else list(range(rank))  # noqa: PLR2004
    pads = [(0, 0)] * rank
    for place, axis in enumerate(axes):
        pads[axis] = (half[place], half[place + len(axes)])
    turned = [size for pair in reversed(pads) for size in pair]
    if name == "constant":
        value = float(x[2]) if len(x) > 2 and x[2] is not None else 0.0  # noqa: PLR2004
        return functional.pad(x[0], turned, value=value)
    while len(turned) > 2 and turned[-2:] == [0, 0]:  # noqa: PLR2004 - torch pads the last axes only
        turned = turned[:-2]
    return functional.pad(x[0], turned, mode={"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[name])


@operator("ConstantOfShape")
def _constant_of_shape(x: list[Any], a: Attributes) -> Any:
    import torch

    value = a.get("value")
    if value is None:
        return torch.zeros(x[0].tolist())
    return torch.from_numpy(value).reshape(()).expand(x[0].tolist())


@operator("Range")
def _range(x: list[Any], _a: Attributes) -> Any:
    import torch

    return torch.arange(x[0].item(), x[1].item(), x[2].item(), dtype=x[0].dtype)


@operator("Cast")
def _cast(x: list[Any], a: Attributes) -> Any:
    import torch
    from onnx import TensorProto

    kinds = {
        TensorProto.FLOAT: torch.float32, TensorProto.FLOAT16: torch.float16, TensorProto.DOUBLE: torch.float64,
        TensorProto.INT64: torch.int64, TensorProto.INT32: torch.int32, TensorProto.BOOL: torch.bool,
        TensorProto.BFLOAT16: torch.bfloat16,
    }  # fmt: skip
    if a["to"] not in kinds:
        raise NotImplementedError(f"Cast to {TensorProto.DataType.Name(a['to'])}")
    return x[0].to(kinds[a["to"]])


@operator("ArgMax")
def _arg_max(x: list[Any], a: Attributes) -> Any:
    return x[0].argmax(a.get("axis", 0), keepdim=bool(a.get("keepdims", 1)))


@operator("Trilu")
def _trilu(x: list[Any], a: Attributes) -> Any:
    import torch

    offset = int(x[1]) if len(x) > 1 and x[1] is not None else 0
    return torch.triu(x[0], offset) if a.get("upper", 1) else torch.tril(x[0], offset)


@operator("ArgMin")
def _arg_min(x: list[Any], a: Attributes) -> Any:
    return x[0].argmin(a.get("axis", 0), keepdim=bool(a.get("keepdims", 1)))


@operator("TopK")
def _top_k(x: list[Any], a: Attributes) -> Any:
    values, places = x[0].topk(int(x[1]), a.get("axis", -1), bool(a.get("largest", 1)), bool(a.get("sorted", 1)))
    return values, places


@operator("OneHot")
def _one_hot(x: list[Any], a: Attributes) -> Any:
    import torch

    depth, (off, on) = int(x[1]), x[2]
    axis = a.get("axis", -1)
    places = x[0].long()
    places = places + (places < 0) * depth
    hit = places.unsqueeze(-1) == torch.arange(depth, device=places.device)
    return torch.where(hit, on, off).movedim(-1, axis)


_REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("ScatterElements")
def _scatter_elements(x: list[Any], a: Attributes) -> Any:
    axis, how = a.get("axis", 0), _how(a)
    places = x[1] + (x[1] < 0) * x[0].shape[axis]
    if how == "none":
        return x[0].scatter(axis, places, x[2])
    return x[0].scatter_reduce(axis, places, x[2], _REDUCED[how])


@operator("ScatterND")
def _scatter_nd(x: list[Any], a: Attributes) -> Any:
    how = _how(a)
    if how not in ("none", "add"):
        raise NotImplementedError(f"ScatterND {how}")
    places = tuple(x[1].movedim(-1, 0))
    return x[0].index_put(places, x[2].to(x[0].dtype), accumulate=how == "add")


def _how(a: Attributes) -> str:
    how = a.get("reduction", b"none")
    return how.decode() if isinstance(how, bytes) else str(how)
