"""`edgekit run`: a package on an image, a text or arrays: preprocessing, model, labelled output."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit.atomic import replacing
from edgekit.data import preprocess_one
from edgekit.errors import InputError, UsageError
from edgekit.jobs import encode_feeds, read_feeds, run_job
from edgekit.manifest import Manifest
from edgekit.npz import encode_arrays, read_arrays
from edgekit.package import Extracted, extract_package
from edgekit.payload import PREPROCESSING
from edgekit.target import Feed

Table = tuple[str, Sequence[str], Sequence[tuple[str, ...]]]
"""Title, headings and rows."""

_TIMEOUT = 900.0
_LONG = 80
_NORMALIZED = 0.02
"""How far from 1 the sum of probabilities may be: a quantized softmax rounds each of them."""


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """What the model said about one input.

    Attributes:
        source: the input as it was given.
        labels: the likeliest classes as (label, probability), best first; empty unless it is a classifier.
        outputs: all outputs as they came.
    """

    source: str
    labels: tuple[tuple[str, float], ...]
    outputs: Feed


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What the model said about all inputs, and on what it ran.

    Attributes:
        samples: one per input, in order.
        engine: runtime, version and providers.
        fallback: what was asked and what ran instead, None when it ran as packaged.
        out: where the raw outputs were written.
    """

    samples: tuple[Labelled, ...]
    engine: dict[str, Any]
    fallback: dict[str, Any] | None
    out: Path | None

    def tables(self) -> list[Table]:
        """Return the tables that a user wants to see: one per input, and what did not run as packaged."""
        found: list[Table] = []
        for sample in self.samples:
            title = sample.source if len(sample.source) <= _LONG else sample.source[:_LONG] + "..."
            if sample.labels:
                shares = [(label, f"{probability:.2%}") for label, probability in sample.labels]
                found.append((title, ("label", "probability"), shares))
            else:
                rows = [_row(name, array) for name, array in sample.outputs.items()]
                found.append((title, ("output", "type", "shape", "values"), rows))
        if self.fallback:
            told = (", ".join(self.fallback["asked"]), ", ".join(self.fallback["ran"]), self.fallback["reason"])
            found.append(("not run as packaged", ("asked", "ran", "reason"), [told]))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values; arrays are described, `--out` has them whole."""
        return {
            "samples": [
                {
                    "input": sample.source,
                    "labels": [{"label": label, "probability": p} for label, p in sample.labels],
                    "outputs": {name: _describe(array) for name, array in sample.outputs.items()},
                }
                for sample in self.samples
            ],
            "engine": self.engine,
            "fallback": self.fallback,
            "out": None if self.out is None else str(self.out),
        }


def run_package(
    path: Path, inputs: Sequence[str], *, top: int = 5, out: Path | None = None, key: Path | None = None
) -> RunResult:
    """Run a package, checked first, on this machine.

    Args:
        path: the package.
        inputs: paths of images, `.npz` or `.npy` files; for a text model texts, or paths of text files.
        top: how many labels to give.
        out: gets the raw outputs as `.npz`: under their names for one input, as `0:NAME`, `1:NAME`, ... for several.
        key: public key that must have signed the package.

    Raises:
        InputError: an input that cannot be read or does not fit the model, or not a package.
        IntegrityError: a package that was changed or is not signed by `key`, or a model that does not run.
        TargetError: the runtime is missing on this machine.
        UsageError: no inputs, or `out` cannot be written.
    """
    if not inputs:
        raise UsageError("there is nothing to run", remedy="Give an image, a text or a .npz file.")
    with tempfile.TemporaryDirectory(prefix="edgekit-run-") as scratch:
        folder = Path(scratch)
        extracted = extract_package(path, folder / "package", key=key, roles={"model", "preprocessing"})
        manifest = extracted.package.manifest
        feeds = [_feed(given, manifest, folder / "package" / PREPROCESSING) for given in inputs]
        outputs, result = _infer(extracted, feeds, folder)
    samples = tuple(
        Labelled(source=given, labels=tuple(label_outputs(found, manifest.labels, manifest.task, top)), outputs=found)
        for given, found in zip(inputs, outputs, strict=True)
    )
    if out is not None:
        _save(out, outputs)
    return RunResult(samples=samples, engine=result["engine"], fallback=result["fallback"], out=out)


def label_outputs(outputs: Feed, labels: Sequence[str], task: str, top: int) -> list[tuple[str, float]]:
    """Return the likeliest classes as (label, probability), best first; nothing unless the model is a classifier.

    A classifier has exactly one floating-point output [n, classes] (further axes of size 1 are dropped): as many as
    there are labels, or any number above one when no labels are known and the task says classification. Values that
    are not negative and sum to 1 are probabilities already, others go through a softmax. Of several rows the first
    counts: they are copies of one input.

    Raises:
        InputError: the scores are NaN or infinite.
    """
    rows = {name: array.reshape(len(array), -1) for name, array in outputs.items() if _is_vector(array)}
    if labels:
        rows = {name: scores for name, scores in rows.items() if scores.shape[1] == len(labels)}
    elif not task.endswith("classification") or task == "token-classification":
        return []
    if len(rows) != 1:
        return []
    ((name, found),) = rows.items()
    scores = found[0].astype(np.float64)
    if not np.isfinite(scores).all():
        remedy = "Check the input; if every input does this, build the package again with more precision."
        raise InputError("the scores are NaN or infinite", where=f"output '{name}'", remedy=remedy)
    probabilities = scores
    if scores.min() < 0 or abs(scores.sum() - 1) > _NORMALIZED:
        powers = np.exp(scores - scores.max())
        probabilities = powers / powers.sum()
    best = np.argsort(-scores, kind="stable")[:top]
    return [(labels[i] if labels else f"class {i}", float(probabilities[i])) for i in best]


def _is_vector(array: npt.NDArray[np.generic]) -> bool:
    """Say whether an output can be the scores of classes."""
    if array.dtype.kind != "f" or array.ndim < 2 or 0 in array.shape:  # noqa: PLR2004 - rows and classes
        return False
    return array.shape[1] > 1 and all(axis == 1 for axis in array.shape[2:])


def _feed(given: str, manifest: Manifest, folder: Path) -> Feed:
    """Turn one argument into the model's inputs."""
    path = Path(given)
    takes_text = "text" in manifest.preprocessing
    if takes_text and path.suffix.lower() == ".npz":
        arrays = read_arrays(path)  # tokenized already
        missing = [spec.name for spec in manifest.inputs if spec.name not in arrays]
        if missing:
            remedy = f"Give the text itself, or arrays named {', '.join(spec.name for spec in manifest.inputs)}."
            raise InputError(f"no array '{missing[0]}'", where=given, remedy=remedy)
        return {spec.name: arrays[spec.name] for spec in manifest.inputs}
    raw: str | Path = given if takes_text and not _is_file(path) else path
    feed: Feed = preprocess_one(raw, manifest.preprocessing, manifest.inputs, folder=folder)
    return feed


