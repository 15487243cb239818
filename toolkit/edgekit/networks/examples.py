"""Example inputs of a model of transformers, from its configuration and that of its processor and tokenizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit import events
from edgekit.errors import InputError, UnsupportedError, did_you_mean
from edgekit.networks.inputs import Shapes, from_shapes
from edgekit.networks.network import BATCH, Axes
from edgekit.networks.record import read_json

if TYPE_CHECKING:
    import torch

_BATCH = 3
_SEQUENCE = 24
_CHOICES = 4
_SAMPLES = 12_000
_FRAMES = 96
_FIRST_WORD = 5  # ids below are special tokens in common vocabularies: padding, separators
_SHAPES = "Export it to ONNX with the inputs it needs, and build that file."


@dataclass(kw_only=True)
class PretrainedInputs:
    """Examples, dynamic axes and their sizes at export; see `Network`."""

    examples: dict[str, torch.Tensor] = field(default_factory=dict)
    axes: Axes = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    findings: tuple[events.Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What the makers of inputs read."""

    model: Any
    config: Any
    task: str
    processor: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    parameters: tuple[str, ...]

    def get(self, *names: str) -> Any:
        """Return the first of these settings that the configuration, or one of its parts, has."""
        inner = ("text_config", "vision_config", "audio_config", "encoder", "decoder")
        parts = [self.config, *(getattr(self.config, part, None) for part in inner)]
        for name in names:
            for part in parts:
                found = getattr(part, name, None)
                if found is not None:
                    return found
        return None


_Made = tuple["torch.Tensor", dict[int, str]]


def pretrained_inputs(
    model: Any, place: Path, task: str, shapes: Shapes, dtypes: Mapping[str, str]
) -> PretrainedInputs:
    """Make named example inputs of a model, in the order of its `forward`.

    Args:
        model: a `PreTrainedModel`.
        place: the directory with its configuration files.
        task: as in optimum's tables.
        shapes: inputs that the user states; they override, and add to, the usual ones.
        dtypes: their dtypes.

    Raises:
        InputError: `shapes` names what is no input. UnsupportedError: the usual inputs are not known.
    """
    parameters = tuple(inspect.signature(model.forward).parameters)
    source = _Source(
        model=model,
        config=model.config,
        task=task,
        processor=_settings(place / "preprocessor_config.json"),
        tokenizer=_settings(place / "tokenizer_config.json"),
        parameters=parameters,
    )
    made: dict[str, _Made] = {}
    for name in _usual(source):
        if name not in shapes:
            made[name] = _MAKERS[name](source)
    given, axes, sizes = _given(shapes, dtypes, parameters)
    found = PretrainedInputs(sizes=dict(sizes))
    for name in sorted({*made, *given}, key=parameters.index):
        value, table = (given[name], axes[name]) if name in given else made[name]
        found.examples[name], found.axes[name] = value, table
        for axis, label in table.items():
            found.sizes.setdefault(label, _export_size(label, int(value.shape[axis])))
    if not found.examples:
        raise UnsupportedError(
            f"it is not known what to feed {type(model).__name__}", where="config.json", remedy=_SHAPES
        )
    return found


def _given(
    shapes: Shapes, dtypes: Mapping[str, str], parameters: tuple[str, ...]
) -> tuple[dict[str, torch.Tensor], Axes, dict[str, int]]:
    for name in shapes:
        if name not in parameters:
            known = [parameter for parameter in parameters if parameter != "kwargs"]
            raise InputError("no input of the model has this name", where=name, remedy=did_you_mean(name, known))
    usual = {name: "int64" for name in shapes if name.endswith(("_ids", "_mask", "bbox"))}
    return from_shapes(shapes, {**usual, **dtypes})


