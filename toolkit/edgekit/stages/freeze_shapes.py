"""Stage `freeze-shapes`: give dynamic axes their sizes, and fold the shape arithmetic that this makes constant."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgekit.artifact import MAIN
from edgekit.errors import InputError
from edgekit.graphs.edit import load_model, name_nodes, save_model
from edgekit.graphs.facts import signature_of, spec_of
from edgekit.graphs.freeze import axis_sizes, freeze
from edgekit.graphs.shape_text import parse_shape
from edgekit.graphs.verify import compare, make_feeds
from edgekit.stage import Context, Inputs


@dataclass(frozen=True, kw_only=True)
class FreezeShapes:
    """Fix the shapes of inputs.

    Attributes:
        shapes: `NAME=1x3x224x224`, or `NAME=MIN/OPT/MAX`, one per input; axes whose MIN and MAX differ stay dynamic,
            and their range is recorded in the fact `shape_ranges` for runtimes that build for a range.
    """

    name: ClassVar[str] = "freeze-shapes"
    revision: ClassVar[int] = 1
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "numpy")

    shapes: tuple[str, ...] = ()

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Freeze the main graph; the other files are copied.

        Raises:
            UsageError: a shape that does not fit the model's inputs.
            InputError: sizes with which the graph's shapes do not go together, or with which it gives other results.
        """
        source, target = inputs.folder / MAIN, out / MAIN
        copy_others(inputs, out, {MAIN})
        model = load_model(source)
        specs = [spec_of(value) for value in model.graph.input]
        ranges = {asked.name: asked for asked in map(parse_shape, self.shapes)}
        fixed, moving = axis_sizes(specs, ranges)
        name_nodes(model)
        freeze(model, fixed, inputs.folder)
        frozen = [spec_of(value) for value in model.graph.input]
        feeds = make_feeds(model, inputs.folder, frozen, None, seed=context.seed)
        facts: dict[str, Any] = {"graphs": {**inputs.artifact.facts["graphs"], MAIN: signature_of(model)}}
        save_model(model, target, source=inputs.folder)
        agreement = compare(source, target, feeds, threads=context.threads, deadline=context.deadline)
        if agreement.fits and not agreement.same:
            raise InputError(
                f"the model gives other results with fixed shapes: {agreement.reason}",
                where=f"--shape {', '.join(self.shapes)}",
                remedy="Try other sizes, or export the model with these shapes.",
            )
        facts["frozen_axes"] = fixed
        if moving:
            facts["shape_ranges"] = {
                name: {"min": list(asked.min), "opt": list(asked.opt), "max": list(asked.max)}
                for name, asked in moving.items()
            }
        return facts


def copy_others(inputs: Inputs, out: Path, written: set[str]) -> None:
    """Copy the artifact's files that a stage does not write itself; external data belongs to its graph."""
    for name in inputs.artifact.files:
        if name not in written and name.removesuffix(".data") not in written:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(inputs.folder / name, out / name)
