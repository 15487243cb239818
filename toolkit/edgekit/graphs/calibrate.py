"""Runs a graph over samples: statistics of inner tensors, shapes, and distances between two graphs. Streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.data import Feed, Samples
from edgekit.errors import InputError
from edgekit.graphs.padding import visible
from edgekit.graphs.sessions import node_in, short
from edgekit.graphs.storage import tensor_bytes
from edgekit.numerics.output_distance import OutputDistance
from edgekit.numerics.ranges import RangeMeter

if TYPE_CHECKING:
    import onnx

MOST_AT_ONCE = 256 << 20
"""Bytes of inner tensors that one run may give out; more are collected in several passes."""

MOST_KEPT = 32 << 20
"""Bytes of the original's outputs that are kept while candidates are compared with them."""

LARGE = 1 << 29
"""Bytes of weights above which onnxruntime keeps no second copy of them in another layout."""

_NAMED = 10
_SILENT = 4


def open_graph(model: onnx.ModelProto, folder: Path, *, threads: int, extra_outputs: Iterable[str] = ()) -> Any:
    """Open a session as a device would, with all of onnxruntime's optimizations, on a graph in memory.

    Args:
        model: the graph; its external data lies in `folder`.
        folder: the folder of its external data.
        threads: CPU threads.
        extra_outputs: inner tensors to give out as well.

    Raises:
        InputError: onnxruntime does not load it; names the node when onnxruntime does.
    """
    present = {value.name for value in model.graph.output}
    extra = [name for name in extra_outputs if name not in present]
    for name in extra:
        model.graph.output.add().name = name
    try:
        return _opened(model.SerializeToString(), folder, large=is_large(model), threads=threads)
    finally:
        del model.graph.output[len(model.graph.output) - len(extra) :]


def open_file(path: Path, *, large: bool, threads: int) -> Any:
    """Open a model file as `open_graph` does; no copy of its weights stays beside the session's own.

    Args:
        path: the file.
        large: see `is_large`.
        threads: CPU threads.
    """
    return _opened(str(path), path.parent, large=large, threads=threads)


def is_large(model: onnx.ModelProto) -> bool:
    """Say whether a model's weights are more than `LARGE`."""
    return sum(tensor_bytes(tensor) for tensor in model.graph.initializer) > LARGE


