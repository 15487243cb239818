"""Running models in onnxruntime, for checks: loads, shapes, and whether two models give the same. Used in child processes."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit.errors import EdgekitError, InputError, UnsupportedError
from edgekit.graphs.edit import RANDOM_OPS, graphs_in, load_model
from edgekit.graphs.feeds import Feed, load_feeds

_FATAL = 4
_REMEDY = "Export the model again and check it with onnxruntime.InferenceSession."


def open_session(path: Path, *, threads: int = 1, extra_outputs: Sequence[str] = ()) -> Any:
    """Open a session that runs the graph as written: no optimization, no copies of weights in other layouts.

    Random operators without a seed get one that depends on the tensor they make, so that two versions of a model
    draw the same numbers.

    Args:
        path: the model file.
        threads: CPU threads.
        extra_outputs: inner tensors to give out too.

    Raises:
        UnsupportedError: onnxruntime has no kernel for something in it.
        InputError: onnxruntime does not load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent.resolve()))
    model = _adapted(path, extra_outputs)
    try:
        return onnxruntime.InferenceSession(model or str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common base
        raise _load_error(error) from None


def _adapted(path: Path, extra_outputs: Sequence[str]) -> bytes | None:
    model = load_model(path)
    changed = bool(extra_outputs)
    present = {value.name for value in model.graph.output}
    for name in extra_outputs:
        if name not in present:
            model.graph.output.add().name = name
    for graph in graphs_in(model.graph):
        for node in graph.node:
            if node.op_type in RANDOM_OPS and all(attribute.name != "seed" for attribute in node.attribute):
                seed = node.attribute.add()
                seed.name, seed.f, seed.type = "seed", float(zlib.crc32(node.output[0].encode()) % 1000), 1
                changed = True
    return model.SerializeToString() if changed else None


def _load_error(error: Exception) -> EdgekitError:
    text = short(error)
    if type(error).__name__ == "NotImplemented":
        return UnsupportedError(
            f"onnxruntime cannot run this model on the CPU: {text}",
            where=node_in(text),
            remedy="Convert the model to float32 or replace the operator, and export it again.",
        )
    return InputError(f"onnxruntime does not load the model: {text}", where=node_in(text), remedy=_REMEDY)


def short(error: BaseException) -> str:
    """Return an onnxruntime message without its source paths, on one line."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    text = re.sub(r"/onnxruntime_src/\S+ (?:[^()]*\([^)]*\) ?)?", "", text)
    return re.sub(r"\s+", " ", text).strip()[:600]


def node_in(text: str) -> str:
    """Return `node 'NAME'` when an onnxruntime message names one, else an empty string."""
    found = re.search(r"[Nn]ame:\s?'([^']+)'|node with name '([^']+)'|Node \(([^)]+)\)", text)
    return f"node '{next(group for group in found.groups() if group)}'" if found else ""


def run(session: Any, feed: Mapping[str, npt.NDArray[Any]]) -> Feed:
    """Run one feed; outputs by name.

    Raises:
        InputError: the run fails; `where` is the node when onnxruntime names it.
    """
    wanted = {item.name for item in session.get_inputs()}
    try:
        names = [item.name for item in session.get_outputs()]
        values = session.run(names, {name: array for name, array in feed.items() if name in wanted})
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common base
        raise InputError(f"the model does not run: {short(error)}", where=node_in(str(error)), remedy=_REMEDY) from None
    return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}


def difference(expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> float:
    """Return the largest error relative to the largest value expected; inf when shapes, types or NaN/inf places differ.

    For integers, booleans and strings it is 0 or inf.
    """
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    if expected.dtype.kind not in "fcV":
        return 0.0 if np.array_equal(expected, found) else float("inf")
    a, b = (
        np.asarray(array, dtype=np.complex128 if expected.dtype.kind == "c" else np.float64)
        for array in (expected, found)
    )
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    error, scale = float(np.abs(a - b)[finite].max()), float(np.abs(a[finite]).max())
    return error / scale if scale else (0.0 if error == 0 else float("inf"))


def compare_files(
    left: str, right: str, feeds: str, names: Sequence[Sequence[str]], threads: int = 1
) -> dict[str, Any]:
    """Run two models on the same feeds and compare their outputs. One session is open at a time.

    Returns:
        `ran`: how many feeds the left model runs; `reason`: why the first of the others does not; `difference`: the
        largest difference over all feeds that it runs, None for inf; `output`: where; `right_error`: why the right
        model fails where the left one runs.
    """
    batches = load_feeds(Path(feeds), names)
    answer: dict[str, Any] = {"ran": 0, "reason": "", "difference": 0.0, "output": "", "right_error": ""}
    expected: list[Feed | None] = []
    session = open_session(Path(left), threads=threads)
    for feed in batches:
        try:
            expected.append(run(session, feed))
            answer["ran"] += 1
        except InputError as error:
            expected.append(None)
            answer["reason"] = answer["reason"] or error.text
    del session
    try:
        session = open_session(Path(right), threads=threads)
        for feed, want in zip(batches, expected, strict=True):
            if want is not None:
                _fold_in(answer, want, run(session, feed))
    except (InputError, UnsupportedError) as error:
        answer |= {"right_error": error.text, "difference": None}
    return answer


def _fold_in(answer: dict[str, Any], want: Feed, got: Feed) -> None:
    for name, array in want.items():
        found = difference(array, got[name]) if name in got else float("inf")
        if answer["difference"] is not None and found > answer["difference"]:
            answer |= {"difference": found if np.isfinite(found) else None, "output": name}


def record_shapes(
    model: str, feeds: str, names: Sequence[Sequence[str]], tensors: Sequence[str], threads: int = 1
) -> dict[str, Any]:
    """Run a model on each feed and return, per feed, the shape and numpy dtype name of every asked tensor."""
    session = open_session(Path(model), threads=threads, extra_outputs=tensors)
    rows = []
    for feed in load_feeds(Path(feeds), names):
        outputs = run(session, feed)
        rows.append({name: [list(outputs[name].shape), outputs[name].dtype.name] for name in tensors})
    return {"rows": rows}
