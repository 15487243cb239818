"""Post-training quantization to 8-bit weights and activations, in the dialect of the profile's runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from edgekit.artifact import MAIN
from edgekit.data import Samples
from edgekit.dialect import Dialect
from edgekit.errors import EdgekitError, InputError, UnsupportedError, UsageError, did_you_mean
from edgekit.events import Finding, Progress
from edgekit.graphs.calibrate import Reference, Statistics, collect, open_file, open_graph, spread
from edgekit.graphs.canonical import Canonical, canonical
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.edit import is_standard, load_model, save_model
from edgekit.graphs.facts import quantization_of, signature_of
from edgekit.graphs.int8_plan import Mode, Planner
from edgekit.graphs.int8_search import Search, Trial
from edgekit.graphs.int8_write import Writer
from edgekit.graphs.kernels import kernel_findings
from edgekit.graphs.qdq import ENOUGH, coverage, dead_findings, left_float_findings, macs_of
from edgekit.graphs.seeded import SeededSamples
from edgekit.graphs.weights import Weights
from edgekit.graphs.widen import WIDENED
from edgekit.numerics.ranges import METHODS, Method
from edgekit.stage import Context, Inputs

MODES = ("auto", "static", "dynamic", "weights")
MOST_JUDGED = 32
"""Calibration samples on which candidates and the result are compared with the original."""

_TRIED: tuple[Method, ...] = ("minmax", "mse", "percentile")
_HELD_EVERY = 5
_MATMUL_SHARE = 0.5
_FEW = 20


@dataclass(frozen=True, kw_only=True)
class _Form:
    """One way to quantize the whole graph."""

    label: str
    wish: Mode
    products: bool = True


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A form with its best range method, tried on held-out samples; `macs` is its share of integer products."""

    form: _Form
    method: Method
    trial: Trial
    macs: float


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """The form and range method chosen, and what each candidate reached (dB on held-out samples)."""

    form: _Form
    method: Method
    scores: dict[str, float]
    why: str