def _opened(model: bytes | str, folder: Path, *, large: bool, threads: int) -> Any:
    """Open a session; of a model in memory onnxruntime keeps the bytes as long as the session, of a file nothing."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _SILENT
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    if large:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.enable_cpu_mem_arena = False
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common base
        raise InputError(
            f"onnxruntime does not load the graph: {short(error)}",
            where=node_in(str(error)),
            remedy="Export the model again and check it with onnxruntime.InferenceSession.",
        ) from None


def run(session: Any, feed: Feed, *, sample: str) -> Feed:
    """Run one sample; all outputs by name. Inputs that the session does not have are left out.

    Raises:
        InputError: the run fails; names the sample.
    """
    names = [item.name for item in session.get_outputs()]
    wanted = {item.name: item.type for item in session.get_inputs()}
    try:
        values = session.run(
            names, {name: _typed(array, wanted[name]) for name, array in feed.items() if name in wanted}
        )
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common base
        raise InputError(
            f"the model does not run on this sample: {short(error)}",
            where=f"{sample} {node_in(str(error))}".strip(),
            remedy="Check the sample's shape and type against the model's inputs.",
        ) from None
    return dict(zip(names, values, strict=True))


def _typed(array: Any, kind: str) -> Any:
    """Return bfloat16 samples as float32 when that is what the graph takes now."""
    if kind == "tensor(float)" and array.dtype.name in {"bfloat16", "float16"}:
        return array.astype(np.float32)
    return array


@dataclass
class Statistics:
    """What a calibration run saw.

    Attributes:
        fit: tensor name -> meter over the samples that ranges are fitted on.
        held: tensor name -> meter over those held out.
        shapes: tensor name -> its shape in the first sample.
    """

    fit: dict[str, RangeMeter] = field(default_factory=dict)
    held: dict[str, RangeMeter] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def all(self) -> dict[str, RangeMeter]:
        """Return the meters over all samples."""
        return {name: meter.merge(self.held[name]) for name, meter in self.fit.items()}


def collect(
    model: onnx.ModelProto,
    folder: Path,
    samples: Samples,
    tensors: Sequence[str],
    *,
    held_out: set[int],
    threads: int,
    histogram: bool = True,
    tell: Callable[[int, int], None] = lambda _done, _total: None,
) -> Statistics:
    """Run every sample once and take the statistics of `tensors` (those that are float32).

    Memory does not depend on the number of samples; tensors of more than 256 MiB together take several passes.

    Raises:
        InputError: samples with NaN or infinite inputs or outputs; names all of them (the first ten).
    """
    found = Statistics()
    wanted = list(dict.fromkeys(tensors))
    first = run(
        open_graph(model, folder, threads=threads, extra_outputs=wanted), samples.sample(0), sample=samples.ids[0]
    )
    found.shapes = {name: np.shape(first[name]) for name in wanted}
    floats = [name for name in tensors if first[name].dtype == np.float32]
    groups = _groups({name: first[name].nbytes for name in floats})
    del first
    for number, group in enumerate(groups):
        session = open_graph(model, folder, threads=threads, extra_outputs=group)
        for name in group:
            found.fit[name], found.held[name] = RangeMeter(histogram=histogram), RangeMeter(histogram=histogram)
        bad: dict[str, str] = {}
        for index in range(len(samples)):
            feed, name = samples.sample(index), samples.ids[index]
            if problem := problem_in(feed, "input"):
                bad[name] = problem
                continue
            outputs = run(session, feed, sample=name)
            if problem := problem_in({item.name: outputs[item.name] for item in model.graph.output}, "output"):
                bad[name] = problem
                continue
            meters = found.held if index in held_out else found.fit
            for tensor in group:
                meters[tensor].add(np.asarray(outputs[tensor], np.float32))
            tell(number * len(samples) + index + 1, len(groups) * len(samples))
        refuse_bad(bad)
    return found


def _groups(sizes: dict[str, int]) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    room = MOST_AT_ONCE
    for name, size in sizes.items():
        if size > room and groups[-1]:
            groups.append([])
            room = MOST_AT_ONCE
        groups[-1].append(name)
        room -= size
    return groups


def problem_in(feed: Feed, side: str) -> str:
    """Say what makes the tensors of one side (`input`, `output`) of a sample unusable; empty: nothing does."""
    for name, array in feed.items():
        values = np.asarray(array)
        if values.dtype.kind == "f" and (np.isnan(values).any() or (side == "input" and np.isinf(values).any())):
            kind = "NaN" if np.isnan(values).any() else "infinite values"
            return f"{kind} in {side} '{name}'"
    return ""


def refuse_bad(bad: dict[str, str]) -> None:
    """Raise an InputError that names the samples (name -> problem) that cannot be used, if there are any."""
    if not bad:
        return
    listed = ", ".join(f"{name} ({problem})" for name, problem in list(bad.items())[:_NAMED])
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    raise InputError(
        f"{len(bad)} calibration sample{'s' * (len(bad) > 1)} cannot be used: {listed}{more}",
        where=next(iter(bad)),
        remedy="Repair or remove these samples: a range taken from them would be meaningless.",
    )


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` indices, evenly spaced."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most)).round()}) if count else []


class Reference:
    """The original model's outputs on chosen samples, computed once and kept while they are small."""

    def __init__(self, session: Any, samples: Samples, indices: Sequence[int]) -> None:
        """Remember what to run; nothing runs before the first comparison."""
        self.indices = list(indices)
        self._session = session
        self._samples = samples
        self._kept: dict[int, Feed] = {}
        self._room = MOST_KEPT

    def outputs(self, index: int) -> Feed:
        """Return the original's outputs on a sample."""
        if index not in self._kept:
            outputs = run(self._session, self._samples.sample(index), sample=self._samples.ids[index])
            size = sum(np.asarray(array).nbytes for array in outputs.values())
            if size > self._room:
                return outputs
            self._room -= size
            self._kept[index] = outputs
        return self._kept[index]

    def distances(self, session: Any) -> dict[str, OutputDistance]:
        """Run another graph on the same samples and return the distance of each output.

        Tokens that an `attention_mask` hides do not count. A graph that fails on a sample that the original runs gives
        outputs that have no value there.
        """
        found: dict[str, OutputDistance] = {}
        for index in self.indices:
            feed, expected, sample = self._samples.sample(index), self.outputs(index), self._samples.ids[index]
            try:
                outputs = run(session, feed, sample=sample)
            except InputError as error:
                for name in expected:
                    fault = f"it has no value for {sample}: {error.text}"
                    found.setdefault(name, OutputDistance()).incomparable = fault
                break
            for name, reference in expected.items():
                both = (visible(feed, np.asarray(values)) for values in (reference, outputs[name]))
                found.setdefault(name, OutputDistance()).add(*both)
        return found
