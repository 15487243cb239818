"""`edgekit.toml`: the options of `edgekit build` by the same names; flags win."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from edgekit.errors import InputError, did_you_mean

KEYS = {
    "profile": str,
    "data": str,
    "recipe": str,
    "target": str,
    "out": str,
    "max-drop": str,
    "latency-p50": str,
    "latency-p90": str,
    "latency-p95": str,
    "latency-p99": str,
    "max-size": str,
    "max-memory": str,
    "energy": str,
    "metric": str,
    "teacher": str,
    "label-map": str,
    "weights": str,
    "shape": list,
    "seed": int,
    "threads": int,
    "sustained": str,
    "simulate": str,
    "calibration": int,
    "strict": bool,
    "allow-fallback": bool,
    "allow-partial": bool,
    "allow-dominated": bool,
    "preprocessing": dict,
}
"""Key -> type, as the command line spells the options."""

_PATHS = ("data", "out", "label-map", "weights")


def find_config(model: str) -> Path | None:
    """Return the `edgekit.toml` that lies beside a model file, or in a model folder; None when there is none."""
    if model.startswith("python:"):
        return None
    path = Path(model)
    candidate = (path if path.is_dir() else path.parent) / "edgekit.toml"
    return candidate if candidate.is_file() else None


def load_config(path: Path) -> dict[str, Any]:
    """Read options from a TOML file; relative paths are relative to the file.

    Raises:
        InputError: not TOML, an unknown key, a value of another type: names file and key.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), remedy="Check --config.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not valid TOML: {error}", where=str(path), remedy="Correct the line.") from None
    for key, value in table.items():
        if key not in KEYS:
            raise InputError(f"unknown key '{key}'", where=str(path), remedy=did_you_mean(key, list(KEYS)))
        wanted = KEYS[key]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            kind = type(value).__name__
            raise InputError(
                f"'{key}' must be a {wanted.__name__}, not a {kind}", where=str(path), remedy="Correct the value."
            )
    for key in _PATHS:
        if key in table and not str(table[key]).startswith("python:"):
            table[key] = str(path.parent / table[key])
    return table
