"""Which of a user's files a factory uses: its module, what that imports, and what it opens. Without torch.

Local are the files under the current directory and under the directory that the factory's module is imported from,
without installed packages, the standard library, edgekit itself and hidden directories.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from edgekit import errors
from edgekit.artifact import sha256_file
from edgekit.networks.record import copy_file

SOURCE = "source"
_INSTALLED = frozenset({"site-packages", "dist-packages", "__pycache__"})


def local_roots(module: str) -> list[Path]:
    """Return the directory that a module is imported from and the current directory, as far as they are local."""
    top = module.partition(".")[0]
    spec = PathFinder.find_spec(top, [os.fspath(Path.cwd()), *sys.path])
    found: list[Path] = []
    if spec is not None:
        places = list(spec.submodule_search_locations or []) or [spec.origin or ""]
        found = [Path(places[0]).resolve().parent]
    roots = [*found, Path.cwd().resolve()]
    return [root for index, root in enumerate(roots) if root != Path("/") and root not in roots[:index]]


def local_name(path: Path, roots: list[Path]) -> str:
    """Return a file's name relative to the first root that it is local to; empty when it is not local."""
    for root in roots:
        if not path.is_relative_to(root):
            continue
        inside = path.relative_to(root).parts
        if any(part in _INSTALLED or part.startswith(".") for part in inside):
            return ""
        if _INSTALLED.intersection(path.parts) or any(path.is_relative_to(place) for place in _foreign()):
            return ""
        return "/".join(inside)
    return ""


def _foreign() -> list[Path]:
    paths = sysconfig.get_paths()
    own = Path(errors.__file__).resolve().parent
    return [own, *(Path(paths[key]).resolve() for key in ("stdlib", "platstdlib"))]


@contextlib.contextmanager
def opened_files() -> Iterator[set[str]]:
    """Collect the names of the files that Python code of this process opens for reading."""
    names: set[str] = set()
    state = {"on": True}

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not state["on"] or not isinstance(arguments[0], (str, bytes)):
            return
        if not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            names.add(os.path.abspath(os.fsdecode(arguments[0])))  # noqa: PTH100 - resolving links opens files

    sys.addaudithook(audit)  # cannot be removed, only told to stop
    with _audited_safetensors():
        yield names
    state["on"] = False


@contextlib.contextmanager
def _audited_safetensors() -> Iterator[None]:
    """Announce what safetensors opens: it reads files outside of Python's own `open`."""
    with contextlib.suppress(ImportError):
        import safetensors
        import safetensors.torch as tensors

        original = {
            (safetensors, "safe_open"): safetensors.safe_open,
            (tensors, "load_file"): tensors.load_file,
        }

        def announced(function: Any) -> Any:
            def call(filename: Any, *rest: Any, **options: Any) -> Any:
                sys.audit("open", os.fspath(filename), "r", os.O_RDONLY)
                return function(filename, *rest, **options)

            return call

        for (owner, name), function in original.items():
            setattr(owner, name, announced(function))
        try:
            yield
        finally:
            for (owner, name), function in original.items():
                setattr(owner, name, function)
        return
    yield


def collect(module: str, opened: set[str], roots: list[Path]) -> dict[str, Path]:
    """Return the local files of a factory that ran: name relative to its root -> path.

    These are the modules that it imported or would import inside a function, and the files that it opened.
    """
    files: dict[str, Path] = {}
    waiting = [
        *_resolve(module, roots),
        *(path for path in map(_file_of, list(sys.modules.values())) if path),
    ]
    while waiting:
        path = waiting.pop()
        name = local_name(path, roots)
        if not name or name in files or not path.is_file():
            continue
        files[name] = path
        if path.suffix == ".py":
            waiting += _imports(path, name, roots)
    for path in sorted(map(Path, opened)):
        resolved = path.resolve()
        name = local_name(resolved, roots)
        if name and resolved.is_file():
            files.setdefault(name, resolved)
    return files


def copy_sources(files: dict[str, Path], out: Path) -> dict[str, str]:
    """Copy local files into `out/source` and return name -> sha256."""
    for name, path in files.items():
        copy_file(path, out / SOURCE / name)
    return {name: sha256_file(out / SOURCE / name) for name in sorted(files)}


def _file_of(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if isinstance(name, str) else None


def _imports(path: Path, name: str, roots: list[Path]) -> list[Path]:
    """Return the local modules that a source file imports, anywhere in it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    package = name.removesuffix("/__init__.py").split("/") if name.endswith("__init__.py") else name.split("/")[:-1]
    wanted: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            wanted += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [found for target in wanted for found in _resolve(target, roots)]


def _resolve(module: str, roots: list[Path]) -> list[Path]:
    """Return the files of a module and of the packages around it, as far as they are there."""
    parts = [part for part in module.split(".") if part]
    found: list[Path] = []
    for root in roots:
        for depth in range(1, len(parts) + 1):
            place = root.joinpath(*parts[:depth])
            found += [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
    return [path.resolve() for path in found]