def _is_file(path: Path) -> bool:
    """Say whether a file has this name; a long text or one with a NUL is no name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _infer(extracted: Extracted, feeds: Sequence[Feed], folder: Path) -> tuple[list[Feed], dict[str, Any]]:
    """Run the model in a child process; return the outputs and what the runner told."""
    variant = extracted.variant
    (folder / "inputs.npz").write_bytes(encode_feeds(feeds))
    job = {
        "model": str(extracted.model),
        "runtime": variant.runtime,
        "providers": list(variant.providers),
        "threads": 1,
        "inputs": ["inputs.npz"],
        "outputs": "outputs",
    }
    if "shapes" in variant.facts:
        job["shapes"] = variant.facts["shapes"]
    result = run_job("infer", job, folder, timeout=_TIMEOUT)
    return read_feeds(folder / "outputs" / "inputs.npz"), result


def _save(out: Path, outputs: Sequence[Feed]) -> None:
    content = encode_arrays(outputs[0]) if len(outputs) == 1 else encode_feeds(outputs)
    with replacing(out) as file:
        file.write(content)


def _describe(array: npt.NDArray[np.generic]) -> dict[str, Any]:
    """Return an array's dtype, shape and range; of floats only what is finite counts."""
    told: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.dtype.kind in "biuf" and array.size:
        finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        told["not_finite"] = int(array.size - finite.size)
        if finite.size:
            told["min"], told["max"] = finite.min().item(), finite.max().item()
    return told


def _row(name: str, array: npt.NDArray[np.generic]) -> tuple[str, ...]:
    """Return a row of the table of outputs: all values of a small array, the range of a big one."""
    told = _describe(array)
    few = 8
    if array.size <= few:
        values = np.array2string(array.reshape(-1), precision=4, separator=", ")
    elif "min" in told:
        values = f"{told['min']:.4g} .. {told['max']:.4g}"
    else:
        values = ""
    if told.get("not_finite"):
        values += f" ({told['not_finite']} NaN or infinite)"
    return (name, told["dtype"], str(told["shape"]), values)
