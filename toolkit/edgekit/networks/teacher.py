"""The teacher of a distillation: its outputs on the training samples, computed once and kept by content."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit import events
from edgekit.artifact import MAIN
from edgekit.errors import InputError, TargetError
from edgekit.networks.child import Tell
from edgekit.networks.feeds import Batch, Feeds
from edgekit.networks.network import Network
from edgekit.networks.rebuild import rebuild
from edgekit.networks.record import read_record

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Tensors = dict[str, "torch.Tensor"]
Run = Callable[[dict[str, Array]], dict[str, Array]]

_INDEX = "outputs.json"
_SAME = "The teacher must take the same inputs as the model: choose one of the same family and preprocessing."


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A teacher's outputs on every training sample.

    Attributes:
        feeds: the samples.
        arrays: per bucket of the samples: output name -> [samples, rows of each, ...].
        labels: names of its classes in the order of its outputs; empty when unknown.
        network: the teacher itself where it is a model of torch, for intermediate features.
        run: gives its outputs on other inputs: name -> array with its batch axis.
        findings: of its rebuilding.
    """

    feeds: Feeds
    arrays: list[dict[str, Array]]
    labels: tuple[str, ...]
    network: Network | None
    run: Run
    findings: tuple[events.Finding, ...]

    def outputs(self, batch: Batch) -> Tensors:
        """Return the outputs on the samples of one batch."""
        import torch

        bucket = self.feeds.place(batch.indices[0])[0]
        rows = [self.feeds.place(sample)[1] for sample in batch.indices]
        return {
            name: torch.from_numpy(np.concatenate(list(np.asarray(array[rows]))))
            for name, array in self.arrays[bucket].items()
        }


def open_teacher(given: dict[str, Any], feeds: Feeds, tell: Tell) -> Teacher:
    """Return the teacher with its outputs; they are computed when `given["cache"]` lacks them.

    Args:
        given: `folder`, `kind` (`torch` or `onnx`), `labels`, `shapes`, `dtypes`, `cache` (a folder named after the
            contents of teacher and data).
        feeds: the training samples.
        tell: gets progress.

    Raises:
        InputError: it does not take these samples, or gives outputs that are not finite.
        TargetError: the disk has no room for its outputs.
    """
    cache, folder = Path(given["cache"]), Path(given["folder"])
    network = _rebuilt(folder, given, feeds) if given["kind"] == "torch" else None
    run = _torch_run(network) if network is not None else _onnx_run(folder)
    if not (cache / _INDEX).is_file():
        _compute(run, feeds, cache, tell)
    index = json.loads((cache / _INDEX).read_bytes())
    arrays = [
        {name: np.load(cache / f"{bucket}.{place}.npy", mmap_mode="r") for place, name in enumerate(names)}
        for bucket, names in enumerate(index["buckets"])
    ]
    findings = network.findings if network is not None else ()
    labels = tuple(given["labels"])
    return Teacher(feeds=feeds, arrays=arrays, labels=labels, network=network, run=run, findings=findings)


def _rebuilt(folder: Path, given: dict[str, Any], feeds: Feeds) -> Network:
    """Rebuild a teacher of torch; one that does not say what it is fed with takes what the samples hold."""
    try:
        return rebuild(folder, shapes=given["shapes"], dtypes=given["dtypes"])
    except InputError:
        if given["shapes"] or read_record(folder).get("from") != "factory":
            raise
        feed = feeds.load(feeds.held[:1]).feed
        shapes: dict[str, list[int | str]] = {name: list(array.shape) for name, array in feed.items()}
        return rebuild(folder, shapes=shapes, dtypes={name: str(array.dtype) for name, array in feed.items()})


def _torch_run(network: Network) -> Run:
    import torch

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        feed = _renamed(feed, list(network.examples))
        device = next((parameter.device for parameter in network.module.parameters()), None)
        tensors = {name: torch.from_numpy(feed[name]).to(device) for name in network.examples}
        try:
            found = network.run(tensors)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise _refused(error) from error
        return {name: value.cpu().numpy() for name, value in found.items() if value.is_floating_point()}

    return run


