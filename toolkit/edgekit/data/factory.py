"""`python:module:factory`: the user's own Python gives the samples."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit.artifact import TensorSpec
from edgekit.data.limits import MAX_SPOOL_BYTES
from edgekit.data.pipeline import Raw
from edgekit.data.records import LABEL_KEYS, split_rows
from edgekit.data.rules import Rule
from edgekit.errors import InputError, did_you_mean

PREFIX = "python:"
_PAIR = 2  # (feed, label)
_FORMS = "A factory returns feeds, (feed, label) pairs, or a dict of split name -> one of these."


def load(url: str) -> dict[str, Any]:
    """Import the factory, call it, and return what it gives by split name (`""` when it names none).

    Args:
        url: `python:module:factory`, or `python:path/to/file.py:factory`; the working folder can be imported from.

    Raises:
        InputError: no such module or function, or it raised.
    """
    with _working_folder():
        factory = _find(url)
        try:
            found = factory()
        except Exception as error:
            raise InputError(
                f"the factory raised {type(error).__name__}: {error}",
                where=url,
                remedy="Correct the factory.",
            ) from error
    return {str(name): part for name, part in found.items()} if isinstance(found, Mapping) else {"": found}


class FactoryRecords:
    """Samples of a factory: indexed when it gave a sequence of them, else drawn once into a temporary file.

    Feeds of several rows (a torch `DataLoader`) are split into samples as those of a folder are.

    Args:
        given: a sequence (`len` and indexing, such as a torch data set) or any other iterable.
        specs: the model's inputs; a bare array stands for the only one.
        rules: the declared preprocessing by input.
        name: how to call it.

    Raises:
        InputError: what it gives is no feed.
    """

    classes: tuple[str, ...] = ()

    def __init__(self, given: Any, specs: Sequence[TensorSpec], rules: Mapping[str, Rule], name: str) -> None:
        self._specs, self._rules, self._name = specs, rules, name
        self._labels: dict[int, Any] = {}
        self._items: Sequence[Any] | _Spool
        if not isinstance(given, Iterable) and not _is_sequence(given):
            raise InputError(f"it gave {type(given).__name__}", where=name, remedy=_FORMS)
        if _is_sequence(given) and (len(given) == 0 or self._rows(*self._feed(self._item(given, 0), 0), 0)[0] is None):
            self._items = given
        else:
            self._items = self._spooled(given)
        self._count = len(self._items)
        self.ids = [f"{name}[{index}]" for index in range(self._count)]

    @property
    def labels(self) -> list[Any] | None:
        """The labels of the samples that were read so far (None for the others), or None when there are none."""
        if not self._labels:
            return None
        return [self._labels.get(index) for index in range(self._count)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Raw:
        if isinstance(self._items, _Spool):
            return self._items.feed(index)
        feed, label = self._feed(self._item(self._items, index), index)
        rows, label = self._rows(feed, label, index)
        if rows is not None:
            raise InputError(f"sample {index} has {rows} rows, the first has one", where=self._name,
                             remedy="Give single samples, or batches from the first on.")  # fmt: skip
        self._keep(index, label)
        return feed

    def _spooled(self, given: Any) -> _Spool:
        spool = _Spool()
        for index, item in enumerate(self._drawn(given)):
            feed, label = self._feed(item, index)
            rows, label = self._rows(feed, label, index)
            for row in [None] if rows is None else range(rows):
                self._keep(len(spool), label if row is None or label is None else label[row])
                part = feed if row is None else {name: array[row : row + 1] for name, array in feed.items()}
                spool.add(part, self._name)
        return spool

    def _drawn(self, given: Any) -> Iterator[Any]:
        if _is_sequence(given):
            yield from (self._item(given, index) for index in range(len(given)))
            return
        iterator = iter(given)
        for index in itertools.count():
            try:
                item = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                raise self._raised(error, index) from error
            yield item

    def _item(self, given: Any, index: int) -> Any:
        try:
            return given[index]
        except Exception as error:
            raise self._raised(error, index) from error

    def _raised(self, error: Exception, index: int) -> InputError:
        text = f"sample {index} raised {type(error).__name__}: {error}"
        return InputError(text, where=self._name, remedy="Correct the factory.")

    def _feed(self, item: Any, index: int) -> tuple[dict[str, npt.NDArray[np.generic]], Any]:
        """Return a sample as arrays by input name, and its label (None when there is none)."""
        label = None
        if isinstance(item, tuple) or (isinstance(item, list) and _is_pair(item)):
            if len(item) != _PAIR:
                raise InputError(f"sample {index} is a tuple of {len(item)}", where=self._name, remedy=_FORMS)
            item, label = item
        if not isinstance(item, Mapping):
            if len(self._specs) != 1:
                raise InputError(f"sample {index} is no dict of input name -> array", where=self._name, remedy=_FORMS)
            item = {self._specs[0].name: item}
        beside = {*LABEL_KEYS} - {spec.name for spec in self._specs}
        label = next((item[key] for key in LABEL_KEYS if key in beside & item.keys()), label)
        try:
            feed = {str(name): np.asarray(value) for name, value in item.items() if name not in beside}
        except Exception as error:
            raise InputError(f"sample {index} is no arrays: {error}", where=self._name, remedy=_FORMS) from error
        if any(array.dtype.kind == "O" for array in feed.values()):
            raise InputError(f"sample {index} is no arrays of numbers", where=self._name, remedy=_FORMS)
        return feed, np.asarray(label) if hasattr(label, "__array__") else label

    def _rows(self, feed: Mapping[str, npt.NDArray[np.generic]], label: Any, index: int) -> tuple[int | None, Any]:
        shapes = {name: array.shape for name, array in feed.items()}
        return split_rows(shapes, label, self._specs, self._rules, where=f"{self._name}[{index}]", batched=False)

    def _keep(self, index: int, label: Any) -> None:
        if label is not None:
            self._labels[index] = label


def _is_sequence(given: Any) -> bool:
    return hasattr(given, "__getitem__") and hasattr(given, "__len__")


def _is_pair(item: list[Any]) -> bool:
    """Say whether a list is what a torch `DataLoader` makes of (input, label), and no array written as a list."""
    return len(item) == _PAIR and (isinstance(item[0], Mapping) or hasattr(item[0], "__array__"))


class _Spool:
    """Feeds in an unnamed temporary file: nothing is left behind, whatever ends the process."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the samples
        self._places: list[list[tuple[str, np.dtype[np.generic], tuple[int, ...], int]]] = []
        self._end = 0

    def add(self, feed: Mapping[str, npt.NDArray[np.generic]], name: str) -> None:
        places = []
        self._file.seek(self._end)
        for key, array in feed.items():
            self._file.write(np.ascontiguousarray(array).tobytes())
            places.append((key, array.dtype, array.shape, self._end))
            self._end += array.nbytes
        if self._end > MAX_SPOOL_BYTES:
            raise InputError(
                f"more than {MAX_SPOOL_BYTES} bytes",
                where=name,
                remedy="Return a sequence (len and indexing): its samples are read when needed.",
            )
        self._places.append(places)

    def __len__(self) -> int:
        return len(self._places)

    def feed(self, index: int) -> dict[str, npt.NDArray[np.generic]]:
        feed = {}
        for key, kind, shape, start in self._places[index]:
            self._file.seek(start)
            data = self._file.read(int(np.prod(shape, dtype=np.int64)) * kind.itemsize)
            feed[key] = np.frombuffer(data, kind).reshape(shape)
        return feed


@contextmanager
def _working_folder() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _find(url: str) -> Callable[[], Any]:
    module_name, _, attribute = url.removeprefix(PREFIX).rpartition(":")
    if not module_name or not attribute:
        raise InputError("not of the form python:module:factory", where=url, remedy="Name the module and the function.")
    try:
        module = (
            _import_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
        )
    except ModuleNotFoundError as error:
        raise InputError(
            f"no module '{error.name}'",
            where=url,
            remedy="Run from its folder, install it, or name the file: python:FILE.py:factory.",
        ) from None
    except Exception as error:
        raise InputError(
            f"importing it raised {type(error).__name__}: {error}", where=url, remedy="Correct the module."
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise InputError(
            f"'{module_name}' has no function '{attribute}'",
            where=url,
            remedy=did_you_mean(attribute, [name for name in dir(module) if not name.startswith("_")]),
        )
    return found  # type: ignore[no-any-return]


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError("no such file", where=str(path), remedy="Check the path.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
