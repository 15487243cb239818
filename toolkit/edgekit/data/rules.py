"""Preprocessing as data: what is declared, completed from the model's inputs, and recorded in full."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from edgekit.artifact import TensorSpec
from edgekit.data.limits import MAX_CONFIG_BYTES
from edgekit.errors import InputError, did_you_mean

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Size = int | tuple[int, int]
Factor = float | str
_WHITE = 255
SIDECARS = ("preprocessing.toml", "edgekit-data.toml")
"""A file of this name in the data's folder declares its preprocessing (and `labels`)."""


class _Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class ImageRule(_Rule, frozen=True, kw_only=True, tag="image"):
    """From a picture to an input: resize, crop, then (pixel x scale - mean) / std per channel, then the layout.

    None means, when declared, `take it from the model's input`; when recorded, `not done`.

    Attributes:
        resize: an int: the shorter side becomes so long; [h, w]: the size, reached as `fit` says.
        fit: `stretch` to [h, w]; `cover`: scale until [h, w] is covered, center crop; `contain`: scale until it fits
            into [h, w], pad around (letterbox).
        interpolation: Pillow's filter of this name.
        crop: center crop after resizing, an int for a square; where the picture is smaller it is padded.
        pad: pixel value (0 .. 255) of padding.
        background: RGB under transparent pixels.
        channels: order of the channels; `gray` is one channel.
        scale: factor for pixels in 0 .. 255, also written "1/255". Default 1/255 for float inputs, 1 for integers.
        mean: subtracted after scaling, one number or one per channel; None: not subtracted.
        std: divided by after that.
        layout: `NCHW` or `NHWC` (also for a model without a batch axis).
    """

    resize: Size | None = None
    fit: Literal["stretch", "cover", "contain"] = "stretch"
    interpolation: Interpolation = "bilinear"
    crop: Size | None = None
    pad: float = 0.0
    background: tuple[int, int, int] = (0, 0, 0)
    channels: Literal["RGB", "BGR", "gray"] | None = None
    scale: Factor | None = None
    mean: float | tuple[float, ...] | None = None
    std: float | tuple[float, ...] | None = None
    layout: Literal["NCHW", "NHWC"] | None = None


class TensorRule(_Rule, frozen=True, kw_only=True, tag="tensor"):
    """From an array of one sample (no batch axis) to an input: transpose, expand, (x * scale - mean) / std.

    Attributes:
        transpose: the order of the sample's axes; empty: as they are.
        expand: position of a new axis of length 1, after the transpose.
        scale: factor, also written "1/255"; an integer array is fed to a float input only where a scale, mean or
            std is declared.
        mean: subtracted after scaling, one number or one per entry of `axis`.
        std: divided by after that.
        axis: the sample's axis that `mean` and `std` run along.
    """

    transpose: tuple[int, ...] = ()
    expand: int | None = None
    scale: Factor | None = None
    mean: float | tuple[float, ...] | None = None
    std: float | tuple[float, ...] | None = None
    axis: int = 0

    @property
    def computes(self) -> bool:
        """True when values change, so that integers may become floats."""
        return not (self.scale is None and self.mean is None and self.std is None)


class TextRule(_Rule, frozen=True, kw_only=True, tag="text"):
    """From text to token ids.

    Attributes:
        tokenizer: file name of the `tokenizer.json` (declared: its path).
        sha256: of that file; filled in.
        max_length: tokens, special ones included; longer texts are cut.
        padding: `none` or `max-length`; filled in: the latter where the model's sequence axis is fixed.
        padding_side: as the tokenizer's configuration says, else `right`.
        pad_id: token id of padding.
        columns: what the columns of a table are called: `text`, `text_pair`, `label` -> name.
        inputs: input name -> `ids`, `mask`, `types` or `positions`.
    """

    tokenizer: str = ""
    sha256: str = ""
    max_length: int | None = None
    padding: Literal["none", "max-length"] | None = None
    padding_side: Literal["left", "right"] | None = None
    pad_id: int | None = None
    columns: dict[str, str] = {}
    inputs: dict[str, Literal["ids", "mask", "types", "positions"]] = {}


Rule = ImageRule | TensorRule | TextRule


class Preprocessing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of a model's inputs: one per input, or one that turns text into all of them."""

    inputs: dict[str, ImageRule | TensorRule] = {}
    text: TextRule | None = None

    def record(self) -> dict[str, Any]:
        """Return it as JSON values; `parse` reads them back."""
        found = msgspec.json.decode(msgspec.json.encode(self))
        return {key: value for key, value in found.items() if value}


