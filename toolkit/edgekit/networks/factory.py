"""Models from `python:module:factory`: run the user's factory, keep its source and its weights, run it again later.

Both happen in a child process: importing a module runs it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.artifact import sha256_file
from edgekit.errors import InputError, did_you_mean
from edgekit.networks.changes import apply_changes
from edgekit.networks.child import Tell
from edgekit.networks.huggingface import license_of
from edgekit.networks.record import WEIGHTS, changes_of, write_record
from edgekit.networks.sources import SOURCE, collect, copy_sources, local_roots, opened_files
from edgekit.networks.weights import load_state, save_state

if TYPE_CHECKING:
    import torch


def create(arguments: dict[str, Any], _tell: Tell) -> dict[str, Any]:
    """Call a factory, write its source, weights and record, and return the artifact's facts.

    Args:
        arguments: `module`, `factory`, `weights` (a safetensors path or empty) and `out`.
        _tell: unused; a factory is one step.

    Raises:
        InputError: the factory cannot be imported or called, gives no module, or the weights do not fit.
    """
    module, factory, out = arguments["module"], arguments["factory"], Path(arguments["out"])
    where = f"{module}:{factory}"
    roots = local_roots(module)
    with opened_files() as opened:
        built = call_factory(module, factory, Path.cwd())
    if arguments["weights"]:
        load_state(built, Path(arguments["weights"]), {}, where)
    aliases = save_state(built, out / WEIGHTS)
    record = {
        "from": "factory",
        "module": module,
        "factory": factory,
        "class": type(built).__qualname__,
        "aliases": aliases,
        "files": copy_sources(collect(module, opened, roots), out),
        "weights": sha256_file(Path(arguments["weights"])) if arguments["weights"] else "",
    }
    write_record(out, record)
    return {
        "kind": "torch",
        "task": _text(getattr(built, "task", "")),
        "labels": _names(getattr(built, "labels", []), where),
        "preprocessing": {},
        "license": license_of(roots[0]) if roots else {},
        "source": {key: record[key] for key in ("from", "module", "factory", "class", "files")},
        "findings": [],
    }


def call_factory(module: str, factory: str, place: Path) -> torch.nn.Module:
    """Import `module` with `place` first on the path and return what `factory()` gives, on the CPU.

    Random generators of Python, numpy and torch start from 0: a buffer that is not saved is the same each time.
    """
    import numpy as np
    import torch

    where = f"{module}:{factory}"
    sys.path.insert(0, os.fspath(place))
    importlib.invalidate_caches()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the user's code may use the global generator
    torch.manual_seed(0)
    with _user_code(where, place):
        try:
            imported = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
            text = f"no module '{error.name}' in the current directory or the environment"
            raise InputError(text, where=where, remedy="Run edgekit in the folder that holds it.") from None
        function = _attribute(imported, factory, where)
        built: Any = function()
    if not isinstance(built, torch.nn.Module):
        raise InputError(
            f"the factory returned {type(built).__name__}, not a torch.nn.Module",
            where=where,
            remedy="Return the module itself.",
        )
    return built.to("cpu")


def rebuild_factory(folder: Path, record: dict[str, Any]) -> torch.nn.Module:
    """Build the module again from the artifact's own copy of its source, changed as recorded, with its weights.

    Raises:
        InputError: the source needs files that could not be seen when the model was taken in.
    """
    source = (folder / SOURCE).resolve()
    for name in record["files"]:  # a module of the same name from elsewhere must not be taken for this one
        loaded = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        sys.modules.pop(loaded, None)
    with contextlib.chdir(source if source.is_dir() else Path.cwd()):
        built = call_factory(record["module"], record["factory"], source)
    built = apply_changes(built, changes_of(record))
    where = f"{record['module']}:{record['factory']}"
    load_state(built, folder / WEIGHTS, record["aliases"], where)
    return built


def _attribute(imported: Any, factory: str, where: str) -> Callable[[], Any]:
    found = imported
    for part in factory.split("."):
        if not hasattr(found, part):
            known = [name for name in dir(found) if callable(getattr(found, name)) and not name.startswith("_")]
            raise InputError(f"no '{part}' there", where=where, remedy=did_you_mean(part, known))
        found = getattr(found, part)
    if not callable(found):
        raise InputError("it cannot be called", where=where, remedy="Name a function that returns the module.")
    return found  # type: ignore[no-any-return]


@contextlib.contextmanager
def _user_code(where: str, place: Path) -> Iterator[None]:
    """Turn what the user's code raises into an InputError that names the line."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(place)]
        line = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
        text = f"{type(error).__name__}: {error}"[:1000]
        raise InputError(
            f"the factory failed{line}: {text}",
            where=where,
            remedy="It must work without arguments, its files relative to itself or to the current directory.",
        ) from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _names(value: Any, where: str) -> list[str]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise InputError(
            "`labels` of the module is not a list of strings",
            where=where,
            remedy="Set it to the class names in the order of the outputs, or leave it out.",
        )
    return list(value)
