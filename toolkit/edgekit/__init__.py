"""edgekit: from a trained model to a validated, signed package for an edge device."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.budget import Budget
    from edgekit.build import build
    from edgekit.result import Result

__version__ = "0.1.0"
__all__ = ["Budget", "Result", "__version__", "build"]

_HOMES = {"Budget": "edgekit.budget", "Result": "edgekit.result"}


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: `import edgekit` alone loads nothing heavy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'edgekit' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


class _Edgekit(ModuleType):
    """Keeps `edgekit.build` the function: importing the module of that name would put the module in its place."""

    @property
    def build(self) -> Any:
        return importlib.import_module("edgekit.build").build

    @build.setter
    def build(self, module: ModuleType) -> None:
        """Ignore what the import system sets."""


sys.modules[__name__].__class__ = _Edgekit
