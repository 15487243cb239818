"""Run one ONNX model with onnxruntime on this machine's CPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.artifact import MAIN
from edgekit.data import Feed
from edgekit.errors import InputError

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_NODE = re.compile(
    r"running (?P<op>\S+) node\. Name:'(?P<name>[^']*)'"
    r"|Node \((?P<name2>[^)]*)\) Op \((?P<op2>[^)]*)\)"
    r"|In Node, \(\"(?P<name3>[^\"]*)\", (?P<op3>\w+)"
    r"|implementation for (?P<op4>\S+) node with name '(?P<name4>[^']*)'"
    r"|Optype \((?P<op5>\w+)\).* in node \((?P<name5>[^)]*)\)"
)


def run_onnx(model: Path, feeds: Iterable[Feed], *, threads: int = 1, optimize: bool = True) -> Iterator[Feed]:
    """Run a model on feed after feed; the model is loaded at once, the feeds are read one by one.

    Args:
        model: an ONNX file, or an artifact's folder with its `model.onnx`.
        feeds: input name -> array, batch axis included, in the dtypes of the graph.
        threads: threads within an operator; they do not spin while idle.
        optimize: let onnxruntime fuse nodes; without it every node runs as it is written.

    Returns:
        An iterator over output name -> array, one dict per feed, in the graph's order of outputs.

    Raises:
        InputError: the model cannot be loaded or fails while it runs (naming the node where onnxruntime tells
            it), a feed lacks an input or has another dtype or shape, or an output is no tensor.
    """
    path = model / MAIN if model.is_dir() else model
    return _run(_open(path, threads, optimize=optimize), path, feeds)


def is_steady(model: Path, feeds: Iterable[Feed], *, threads: int = 1) -> bool:
    """Say whether a model gives the same every time; one that draws random numbers is run twice to know.

    The second run is in the same session: onnxruntime starts all sessions of a process with the same numbers.
    """
    from edgekit.graphs.edit import load_model
    from edgekit.graphs.facts import random_operators

    path = model / MAIN if model.is_dir() else model
    if not random_operators(load_model(path)):
        return True
    twice = run_onnx(path, (feed for feed in feeds for _ in range(2)), threads=threads)
    pairs = ((first[name], again[name]) for first, again in zip(twice, twice, strict=True) for name in first)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def _open(path: Path, threads: int, *, optimize: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised: onnxruntime must not write to stderr as well
    for pool in ("intra", "inter"):
        options.add_session_config_entry(f"session.{pool}_op.allow_spinning", "0")
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _failure(error, path, "onnxruntime cannot load the model") from error


def _run(session: Any, path: Path, feeds: Iterable[Feed]) -> Iterator[Feed]:
    names = [output.name for output in session.get_outputs()]
    for index, feed in enumerate(feeds):
        _check_feed(session, feed)
        try:
            arrays = session.run(names, feed)
        except Exception as error:
            raise _failure(error, path, f"onnxruntime fails on feed {index}") from error
        for name, array in zip(names, arrays, strict=True):
            if not isinstance(array, np.ndarray):
                kind = "nothing" if array is None else f"a {type(array).__name__}"
                raise InputError(f"the output is {kind}, not a tensor", where=f"{path.name}: {name}")
        yield dict(zip(names, arrays, strict=True))


def _check_feed(session: Any, feed: Feed) -> None:
    """Refuse a feed that lacks an input, or has another dtype or shape, by name, which onnxruntime does not tell."""
    for wanted in session.get_inputs():
        if wanted.name not in feed:
            given = ", ".join(feed) or "nothing"
            raise InputError(f"the feed lacks this input: it has {given}", where=wanted.name)
        dtype = _DTYPES.get(wanted.type.removeprefix("tensor(").removesuffix(")"))
        array = np.asarray(feed[wanted.name])
        if dtype is not None and array.dtype != dtype:
            raise InputError(
                f"the model takes {dtype}, the feed has {array.dtype}",
                where=wanted.name,
                remedy="Convert the data to the dtype of the model's input.",
            )
        sizes = list(zip(array.shape, wanted.shape, strict=False))
        fits = array.ndim == len(wanted.shape) and all(
            size == want or not isinstance(want, int) for size, want in sizes
        )
        if wanted.shape and not fits:  # an empty shape is that of a scalar or of no declared rank
            given, taken = ("x".join(map(str, shape)) for shape in (array.shape, wanted.shape))
            raise InputError(
                f"the graph takes {taken}, the feed has {given}",
                where=wanted.name,
                remedy=f"Build for the shape of the data: --shape {wanted.name}={given}",
            )


def _failure(error: Exception, path: Path, what: str) -> InputError:
    """An InputError that names the node, when onnxruntime's message does."""
    message = " ".join(str(error).split())
    match = _NODE.search(message)
    found = {} if match is None else {key.rstrip("2345"): value for key, value in match.groupdict().items() if value}
    node = f"{found.get('name', 'unnamed')} ({found['op']})" if "op" in found else ""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", message)
    return InputError(
        f"{what}: {text[:600]}",
        where=f"{path.name}: {node}" if node else path.name,
        remedy="Check the model with the data that it was made for.",
    )
