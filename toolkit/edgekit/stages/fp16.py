"""Cast a graph to float16 wherever the ranges it meets allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np

from edgekit.artifact import MAIN
from edgekit.data import Samples
from edgekit.errors import EdgekitError, InputError, NeedsDataError, UsageError, did_you_mean
from edgekit.events import Finding, Progress
from edgekit.graphs.blame import Blame
from edgekit.graphs.calibrate import Reference, collect, open_graph, run, spread
from edgekit.graphs.canonical import Canonical, canonical
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.decisions import save_plan
from edgekit.graphs.edit import load_model, save_model
from edgekit.graphs.facts import quantization_of, signature_of
from edgekit.graphs.half_blame import half_blame
from edgekit.graphs.half_edits import half_edits, kept_by
from edgekit.graphs.half_masks import MASK, describe, softened
from edgekit.graphs.half_plan import HalfPlan, HalfPlanner
from edgekit.graphs.half_search import HalfSearch, faults, half_coverage, kept_findings
from edgekit.graphs.half_sums import largest_sums
from edgekit.graphs.half_table import half_decisions
from edgekit.graphs.half_types import HalfTypes
from edgekit.graphs.half_write import HalfDraft
from edgekit.graphs.original import open_original
from edgekit.graphs.plan_edits import HalfEdit
from edgekit.graphs.qdq import ENOUGH
from edgekit.graphs.seeded import SeededSamples
from edgekit.stage import Context, Inputs

if TYPE_CHECKING:
    import onnx

MOST_JUDGED = 16
"""Calibration samples on which sums are bounded and the result is compared with the original."""

_SAME = 60.0


@dataclass(frozen=True, kw_only=True)
class Fp16:
    """Compute in float16, nodes that would overflow or lose their precision excepted.

    Args:
        plan: `[[stage.plan]]` tables, each with `match` (a glob of node names or op types) and `mode` (`float`, or
            `half`: float16 whatever ranges and outputs say); of several that match a node, the last counts.
        keep: globs of node names or op types that stay float32: short for entries before those of `plan`.
        io: type of the model's float inputs and outputs.
        floor: lowest signal-to-noise ratio in dB that an output may have when everything is rounded to float16; nodes
            are kept in float32 until it holds.
        aim: ratio for which nodes are kept too, as long as 90 % of weights and products are float16.
    """

    name: ClassVar[str] = "fp16"
    revision: ClassVar[int] = 3
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    precision: ClassVar[str] = "fp16"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")

    plan: tuple[HalfEdit, ...] = ()
    keep: tuple[str, ...] = ()
    io: Literal["fp32", "fp16"] = "fp32"
    floor: float = 20.0
    aim: float = 35.0

    def __post_init__(self) -> None:
        """Check the options; UsageError for an unknown word."""
        if self.io not in {"fp32", "fp16"}:
            raise UsageError(f"unknown io '{self.io}'", where=self.name, remedy=did_you_mean(self.io, ["fp32", "fp16"]))

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Cast `model.onnx`; see `Stage.run`.

        Ranges come from the calibration samples, or from random inputs when there is no data (a finding says so).
        Facts: `coverage`, `findings`, `fp16` (the distance of every output from the original under float16 rounding),
        `decisions` (see `save_plan`), and `graphs` when an input or output changed.

        Raises:
            InputError: a quantized or damaged model, or samples with NaN or infinite values.
        """
        path = inputs.folder / MAIN
        job = _prepare(self, inputs, path, context)
        plan, distances = job.decide(path)
        model, plan = job.written(plan)
        model.ir_version = min(model.ir_version, inputs.profile.graph.max_ir)
        save_model(model, out / MAIN, source=job.source.folder)
        _check(out / MAIN)
        copy_companions(inputs.folder, out)
        facts = job.coverage(plan, path)
        findings = [*job.findings, *kept_findings(plan), *_shortfalls(distances, self.floor, judged=job.judged)]
        signature = signature_of(load_model(out / MAIN))
        result: dict[str, Any] = {
            "coverage": facts,
            "findings": msgspec.to_builtins(findings),
            "fp16": {
                "outputs": {name: {"sqnr_db": round(found.sqnr, 2)} for name, found in distances.items()},
                "samples": len(job.samples),
            },
            "decisions": save_plan(
                out, stage=self.name, dialect="", coverage=facts, decisions=half_decisions(job.source, job.types, plan)
            ),
        }
        if signature != inputs.artifact.facts.get("graphs", {}).get(MAIN):
            result["graphs"] = {**inputs.artifact.facts.get("graphs", {}), MAIN: signature}
        return result

    def blame(self, inputs: Inputs, context: Context) -> Blame:
        """Say what every node costs; see `Examined`."""
        job = _prepare(self, inputs, inputs.folder / MAIN, context)
        if not job.judged:
            text = "what a node costs is measured on calibration samples, and there are none"
            raise NeedsDataError(text, where=self.name, remedy="Give representative inputs with --data DIR.")
        return half_blame(
            job.search,
            job.planner.plan(job.keep),
            aim=max(self.aim, self.floor),
            scratch=context.scratch,
            tell=lambda done, total: context.listen(Progress(label="blame", done=done, total=total)),
        )


def _prepare(stage: Fp16, inputs: Inputs, path: Path, context: Context) -> _Job:
    if how := quantization_of(load_model(path)):
        raise InputError(
            f"the model is already quantized ({how})",
            where=path.name,
            remedy="Give the float model, or a recipe without fp16: the scales must stay float32.",
        )
    return _Job(stage, inputs, canonical(path), context)


