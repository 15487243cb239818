"""Running models in onnxruntime, for checks, in child processes: loading, shapes, whether two models are the same."""

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


def open_session(path: Path, *, threads: int = 1, extra_outputs: Sequence[str] = (), optimize: bool = False) -> Any:
    """Open a session that runs the graph as written: no optimization, no copies of weights in other layouts.

    Random operators without a seed get one that depends on the tensor they make, so that two versions of a model
    draw the same numbers.

    Args:
        path: the model file.
        threads: CPU threads.
        extra_outputs: inner tensors to give out too.
        optimize: let onnxruntime optimize the graph all the same.

    Raises:
        UnsupportedError: onnxruntime has no kernel for something in it.
        InputError: onnxruntime does not load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
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
    """Return the largest error relative to the largest value expected; inf as `Spread` says."""
    spread = Spread()
    spread.add(expected, found)
    return spread.relative


class Spread:
    """How far one output moves over all samples, relative to its largest value over all samples.

    It is inf when shapes, types or the places of NaN and infinity differ; for integers and booleans 0 or inf.
    """

    def __init__(self) -> None:
        self.error = 0.0
        self.scale = 0.0

    def add(self, expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> None:
        """Take in one sample's output."""
        if expected.shape != found.shape or expected.dtype != found.dtype:
            self.error = float("inf")
        elif expected.dtype.kind not in "fcV":
            self.error = self.error if np.array_equal(expected, found) else float("inf")
        else:
            wide = np.complex128 if expected.dtype.kind == "c" else np.float64
            self._add_floats(np.asarray(expected, wide), np.asarray(found, wide))

    def _add_floats(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> None:
        finite = np.isfinite(a)
        if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            self.error = float("inf")
        elif finite.any():
            self.error = max(self.error, float(np.abs(a[finite] - b[finite]).max()))
            self.scale = max(self.scale, float(np.abs(a[finite]).max()))

    @property
    def relative(self) -> float:
        """The largest error over the largest value."""
        return self.error / self.scale if self.scale else (0.0 if self.error == 0 else float("inf"))


def compare_files(
    left: str, right: str, feeds: str, names: Sequence[Sequence[str]], tolerance: float, threads: int = 1
) -> dict[str, Any]:
    """Run two models on the same feeds and compare their outputs. One session is open at a time.

    Returns:
        `fits`: indices of the feeds that the left model runs; `reason`: why the first of the others does not;
        `difference`: the largest difference of an output (see `Spread`), None for inf or when the right model fails;
        `output`: which; `right_error`: why the right model fails; `noise`: when the difference is above `tolerance`,
        how far the runtime's own optimizations of the left model move the same outputs.
    """
    batches = load_feeds(Path(feeds), names)
    answer: dict[str, Any] = {
        "fits": [],
        "reason": "",
        "difference": 0.0,
        "output": "",
        "right_error": "",
        "noise": 0.0,
    }
    expected: list[Feed] = []
    session = open_session(Path(left), threads=threads)
    for index, feed in enumerate(batches):
        try:
            expected.append(run(session, feed))
            answer["fits"].append(index)
        except InputError as error:
            answer["reason"] = answer["reason"] or error.text
    del session
    fitting = [batches[index] for index in answer["fits"]]
    try:
        found, answer["output"] = _worst(Path(right), fitting, expected, threads=threads)
    except (InputError, UnsupportedError) as error:
        return answer | {"right_error": error.text, "difference": None}
    if tolerance < found < float("inf"):
        answer["noise"] = _own_noise(Path(left), fitting, expected, threads)
    return answer | {"difference": found if np.isfinite(found) else None}


def _worst(
    path: Path, feeds: Sequence[Feed], expected: Sequence[Feed], *, threads: int, optimize: bool = False
) -> tuple[float, str]:
    """Run a model and return the largest difference from what is expected, and the output where it is."""
    session = open_session(path, threads=threads, optimize=optimize)
    spreads: dict[str, Spread] = {}
    for feed, want in zip(feeds, expected, strict=True):
        got = run(session, feed)
        for name, array in want.items():
            spread = spreads.setdefault(name, Spread())
            spread.add(array, got.get(name, np.empty(0)))
    name = max(spreads, key=lambda key: spreads[key].relative, default="")
    return (spreads[name].relative, name) if name else (0.0, "")


def _own_noise(path: Path, feeds: Sequence[Feed], expected: Sequence[Feed], threads: int) -> float:
    try:
        noise = _worst(path, feeds, expected, threads=threads, optimize=True)[0]
    except EdgekitError:
        return 0.0
    return noise if np.isfinite(noise) else 0.0


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
