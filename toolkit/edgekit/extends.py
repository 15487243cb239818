"""TOML files that extend one another: read, checked key by key, and laid over each other.

`extends = "BASE"` takes everything from one other file; tables merge key by key, whatever else a file says
replaces the base's value. A figure, `{ value = ..., source = ... }`, is always replaced whole: a number never
keeps the source of another one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from edgekit.errors import InputError, did_you_mean

_FIGURE = frozenset({"value", "source"})


@dataclass(frozen=True, kw_only=True)
class Layers:
    """What a chain of files comes to.

    Attributes:
        values: the merged tables, without `extends`.
        origins: dotted key -> name of the file that set it, or `this machine` for what was probed.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


def lay_files(
    path: Path,
    *,
    struct: type[msgspec.Struct],
    derived: frozenset[str],
    shipped: Path,
    probes: Mapping[str, Callable[[], dict[str, Any]]],
) -> Layers:
    """Read a file and its bases, and lay them over each other, the file last.

    Args:
        path: the file.
        struct: what the merged values will be converted to; its fields are the known keys.
        derived: fields that a file may not set.
        shipped: the folder where a base is looked for when it does not lie beside the file that extends it.
        probes: values of the key `probe` -> what yields the tables that lie under the file that sets it.

    Raises:
        InputError: not TOML, unreadable, an unknown key, no such base, a circle: names file and key.
    """
    chain = [(path, _read(path))]
    while "extends" in chain[-1][1]:
        here, values = chain[-1]
        base = _base(here, values.pop("extends"), shipped)
        if any(base.samefile(seen) for seen, _ in chain):
            circle = " extends ".join([*(seen.name for seen, _ in chain), base.name])
            raise InputError(f"a circle: {circle}", where=f"{here}: extends", remedy="Take one `extends` out.")
        chain.append((base, _read(base)))
    layers = Layers()
    for file, values in reversed(chain):
        _check_keys(values, struct, file, derived)
        probe = values.get("probe")
        if isinstance(probe, str) and probe in probes:
            _overlay(layers, layers.values, probes[probe](), "this machine")
        _overlay(layers, layers.values, values, file.name)
    return layers


def origin_of(key: str, layers: Layers) -> str:
    """Return the file of a key, of the figure that holds it or of the list it is in; empty when unknown."""
    plain = key.split("[", maxsplit=1)[0]
    found = [file for name, file in layers.origins.items() if plain == name or plain.startswith(f"{name}.")]
    return found[0] if found else ""


def _read(path: Path) -> dict[str, Any]:
    """Parse one TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not valid TOML: {error}", where=str(path), remedy="Correct the file.") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), remedy="Check the path.") from None


def _base(path: Path, base: Any, shipped: Path) -> Path:
    """Return the file that `path` extends: beside it, else among the shipped ones; never `path` itself."""
    where = f"{path}: extends"
    if not isinstance(base, str) or Path(base).name != base:
        raise InputError(f"must be the name of one file without .toml, not {base!r}", where=where)
    for folder in (path.parent, shipped):
        candidate = folder / f"{base}.toml"
        if candidate.is_file() and not candidate.samefile(path):
            return candidate
    known = [file.stem for folder in (path.parent, shipped) for file in folder.glob("*.toml")]
    raise InputError(f"nothing named '{base}' to extend", where=where, remedy=did_you_mean(base, sorted(set(known))))


def _check_keys(
    values: dict[str, Any],
    struct: type[msgspec.Struct],
    path: Path,
    derived: frozenset[str] = frozenset(),
    prefix: str = "",
) -> None:
    """Refuse keys that the struct does not have, and anything but a table where the struct has one."""
    known = get_type_hints(struct)
    allowed = [key for key in known if key not in derived]
    for key, value in values.items():
        where = f"{path}: {prefix}{key}"
        if key in derived:
            raise InputError(f"`{key}` follows from the file's name", where=where, remedy="Take the key out.")
        if key not in allowed:
            raise InputError(f"unknown key '{key}'", where=where, remedy=did_you_mean(key, allowed))
        inner = _struct_of(known[key])
        if inner is None:
            continue
        if not isinstance(value, dict):
            fields = ", ".join(f"{name} = ..." for name in get_type_hints(inner))
            raise InputError(f"must be a table, not {value!r}", where=where, remedy=f"Write {{ {fields} }}.")
        _check_keys(value, inner, path, prefix=f"{prefix}{key}.")


def _struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the struct in an annotation such as `Cpu` or `Sourced | None`, or None."""
    choices = get_args(annotation) if get_origin(annotation) is not None else (annotation,)
    found = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, msgspec.Struct)]
    return found[0] if found else None


def _overlay(layers: Layers, under: dict[str, Any], over: dict[str, Any], source: str, prefix: str = "") -> None:
    """Lay `over` on `under` in place, tables key by key, figures whole, and note where each value is from."""
    for key, value in over.items():
        dotted = f"{prefix}{key}"
        below = under.get(key)
        if isinstance(value, dict) and not _FIGURE & value.keys():
            if not isinstance(below, dict) or _FIGURE & below.keys():
                _forget(layers, dotted)
                below = under[key] = {}
            _overlay(layers, below, value, source, f"{dotted}.")
        else:
            _forget(layers, dotted)
            under[key] = value
            layers.origins[dotted] = source


def _forget(layers: Layers, dotted: str) -> None:
    """Drop the origins of a value that is replaced, and of everything below it."""
    for name in [name for name in layers.origins if name == dotted or name.startswith(f"{dotted}.")]:
        del layers.origins[name]
