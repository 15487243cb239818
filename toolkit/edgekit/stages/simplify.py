"""Stage `simplify`: fewer nodes, same results. Every rewrite is run against what was before, and undone if not."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from edgekit.artifact import MAIN
from edgekit.data import Feed
from edgekit.errors import EdgekitError, InputError, UsageError, did_you_mean
from edgekit.events import Finding, Progress
from edgekit.graphs.child import run_task
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.cost import cost_of
from edgekit.graphs.edit import load_model, name_nodes, opset_of, save_model
from edgekit.graphs.freeze import record_shapes
from edgekit.graphs.lower import lower_opset
from edgekit.graphs.merge import fold_batch_norm, merge_consecutive, merge_parallel
from edgekit.graphs.rank import merge_axes
from edgekit.graphs.saving import copy_model, model_bytes
from edgekit.graphs.shapes import analyze
from edgekit.graphs.slim import patterns
from edgekit.graphs.verify import Agreement, compare, make_feeds, tolerance_of
from edgekit.stage import Context, Inputs

if TYPE_CHECKING:
    import onnx

OWN = ("onnxslim", "fold-batch-norm", "merge-linears", "merge-parallel-linears")
"""The rewrites by name, in the order in which they run."""

_GROWTH = 1.1
"""Constants that make the files more than a tenth larger are not folded: a runtime makes them when it loads."""
_SLACK = 1 << 14
_FOLD_LIMITS = (None, 1 << 20, 1 << 16, 0)
"""Bytes of the largest constant that is folded, tried in this order until the files do not grow."""
_MAX_BLAMED = 4


@dataclass(frozen=True, kw_only=True)
class Simplify:
    """Fold constants, drop what is dead or double, fold batch norms and merge linear layers where that saves work.

    A graph of a newer opset than the device's runtime reads is written in the newest that it does, and where a
    Transpose between Reshapes has more axes than that takes, those that stay together are merged.

    Attributes:
        rewrites: False only folds constants and drops dead nodes.
        skip: rewrites that are left out: `onnxslim`, `fold-batch-norm`, `merge-linears`, `merge-parallel-linears`, or
            one pattern of onnxslim such as `EliminationSlice`.
    """

    name: ClassVar[str] = "simplify"
    revision: ClassVar[int] = 3
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "onnxslim", "numpy")

    rewrites: bool = True
    skip: tuple[str, ...] = ()

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Simplify every graph of the artifact; inputs and outputs keep names, types and order.

        Returns:
            Facts: `simplify` (file -> `nodes_before`, `nodes_after`, `rewrites`: name -> how many nodes fewer,
            `undone`: names) and `findings`.

        Raises:
            UsageError: a name in `skip` that is no rewrite.
            TargetError: the deadline passed.
        """
        known = [*OWN, *patterns()]
        for name in self.skip:
            if name not in known:
                raise UsageError(f"simplify has no rewrite '{name}'", where="skip", remedy=did_you_mean(name, known))
        graphs = inputs.artifact.facts["graphs"]
        facts: dict[str, Any] = {}
        findings: list[Finding] = []
        for number, file in enumerate(graphs):
            context.listen(Progress(label="simplify", done=number, total=len(graphs)))
            work = _Work(self, inputs, context, file)
            facts[file] = work.simplify()
            copy_model(work.best, out / file)
            findings += work.findings
        copy_companions(inputs.folder, out, graphs)
        shutil.rmtree(context.scratch / "simplify", ignore_errors=True)
        return {"simplify": facts, "findings": msgspec.to_builtins(findings)}


