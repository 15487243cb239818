"""Image rules: completed from the model's input, and applied to pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from edgekit.artifact import TensorSpec
from edgekit.data.faults import Note, UnreadableError
from edgekit.data.limits import MAX_PIXELS
from edgekit.data.pictures import Picture, resized
from edgekit.data.rules import ImageRule, factor
from edgekit.errors import InputError

_CHW = 3
_UPSCALED = 4
_UNIT_RANGE = 2.0


@dataclass(frozen=True)
class Geometry:
    """Where the pixels go: first resize to `size`, then take a window that may reach over the edge (padding).

    Attributes:
        size: (height, width) after resizing.
        top: of the window, in the resized picture; negative where it is padded.
        left: the same to the left.
        window: (height, width) of the window: the size of the result.
    """

    size: tuple[int, int]
    top: int
    left: int
    window: tuple[int, int]


def complete(rule: ImageRule, spec: TensorSpec, where: str) -> ImageRule:
    """Fill in what a rule leaves open from the shape and dtype of the model's input.

    Raises:
        InputError: the input is no image, its layout cannot be told, or the rule contradicts it.
    """
    place = f"{where}, input '{spec.name}'"
    if len(spec.shape) not in (_CHW, _CHW + 1):
        raise InputError(
            f"an image cannot be fed to an input of shape {list(spec.shape)}",
            where=place,
            remedy='Give the samples as .npz arrays (kind = "tensor"), or a Python factory.',
        )
    axes = spec.shape[-_CHW:]
    layout = rule.layout or _layout(axes, place)
    depth, height, width = axes if layout == "NCHW" else (axes[2], axes[0], axes[1])
    channels = rule.channels or ("gray" if depth == 1 else "RGB")
    count = 1 if channels == "gray" else 3
    if isinstance(depth, int) and depth != count:
        raise InputError(
            f'channels = "{channels}" with layout = "{layout}" gives {count} channels, the model wants {depth}',
            where=place,
            remedy="Correct channels or layout; inputs of other channel counts need arrays.",
        )
    resize = rule.resize
    if resize is None and rule.crop is None and isinstance(height, int) and isinstance(width, int):
        resize = (height, width)
    floating = "float" in spec.dtype
    done = msgspec.structs.replace(
        rule, layout=layout, channels=channels, resize=resize, scale=_scale(rule, place, floating=floating)
    )
    _check_complete(done, count, place, floating=floating)
    return done


def _layout(axes: tuple[int | str, ...], place: str) -> str:
    first, last = axes[0] in (1, 3), axes[2] in (1, 3)
    if first != last:
        return "NCHW" if first else "NHWC"
    if first or isinstance(axes[0], str):
        return "NCHW"
    raise InputError(
        f"which axis of {list(axes)} are the channels?",
        where=place,
        remedy='Declare layout = "NCHW" or "NHWC".',
    )


def _scale(rule: ImageRule, place: str, *, floating: bool) -> float:
    if rule.scale is not None:
        return factor(rule.scale, place)
    means = rule.mean if isinstance(rule.mean, tuple) else () if rule.mean is None else (rule.mean,)
    if any(abs(mean) > _UNIT_RANGE for mean in means):
        raise InputError(
            f"mean {rule.mean} is for pixels in 0 .. 255, but no scale is declared (1/255 is the default)",
            where=place,
            remedy="Declare scale = 1 for pixels in 0 .. 255, or a mean for pixels in 0 .. 1.",
        )
    return 1 / 255 if floating else 1.0


def _check_complete(rule: ImageRule, channels: int, place: str, *, floating: bool) -> None:
    for key, value in (("mean", rule.mean), ("std", rule.std)):
        if isinstance(value, tuple) and len(value) not in {1, channels}:
            raise InputError(
                f"{key} has {len(value)} numbers for {channels} channels",
                where=place,
                remedy=f"Correct {key}.",
            )
    if rule.fit != "stretch" and not isinstance(rule.resize, tuple):
        raise InputError(
            f'fit = "{rule.fit}" needs resize = [height, width]',
            where=place,
            remedy="Declare both, or leave fit out.",
        )
    if not floating and rule.std is not None:
        raise InputError("std for an integer input", where=place, remedy="Integer inputs take scale and mean only.")


def geometry(height: int, width: int, rule: ImageRule) -> Geometry:
    """Say where the pixels of a (height, width) picture go; the shorter-side rule rounds as transformers does."""
    size, target = (height, width), rule.resize
    if isinstance(target, int):
        short, long = min(size), max(size)
        scaled = int(target * long / short)
        size = (target, scaled) if height <= width else (scaled, target)
    elif target is not None and rule.fit == "stretch":
        size = target
    elif target is not None:
        pick = max if rule.fit == "cover" else min
        ratio = pick(target[0] / height, target[1] / width)
        size = (max(1, round(height * ratio)), max(1, round(width * ratio)))
    window = size
    if target is not None and rule.fit != "stretch" and isinstance(target, tuple):
        window = target
    top, left = (size[0] - window[0]) // 2, (size[1] - window[1]) // 2
    if rule.crop is not None:
        crop = rule.crop if isinstance(rule.crop, tuple) else (rule.crop, rule.crop)
        top, left = top + (window[0] - crop[0]) // 2, left + (window[1] - crop[1]) // 2
        window = crop
    return Geometry(size, top, left, window)


def check(picture: Picture, rule: ImageRule, spec: TensorSpec, where: str, notes: list[Note]) -> None:
    """Raise unless the rule makes of this picture what the input takes; nothing is computed.

    Raises:
        UnreadableError: the picture is so thin that resizing it would exceed the limit.
        InputError: the result has another height or width than the model's input.
    """
    height, width = picture.shape[:2]
    found = geometry(height, width, rule)
    if found.size[0] * found.size[1] > MAX_PIXELS:
        raise UnreadableError(
            f"{width} x {height} would be resized to {found.size[1]} x {found.size[0]}: image too large",
            where=where,
            remedy="Remove it, or declare resize = [height, width].",
        )
    axes = spec.shape[-_CHW:]
    wanted = axes[1:] if rule.layout == "NCHW" else axes[:2]
    if any(isinstance(want, int) and want != size for want, size in zip(wanted, found.window, strict=True)):
        raise InputError(
            f"the preprocessing gives {found.window[0]} x {found.window[1]} (height x width), "
            f"the model's input '{spec.name}' wants {wanted[0]} x {wanted[1]}",
            where=where,
            remedy="Declare resize = [height, width], or resize and crop that lead there.",
        )
    if min(found.size[0] / height, found.size[1] / width) >= _UPSCALED:
        notes.append(Note(rule="image-upscaled", node=spec.name, text=f"scaled up {_UPSCALED} times or more"))


def apply(picture: Picture, rule: ImageRule, spec: TensorSpec) -> npt.NDArray[np.generic]:
    """Return a picture as one sample of the input, without batch axis: float32, or integers for integer inputs."""
    found = geometry(picture.shape[0], picture.shape[1], rule)
    pixels: npt.NDArray[Any] = _window(resized(picture, found.size, rule.interpolation), found, rule.pad)
    if pixels.ndim < _CHW:
        pixels = pixels[..., None]
    if rule.channels != "gray" and pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    if rule.channels == "BGR":
        pixels = pixels[..., ::-1]
    values = pixels.astype(np.float32) * np.float32(factor(rule.scale or 1.0, spec.name))
    if rule.mean is not None:
        values -= np.array(rule.mean, np.float32)
    if rule.std is not None:
        values /= np.array(rule.std, np.float32)
    if "float" not in spec.dtype:
        values = np.rint(values)
    return np.ascontiguousarray(values.transpose(2, 0, 1) if rule.layout == "NCHW" else values)


def _window(picture: Picture, found: Geometry, pad: float) -> Picture:
    height, width = found.window
    top, left = max(found.top, 0), max(found.left, 0)
    part = picture[top : found.top + height, left : found.left + width]
    if part.shape[:2] == found.window:
        return part
    filled = np.full((height, width, *picture.shape[2:]), pad, picture.dtype)
    down, right = max(-found.top, 0), max(-found.left, 0)
    filled[down : down + part.shape[0], right : right + part.shape[1]] = part
    return filled
