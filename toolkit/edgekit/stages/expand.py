"""Stage `expand`: operators that a runtime has no kernels for are written as those that ONNX defines them by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgekit.artifact import MAIN
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.edit import load_model, save_model
from edgekit.graphs.lower import expand
from edgekit.stage import Context, Inputs


@dataclass(frozen=True, kw_only=True)
class Expand:
    """Write operators that are functions in ONNX (Mish, GroupNormalization, ...) as what they consist of.

    Attributes:
        operators: their names; those that are no functions in the model's opset stay.
    """

    name: ClassVar[str] = "expand"
    revision: ClassVar[int] = 1
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("onnx",)

    operators: tuple[str, ...] = ()

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Write them in `model.onnx`; see `Stage.run`. Facts: `expanded`, the names of the nodes."""
        del context
        model, nodes = expand(load_model(inputs.folder / MAIN), self.operators)
        save_model(model, out / MAIN, source=inputs.folder)
        copy_companions(inputs.folder, out)
        return {"expanded": nodes}
