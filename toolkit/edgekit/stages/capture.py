"""From a model of PyTorch to ONNX, checked against the model itself."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from edgekit.errors import UnsupportedError, UsageError
from edgekit.networks.child import run_in_child
from edgekit.networks.program import ENVIRONMENT
from edgekit.stage import Context, Inputs

_OPSETS = range(17, 21)


@dataclass(frozen=True, kw_only=True)
class Capture:
    """Export a model of PyTorch to ONNX and compare the two by output.

    The export runs in a child process. torch's exporter is tried first, then that of transformers, then torch's
    legacy exporter (opset 17); which one it was, and why, is a finding. Axes are dynamic and named (`batch`,
    `sequence`, ...).

    Attributes:
        opset: 17 to 20; newer ones have operators that TensorRT of JetPack 6 does not know.
        dynamic: False fixes every axis: the batch at 1, others at the sizes in `shapes`.
        shapes: input -> one entry per axis: a size, or `name=SIZE` for a dynamic axis. Axis 0 is the batch.
        dtypes: dtype of inputs in `shapes`; float32 when absent, int64 for ids and masks of language models.
        tolerance: largest difference from torch, relative to an output's largest magnitude.
    """

    name: ClassVar[str] = "capture"
    revision: ClassVar[int] = 1
    takes: ClassVar[frozenset[str]] = frozenset({"torch"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = (
        "torch", "transformers", "optimum", "onnx", "onnxscript", "onnx-ir", "onnxruntime",
    )  # fmt: skip

    opset: int = 18
    dynamic: bool = True
    shapes: dict[str, list[int | str]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    tolerance: float = 1e-4

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Write `model.onnx` (and `model.onnx.data` above 1 GiB), or one file per component of a generating model.

        Raises:
            UsageError: an opset out of range, or a fixed graph without sizes.
            InputError: the model fails on its inputs, or the graph does not compute what the model does.
            UnsupportedError: no exporter can export it, or the profile's runtime reads no graph of this opset.
            TargetError: torch or another library is missing, or the deadline passed.
        """
        if self.opset not in _OPSETS:
            raise UsageError(f"opset {self.opset}", where="capture: opset", remedy="Choose 17, 18, 19 or 20.")
        if self.opset > inputs.profile.graph.max_opset:
            raise UnsupportedError(
                f"the runtime reads opset {inputs.profile.graph.max_opset} at most, {self.opset} was asked",
                where=f"profile {inputs.profile.name}",
                remedy="Set a lower opset for the capture stage.",
            )
        arguments = {
            "folder": os.fspath(inputs.folder.resolve()),
            "out": os.fspath(out.resolve()),
            "opset": self.opset,
            "dynamic": self.dynamic,
            "shapes": self.shapes,
            "dtypes": self.dtypes,
            "tolerance": self.tolerance,
            "threads": context.threads,
        }
        facts: dict[str, Any] = run_in_child(
            "edgekit.networks.capture:capture",
            arguments,
            listen=context.listen,
            threads=context.threads,
            deadline=context.deadline,
            environment=ENVIRONMENT
            if inputs.artifact.facts.get("source", {}).get("from") == "exported-program"
            else {},
        )
        return facts
