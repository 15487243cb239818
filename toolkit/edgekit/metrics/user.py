"""Metrics that the user brings: `python:module:function`, imported from the current directory.

The function is called as `function(outputs, labels)` with the outputs of all samples (name -> stacked array,
or list of arrays where samples differ in shape; `outputs[name][i]` is sample i) and the labels (an array, or
None). It returns the metric, or the metric and one score per sample whose mean the metric is: with scores the
interval is exact and cheap. Attributes of the function say the rest:

- `function.higher_is_better`: True or False; required, because a wrong guess would turn every loss into a
gain. - `function.bounded`: True when values lie in [0, 1], so that drops are counted in points; False by
default. - `function.needs_labels`: False when it does without labels; True by default.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import numbers
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from edgekit.errors import InputError, UsageError, did_you_mean
from edgekit.metrics.metric import Labels, Metric, Outputs, Values

PREFIX = "python:"

_SHAPE = "Write python:module:function."


def load_metric(spec: str, folder: Path) -> Metric:
    """Import the user's function and wrap it as a metric.

    Args:
        spec: `python:module:function`; the module may be dotted.
        folder: where the module is looked for first.

    Raises:
        UsageError: the spec has another form, there is no such module or function, or an attribute is missing
            or no bool.
        InputError: the module fails while it is imported.
    """
    module_name, _, function_name = spec.removeprefix(PREFIX).partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise UsageError("this is no metric of one's own", where=spec, remedy=_SHAPE)
    module = _import(spec, module_name, folder)
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        remedy = did_you_mean(function_name, known) if known else f"Define it in {module.__file__}."
        raise UsageError(f"the module '{module_name}' has no function '{function_name}'", where=spec, remedy=remedy)
    return Metric(
        name=spec,
        higher_is_better=_flag(spec, function, "higher_is_better", default=None),
        bounded=_flag(spec, function, "bounded", default=False),
        needs_labels=_flag(spec, function, "needs_labels", default=True),
        whole=_wrapped(spec, function, folder),
    )


def _flag(spec: str, function: Callable[..., Any], name: str, *, default: bool | None) -> bool:
    """Return a declared attribute of the user's function; UsageError when it is missing or no bool."""
    value = getattr(function, name, default)
    if isinstance(value, bool):
        return value
    what = "does not say" if value is None else f"says {value!r} for"
    own = getattr(function, "__name__", "function")
    raise UsageError(f"the function {what} `{name}`", where=spec, remedy=f"Add `{own}.{name} = True` (or False).")


def _wrapped(spec: str, function: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Call the user's function, its own imports working, and check what it returns."""

    def whole(outputs: Outputs, labels: Labels) -> float | tuple[float, Values]:
        try:
            with _importable(folder):
                result = function(outputs, labels)
        except Exception as error:
            raise InputError(
                f"the metric failed: {type(error).__name__}: {error}",
                where=spec,
                remedy="It is called with a dict of arrays (or lists of arrays) and the labels.",
            ) from error
        if not isinstance(result, tuple):
            return _number(spec, result)
        if len(result) != 2:  # noqa: PLR2004 -- value and scores
            raise InputError(f"the metric returned {len(result)} values", where=spec, remedy="Return value, scores.")
        value, n = _number(spec, result[0]), len(next(iter(outputs.values())))
        return value, _scores(spec, value, result[1], n)

    return whole


def _number(spec: str, value: Any) -> float:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"the metric returned {type(value).__name__}, not a number", where=spec)
    return float(value)


def _scores(spec: str, value: float, scores: Any, n: int) -> Values:
    try:
        found = np.asarray(scores, np.float64)
    except (TypeError, ValueError):
        raise InputError("the per-sample scores are no numbers", where=spec) from None
    if found.shape != (n,):
        raise InputError(f"the per-sample scores have the shape {[*found.shape]}, not [{n}]", where=spec)
    if n and math.isfinite(value) and not math.isclose(value, found.mean(), rel_tol=1e-4, abs_tol=1e-6):
        raise InputError(
            f"the mean of the per-sample scores is {found.mean():.6g}, the metric {value:.6g}",
            where=spec,
            remedy="Return the metric alone when it is not the mean of scores.",
        )
    return found


def _import(spec: str, name: str, folder: Path) -> ModuleType:
    """Import a module, the one in the folder first even if another of its name was imported before."""
    path = folder.joinpath(*name.split("."))
    own = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
    if own is not None:
        root = name.partition(".")[0]
        if root in sys.stdlib_module_names:
            raise UsageError(f"Python itself has a module '{root}'", where=spec, remedy=f"Rename {own}.")
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded is not None and Path(loaded).resolve() != own.resolve():
            for other in [other for other in sys.modules if other.partition(".")[0] == root]:
                del sys.modules[other]
    try:
        with _importable(folder):
            importlib.invalidate_caches()
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(
                f"the metric needs the module '{error.name}', which is not installed", where=spec
            ) from error
        raise UsageError(f"there is no module '{name}'", where=spec, remedy=f"It was looked for in {folder}.") from None
    except Exception as error:
        raise InputError(f"the module fails on import: {type(error).__name__}: {error}", where=spec) from error


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Put a folder first on the import path for as long as the context lasts."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have taken it out
            sys.path.remove(entry)