class _Work:
    """The simplification of one graph file: the best version so far, and what was found on the way."""

    def __init__(self, options: Simplify, inputs: Inputs, context: Context, file: str) -> None:
        self.options, self.inputs, self.context, self.file = options, inputs, context, file
        self.best = inputs.folder / file
        self.size = model_bytes(self.best)
        self.tolerance = tolerance_of(self.best)
        self.fuse = options.rewrites and not inputs.artifact.facts.get("quantized", False)
        self.done: dict[str, int] = {}
        self.undone: list[str] = []
        self.without: dict[str, str] = {}
        self.findings: list[Finding] = []
        self.feeds: list[Feed] = []
        self.failure = ""
        self.versions = 0

    def simplify(self) -> dict[str, Any]:
        before = _operators(self.best)
        try:
            specs = self.inputs.artifact.specs("inputs", self.file)
            samples = self.inputs.data.calibration if self.inputs.data is not None else None
            self.feeds = make_feeds(load_model(self.best), self.inputs.folder, specs, samples, seed=self.context.seed)
        except EdgekitError as error:
            self.tell(
                "simplify-unchecked", self.file, f"nothing was rewritten, because nothing can be run: {error.text}"
            )
        else:
            self.fit()
            if "onnxslim" not in self.options.skip:
                self.slim()
            if self.fuse:
                self.merge()
        return {
            "nodes_before": before.total(),
            "nodes_after": _operators(self.best).total(),
            "rewrites": self.done,
            "undone": self.undone,
            "not_applied": self.without,
        }

    def fit(self) -> None:
        """Bring the graph within what the device's runtime reads: the opset, and the axes of a tensor."""
        graph = self.inputs.profile.graph
        before = opset_of(load_model(self.best))

        def lower(model: onnx.ModelProto) -> int:
            if before > graph.max_opset:
                model.CopyFrom(lower_opset(model, graph.max_opset))
            return max(before - graph.max_opset, 0)

        def merge(model: onnx.ModelProto) -> int:
            folder = self.best.parent
            return merge_axes(model, folder, analyze(model, folder), graph.max_rank)

        if self.edit("lower-opset", lower, needed=True):
            text = f"opset {before} was lowered to {graph.max_opset}, which the device's runtime reads; results agree"
            self.findings.append(Finding(severity="note", node="", rule="opset-lowered", text=text))
        self.edit("merge-axes", merge, needed=True)

    def slim(self) -> None:
        """Run onnxslim; when the result differs, find out which of its patterns are to blame and leave them out."""
        wanted = [name for name in patterns() if name not in self.options.skip] if self.fuse else []
        made = self.slimmed(wanted)
        agreement = self.compared(made)
        if made is not None and agreement is not None and not agreement.fits:
            self.tell("simplify-unchecked", self.file, f"onnxslim was not used: {agreement.reason}")
            return
        bad: list[str] = []
        while made is None or agreement is None or not agreement.same:
            blamed = self.blamed(wanted) if len(bad) < _MAX_BLAMED else None
            if blamed is None:
                self.undo("onnxslim", agreement)
                return
            self.undo(f"onnxslim {blamed}", agreement)
            bad.append(blamed)
            wanted.remove(blamed)
            made = self.slimmed(wanted)
            agreement = self.compared(made)
        self.take("onnxslim", made)

    def blamed(self, wanted: Sequence[str]) -> str | None:
        """Find, by bisection, the first of some patterns with which results differ; None when they do without any."""
        if not self.slims_well([]):
            return None
        good, broken = 0, len(wanted)
        while broken - good > 1:
            middle = (good + broken) // 2
            if self.slims_well(wanted[:middle]):
                good = middle
            else:
                broken = middle
        return wanted[good] if wanted else None

    def slims_well(self, wanted: Sequence[str]) -> bool:
        agreement = self.compared(self.slimmed(wanted))
        return agreement is not None and agreement.same

    def slimmed(self, wanted: Sequence[str]) -> Path | None:
        """Run onnxslim with some of its patterns on the best version; None when it fails."""
        target = self.best
        for limit in _FOLD_LIMITS:
            target = self.fresh()
            request = {
                "source": str(self.best.resolve()),
                "target": str(target),
                "skip": [name for name in patterns() if name not in wanted],
                "fuse": bool(wanted),
                "fold_limit": limit,
            }
            try:
                run_task("slim", request, folder=target.parent, size=self.size, deadline=self.context.deadline)
            except InputError as error:
                self.failure = error.text
                return None
            if model_bytes(target) <= self.size * _GROWTH + _SLACK:
                break
        return target

    def merge(self) -> None:
        """Run edgekit's own rewrites, in order."""

        def fold(model: onnx.ModelProto) -> int:
            return fold_batch_norm(model, self.best.parent, analyze(model, self.best.parent))

        def parallel(model: onnx.ModelProto) -> int:
            first = {name: array.shape for name, array in self.feeds[0].items()}
            return merge_parallel(model, self.best.parent, cost_of(self.best, first), self.inputs.profile)

        self.edit("fold-batch-norm", fold)
        self.edit("merge-linears", lambda model: merge_consecutive(model, self.best.parent))
        self.edit("merge-parallel-linears", parallel)

    def edit(self, name: str, rewrite: Callable[[onnx.ModelProto], int], *, needed: bool = False) -> bool:
        """Apply a rewrite to the best version and take the result when it agrees, and is smaller or `needed`."""
        if name in self.options.skip:
            return False
        model = load_model(self.best)
        name_nodes(model)
        try:
            if not rewrite(model):
                self.without[name] = "nothing to gain"
                return False
            record_shapes(model.graph, analyze(model, self.best.parent), outputs=False)
        except EdgekitError as error:
            self.without[name] = str(error).splitlines()[0]
            return False
        target = self.fresh()
        save_model(model, target, source=self.best.parent)
        agreement = self.compared(target)
        if agreement is None or not agreement.same:
            self.undo(name, agreement)
            return False
        self.take(name, target, needed=needed)
        return True

    def fresh(self) -> Path:
        """Return where the next version is written: a file in an empty folder of its own."""
        self.versions += 1
        folder = self.context.scratch / "simplify" / self.file.replace("/", "_") / str(self.versions)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder / MAIN

    def compared(self, made: Path | None) -> Agreement | None:
        """Compare a version with the best one; None when there is none. Feeds that do not run are dropped."""
        if made is None:
            return None
        agreement = compare(
            self.best,
            made,
            self.feeds,
            tolerance=self.tolerance,
            threads=self.context.threads,
            deadline=self.context.deadline,
        )
        if agreement.fits:
            self.feeds = [self.feeds[index] for index in agreement.fits]
        return agreement

    def take(self, name: str, made: Path, *, needed: bool = False) -> None:
        """Make a version the best one, unless it is not needed and nothing but the spelling changed."""
        before, after = _operators(self.best), _operators(made)
        if not needed and before == after and model_bytes(made) >= model_bytes(self.best) - _SLACK:
            self.without[name] = "nothing to gain"
            return
        self.done[name] = before.total() - after.total()
        self.best = made

    def undo(self, name: str, agreement: Agreement | None) -> None:
        """Note a rewrite that was not taken because it changes results."""
        self.undone.append(name)
        if agreement is None:
            how = self.failure
        elif agreement.difference is None:
            how = f"results differ in shape or in NaN, or there are none: {agreement.reason}"
        else:
            how = f"results differ by {agreement.difference:.1e} ({agreement.reason})"
        self.tell("simplify-undone", name, f"the rewrite '{name}' was undone: {how}")

    def tell(self, rule: str, node: str, text: str) -> None:
        self.findings.append(Finding(severity="warning", node=node, rule=rule, text=text))


def _operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in load_model(path).graph.node)
