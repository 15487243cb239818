"""Does the exported graph compute what the module computes? onnxruntime against torch, output by output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError
from edgekit.networks.network import Network

if TYPE_CHECKING:
    import torch

_FLOOR = 1e-3
"""Outputs below this magnitude are compared absolutely: their error stems from larger values inside."""

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What torch computes at one set of sizes."""

    sizes: Mapping[str, int]
    feed: Arrays
    outputs: Arrays


def probes(network: Network) -> list[Reference]:
    """Run the module on other values: negated and zeroed floats, rotated integers.

    A graph from a trace is right on the traced values even when it holds a decision that those made; these tell.
    """
    found: list[Reference] = []
    for factor in (-1.0, 0.0):
        feed = {
            name: value * factor if value.dtype.is_floating_point else value.roll(1)
            for name, value in network.feed(network.sizes).items()
        }
        outputs = network.run({name: value.clone() for name, value in feed.items()})
        found.append(Reference(sizes=dict(network.sizes), feed=_arrays(feed), outputs=_arrays(outputs)))
    return found


def weak(given: list[Reference]) -> list[str]:
    """Name the outputs that are so small on the example inputs that comparing them says little."""
    return [
        name
        for name, value in given[0].outputs.items()
        if value.dtype.kind == "f" and all(_largest(reference.outputs[name]) < _FLOOR for reference in given)
    ]


def _largest(value: npt.NDArray[Any]) -> float:
    finite = np.abs(value[np.isfinite(value)])
    return float(finite.max()) if finite.size else 0.0


def references(network: Network) -> list[Reference]:
    """Run the module at every size to check, and at the export's own.

    Raises:
        InputError: the module fails, or gives another result the second time.
    """
    found: list[Reference] = []
    for sizes in (network.sizes, *network.checks):
        feed = network.feed(sizes)
        try:
            outputs = network.run({name: value.clone() for name, value in feed.items()})
            again = network.run({name: value.clone() for name, value in feed.items()}) if not found else outputs
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"it fails on its example inputs at {_words(sizes)}: {type(error).__name__}: {str(error)[:500]}",
                where=type(network.module).__name__,
                remedy="State other inputs with `shapes`, or correct the model.",
            ) from error
        for name, value in outputs.items():
            if not np.array_equal(_array(value), _array(again[name]), equal_nan=value.dtype.is_floating_point):
                raise InputError(
                    "the output differs from one run to the next, in evaluation mode",
                    where=name,
                    remedy="Look for dropout or noise that does not heed `self.training`.",
                )
        if not outputs:
            raise InputError("the model has no output", where=type(network.module).__name__, remedy="Return tensors.")
        found.append(Reference(sizes=dict(sizes), feed=_arrays(feed), outputs=_arrays(outputs)))
    return found


def compare(path: Path, given: list[Reference], tolerance: float) -> dict[str, float]:
    """Run the graph on every reference's inputs; return output name -> largest difference by its magnitude.

    Differences are relative to the largest magnitude of the output (at least 0.001), and rounded up to a digit of
    1, 2, 5, so that they are the same from one machine to the next. Integers and booleans must be equal.

    Args:
        path: the ONNX file.
        given: inputs and outputs of the module.
        tolerance: largest difference allowed.

    Raises:
        InputError: names the first output that is off, and by how much.
    """
    session = _session(path)
    names = [output.name for output in session.get_outputs()]
    worst: dict[str, float] = {}
    for reference in given:
        for name, got in zip(names, session.run(names, reference.feed), strict=True):
            error = _difference(np.asarray(got), reference.outputs[name])
            if not error <= tolerance:
                raise InputError(
                    f"onnxruntime differs from torch by {error:.2g} of the output's magnitude"
                    f" at {_words(reference.sizes)} (allowed {tolerance:.2g})",
                    where=name,
                    remedy="Raise `tolerance` only if the model is known to be that sensitive.",
                )
            worst[name] = max(worst.get(name, 0.0), _rounded_up(error))
    return worst


def _difference(got: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return math.inf
    if wanted.dtype.kind not in "fc":
        return 0.0 if np.array_equal(got, wanted) else math.inf
    finite = np.isfinite(wanted)
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    difference = np.abs(got[finite].astype(np.float64) - wanted[finite].astype(np.float64))
    scale = max(float(np.abs(wanted[finite]).max()), _FLOOR)
    return float(difference.max()) / scale


def _rounded_up(value: float) -> float:
    if value <= 0 or not math.isfinite(value):
        return value
    power = math.floor(math.log10(value))
    return float(next(f"{step}e{power}" for step in (1, 2, 5, 10) if value <= float(f"{step}e{power}") * (1 + 1e-9)))


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # sums in one order, whatever the machine
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "their own size"


def _arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    return {name: _array(value) for name, value in tensors.items()}


def _array(value: torch.Tensor) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = value.detach().cpu().contiguous().numpy()
    return found
