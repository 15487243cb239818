"""Read a `.pt2` exported program as data: check every member, and write it again without what could run code.

`torch.export.load` trusts its file: besides pickles it evaluates symbolic shapes and guards as Python, resolves
operator names as attributes of `torch` (`torch.os.system` is one) and pastes names into generated code. So the
archive is read here, without torch, against lists of what is allowed, and what passes is written to a new archive,
which torch then reads. Pickled members are refused; the sample inputs, which are always a pickle, are handed out for
loading as plain tensors.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from pathlib import Path
from typing import Any

from edgekit.errors import InputError, UnsupportedError
from edgekit.networks import expressions

_SAVE = "Export and save it again: torch.export.save(torch.export.export(model.eval(), args), path)."
_NAME = re.compile(r"[\w.:/ @+\-]*")
_TEXT = re.compile(r"""[^'"\\\x00-\x1f]*""")
_PAYLOAD = re.compile(r"(weight|tensor)_\d+")
_MAX_MEMBERS = 200_000
_MAX_JSON = 256 << 20
_MAX_TOTAL = 64 << 30
_MAX_RATIO = 100
_CHUNK = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ROOT = "program"
_MODEL = "models/model.json"
_SAMPLES = "data/sample_inputs/model.pt"
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")


def rewrite(source: Path, target: Path) -> bytes:
    """Write a checked copy of the archive `source` to `target`; return the pickled sample inputs, which it lacks.

    Stack traces, guards and extra files are left out, and every device becomes the CPU. Equal programs give equal
    bytes.

    Raises:
        InputError: it is no archive of torch >= 2.9, is broken, or has members that need pickle or could run code.
        UnsupportedError: it holds compiled code, several programs or custom objects.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            members = _members(archive, source.name)
            model = _load(archive, members[_MODEL])
            configs = {name: _load(archive, members[name]) for name in _CONFIGS}
            _check_model(model)
            payloads = [name for config in configs.values() for name in _check_config(config, members)]
            samples = archive.read(members[_SAMPLES]) if _SAMPLES in members else b""
            texts = {name: _encode(config) for name, config in configs.items()}
            texts |= {
                _MODEL: _encode(_stripped(model)),
                _SAMPLES: b"",
                "archive_format": b"pt2",
                "archive_version": b"0",
            }
            texts |= {"byteorder": b"little", ".data/version": b"6\n"}
            _write(archive, target, texts, {name: members[name] for name in sorted(set(payloads))})
    except (
        zipfile.BadZipFile,
        EOFError,
        NotImplementedError,
        RuntimeError,
        OSError,
        ValueError,
        RecursionError,
    ) as error:
        raise InputError(f"not a readable exported program: {error}", where=source.name, remedy=_SAVE) from None
    return samples


def _members(archive: zipfile.ZipFile, where: str) -> dict[str, zipfile.ZipInfo]:
    """Return the members by their name below the archive's one top folder, judged by name and size."""
    infos = archive.infolist()
    names = [info.filename.partition("/")[2] for info in infos]
    tops = {info.filename.partition("/")[0] for info in infos}
    if len(infos) > _MAX_MEMBERS or sum(info.file_size for info in infos) > _MAX_TOTAL:
        raise InputError("the archive is larger than any program", where=where, remedy=_SAVE)
    if any(info.file_size > _MAX_RATIO * max(info.compress_size, _CHUNK) for info in infos):
        raise InputError("a member is compressed like a decompression bomb", where=where, remedy=_SAVE)
    if len(set(names)) != len(names) or len(tops) != 1:
        raise InputError("members appear twice or in several top folders", where=where, remedy=_SAVE)
    found = dict(zip(names, infos, strict=True))
    if any(name.startswith("data/aotinductor/") for name in names):
        raise UnsupportedError("it holds code compiled for another machine", where=where, remedy=_SAVE)
    models = [name for name in names if name.startswith("models/")]
    if "archive_format" not in found or not models:
        old = "serialized_exported_program.json" in {info.filename for info in infos}
        text = "it is of the format before torch 2.9, which is made of pickles" if old else "it is no exported program"
        raise InputError(text, where=where, remedy=_SAVE)
    if models != [_MODEL]:
        raise UnsupportedError(f"{len(models)} programs in one file: {sorted(models)[:4]}", where=where, remedy=_SAVE)
    if "byteorder" in found and archive.read(found["byteorder"]) != b"little":
        raise UnsupportedError("it was saved on a big-endian machine", where=where, remedy=_SAVE)
    for name in _CONFIGS:
        if name not in found:
            raise InputError("weights or constants are a pickle", where=f"{where}: {name}", remedy=_SAVE)
    return found


def _load(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> dict[str, Any]:
    if info.file_size > _MAX_JSON:
        raise InputError("over 256 MiB of JSON", where=info.filename, remedy=_SAVE)
    found = json.loads(archive.read(info))
    if not isinstance(found, dict):
        raise InputError("a JSON object was expected", where=info.filename, remedy=_SAVE)
    return found


def _check_config(config: dict[str, Any], members: dict[str, zipfile.ZipInfo]) -> list[str]:
    """Return the members that hold the tensors of a weights or constants table; none may be a pickle."""
    _check_strings(config, "")
    files: list[str] = []
    for name, entry in config.get("config", {}).items():
        path = str(entry["path_name"])
        if entry.get("use_pickle") or not _PAYLOAD.fullmatch(path):
            kind = "a custom object" if not _PAYLOAD.fullmatch(path) else "a tensor subclass"
            raise InputError(f"{kind}, which only pickle can load", where=name, remedy=_SAVE)
        member = f"data/{'weights' if path.startswith('weight_') else 'constants'}/{path}"
        if member not in members:
            raise InputError(f"{member} is missing from the archive", where=name, remedy=_SAVE)
        sizes = [int(size["as_int"]) for size in entry["tensor_meta"]["sizes"]]
        if math.prod(sizes) and not members[member].file_size:
            raise InputError(
                "the tensor has no data: the program was exported with fake tensors", where=name, remedy=_SAVE
            )
        files.append(member)
    return files


def _check_model(model: dict[str, Any]) -> None:
    """Refuse whatever in the program's JSON could make torch run code."""
    model.pop("guards_code", None)  # Python that torch would execute; shapes are checked without it
    _check_strings(model, "")


def _check_strings(value: Any, key: str) -> None:
    """Walk JSON values; every string must be of the harmless kind that its key stands for."""
    if isinstance(value, dict):
        if key in ("as_custom_obj", "custom_obj") or (key == "custom_obj_values" and value):
            raise UnsupportedError("the program uses a custom object", where=key, remedy=_SAVE)
        for inner, item in value.items():
            if not _NAME.fullmatch(inner):
                raise InputError(f"unsafe name {inner[:80]!r}", where=_MODEL, remedy=_SAVE)
            if inner != "metadata":  # dropped when written
                _check_strings(item, inner)
    elif isinstance(value, list):
        for item in value:
            _check_strings(item, key)
    elif isinstance(value, str):
        _check_string(value, key)


def _check_string(value: str, key: str) -> None:
    if key in ("as_string", "as_strings") and _TEXT.fullmatch(value):  # values of arguments: they stay in quotes
        return
    if key == "expr_str":
        expressions.check_shape(value)
    elif key in ("target", "as_operator"):
        expressions.check_operator(value)
    elif key in ("in_spec", "out_spec"):
        expressions.check_structure(value)
    elif not _NAME.fullmatch(value):
        raise InputError(f"unsafe text {value[:80]!r} for `{key}`", where=_MODEL, remedy=_SAVE)


def _stripped(value: Any) -> Any:
    """Return the JSON without metadata (stack traces, paths) and with every device as the CPU."""
    if isinstance(value, dict):
        if set(value) == {"type", "index"}:
            return {"type": "cpu", "index": None} if value["type"] == "cuda" else value
        return {key: {} if key == "metadata" else _stripped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps(_stripped(value), separators=(",", ":")).encode()


def _write(
    archive: zipfile.ZipFile, target: Path, texts: dict[str, bytes], payloads: dict[str, zipfile.ZipInfo]
) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as out:
        for name, data in sorted(texts.items()):
            out.writestr(zipfile.ZipInfo(f"{_ROOT}/{name}", _EPOCH), data)
        for name, info in payloads.items():
            made = zipfile.ZipInfo(f"{_ROOT}/{name}", _EPOCH)
            made.file_size = info.file_size
            with archive.open(info) as member, out.open(made, "w") as copy:
                while chunk := member.read(_CHUNK):
                    copy.write(chunk)