class _Job:
    """One model being cast."""

    def __init__(self, stage: Fp16, inputs: Inputs, source: Canonical, context: Context) -> None:
        self.stage, self.context = stage, context
        self.findings = list(source.findings)
        threads = context.threads
        self._original = open_original(source, inputs.folder / MAIN, threads)
        self.samples = self._samples(inputs, source)
        self._indices = spread(len(self.samples), MOST_JUDGED)
        self._reference = Reference(self._original, self.samples, self._indices)
        self.source = self._soften(source)
        self.types, tensors = _types(self.source, threads)
        edits = (*(HalfEdit(match=glob) for glob in stage.keep), *stage.plan)
        named = half_edits(edits, self.source.model, self.types)
        self.keep = kept_by(named, stage.keep)
        statistics = collect(
            self.source.model,
            self.source.folder,
            self.samples,
            tensors,
            held_out=set(),
            threads=threads,
            histogram=False,
            tell=lambda done, total: context.listen(Progress(label="ranges", done=done, total=total)),
        )
        sums = largest_sums(
            self.source,
            self.samples,
            self._indices,
            floats=self.types.floats,
            shapes=statistics.shapes,
            threads=threads,
        )
        forced = [name for name, edit in named.items() if edit.mode == "half"]
        self.planner = HalfPlanner(self.source.model, self.source.folder, self.types, statistics.fit, sums, forced)

    @property
    def judged(self) -> bool:
        """Whether there are real samples to judge by."""
        return not isinstance(self.samples, SeededSamples)

    @property
    def search(self) -> HalfSearch:
        """What judges plans."""
        return HalfSearch(
            source=self.source,
            types=self.types,
            planner=self.planner,
            reference=self._reference,
            samples=self.samples,
            threads=self.context.threads,
        )

    def decide(self, path: Path) -> tuple[HalfPlan, Mapping[str, Any]]:
        """Plan, and keep more nodes in float32 until the floor holds."""
        floor, aim = self.stage.floor, max(self.stage.aim, self.stage.floor)
        return self.search.settle(self.keep, floor=floor, aim=aim, covers=lambda plan: self._covers(plan, path))

    def written(self, plan: HalfPlan) -> tuple[onnx.ModelProto, HalfPlan]:
        """Write a plan; nodes whose float16 form onnxruntime does not run on a sample go back to float32."""
        while True:
            model = HalfDraft(self.source, self.types, plan, io=self.stage.io).finished()
            refused = self._refused(model, plan)
            if not refused:
                return model, plan
            plan = self.planner.plan({**plan.reasons, **refused})

    def _refused(self, model: onnx.ModelProto, plan: HalfPlan) -> dict[str, str]:
        feed = self.samples.sample(0)
        if self.stage.io == "fp16":
            feed = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in feed.items()}
        try:
            run(open_graph(model, self.source.folder, threads=self.context.threads), feed, sample=self.samples.ids[0])
        except InputError as error:
            found = [name for name in plan.half if f"'{name}'" in error.where]
            if found:
                return dict.fromkeys(found, f"onnxruntime does not run it in float16: {error.text}")
            raise EdgekitError(f"fp16 wrote a graph that does not run: {error}") from None
        return {}

    def _covers(self, plan: HalfPlan, path: Path) -> bool:
        facts = self.coverage(plan, path)
        return min(float(facts["weights"]), float(facts["macs"])) >= ENOUGH

    def coverage(self, plan: HalfPlan, path: Path) -> dict[str, Any]:
        """Measure a plan: share of weights stored in float16 and of multiply-accumulates computed in it."""
        shapes = {name: array.shape for name, array in self.samples.sample(0).items()}
        return half_coverage(self.source, self.types, plan, path, shapes)

    def _samples(self, inputs: Inputs, source: Canonical) -> Samples:
        if inputs.data is not None and len(inputs.data.calibration):
            return inputs.data.calibration
        text = "no data: ranges come from random inputs, so an overflow on real ones may go unseen"
        self.findings.append(
            Finding(severity="warning", node="", rule="unchecked", text=text, remedy="Give --data DIR.")
        )
        specs = inputs.artifact.specs("inputs")
        return SeededSamples(self._original, source.model, source.folder, specs, seed=self.context.seed)

    def _soften(self, source: Canonical) -> Canonical:
        """Lower mask constants when the outputs on the samples are the same with them."""
        model, found = softened(source.model, source.folder)
        if not found:
            return source
        session = open_graph(model, source.folder, threads=self.context.threads)
        if faults(self._reference.distances(session), _SAME):
            return source
        text = f"mask constants out of float16 range were lowered to {MASK:g}: {describe(found)}; outputs are the same"
        self.findings.append(Finding(severity="note", node=next(iter(found)), rule="mask-lowered", text=text))
        return replace(source, model=model)


def _types(source: Canonical, threads: int) -> tuple[HalfTypes, list[str]]:
    """Ask onnxruntime for the type of every tensor; return the types and the float32 tensors that nodes make."""
    names = [name for node in source.model.graph.node for name in node.output if name]
    session = open_graph(source.model, source.folder, threads=threads, extra_outputs=names)
    kinds = {item.name: item.type for item in session.get_outputs()}
    types = HalfTypes(source.model, kinds)
    inputs = [value.name for value in source.model.graph.input if value.name in types.floats]
    return types, inputs + [name for name in names if name in types.floats]


def _shortfalls(distances: Mapping[str, Any], floor: float, *, judged: bool) -> Sequence[Finding]:
    if not judged:
        return []
    remedy = "Build with --recipe fp32, or name more nodes in the option keep."
    return [
        Finding(severity="warning", node="", rule="accuracy-floor", text=fault, remedy=remedy)
        for fault in faults(distances, floor)
    ]


def _check(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # noqa: BLE001 - the checker's errors have no common base
        raise EdgekitError(f"fp16 wrote an invalid graph: {str(error)[:300]}") from None
