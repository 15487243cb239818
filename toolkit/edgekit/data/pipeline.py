"""From raw input to feed: the one implementation that the readers and `edgekit run` share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from edgekit.artifact import TensorSpec
from edgekit.data import images, pictures, tensors
from edgekit.data.arrays import ArrayFile
from edgekit.data.conform import check_names, conform
from edgekit.data.faults import Note, printable
from edgekit.data.rules import ImageRule, Preprocessing, Rule, TensorRule, TextRule, factor, parse
from edgekit.data.samples import Feed
from edgekit.data.text import TextEncoder
from edgekit.errors import InputError

Array = npt.NDArray[np.generic]
Raw = Mapping[str, Array | str | bytes | Path]
"""Input name -> array or encoded image; or `text` (and `text_pair`) -> text."""
Content = dict[str, Array | str | list[Array]]
"""The same, decoded: what is hashed. Pictures are as in `pictures.py`; a list is a batch of them."""
Batched = Literal["always", "never", "auto"]
"""Whether raw arrays for an image rule have a batch axis; `auto`: when their shape is not that of one image."""
_IDENTITY = TensorRule()


class Pipeline:
    """A completed preprocessing for the inputs of a model.

    Args:
        preprocessing: as `complete` returned it.
        specs: the model's inputs.
        encoder: the tokenizer, where there is a text rule.
        batched: whether raw arrays for an image rule have a batch axis.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        specs: Sequence[TensorSpec],
        *,
        encoder: TextEncoder | None = None,
        batched: Batched = "auto",
    ) -> None:
        self.preprocessing = preprocessing
        self.specs, self._batched = tuple(specs), batched
        self._encoder = encoder

    def decode(self, raw: Raw, where: str, notes: list[Note]) -> Content:
        """Decode what is encoded (images); everything else is as it is.

        Raises:
            UnreadableError: an image that cannot be decoded.
            InputError: an array that is no image where one is declared.
        """
        if self._encoder is not None:
            return {name: value for name, value in raw.items() if isinstance(value, str)}
        check_names(raw.keys(), self.specs, where)
        return {spec.name: self._decode(raw[spec.name], spec, where, notes) for spec in self.specs}

    def check(self, content: Content, where: str, notes: list[Note]) -> None:
        """Raise what `feed` would raise, without the work where a look at the shape tells."""
        if self._encoder is not None:
            self.feed(content, where, notes)
            return
        for spec in self.specs:
            value: Any = content[spec.name]
            rule = self._rule(spec)
            if isinstance(rule, ImageRule):
                for picture in value if isinstance(value, list) else [value]:
                    images.check(picture, rule, spec, where, notes)
            else:
                self._tensor(value, rule, spec, where, notes)

    def feed(self, content: Content, where: str, notes: list[Note] | None = None) -> Feed:
        """Return the model's inputs for one sample.

        Raises:
            InputError: the result is not what the model takes.
            NonFiniteError: NaN or infinity.
        """
        if self._encoder is not None:
            found = self._encoder.encode(
                str(content["text"]),
                _optional(content.get("text_pair")),
                self.specs,
                where,
                [] if notes is None else notes,
            )
            return {spec.name: conform(found[spec.name], spec, where=where) for spec in self.specs}
        feed = {}
        for spec in self.specs:
            value: Any = content[spec.name]
            rule = self._rule(spec)
            if not isinstance(rule, ImageRule):
                feed[spec.name] = self._tensor(value, rule, spec, where, notes)
            elif isinstance(value, list):
                made = [images.apply(picture, rule, spec) for picture in value]
                feed[spec.name] = conform(np.stack(made), spec, where=where)
            else:
                feed[spec.name] = conform(images.apply(value, rule, spec), spec, where=where)
        return feed

    def _rule(self, spec: TensorSpec) -> ImageRule | TensorRule:
        return self.preprocessing.inputs.get(spec.name, _IDENTITY)

    def _decode(self, value: Any, spec: TensorSpec, where: str, notes: list[Note]) -> Array | list[Array]:
        rule = self._rule(spec)
        if isinstance(value, Path | bytes):
            if not isinstance(rule, ImageRule):
                raise InputError(
                    f"an image for the input '{spec.name}', whose preprocessing is kind \"tensor\"",
                    where=where,
                    remedy='Declare kind = "image" for it.',
                )
            found, told = pictures.decode(value, gray=rule.channels == "gray", background=rule.background, where=where)
            notes.extend(told)
            return pictures.canonical(found)
        array = np.asarray(value)
        if not isinstance(rule, ImageRule):
            return array
        gray = rule.channels == "gray"
        if self._batched == "always" or (self._batched == "auto" and not pictures.is_one(array.shape)):
            if array.ndim == 0 or len(array) == 0:
                raise InputError(f"shape {list(array.shape)} holds no images", where=where, remedy="Remove the sample.")
            return [pictures.canonical(pictures.as_picture(row, where, gray=gray)) for row in array]
        return pictures.canonical(pictures.as_picture(array, where, gray=gray))

    def _tensor(self, value: Any, rule: TensorRule, spec: TensorSpec, where: str, notes: list[Note] | None) -> Array:
        made = tensors.apply(value, rule, spec, where)
        return conform(made, spec, where=where, notes=None if rule.computes else notes)


def complete(
    declared: Preprocessing, specs: Sequence[TensorSpec], where: str, *, encoder: TextEncoder | None = None
) -> Preprocessing:
    """Fill in what a preprocessing leaves open, so that what is recorded says everything.

    Raises:
        InputError: it contradicts the model's inputs.
    """
    if encoder is not None:
        return Preprocessing(text=encoder.rule)
    rules: dict[str, ImageRule | TensorRule] = {}
    for spec in specs:
        rule = declared.inputs.get(spec.name, _IDENTITY)
        if isinstance(rule, ImageRule):
            rules[spec.name] = images.complete(rule, spec, where)
        else:
            scale = None if rule.scale is None else factor(rule.scale, where)
            rules[spec.name] = msgspec.structs.replace(rule, scale=scale)
    return Preprocessing(inputs=rules)