def parse(declared: Mapping[str, Any], specs: Sequence[TensorSpec], where: str) -> Preprocessing:
    """Read a declaration: one rule (`kind`, optional `input`, its keys), or what `Preprocessing.record` returned.

    Raises:
        InputError: an unknown key or kind, a wrong type, an unknown input: names file and key.
    """
    table = dict(declared)
    if table.get("kind") == "text":
        table = {"text": table}
    elif "kind" in table:
        name = table.pop("input", None) or _only_input(specs, str(table["kind"]), where)
        table = {"inputs": {name: table}}
    try:
        found = msgspec.convert(table, Preprocessing)
    except msgspec.ValidationError as error:
        raise InputError(
            f"preprocessing: {error}",
            where=where,
            remedy="Kinds are image ("
            + _keys(ImageRule)
            + "), tensor ("
            + _keys(TensorRule)
            + ") and text ("
            + _keys(TextRule)
            + ").",
        ) from None
    known = [spec.name for spec in specs]
    for name, rule in found.inputs.items():
        if name not in known:
            raise InputError(
                f"preprocessing for '{name}', which is no input of the model",
                where=where,
                remedy=did_you_mean(name, known),
            )
        _check_numbers(rule, f"{where}, preprocessing of '{name}'")
    return found


def _keys(rule: type[msgspec.Struct]) -> str:
    return ", ".join(rule.__struct_fields__)


def _only_input(specs: Sequence[TensorSpec], kind: str, where: str) -> str:
    fitting = [spec.name for spec in specs if kind != "image" or looks_like_image(spec)]
    if len(specs) == 1:
        return specs[0].name
    if len(fitting) == 1:
        return fitting[0]
    raise InputError(
        "which input is it for? The model has " + ", ".join(f"'{spec.name}'" for spec in specs),
        where=f"{where}, key input",
        remedy='Say input = "NAME", or give one table per input: [inputs.NAME].',
    )


def looks_like_image(spec: TensorSpec) -> bool:
    """Say whether an input has four axes of which one is 1 or 3 channels (or may be)."""
    rank = 4
    return len(spec.shape) == rank and any(size in (1, 3) or isinstance(size, str) for size in spec.shape[1::2])


def factor(value: Factor, where: str) -> float:
    """Return a scale as a number: 0.5, "0.5" or "1/255"; InputError for anything else, zero and non-finite."""
    try:
        above, _, below = str(value).partition("/")
        found = float(above) / (float(below) if below else 1.0)
    except (ValueError, ZeroDivisionError):
        found = math.nan
    if not math.isfinite(found) or found == 0:
        raise InputError(f"scale {value!r} is not a number", where=where, remedy='Write it as 0.5 or "1/255".')
    return found


def _check_numbers(rule: ImageRule | TensorRule, where: str) -> None:
    if rule.scale is not None:
        factor(rule.scale, where)
    for key in ("mean", "std"):
        value = getattr(rule, key)
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        if any(not math.isfinite(number) or (key == "std" and number <= 0) for number in values) or value == ():
            raise InputError(
                f"{key} {value!r}",
                where=f"{where}, key {key}",
                remedy="Finite numbers, those of std above 0.",
            )
    if isinstance(rule, ImageRule):
        if not all(0 <= value <= _WHITE for value in (rule.pad, *rule.background)):
            raise InputError("pad and background are pixel values", where=where, remedy="Give numbers in 0 .. 255.")
        for key in ("resize", "crop"):
            size = getattr(rule, key)
            if size is not None and min(size if isinstance(size, tuple) else (size,)) < 1:
                raise InputError(f"{key} {size!r}", where=f"{where}, key {key}", remedy="Sizes are at least 1.")


def read_sidecar(folder: Path) -> tuple[dict[str, Any], Path] | None:
    """Return the table of a folder's sidecar and its path; None when there is none.

    Raises:
        InputError: two sidecars, too large, or not TOML.
    """
    found = [folder / name for name in SIDECARS if (folder / name).is_file()]
    if not found:
        return None
    if len(found) > 1:
        raise InputError("two sidecars", where=f"{found[0]}, {found[1]}", remedy="Keep one of them.")
    return read_toml(found[0]), found[0]


def read_toml(path: Path) -> dict[str, Any]:
    """Return a small TOML file as a dict; InputError names the file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"larger than {MAX_CONFIG_BYTES} bytes", where=str(path), remedy="Is it the right file?")
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"not readable as TOML: {error}", where=str(path), remedy="Correct the file.") from None
