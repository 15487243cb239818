"""ONNX operators on maps in torch: resizing, sub-pixels, sampling, local norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgekit.networks.graph_ops import Attributes, operator

if TYPE_CHECKING:
    import torch

_IMAGE = 4
_TAPS = 4


@operator("Resize")
def _resize(x: list[Any], a: Attributes) -> Any:
    """Resize along any axes; see the specification for how a pixel's place is found."""
    from torch.nn import functional

    mode = _text(a.get("mode", "nearest"))
    how = _text(a.get("coordinate_transformation_mode", "half_pixel"))
    rounding = _text(a.get("nearest_mode", "round_prefer_floor"))
    policy = _text(a.get("keep_aspect_ratio_policy", "stretch"))
    if how == "tf_crop_and_resize" or a.get("antialias", 0) or policy != "stretch":
        raise NotImplementedError(f"Resize {mode} {how} {'antialias ' if a.get('antialias', 0) else ''}{policy}")
    data, rank = x[0], x[0].dim()
    axes = [int(axis) % rank for axis in a.get("axes", range(rank))]
    sizes, scales = _wanted(x, axes)
    image = rank == _IMAGE and sizes[:2] == list(data.shape[:2])
    whole = all(abs(scale * old - new) < 1e-3 for scale, old, new in zip(scales, data.shape, sizes, strict=True))  # noqa: PLR2004
    if image and mode == "nearest" and (how, rounding) == ("asymmetric", "floor") and whole:
        return functional.interpolate(data, size=sizes[2:], mode="nearest")
    if image and mode == "linear" and how in {"half_pixel", "align_corners"} and whole:
        return functional.interpolate(data, size=sizes[2:], mode="bilinear", align_corners=how == "align_corners")
    for axis, (new, scale) in enumerate(zip(sizes, scales, strict=True)):
        if new != data.shape[axis] or scale != 1:
            places = _places(data.shape[axis], new, scale, how)
            matrix = _matrix(places, data.shape[axis], mode, rounding, a)
            data = (data.movedim(axis, -1) @ matrix.to(data).transpose(0, 1)).movedim(-1, axis)
    return data


def _wanted(x: list[Any], axes: Sequence[int]) -> tuple[list[int], list[float]]:
    """Return the size and the scale of every axis."""
    old = list(x[0].shape)
    sizes, scales = list(old), [1.0] * len(old)
    stated = x[3] if len(x) > 3 and x[3] is not None and x[3].numel() else None  # noqa: PLR2004 - data, roi, scales, sizes
    for place, axis in enumerate(axes):
        if stated is not None:
            sizes[axis] = int(stated[place])
            scales[axis] = sizes[axis] / old[axis]
        else:
            scales[axis] = float(x[2][place])
            sizes[axis] = math.floor(old[axis] * scales[axis] + 1e-6)
    return sizes, scales


def _places(old: int, new: int, scale: float, how: str) -> list[float]:
    """Return where each new pixel lies between the old ones."""
    if how == "align_corners":
        return [at * (old - 1) / (new - 1) if new > 1 else 0.0 for at in range(new)]
    if how == "asymmetric":
        return [at / scale for at in range(new)]
    if how == "pytorch_half_pixel" and new == 1:
        return [0.0]
    if how == "half_pixel_symmetric":
        offset = old / 2 * (1 - new / (old * scale))
        return [offset + (at + 0.5) / scale - 0.5 for at in range(new)]
    return [(at + 0.5) / scale - 0.5 for at in range(new)]


def _matrix(places: Sequence[float], old: int, mode: str, rounding: str, a: Attributes) -> torch.Tensor:
    """Return [new, old]: how much of every old pixel a new one holds."""
    import torch

    found = torch.zeros(len(places), old, dtype=torch.float64)
    for row, place in enumerate(places):
        for index, share in _shares(place, mode, rounding, a, old):
            found[row, min(max(index, 0), old - 1)] += share
    return found


def _shares(place: float, mode: str, rounding: str, a: Attributes, old: int) -> list[tuple[int, float]]:
    low = math.floor(place)
    part = place - low
    if mode == "nearest":
        down = {"floor": True, "ceil": part == 0, "round_prefer_floor": part <= 0.5, "round_prefer_ceil": part < 0.5}  # noqa: PLR2004
        return [(low if down[rounding] else low + 1, 1.0)]
    if mode == "linear":
        return [(low, 1 - part), (low + 1, part)]
    if mode != "cubic":
        raise NotImplementedError(f"Resize {mode}")
    slope = a.get("cubic_coeff_a", -0.75)
    taps = [(low + at - 1, _cubic(abs(part - at + 1), slope)) for at in range(_TAPS)]
    if a.get("exclude_outside", 0):
        taps = [(index, share) for index, share in taps if 0 <= index < old]
        total = sum(share for _, share in taps)
        taps = [(index, share / total) for index, share in taps]
    return taps


def _cubic(far: float, slope: float) -> float:
    if far <= 1:
        return ((slope + 2) * far - (slope + 3)) * far * far + 1
    return ((slope * far - 5 * slope) * far + 8 * slope) * far - 4 * slope


@operator("DepthToSpace")
def _depth_to_space(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    block = a["blocksize"]
    if _text(a.get("mode", "DCR")) == "CRD":
        return functional.pixel_shuffle(x[0], block)
    count, channels, height, width = x[0].shape
    parts = x[0].reshape(count, block, block, channels // block**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(count, channels // block**2, height * block, width * block)


@operator("SpaceToDepth")
def _space_to_depth(x: list[Any], a: Attributes) -> Any:
    block = a["blocksize"]
    count, channels, height, width = x[0].shape
    parts = x[0].reshape(count, channels, height // block, block, width // block, block).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(count, channels * block**2, height // block, width // block)


@operator("GridSample")
def _grid_sample(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    names = {
        "linear": "bilinear",
        "bilinear": "bilinear",
        "nearest": "nearest",
        "cubic": "bicubic",
        "bicubic": "bicubic",
    }
    mode, padding = names[_text(a.get("mode", "linear"))], _text(a.get("padding_mode", "zeros"))
    return functional.grid_sample(x[0], x[1], mode, padding, align_corners=bool(a.get("align_corners", 0)))


@operator("LRN")
def _local_responses(x: list[Any], a: Attributes) -> Any:
    from torch.nn import functional

    size = a["size"]
    squares = functional.pad(x[0].pow(2).movedim(1, -1), ((size - 1) // 2, size // 2))
    sums = squares.unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x[0] / (a.get("bias", 1.0) + a.get("alpha", 1e-4) / size * sums).pow(a.get("beta", 0.75))


@operator("GlobalLpPool")
def _global_lp(x: list[Any], a: Attributes) -> Any:
    power = a.get("p", 2)
    return x[0].abs().pow(power).sum(tuple(range(2, x[0].dim())), keepdim=True).pow(1 / power)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