def digest(content: Content) -> bytes:
    """Return the sha256 (32 bytes) of decoded content: names, dtypes, shapes and values."""
    found = hashlib.sha256()
    for name, value in sorted(content.items()):
        if isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
            found.update(f"{name}\0str\0{len(data)}\0".encode())
            found.update(data)
            continue
        for array in value if isinstance(value, list) else [value]:
            native = array.astype(array.dtype.newbyteorder("="), copy=False)
            found.update(f"{name}\0{native.dtype.str}\0{native.shape}\0".encode())
            if native.size:
                found.update(np.ascontiguousarray(native).reshape(-1).view(np.uint8).data)
    return found.digest()


def preprocess_one(
    raw: Array | str | tuple[str, str] | bytes | Path | Mapping[str, Any],
    preprocessing: Mapping[str, Any],
    inputs: Sequence[TensorSpec],
    *,
    folder: Path | None = None,
) -> Feed:
    """Turn one raw input into a feed, as the recorded preprocessing says.

    Args:
        raw: the path of an image, `.npz` or `.npy` (or of a text file, as a Path); text or a pair of texts, for a
            text preprocessing; an array, or the bytes of an image, for a model with one input; or a dict of input
            name -> array, path or bytes.
        preprocessing: `Dataset.preprocessing`, as the package records it.
        inputs: the model's inputs.
        folder: where the files that the preprocessing names lie (`tokenizer.json`).

    Returns:
        Every input with its batch axis; repeated along it where the model's is fixed to more than one row.

    Raises:
        InputError: what cannot be read or does not fit: says which axis, dtype or name.
    """
    where = printable_source(raw)
    given = _given(raw, inputs, where) if "text" not in preprocessing else _text(raw, where)
    rules = parse(preprocessing, inputs, "preprocessing")
    rows = [one_row(spec, _rank(given.get(spec.name), rules, spec)) for spec in inputs]
    encoder = None
    if rules.text is not None:
        encoder = TextEncoder(rules.text, (folder or Path()) / rules.text.tokenizer)
    rules = complete(rules, rows, "preprocessing", encoder=encoder)
    pipeline = Pipeline(rules, rows, encoder=encoder)
    pictured = any(isinstance(rule, ImageRule) for rule in rules.inputs.values())
    with pictures.quiet() if pictured else nullcontext():
        content = pipeline.decode(given, where, [])
    pipeline.check(content, where, [])
    feed = pipeline.feed(content, where)
    return {
        spec.name: feed[spec.name] if spec in rows else np.repeat(feed[spec.name], int(spec.shape[0]), axis=0)
        for spec in inputs
    }


def fixed_rows(spec: TensorSpec, rank: int) -> int:
    """Return the rows that an input's batch axis is fixed to, for samples of `rank` axes; 1 when it is not."""
    first = spec.shape[0] if spec.shape and len(spec.shape) == rank + 1 else 1
    return first if isinstance(first, int) else 1


def one_row(spec: TensorSpec, rank: int) -> TensorSpec:
    """Return the spec of one row of an input whose batch axis is fixed to more."""
    if fixed_rows(spec, rank) == 1:
        return spec
    return msgspec.structs.replace(spec, shape=(1, *spec.shape[1:]))


def sample_rank(rule: Rule | None, rank: int) -> int:
    """Return the axes of one sample of an input, made by a rule of a raw sample of `rank` axes."""
    if isinstance(rule, ImageRule):
        return 3
    if isinstance(rule, TextRule):
        return 1
    return rank + (rule is not None and rule.expand is not None)


def printable_source(raw: Any) -> str:
    """Return how to call a raw input in an error: its path, or `input`."""
    return printable(str(raw)) if isinstance(raw, Path) else "input"


def _rank(value: Any, rules: Preprocessing, spec: TensorSpec) -> int:
    rule = rules.text or rules.inputs.get(spec.name)
    return sample_rank(rule, value.ndim if isinstance(value, np.ndarray) else len(spec.shape))


def _text(raw: Any, where: str) -> dict[str, Any]:
    if isinstance(raw, Path):
        try:
            return {"text": raw.read_text("utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"not readable as text: {error}", where=where, remedy="Give UTF-8 text.") from None
    if isinstance(raw, str):
        return {"text": raw}
    if isinstance(raw, tuple) and all(isinstance(part, str) for part in raw):
        return dict(zip(("text", "text_pair"), raw, strict=False))
    raise InputError("the model takes text", where=where, remedy="Give text, a pair of texts or a text file.")


def _given(raw: Any, specs: Sequence[TensorSpec], where: str) -> dict[str, Any]:
    if isinstance(raw, Mapping):
        return dict(raw)
    if isinstance(raw, str):
        raw, where = Path(raw), raw
    if isinstance(raw, Path) and not raw.is_file():
        raise InputError("no such file", where=where, remedy="Give an image, a .npz or a .npy.")
    if isinstance(raw, Path) and raw.suffix.lower() in {".npz", ".npy"}:
        file = ArrayFile(raw, where=where, alone=specs[0].name)
        check_names(file.headers.keys(), specs, where)
        return {spec.name: file.read(spec.name) for spec in specs}
    if len(specs) > 1:
        raise InputError(
            "the model has the inputs " + ", ".join(f"'{spec.name}'" for spec in specs),
            where=where,
            remedy="Give all of them in one .npz.",
        )
    return {specs[0].name: raw}


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)
