"""Weights as safetensors: checked without torch, saved and loaded with ties kept.

The safetensors format: eight bytes little-endian header length, a JSON header (name -> dtype, shape, data_offsets),
then the tensors' bytes without holes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.errors import InputError

if TYPE_CHECKING:
    import torch

_MAX_HEADER = 100_000_000  # the format's own limit
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16,
    "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_REMEDY = "Save the model again with safetensors, or fetch the file once more."


class Entry(NamedTuple):
    """A tensor of a safetensors file: its dtype as the format names it (`F32`, `BF16`, ...) and its shape."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, Entry]:
    """Return the tensors of a safetensors file, without reading them.

    Raises:
        InputError: the file is not safetensors, is cut short, or its header does not describe its bytes exactly.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(_MAX_HEADER, size - 8):  # noqa: PLR2004 - the format's first field
            raise InputError("this is not a safetensors file, or it is cut short", where=path.name, remedy=_REMEDY)
        raw = file.read(length)
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        spans = {name: _span(entry) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"the safetensors header is broken: {error}", where=path.name, remedy=_REMEDY) from None
    end = 0
    for name, (_, begin, stop) in sorted(spans.items(), key=lambda item: item[1][1:]):
        if begin != end:
            raise InputError(f"tensor '{name}' starts at byte {begin}, not {end}", where=path.name, remedy=_REMEDY)
        end = stop
    if 8 + length + end != size:
        text = f"the header describes {8 + length + end} bytes, the file has {size}"
        raise InputError(text, where=path.name, remedy=_REMEDY)
    return {name: entry for name, (entry, _, _) in spans.items()}


def _span(entry: Mapping[str, Any]) -> tuple[Entry, int, int]:
    dtype, shape = entry["dtype"], entry["shape"]
    begin, stop = entry["data_offsets"]
    if dtype not in _BITS:
        raise ValueError(f"unknown dtype {dtype!r}")
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, stop)):
        raise ValueError("shapes and offsets must be non-negative integers")
    if math.prod(shape) * _BITS[dtype] != 8 * (stop - begin):
        raise ValueError(f"{stop - begin} bytes for {dtype} of shape {shape}")
    return Entry(dtype, tuple(shape)), begin, stop


def save_state(module: torch.nn.Module, path: Path) -> dict[str, str]:
    """Save a module's state as safetensors, each shared tensor once.

    Args:
        module: on any device; parameters and persistent buffers are saved bit-exactly.
        path: the file to write.

    Returns:
        Aliases: name of a tensor that is not in the file -> name of the tensor there that it is tied to.

    Raises:
        InputError: the state holds something that is not a dense tensor with data, which needs pickle.
    """
    from safetensors.torch import save_file

    kept: dict[str, torch.Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    storages: set[int] = set()
    for name, value in sorted(module.state_dict(keep_vars=True).items()):
        _check_plain(name, value)
        key = _identity(value)
        if key is not None and key in first:
            aliases[name] = first[key]
            continue
        if key is not None:
            first[key] = name
        plain = value.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        kept[name] = plain.clone() if storage in storages else plain  # safetensors refuses overlapping views
        storages.add(storage)
    save_file(kept, path)
    return aliases


def _check_plain(name: str, value: Any) -> None:
    import torch

    plain = isinstance(value, torch.Tensor) and not torch.nn.parameter.is_lazy(value)
    if not plain or value.is_meta or value.layout != torch.strided or value.is_quantized:
        raise InputError(
            f"the state entry '{name}' is not a dense tensor with data",
            where=name,
            remedy="Initialize lazy modules with one forward pass, and keep extra state out of `state_dict`.",
        )


def _identity(value: torch.Tensor) -> tuple[Any, ...] | None:
    """Say which memory a tensor shows, and how; None for tensors without memory."""
    if value.numel() == 0:
        return None
    storage = value.untyped_storage()
    return (
        storage.device,
        storage.data_ptr(),
        value.storage_offset(),
        value.shape,
        value.stride(),
        value.dtype,
    )


def load_state(module: torch.nn.Module, path: Path, aliases: Mapping[str, str], where: str) -> None:
    """Copy a safetensors file into a module; every entry must fit, and no value may change.

    Args:
        module: tied tensors stay tied: values are copied into the tensors that are there.
        path: the weights.
        aliases: as `save_state` returned them; names that the file lacks because they are tied.
        where: what to name in errors.

    Raises:
        InputError: names, shapes or dtypes do not fit; says which.
    """
    import torch
    from safetensors.torch import load_file

    found = load_file(path)
    own = module.state_dict(keep_vars=True)
    ties = {**_ties(own), **aliases}
    given = {name: found.get(name, found.get(ties.get(name, name))) for name in own}
    for name, alias in ties.items():  # a file may hold either name of a tied pair
        if name in found and given.get(alias) is None:
            given[alias] = found[name]
    missing = [name for name, value in given.items() if value is None]
    surplus = sorted(set(found) - set(own))
    if missing or surplus:
        raise InputError(
            f"the weights do not fit the model: missing {_some(missing)}; not in the model {_some(surplus)}",
            where=where,
            remedy="Give the weights of this very model, with the names of its `state_dict()`.",
        )
    with torch.no_grad():
        for name, target in own.items():
            value = given[name]
            assert value is not None
            _check_fits(name, value, target, where)
            target.copy_(value)


def _ties(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    first: dict[tuple[Any, ...], str] = {}
    ties: dict[str, str] = {}
    for name, value in sorted(state.items()):
        key = _identity(value)
        if key is not None and first.setdefault(key, name) != name:
            ties[name] = first[key]
    return ties


def _check_fits(name: str, value: torch.Tensor, target: torch.Tensor, where: str) -> None:
    import torch

    if value.shape != target.shape:
        raise InputError(
            f"'{name}' has shape {list(value.shape)} in the file and {list(target.shape)} in the model",
            where=where,
            remedy="Give the weights of this very model.",
        )
    if torch.promote_types(value.dtype, target.dtype) != target.dtype:
        raise InputError(
            f"'{name}' is {value.dtype} in the file and {target.dtype} in the model: values would change",
            where=where,
            remedy=f"Convert the model with `.to({value.dtype})`, or save the weights as {target.dtype}.",
        )


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")  # noqa: PLR2004
