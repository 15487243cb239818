"""Which preprocessing holds: the caller's, a sidecar's, the model's processor's, or the default; and said which."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from edgekit.artifact import TensorSpec
from edgekit.data import factory, processor
from edgekit.data.conform import check_names
from edgekit.data.faults import named, noted, printable, warned
from edgekit.data.finding import checked_classes, read_label_list
from edgekit.data.pipeline import complete
from edgekit.data.rules import ImageRule, Preprocessing, TextRule, looks_like_image, parse, read_sidecar
from edgekit.data.text import TOKENIZER, TextEncoder
from edgekit.errors import InputError
from edgekit.events import Finding

Kind = Literal["images", "arrays", "text"]


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What is said about the data before it is read.

    Attributes:
        preprocessing: as declared; empty when nothing is.
        source: where it is from: a file, or `preprocessing`.
        base: the folder that its file names are relative to.
        classes: the list of classes of `labels.txt` or a sidecar; empty when there is none.
        processor: the model's folder, where an image or text preprocessing is looked for.
    """

    preprocessing: Preprocessing
    source: str
    base: Path
    classes: tuple[str, ...]
    processor: Path | None


def read_declared(
    path: str,
    preprocessing: Mapping[str, Any] | None,
    processor_folder: Path | None,
    specs: Sequence[TensorSpec],
    findings: list[Finding],
) -> Declared:
    """Read what the caller and the files beside the data declare; the caller's word goes first.

    Raises:
        InputError: an unknown key, a wrong type: names file and key.
    """
    root, sidecar, classes = Path.cwd(), None, tuple[str, ...]()
    if not path.startswith(factory.PREFIX):
        root = Path(path).absolute()
        root = root if root.is_dir() else root.parent
        sidecar, classes = read_sidecar(root), read_label_list(root)
    table, source = dict(preprocessing or {}), "preprocessing"
    if sidecar is not None:
        beside, where = dict(sidecar[0]), printable(str(sidecar[1]))
        listed = beside.pop("labels", None)
        if listed is not None:
            classes = _listed(listed, classes, where)
        if beside and not table:
            table, source = beside, where
            findings.append(noted("data-preprocessing-from", text=f"preprocessing from {where}"))
        elif beside:
            findings.append(
                noted("data-preprocessing-from", text=f"the preprocessing in {where} is not used: another one is given")
            )
    return Declared(
        preprocessing=parse(table, specs, source),
        source=source,
        base=root,
        classes=classes,
        processor=processor_folder,
    )


def settle(
    declared: Declared,
    kind: Kind,
    pictured: Collection[str],
    specs: Sequence[TensorSpec],
    findings: list[Finding],
) -> tuple[Preprocessing, TextEncoder | None]:
    """Return the complete preprocessing for data of a kind, and the tokenizer for text.

    Args:
        declared: what is said about the data.
        kind: what the data is.
        pictured: the inputs that encoded images are for.
        specs: the model's inputs.
        findings: where the preprocessing is from is appended.

    Raises:
        InputError: what is declared is for another kind of data, contradicts the model, or text lacks a tokenizer.
    """
    if kind == "text":
        encoder = _encoder(declared, specs, findings)
        return complete(Preprocessing(), specs, declared.source, encoder=encoder), encoder
    if declared.preprocessing.text is not None:
        raise InputError(
            f'kind = "text", but the data is {kind}',
            where=declared.source,
            remedy="Correct the declaration, or give text (.csv, .jsonl).",
        )
    rules = dict(declared.preprocessing.inputs)
    for name in sorted(set(pictured) - rules.keys()):
        rules[name] = _image_rule(declared, name, findings)
    return complete(Preprocessing(inputs=rules), specs, declared.source), None


def image_input(specs: Sequence[TensorSpec], rules: Mapping[str, Any], where: str) -> str:
    """Return the one input that images are for.

    Raises:
        InputError: it cannot be told, or the model has more inputs, which images do not give.
    """
    fitting = [spec.name for spec in specs if isinstance(rules.get(spec.name), ImageRule)]
    fitting = fitting or [spec.name for spec in specs if looks_like_image(spec)]
    if len(specs) == 1:
        return specs[0].name
    if len(fitting) == 1:
        check_names(fitting, specs, where)
    raise InputError(
        "images give one input, the model has " + named(f"'{spec.name}'" for spec in specs),
        where=where,
        remedy="Give all inputs as .npz arrays or from a Python factory.",
    )


def _image_rule(declared: Declared, name: str, findings: list[Finding]) -> ImageRule:
    found = None if declared.processor is None else processor.read_image_rule(declared.processor)
    if found is not None:
        rule, path = found
        findings.append(noted("data-preprocessing-from", node=name, text=f"preprocessing from {printable(str(path))}"))
        return rule
    findings.append(
        warned(
            "data-normalization-undeclared",
            node=name,
            text="no preprocessing is declared: images are stretched to the input's size and scaled to 0 .. 1, "
            "mean and std are not applied",
            remedy='Declare what training did in preprocessing.toml beside the data: kind = "image", mean, std.',
        )
    )
    return ImageRule()


def _encoder(declared: Declared, specs: Sequence[TensorSpec], findings: list[Finding]) -> TextEncoder:
    rule = declared.preprocessing.text
    if rule is None and declared.preprocessing.inputs:
        raise InputError(
            "the preprocessing is for arrays or images, but the data is text",
            where=declared.source,
            remedy='Declare kind = "text".',
        )
    rule = rule or TextRule()
    places = [folder / TOKENIZER for folder in (declared.processor, declared.base) if folder is not None]
    if rule.tokenizer:
        given = declared.base / rule.tokenizer
        given = given / TOKENIZER if given.is_dir() else given
        places = [*places, given] if rule.sha256 else [given]  # with a hash: recorded, and carried by a package
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise InputError(
            "no tokenizer for the text",
            where=named(printable(str(place)) for place in places),
            remedy=f'Put the model\'s {TOKENIZER} there, or declare tokenizer = "PATH" '
            '(kind = "text" in preprocessing.toml).',
        )
    encoder = TextEncoder(rule, path)
    findings.extend(noted(note.rule, note.text) for note in encoder.complete(specs, declared.source))
    return encoder


def _listed(listed: Any, other: tuple[str, ...], where: str) -> tuple[str, ...]:
    try:
        classes = checked_classes(msgspec.convert(listed, list[str]), f"{where}, key labels")
    except msgspec.ValidationError as error:
        raise InputError(f"labels: {error}", where=f"{where}, key labels", remedy="A list of class names.") from None
    if other and other != classes:
        raise InputError("labels.txt lists other classes", where=f"{where}, key labels", remedy="Keep one of them.")
    return classes
