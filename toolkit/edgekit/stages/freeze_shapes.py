"""Stage `freeze-shapes`: give dynamic axes their sizes, and fold the shape arithmetic that this makes constant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgekit.artifact import MAIN
from edgekit.errors import InputError
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.dynamic import batch_axes, other_axes
from edgekit.graphs.edit import load_model, name_nodes, save_model
from edgekit.graphs.facts import signature_of, spec_of
from edgekit.graphs.feeds import index_bounds, random_feed
from edgekit.graphs.freeze import axis_sizes, freeze
from edgekit.graphs.shape_text import ShapeRange, parse_shape
from edgekit.graphs.verify import compare
from edgekit.stage import Context, Inputs

_GUESS = 16
"""Size of axes of which nothing is asked, for the check."""


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
        copy_companions(inputs.folder, out)
        model = load_model(source)
        specs = [spec_of(value) for value in model.graph.input]
        ranges = {asked.name: asked for asked in map(parse_shape, self.shapes)}
        fixed, moving = axis_sizes(specs, ranges)
        name_nodes(model)
        freeze(model, fixed, inputs.folder)
        facts: dict[str, Any] = {"graphs": {**inputs.artifact.facts["graphs"], MAIN: signature_of(model)}}
        save_model(model, target, source=inputs.folder)
        self.check(source, target, fixed, ranges, context)
        facts["frozen_axes"] = fixed
        if moving:
            facts["shape_ranges"] = {
                name: {"min": list(asked.min), "opt": list(asked.opt), "max": list(asked.max)}
                for name, asked in moving.items()
            }
        return facts

    def check(
        self, source: Path, target: Path, fixed: dict[str, int], ranges: dict[str, ShapeRange], context: Context
    ) -> None:
        """Run both models at the smallest, usual and largest shapes asked for; InputError when they differ."""
        model = load_model(source)
        specs = [spec_of(value) for value in model.graph.input]
        bounds = index_bounds(model, specs, source.parent)
        open_axes = {dim for spec in specs for dim in spec.shape if isinstance(dim, str)}
        feeds, known = [], set[str]()
        for corner in ("min", "opt", "max"):
            sizes = dict(fixed)
            for spec in specs:
                if spec.name in ranges:
                    asked = getattr(ranges[spec.name], corner)
                    sizes.update(
                        {dim: size for dim, size in zip(spec.shape, asked, strict=True) if isinstance(dim, str)}
                    )
            known = set(sizes)
            sizes = dict.fromkeys(other_axes(specs), _GUESS) | dict.fromkeys(batch_axes(specs), 1) | sizes
            feeds.append(random_feed(specs, sizes, bounds, seed=context.seed))
        agreement = compare(source, target, feeds, threads=context.threads, deadline=context.deadline)
        where = f"--shape {' --shape '.join(self.shapes)}"
        if not agreement.fits and open_axes <= known:
            raise InputError(
                f"the model does not run with the shapes asked for: {agreement.reason}",
                where=where,
                remedy="Try other sizes; the model's card or its export script says which it takes.",
            )
        if agreement.fits and not agreement.same:
            raise InputError(
                f"the model gives other results with fixed shapes: {agreement.reason}",
                where=where,
                remedy="Try other sizes, or export the model with these shapes.",
            )