@dataclass(frozen=True, kw_only=True)
class QuantizeInt8:
    """Quantize weights and activations to 8 bits.

    Args:
        method: how activation ranges are chosen: `minmax`, `percentile`, `mse`, `entropy`; `auto` takes the best of
            the first three on held-out calibration samples.
        mode: `static` (ranges from calibration), `dynamic` (products of MatMul and Gemm with ranges at run time),
            `weights` (weights only); `auto` decides by the graph and by measured distance.
        skip: globs of node names or op types to leave float.
        floor: lowest signal-to-noise ratio in dB that an output may have on calibration samples; nodes are left float
            until it holds. Good int8 models of deep networks have 15 to 20.
        aim: ratio for which nodes are left float too, as long as 90 % of the products stay integer.
    """

    name: ClassVar[str] = "quantize-int8"
    revision: ClassVar[int] = 1
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset({"data", "dialect"})
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")

    method: Literal["auto", "minmax", "percentile", "mse", "entropy"] = "auto"
    mode: Literal["auto", "static", "dynamic", "weights"] = "auto"
    skip: tuple[str, ...] = ()
    floor: float = 10.0
    aim: float = 20.0

    def __post_init__(self) -> None:
        """Check the options; UsageError for an unknown word."""
        for option, word, known in (
            ("method", self.method, ["auto", *METHODS]),
            ("mode", self.mode, list(MODES)),
        ):
            if word not in known:
                raise UsageError(f"unknown {option} '{word}'", where=self.name, remedy=did_you_mean(word, known))

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Quantize `model.onnx`; see `Stage.run`.

        Facts: `coverage`, `findings`, `quantization` (what was tried and chosen, why, and the distance of every output
        from the original on calibration samples), and `graphs` when an input or output changed.

        Raises:
            InputError: a quantized or damaged model, or samples with NaN or infinite values (named).
            UsageError: static ranges are needed and there is no data.
            UnsupportedError: nothing in the model can be quantized, or it holds operators that cannot be run.
        """
        path = inputs.folder / MAIN
        job = _prepare(self, inputs, path, context)
        samples = job.samples
        choice = job.choose()
        trial, search = job.final(choice)
        model = job.writer.write(trial.plan)
        kernels = kernel_findings(model, job.source.folder, trial.plan, job.planner, context.threads)
        save_model(model, out / MAIN, source=job.source.folder)
        _check(out / MAIN)
        copy_companions(inputs.folder, out)
        facts = coverage(trial.plan, job.planner, job.macs)
        findings = [
            *job.findings,
            *left_float_findings(trial.plan, job.planner, facts, job.modes(choice.form)[1]),
            *dead_findings(job.statistics.all()),
            *kernels,
            *_shortfalls(trial, self.floor, judged=not isinstance(samples, SeededSamples)),
        ]
        signature = signature_of(load_model(out / MAIN))
        result: dict[str, Any] = {
            "coverage": facts,
            "findings": msgspec.to_builtins(findings),
            "quantization": _summary(choice, trial, search),
        }
        if signature != inputs.artifact.facts.get("graphs", {}).get(MAIN):
            result["graphs"] = {**inputs.artifact.facts.get("graphs", {}), MAIN: signature}
        return result


@dataclass(kw_only=True)
class _Job:
    """One model being quantized."""

    stage: QuantizeInt8
    dialect: Dialect
    source: Canonical
    weights: Weights
    planner: Planner
    writer: Writer
    samples: Samples
    path: Path
    statistics: Statistics
    macs: Mapping[str, float]
    context: Context
    findings: list[Finding] = field(default_factory=list)

    @cached_property
    def original(self) -> Any:
        """A session of the caller's model; of its float32 form when the CPU cannot run it as it is."""
        return _open_original(self.source, self.path, self.context.threads)

    @property
    def seeded(self) -> bool:
        """Whether there is no data, so that nothing can be judged."""
        return isinstance(self.samples, SeededSamples)

    def choose(self) -> _Choice:
        """Try the forms and methods that come into question on held-out samples, and take the best."""
        forms = self._forms()
        methods = _TRIED if self.stage.method == "auto" else (self.stage.method,)
        static = any(form.wish == "static" or self._has_static(form) for form in forms)
        if self.seeded or (len(forms) == 1 and (len(methods) == 1 or not static)):
            return _Choice(form=forms[0], method=methods[0], scores={}, why=f"{forms[0].label}: the only candidate")
        held = _held_out(len(self.samples))
        indices = [sorted(held)[i] for i in spread(len(held), MOST_JUDGED)] or [0]
        search = self._search(indices, self.statistics.fit)
        scores: dict[str, float] = {}
        best: list[_Candidate] = []
        for form in forms:
            modes, reasons = self.modes(form)
            trials = [
                (method, search.attempt(modes, reasons, method))
                for method in (methods if self._has_static(form) else methods[:1])
            ]
            for method, trial in trials:
                scores[f"{form.label}, {method}" if len(trials) > 1 else form.label] = round(trial.score, 2)
            method, trial = max(trials, key=lambda item: item[1].score)
            share = coverage(trial.plan, self.planner, self.macs)["macs"]
            best.append(_Candidate(form=form, method=method, trial=trial, macs=share))
            if share >= ENOUGH and not trial.faults(self.stage.floor):
                break  # what follows is slower
        return _pick(best, scores, self.stage.floor, len(indices))

    def _forms(self) -> list[_Form]:
        """Return the candidates, the fastest on the device first."""
        wish = self.stage.mode
        products = any(
            node.name not in self.planner.operands and not self.planner.refusal(node, "static")
            for node in self.planner.compute_nodes()
        )
        static, dynamic = (
            [_Form(label=label, wish=label)]
            + [_Form(label=f"{label}, constant weights only", wish=label, products=False)] * products
            for label in ("static", "dynamic")
        )
        weights = [_Form(label="weights", wish="weights")]
        if wish != "auto":
            return {"static": static, "dynamic": dynamic, "weights": weights}[wish]
        if not self._matmul_heavy():
            return static if any(self._has_static(form) for form in static) else weights
        return [*reversed(dynamic), *reversed(static), *weights] if not self.seeded else dynamic[-1:]

    def _matmul_heavy(self) -> bool:
        if not self.dialect.dynamic_transformers:
            return False
        nodes = {node.name for node in self.planner.compute_nodes() if node.op_type in {"MatMul", "Gemm"}}
        share = sum(count for name, count in self.macs.items() if name in nodes)
        return bool(nodes) and share >= _MATMUL_SHARE * sum(self.macs.values())

    def _has_static(self, form: _Form) -> bool:
        return "static" in self.modes(form)[0].values()

    def modes(self, form: _Form) -> tuple[dict[str, Mode], dict[str, str]]:
        """Return the modes that a form gives each node, the option `skip` included, and why some get less."""
        modes, reasons = self.planner.first_modes(form.wish, products=form.products)
        ops = {node.name: node.op_type for graph in self.weights.graphs for node in graph.node}
        for glob in self.stage.skip:
            for name, op in ops.items():
                if fnmatchcase(name, glob) or fnmatchcase(op, glob):
                    modes[name] = "float"
                    reasons[name] = f"the option skip names it ('{glob}')"
        return modes, reasons

    def _search(self, indices: Sequence[int], meters: Mapping[str, Any]) -> Search:
        return Search(
            source=self.source,
            planner=self.planner,
            writer=self.writer,
            reference=Reference(self.original, self.samples, indices),
            samples=self.samples,
            meters=meters,
            threads=self.context.threads,
            covers=lambda plan: float(coverage(plan, self.planner, self.macs)["macs"]) >= ENOUGH,
            tell=_Counter(self.context),
        )

    def final(self, choice: _Choice) -> tuple[Trial, Search]:
        """Quantize with the ranges of all samples and leave nodes float until the floor holds."""
        search = self._search(spread(len(self.samples), MOST_JUDGED), self.statistics.all())
        modes, reasons = self.modes(choice.form)
        trial = search.attempt(modes, reasons, choice.method)
        if not self.seeded:
            trial = search.settle(
                trial, choice.method, floor=self.stage.floor, aim=max(self.stage.aim, self.stage.floor)
            )
        return trial, search


