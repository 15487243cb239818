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
from edgekit.data.records import LABEL_KEYS
from edgekit.errors import InputError, did_you_mean

PREFIX = "python:"
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
    """Samples of a factory: indexed when it gave a sequence, else drawn once into a temporary file.

    Args:
        given: a sequence (`len` and indexing, such as a torch data set) or any other iterable.
        specs: the model's inputs; a bare array stands for the only one.
        name: how to call it.

    Raises:
        InputError: what it gives is no feed.
    """

    classes: tuple[str, ...] = ()

    def __init__(self, given: Any, specs: Sequence[TensorSpec], name: str) -> None:
        self._specs, self._name = specs, name
        self._labels: dict[int, Any] = {}
        self._items: Sequence[Any]
        if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
            self._items = given
        elif isinstance(given, Iterable):
            self._items = spool = _Spool()
            for index, item in enumerate(self._drawn(given)):
                spool.add(self._feed(item, index), name)
        else:
            raise InputError(f"it gave {type(given).__name__}", where=name, remedy=_FORMS)
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
        try:
            item = self._items[index]
        except Exception as error:
            raise InputError(
                f"sample {index} raised {type(error).__name__}: {error}",
                where=self._name,
                remedy="Correct the factory.",
            ) from error
        return self._feed(item, index)

    def _drawn(self, given: Iterable[Any]) -> Iterator[Any]:
        iterator = iter(given)
        for index in itertools.count():
            try:
                item = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                raise InputError(
                    f"sample {index} raised {type(error).__name__}: {error}",
                    where=self._name,
                    remedy="Correct the factory.",
                ) from error
            yield item

    def _feed(self, item: Any, index: int) -> dict[str, npt.NDArray[np.generic]]:
        if isinstance(item, tuple):
            if len(item) != 2:  # noqa: PLR2004 - (feed, label)
                raise InputError(f"sample {index} is a tuple of {len(item)}", where=self._name, remedy=_FORMS)
            item, label = item
            self._keep(index, label)
        if not isinstance(item, Mapping):
            if len(self._specs) != 1:
                raise InputError(f"sample {index} is no dict of input name -> array", where=self._name, remedy=_FORMS)
            item = {self._specs[0].name: item}
        inputs = {spec.name for spec in self._specs}
        for key in LABEL_KEYS:
            if key in item and key not in inputs:
                self._keep(index, item[key])
        try:
            feed = {str(name): np.asarray(value) for name, value in item.items() if name not in {*LABEL_KEYS} - inputs}
        except Exception as error:
            raise InputError(f"sample {index} is no arrays: {error}", where=self._name, remedy=_FORMS) from error
        if any(array.dtype.kind == "O" for array in feed.values()):
            raise InputError(f"sample {index} is no arrays of numbers", where=self._name, remedy=_FORMS)
        return feed

    def _keep(self, index: int, label: Any) -> None:
        if label is not None:
            self._labels[index] = np.asarray(label) if hasattr(label, "__array__") else label


class _Spool(Sequence[dict[str, npt.NDArray[np.generic]]]):
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

    def __getitem__(self, index: Any) -> Any:
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
