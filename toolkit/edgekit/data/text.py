"""Text rules: completed from a tokenizer and the model's inputs, and applied to text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgekit.artifact import TensorSpec, sha256_file
from edgekit.data.faults import Note, UnreadableError
from edgekit.data.limits import MAX_CONFIG_BYTES, MAX_TOKENIZER_BYTES
from edgekit.data.rules import TextRule
from edgekit.data.samples import Feed
from edgekit.errors import InputError, IntegrityError, TargetError

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
_ROLES = {
    "input_ids": "ids",
    "input_word_ids": "ids",
    "attention_mask": "mask",
    "input_mask": "mask",
    "token_type_ids": "types",
    "segment_ids": "types",
    "input_type_ids": "types",
    "position_ids": "positions",
}
_NO_LIMIT = 100_000  # transformers writes 1e30 for `none`
_MAX_LENGTH = 512


class TextEncoder:
    """A tokenizer file and a completed rule: text to feeds.

    Args:
        rule: completed, or as `complete` will make it.
        path: the `tokenizer.json`; held against `rule.sha256` where that is known.

    Raises:
        TargetError: the `tokenizers` package is not installed.
        InputError: not a tokenizer file.
        IntegrityError: not the file that was recorded.
    """

    def __init__(self, rule: TextRule, path: Path) -> None:
        self.rule, self.path = rule, path
        self._tokenizer = _load(path)
        if rule.sha256 and sha256_file(path) != rule.sha256:
            raise IntegrityError("not the tokenizer that was recorded", where=str(path), remedy="Restore the file.")

    def complete(self, specs: Sequence[TensorSpec], where: str) -> list[Note]:
        """Fill in what the rule leaves open; say what was chosen. InputError when text cannot make an input."""
        rule, config = self.rule, _read_config(self.path.with_name(TOKENIZER_CONFIG))
        own_padding, own_cut = self._tokenizer.padding or {}, self._tokenizer.truncation or {}
        notes, fixed = [], _fixed_length(specs, where)
        longest = rule.max_length or fixed
        if longest is None:
            limits = [
                limit
                for limit in (own_cut.get("max_length"), config.get("model_max_length"))
                if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT
            ]
            longest = int(min(limits, default=_MAX_LENGTH))
            notes.append(Note(rule="text-max-length", node="", text=f"max_length {longest} taken, none is declared"))
        if fixed is not None and longest > fixed:
            raise InputError(
                f"max_length {longest}, the model's sequence axis is fixed to {fixed}",
                where=where,
                remedy=f"Declare max_length = {fixed} or less.",
            )
        pad_id = rule.pad_id
        if pad_id is None:
            pad_id = own_padding.get("pad_id")
        if pad_id is None:
            pad_id = self._tokenizer.token_to_id(_token(config.get("pad_token"))) or 0
        side = rule.padding_side or config.get("padding_side") or own_padding.get("direction") or "right"
        self.rule = msgspec.structs.replace(
            rule,
            tokenizer=TOKENIZER,
            sha256=sha256_file(self.path),
            max_length=longest,
            pad_id=int(pad_id),
            padding=rule.padding or ("none" if fixed is None else "max-length"),
            padding_side="left" if side == "left" else "right",
            inputs=rule.inputs or _roles(specs, where),
        )
        return notes

    def encode(self, text: str, pair: str | None, specs: Sequence[TensorSpec], where: str, notes: list[Note]) -> Feed:
        """Return the inputs of one text (or pair), each of shape [tokens], int64."""
        rule = self.rule
        longest = rule.max_length or _MAX_LENGTH
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(longest)
        try:
            found = self._tokenizer.encode(text, pair)
        except Exception as error:  # noqa: BLE001 - e.g. a lone surrogate: the library has no class for it
            raise UnreadableError(
                f"the tokenizer refuses the text: {error}", where=where, remedy="Correct it."
            ) from None
        if len(found.ids) > longest:
            raise InputError(
                f"max_length {longest} leaves no room for text beside special tokens",
                where=where,
                remedy="Declare a larger max_length.",
            )
        if found.overflowing:
            notes.append(Note(rule="text-cut", node="", text=f"longer than max_length {longest} and cut"))
        if not found.ids:
            raise UnreadableError("no tokens in the text", where=where, remedy="Remove it.")
        length = len(found.ids)
        fixed = _fixed_length(specs, where)
        target = fixed if fixed is not None else longest if rule.padding == "max-length" else length
        missing = (0, target - length) if rule.padding_side == "right" else (target - length, 0)
        mask = np.pad(np.array(found.attention_mask, np.int64), missing)
        made = {
            "ids": np.pad(np.array(found.ids, np.int64), missing, constant_values=rule.pad_id or 0),
            "mask": mask,
            "types": np.pad(np.array(found.type_ids, np.int64), missing),
            "positions": np.maximum(np.cumsum(mask) - 1, 0),
        }
        return {spec.name: made[rule.inputs[spec.name]] for spec in specs}


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TargetError("text needs the package 'tokenizers'", remedy="pip install 'edgekit-toolkit[text]'") from None
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise InputError(f"larger than {MAX_TOKENIZER_BYTES} bytes", where=str(path), remedy="Is it a tokenizer?")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library has no class of its own for it
        raise InputError(
            f"not a tokenizer file: {error}",
            where=str(path),
            remedy="Save one with the tokenizer's save_pretrained, from a fast tokenizer.",
        ) from None


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return a small JSON object; InputError names the file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"larger than {MAX_CONFIG_BYTES} bytes", where=str(path), remedy="Is it the right file?")
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"not readable as JSON: {error}", where=str(path), remedy="Correct the file.") from None
    if not isinstance(found, dict):
        raise InputError("not a JSON object", where=str(path), remedy="Correct the file.")
    return found


def _token(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _fixed_length(specs: Sequence[TensorSpec], where: str) -> int | None:
    last = [spec.shape[-1] for spec in specs if spec.shape]
    lengths = {length for length in last if isinstance(length, int)}
    if len(lengths) > 1:
        raise InputError(
            f"the model's inputs want sequences of {sorted(lengths)} tokens",
            where=where,
            remedy="Text gives all inputs one length; give the samples as .npz instead.",
        )
    return next(iter(lengths), None)


def _roles(specs: Sequence[TensorSpec], where: str) -> Any:
    unknown = [spec.name for spec in specs if spec.name not in _ROLES]
    if unknown:
        raise InputError(
            f"text cannot make the model's input '{unknown[0]}'",
            where=where,
            remedy=f'Say what it is in the preprocessing: inputs = {{ {unknown[0]} = "ids" }} (ids, mask, types or '
            "positions), for every input; or give the samples as .npz.",
        )
    return {spec.name: _ROLES[spec.name] for spec in specs}
