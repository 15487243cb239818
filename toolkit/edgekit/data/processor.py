"""Read the preprocessing of a Hugging Face model folder: image processors whose steps we know, and tokenizers.

What a processor does is only in part in its file: the class decides the rest. So the classes are listed here, with
the defaults that older files leave out, and any other class is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from edgekit.data.rules import ImageRule, Interpolation, Size
from edgekit.data.text import TOKENIZER, read_json
from edgekit.errors import InputError

_FILTERS: dict[int, Interpolation] = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}


class _Defaults(NamedTuple):
    """What older files leave out: filter, whether one size means a square, whether there is a center crop."""

    resample: int
    square: bool
    crop: bool


_PLAIN = {
    "Beit": _Defaults(3, square=True, crop=False),
    "Bit": _Defaults(3, square=False, crop=True),
    "Blip": _Defaults(3, square=True, crop=False),
    "ChineseCLIP": _Defaults(3, square=False, crop=True),
    "CLIP": _Defaults(3, square=False, crop=True),
    "ConvNext": _Defaults(3, square=False, crop=False),
    "DeiT": _Defaults(3, square=True, crop=True),
    "MobileNetV1": _Defaults(2, square=False, crop=True),
    "MobileNetV2": _Defaults(2, square=False, crop=True),
    "MobileViT": _Defaults(3, square=False, crop=True),
    "Segformer": _Defaults(2, square=True, crop=False),
    "Siglip": _Defaults(3, square=False, crop=False),
    "ViT": _Defaults(2, square=True, crop=False),
}
"""Class (without ImageProcessor, FeatureExtractor, Fast, Pil) -> its defaults. All resize, then center crop, then
scale, then normalize; MobileViT flips to BGR and does not normalize, and ConvNext resizes in its own way."""
_KNOWN_STEPS = {
    "do_resize",
    "do_center_crop",
    "do_rescale",
    "do_normalize",
    "do_convert_rgb",
    "do_flip_channel_order",
}
_FULL_SIZE = 384  # from here on ConvNeXT's processor stretches instead of cropping
_REMEDY = 'Declare the preprocessing (preprocessing.toml in the data\'s folder, kind = "image").'


def read_image_rule(folder: Path) -> tuple[ImageRule, Path] | None:
    """Return the image rule of a model folder and the file it is from; None when the folder has no image processor.

    Raises:
        InputError: a processor or a step that is not known here, or a file that cannot be read: names the key.
    """
    found = _config(folder)
    if found is None:
        return None
    config, path = found
    kind = _kind(config)
    if kind not in _PLAIN:
        raise InputError(f"the image processor '{kind or 'unnamed'}' is not known", where=str(path), remedy=_REMEDY)
    for key, value in config.items():
        unknown_step = key.startswith("do_") and key not in _KNOWN_STEPS and key != "do_reduce_labels"
        if value is True and (unknown_step or key in {"rescale_offset", "include_top"}):
            raise InputError(f"the step {key} is not known", where=f"{path}, key {key}", remedy=_REMEDY)
    return _rule(config, kind, path), path


def has_tokenizer(folder: Path) -> bool:
    """Say whether a model folder has a tokenizer that the `tokenizers` package reads."""
    return (folder / TOKENIZER).is_file()


def _config(folder: Path) -> tuple[dict[str, Any], Path] | None:
    for name in ("preprocessor_config.json", "processor_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        config = read_json(path)
        nested = config.get("image_processor")
        config = nested if isinstance(nested, dict) else config
        if config.get("feature_size") is not None or "sampling_rate" in config:
            raise InputError("an audio processor", where=str(path), remedy="Give the samples as .npz arrays.")
        if any(key in config for key in ("image_processor_type", "feature_extractor_type", "image_mean", "do_resize")):
            return config, path
    return None


def _kind(config: Mapping[str, Any]) -> str:
    kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    for suffix in ("Pil", "Fast", "ImageProcessor", "FeatureExtractor"):
        kind = kind.removesuffix(suffix)
    return kind


def _rule(config: Mapping[str, Any], kind: str, path: Path) -> ImageRule:
    resize = crop = None
    if config.get("do_resize", True):
        resize = _size(config, "size", path, square=_PLAIN[kind].square)
    if config.get("do_center_crop", _PLAIN[kind].crop):
        crop = _size(config, "crop_size", path, square=True)
    if kind == "ConvNext" and isinstance(resize, int):
        resize, crop = _convnext(resize, float(config.get("crop_pct") or 224 / 256))
    resample = config.get("resample", _PLAIN[kind].resample)
    if resample not in _FILTERS:
        raise InputError(f"resample {resample!r} is no filter", where=f"{path}, key resample", remedy=_REMEDY)
    scaled, normalized = (
        config.get("do_rescale", True),
        config.get("do_normalize", "image_mean" in config and kind != "MobileViT"),
    )
    flips = config.get("do_flip_channel_order", kind == "MobileViT")
    return ImageRule(
        resize=resize,
        crop=crop,
        interpolation=_FILTERS[resample],
        channels="BGR" if flips else None if config.get("do_convert_rgb") is None else "RGB",
        scale=_number(config, "rescale_factor", path, 1 / 255) if scaled else 1.0,
        mean=_numbers(config, "image_mean", path) if normalized else None,
        std=_numbers(config, "image_std", path) if normalized else None,
    )


def _convnext(size: int, crop_pct: float) -> tuple[Size, Size | None]:
    if size >= _FULL_SIZE:
        return (size, size), None
    return int(size / crop_pct), (size, size)


def _size(config: Mapping[str, Any], key: str, path: Path, *, square: bool) -> Size:
    value = config.get(key)
    if isinstance(value, dict) and set(value) >= {"height", "width"}:
        return int(value["height"]), int(value["width"])
    if isinstance(value, dict) and set(value) == {"shortest_edge"}:
        return int(value["shortest_edge"])
    if isinstance(value, list) and len(value) == 2 and all(isinstance(side, int) for side in value):  # noqa: PLR2004
        return value[0], value[1]
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, value) if square else value
    raise InputError(f"{key} {value!r} is not known", where=f"{path}, key {key}", remedy=_REMEDY)


def _number(config: Mapping[str, Any], key: str, path: Path, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise InputError(f"{key} {value!r} is not a number", where=f"{path}, key {key}", remedy=_REMEDY)


def _numbers(config: Mapping[str, Any], key: str, path: Path) -> float | tuple[float, ...]:
    value = config.get(key)
    if isinstance(value, list) and value and all(isinstance(number, int | float) for number in value):
        return tuple(float(number) for number in value)
    return _number(config, key, path, float("nan")) if value is not None else _missing(key, path)


def _missing(key: str, path: Path) -> float:
    raise InputError(f"{key} is missing", where=f"{path}, key {key}", remedy=_REMEDY)