def _onnx_run(folder: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # sums in one order, whatever the machine
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(folder / MAIN, options, providers=["CPUExecutionProvider"])
    names, inputs = [value.name for value in session.get_outputs()], [value.name for value in session.get_inputs()]
    first = {value.shape[0] if value.shape else None for value in session.get_inputs()}
    fixed = first.pop() if len(first) == 1 else None

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        feed = _renamed(feed, inputs)
        try:
            count = len(feed[inputs[0]])
            rows = fixed if isinstance(fixed, int) else count
            parts = [
                session.run(names, {name: _filled(feed[name][start : start + rows], rows) for name in inputs})
                for start in range(0, count, rows)
            ]
            more = rows * len(parts)  # so many samples ran, some of them twice
            found = [np.concatenate(column) if len(parts) > 1 else column[0] for column in zip(*parts, strict=True)]
            found = [value[: len(value) * count // more] if value.ndim else value for value in found]
        except Exception as error:
            raise _refused(error) from error
        return {name: value for name, value in zip(names, found, strict=True) if value.dtype.kind == "f"}

    return run


def _renamed(feed: dict[str, Array], inputs: list[str]) -> dict[str, Array]:
    """Return a feed under the teacher's names; one input of each is the same, whatever it is called."""
    missing = sorted(set(inputs) - set(feed))
    if missing and len(inputs) == len(feed) == 1:
        return {inputs[0]: next(iter(feed.values()))}
    if missing:
        raise InputError(f"the teacher takes {', '.join(missing)} too", where="teacher", remedy=_SAME)
    return feed


def _filled(array: Array, rows: int) -> Array:
    """Repeat the last sample until there are as many as a fixed batch has."""
    missing = rows - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, 0)]) if missing else array


def _refused(error: Exception) -> InputError:
    return InputError(f"the teacher does not take these samples: {str(error)[:300]}", where="teacher", remedy=_SAME)


def _compute(run: Run, feeds: Feeds, cache: Path, tell: Tell) -> None:
    """Write the outputs on every sample, one array for each output and bucket; whole or not at all."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=cache.parent, prefix=f".{cache.name[:40]}-"))
    try:
        held: list[dict[str, Array]] = [{} for _ in feeds.counts]
        done = 0
        for samples in feeds.everything():
            batch = feeds.load(samples)
            _keep(run(batch.feed), feeds, batch, held, made)
            done += len(samples)
            tell(events.Progress(label="teacher", done=done, total=len(feeds)))
        for arrays in held:
            for array in arrays.values():
                array.flush()  # type: ignore[attr-defined]  # a memmap
        (made / _INDEX).write_text(json.dumps({"buckets": [list(arrays) for arrays in held]}))
        shutil.rmtree(cache, ignore_errors=True)
        made.rename(cache)
    except OSError as error:
        if not (cache / _INDEX).is_file():  # else another process was faster
            remedy = "Free space, or set EDGEKIT_HOME to a folder with more."
            raise TargetError(
                f"the teacher's outputs cannot be written: {error}", where=str(cache), remedy=remedy
            ) from (error)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _keep(outputs: dict[str, Array], feeds: Feeds, batch: Batch, held: list[dict[str, Array]], folder: Path) -> None:
    bucket = feeds.place(batch.indices[0])[0]
    rows = [feeds.place(sample)[1] for sample in batch.indices]
    for place, (name, value) in enumerate(outputs.items()):
        if not np.isfinite(value).all():
            remedy = "Choose another teacher, or remove the samples that it fails on."
            raise InputError(f"the teacher's output '{name}' is not finite", where="teacher", remedy=remedy)
        if not value.ndim or len(value) % len(rows):
            raise InputError(f"the teacher's output '{name}' has no batch axis", where="teacher", remedy=_SAME)
        parts = value.reshape(len(rows), -1, *value.shape[1:])
        if name not in held[bucket]:
            held[bucket][name] = np.lib.format.open_memmap(
                folder / f"{bucket}.{place}.npy", "w+", value.dtype, (feeds.counts[bucket], *parts.shape[1:])
            )
        if held[bucket][name].shape[1:] != parts.shape[1:]:
            raise InputError(f"the shape of the teacher's output '{name}' varies", where="teacher", remedy=_SAME)
        held[bucket][name][rows] = parts