def _export_size(label: str, largest: int) -> int:
    """Choose a size for the export between those that `checks_for` compares at."""
    return 2 if label == BATCH else max(1, largest * 2 // 3)


def _usual(source: _Source) -> list[str]:
    """Name the inputs that a model of this kind is fed with."""
    main = source.model.main_input_name
    text = "input_ids" in source.parameters and source.get("vocab_size") is not None
    image = "pixel_values" in source.parameters and source.get("image_size", "patch_size", "num_channels") is not None
    if main not in _MAKERS:
        return []
    names = [main]
    both = text and image and source.get("vision_config", "max_position_embeddings") is not None
    if (main == "input_ids" or both) and text:
        names += ["input_ids", "attention_mask", "bbox"]
        if _has_token_types(source):
            names.append("token_type_ids")
    if both:
        names.append("pixel_values")
    if main == "input_values" and source.processor.get("return_attention_mask"):
        names.append("attention_mask")
    if getattr(source.config, "is_encoder_decoder", False) and source.get("vocab_size") is not None:
        writes = getattr(source.model, "can_generate", lambda: False)()
        names += ["decoder_input_ids"] if writes or source.task == "feature-extraction" else []
    return [name for name in dict.fromkeys(names) if name in source.parameters]


def _has_token_types(source: _Source) -> bool:
    stated = source.tokenizer.get("model_input_names")
    if isinstance(stated, list):
        return "token_type_ids" in stated
    return (source.get("type_vocab_size") or 0) > 1


def _length(source: _Source) -> int:
    limits = [_SEQUENCE]
    for name in ("max_position_embeddings", "n_positions", "max_target_positions"):
        limit = source.get(name)
        if isinstance(limit, int) and limit > 0:
            limits.append(limit - 2 if limit > 4 else limit)  # noqa: PLR2004 - RoBERTa's positions start at 2
    return max(2, min(limits))


def _ids(source: _Source) -> _Made:
    shape, axes = _text_shape(source)
    words = int(source.get("vocab_size"))
    low = min(_FIRST_WORD, words - 1)
    ids = _integers(shape, low, words)
    end = source.get("eos_token_id")
    if isinstance(end, int) and 0 <= end < words and shape[-1] > 1:
        ids[ids == end] = low if low != end else max(0, low - 1)
        ids[..., 1] = end  # models that pool at the end token need one in every row
    return ids, axes


def _mask(source: _Source) -> _Made:
    import torch

    shape, axes = ((_BATCH, _SAMPLES), {0: BATCH, 1: "samples"}) if _is_wave(source) else _text_shape(source)
    mask = torch.ones(shape, dtype=torch.int64)
    mask[1:, ..., 5:] = 0
    return mask, axes


def _types(source: _Source) -> _Made:
    import torch

    shape, axes = _text_shape(source)
    types = torch.zeros(shape, dtype=torch.int64)
    types[..., 3:] = 1
    return types, axes


def _boxes(source: _Source) -> _Made:
    shape, axes = _text_shape(source)
    low = _integers((*shape, 2), 0, 500)
    return _cat([low, low + 100]), axes


def _text_shape(source: _Source) -> tuple[tuple[int, ...], dict[int, str]]:
    if source.task == "multiple-choice":
        return (_BATCH, _CHOICES, _length(source)), {0: BATCH, 1: "choices", 2: "sequence"}
    return (_BATCH, _length(source)), {0: BATCH, 1: "sequence"}


def _decoder_ids(source: _Source) -> _Made:
    ids = _integers((_BATCH, _length(source)), 0, int(source.get("vocab_size")))
    return ids, {0: BATCH, 1: "decoder_sequence"}


def _pixels(source: _Source) -> _Made:
    height, width = _image_size(source)
    channels = int(source.get("num_channels", "in_chans") or 3)
    frames = source.get("num_frames", "frames_per_clip")
    shape = (_BATCH, int(frames), channels, height, width) if frames else (_BATCH, channels, height, width)
    return _normal(shape), {0: BATCH}


def _image_size(source: _Source) -> tuple[int, int]:
    stated = source.processor
    sizes = [stated.get("crop_size") if stated.get("do_center_crop") else None]
    sizes += [stated.get("size") if stated.get("do_resize", True) else None, source.get("image_size"), 224]
    for size in sizes:
        if isinstance(size, Mapping) and "height" in size and "width" in size:
            return int(size["height"]), int(size["width"])
        if isinstance(size, (list, tuple)) and len(size) == 2:  # noqa: PLR2004 - height, width
            return int(size[0]), int(size[1])
        if isinstance(size, int):
            return size, size
        if isinstance(size, Mapping) and "shortest_edge" in size and source.get("image_size") is None:
            return int(size["shortest_edge"]), int(size["shortest_edge"])
    return 224, 224


def _values(source: _Source) -> _Made:
    bins, length = source.get("num_mel_bins"), source.get("max_length")
    if isinstance(bins, int) and isinstance(length, int) and not _is_wave(source):  # spectrogram transformers
        return _normal((_BATCH, length, bins)), {0: BATCH}
    return _normal((_BATCH, _SAMPLES)), {0: BATCH, 1: "samples"}


def _is_wave(source: _Source) -> bool:
    return source.model.main_input_name == "input_values" and source.get("conv_dim", "conv_kernel") is not None


def _features(source: _Source) -> _Made:
    bins, positions = source.get("num_mel_bins"), source.get("max_source_positions")
    width = source.get("feature_projection_input_dim", "input_feat_per_channel")
    if width is not None:
        return _normal((_BATCH, _FRAMES, int(width))), {0: BATCH, 1: "frames"}
    if bins is None or positions is None:
        raise UnsupportedError("the size of its audio features is not known", where="input_features", remedy=_SHAPES)
    return _normal((_BATCH, int(bins), 2 * int(positions))), {0: BATCH}


_MAKERS: dict[str, Callable[[_Source], _Made]] = {
    "input_ids": _ids,
    "attention_mask": _mask,
    "token_type_ids": _types,
    "bbox": _boxes,
    "pixel_values": _pixels,
    "input_values": _values,
    "input_features": _features,
    "decoder_input_ids": _decoder_ids,
}
"""Input of `forward` -> what makes it."""


def _settings(path: Path) -> Mapping[str, Any]:
    return read_json(path) if path.is_file() else {}


def _generator() -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(0)


def _integers(shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
    import torch

    return torch.randint(low, max(high, low + 1), shape, generator=_generator())


def _normal(shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=_generator())


def _cat(parts: list[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.cat(parts, dim=-1)