class _Counter:
    """Tells how many candidates were tried."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._done = 0

    def __call__(self) -> None:
        self._done += 1
        self._context.listen(Progress(label="try", done=self._done, total=0))


def _prepare(stage: QuantizeInt8, inputs: Inputs, path: Path, context: Context) -> _Job:
    if inputs.dialect is None:
        raise EdgekitError("quantize-int8 was run without a dialect")
    if how := quantization_of(load_model(path)):
        raise InputError(
            f"the model is already quantized ({how})",
            where=path.name,
            remedy="Give the float model, or a recipe without quantize-int8: quantizing twice only loses accuracy.",
        )
    source = canonical(path)
    weights = Weights(source.model.graph, source.folder)
    planner = Planner(source.model, weights, inputs.dialect)
    if not planner.compute_nodes() and not planner.operands:
        raise UnsupportedError(
            "nothing in the model can be quantized: no products and no weights",
            where=path.name,
            remedy="Build it with --recipe fp32.",
        )
    samples, findings = _samples(stage, inputs, planner, source, context)
    tensors = [] if isinstance(samples, SeededSamples) else planner.tensors()
    statistics = collect(
        source.model,
        source.folder,
        samples,
        tensors,
        held_out=_held_out(len(samples)),
        threads=context.threads,
        tell=lambda done, total: context.listen(Progress(label="calibrate", done=done, total=total)),
    )
    shapes = {name: array.shape for name, array in samples.sample(0).items()}
    return _Job(
        stage=stage,
        dialect=inputs.dialect,
        source=source,
        weights=weights,
        planner=planner,
        writer=Writer(source, weights, inputs.dialect),
        samples=samples,
        path=path,
        statistics=statistics,
        macs=macs_of(path, shapes, planner),
        context=context,
        findings=[*source.findings, *findings],
    )


def _open_original(source: Canonical, path: Path, threads: int) -> Any:
    if any(finding.rule == WIDENED for finding in source.findings):
        return open_graph(source.model, source.folder, threads=threads)
    return open_file(path, threads=threads)


def _samples(
    stage: QuantizeInt8, inputs: Inputs, planner: Planner, source: Canonical, context: Context
) -> tuple[Samples, list[Finding]]:
    """Return the calibration samples; without data, seeded inputs for modes that need no ranges."""
    data = inputs.data
    if data is not None and len(data.calibration):
        count = len(data.calibration)
        if count >= _FEW:
            return data.calibration, []
        text = f"only {count} calibration sample{'s' * (count > 1)}: ranges may not cover what the device will see"
        return data.calibration, [
            Finding(severity="warning", node="", rule="few-samples", text=text, remedy="Give 100 or more.")
        ]
    products = all(is_standard(node, "MatMul", "Gemm") for node in planner.compute_nodes())
    free = planner.dialect.dynamic_transformers and stage.mode in {"auto", "dynamic"} and products
    if stage.mode != "weights" and not free:
        raise UsageError(
            "static quantization needs calibration samples, and there are none",
            where=stage.name,
            remedy='Give representative inputs with --data DIR (100 or more), or set mode = "weights".',
        )
    session = _open_original(source, inputs.folder / MAIN, context.threads)
    samples = SeededSamples(session, source.model, source.folder, inputs.artifact.specs("inputs"), seed=context.seed)
    text = "no data: the quantized model was run on random inputs only, so its accuracy is unknown"
    return samples, [Finding(severity="warning", node="", rule="unchecked", text=text, remedy="Give --data DIR.")]


def _held_out(count: int) -> set[int]:
    """Return the samples that ranges are not fitted on while candidates are compared."""
    if count < _HELD_EVERY:
        return {count - 1} if count > 1 else set()
    return set(range(_HELD_EVERY - 1, count, _HELD_EVERY))


def _pick(best: list[_Candidate], scores: dict[str, float], floor: float, count: int) -> _Choice:
    """Take the first (fastest) form without faults that covers enough; else what covers most, then what lies nearest."""
    on = f"on {count} held-out calibration sample{'s' * (count > 1)}"
    whole = [found for found in best if not found.trial.faults(floor)]
    if whole:
        chosen = next((found for found in whole if found.macs >= ENOUGH), None) or max(whole, key=lambda f: f.macs)
        first = "the fastest" if len(best) > 1 else "the best range method"
        why = f"{first} that keeps every output above {floor:g} dB {on} ({chosen.trial.score:.1f} dB)"
        passed = next((found for found in best[: best.index(chosen)] if found.trial.faults(floor)), None)
        if passed is not None:
            why += f"; {passed.form.label} did not: {passed.trial.faults(floor)[0]}"
    else:
        integer = [found for found in best if found.form.wish != "weights" and found.macs >= ENOUGH] or best
        chosen = max(integer, key=lambda found: found.trial.score)
        why = f"nearest to the original {on} ({chosen.trial.score:.1f} dB), then nodes were left float"
    return _Choice(
        form=chosen.form, method=chosen.method, scores=scores, why=f"{chosen.form.label} ({chosen.method}): {why}"
    )


def _shortfalls(trial: Trial, floor: float, *, judged: bool) -> list[Finding]:
    if not judged:
        return []
    return [
        Finding(
            severity="warning",
            node="",
            rule="accuracy-floor",
            text=f"{fault}, and leaving nodes float does not help",
            remedy="Judge by the metric, or build with --recipe fp16.",
        )
        for fault in trial.faults(floor)
    ]


def _summary(choice: _Choice, trial: Trial, search: Search) -> dict[str, Any]:
    outputs = {
        name: {
            "sqnr_db": round(found.sqnr, 2),
            "worst_sample_db": round(found.worst, 2),
            "cosine": round(found.cosine, 5),
        }
        | ({"incomparable": found.incomparable} if found.incomparable else {})
        for name, found in trial.distances.items()
    }
    return {
        "form": choice.form.label,
        "method": choice.method,
        "why": choice.why,
        "candidates": choice.scores,
        "outputs": outputs,
        "judged_on": len(search.reference.indices),
        "grids": len(trial.plan.grids),
    }


def _check(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # noqa: BLE001 - the checker's errors have no common base
        raise EdgekitError(f"quantize-int8 wrote an invalid graph: {str(error)[:300]}") from None
