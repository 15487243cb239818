"""Stage `split-clips`: a Clip whose lower bound is not 0 becomes Max and Min, for a compiler that gets it wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgekit.artifact import MAIN
from edgekit.graphs.clips import split_clips
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.edit import load_model, save_model
from edgekit.stage import Context, Inputs


@dataclass(frozen=True, kw_only=True)
class SplitClips:
    """Write every Clip with a constant lower bound other than 0 as Max and Min; ReLU6 and its like stay."""

    name: ClassVar[str] = "split-clips"
    revision: ClassVar[int] = 1
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("onnx",)

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Write them in `model.onnx`; see `Stage.run`. Facts: `clips`, how many there were."""
        del context
        model = load_model(inputs.folder / MAIN)
        count = len(split_clips(model, inputs.folder))
        save_model(model, out / MAIN, source=inputs.folder)
        copy_companions(inputs.folder, out)
        return {"clips": count}
