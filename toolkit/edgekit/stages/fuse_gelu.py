"""Stage `fuse-gelu`: a GELU that is written out becomes one operator, for runtimes that have no Erf."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgekit.artifact import MAIN
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.edit import load_model, save_model
from edgekit.graphs.gelu import fuse_gelu
from edgekit.stage import Context, Inputs


@dataclass(frozen=True, kw_only=True)
class FuseGelu:
    """Replace `x * (1 + erf(x / sqrt 2)) / 2`, however its factors are ordered, by the operator Gelu."""

    name: ClassVar[str] = "fuse-gelu"
    revision: ClassVar[int] = 1
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("onnx",)

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Fuse them in `model.onnx`; see `Stage.run`. Facts: `gelus`, how many there were."""
        del context
        model = load_model(inputs.folder / MAIN)
        count = len(fuse_gelu(model))
        save_model(model, out / MAIN, source=inputs.folder)
        copy_companions(inputs.folder, out)
        return {"gelus": count}
