"""Post-training quantization to 8-bit weights and activations, in the dialect of the profile's runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from edgekit.artifact import MAIN
from edgekit.data import Samples
from edgekit.errors import EdgekitError, InputError, NeedsDataError, UnsupportedError, UsageError, did_you_mean
from edgekit.events import Finding, Progress
from edgekit.graphs.blame import Blame
from edgekit.graphs.calibrate import collect
from edgekit.graphs.canonical import Canonical, canonical
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.decisions import save_plan
from edgekit.graphs.edit import is_standard, load_model, save_model
from edgekit.graphs.facts import quantization_of, signature_of
from edgekit.graphs.int8_blame import int8_blame
from edgekit.graphs.int8_choice import Choice, Job, Wishes, held_out
from edgekit.graphs.int8_edits import int8_edits
from edgekit.graphs.int8_learn import Learning, improve
from edgekit.graphs.int8_mixed import Int8Mix, Limits
from edgekit.graphs.int8_plan import Planner
from edgekit.graphs.int8_report import int8_summary, shortfalls
from edgekit.graphs.int8_search import Search, Trial
from edgekit.graphs.int8_source import joined
from edgekit.graphs.int8_table import int8_decisions
from edgekit.graphs.int8_whole import whole_graph
from edgekit.graphs.int8_write import Writer
from edgekit.graphs.kernels import kernel_findings
from edgekit.graphs.lower import SIGNED_OPSET
from edgekit.graphs.original import open_original
from edgekit.graphs.plan_edits import Int8Edit
from edgekit.graphs.qdq import coverage, dead_findings, left_float_findings, macs_of
from edgekit.graphs.seeded import SeededSamples
from edgekit.graphs.weights import Weights
from edgekit.numerics.ranges import METHODS
from edgekit.stage import Context, Inputs

PRECISIONS = ("w8a8", "w8a16", "w4a16")
ROUNDINGS = ("nearest", "learned")
BIASES = ("auto", "corrected", "kept")
MODES = ("auto", "static", "dynamic", "weights")

_FEW = 20
_UNMEASURED = "what a layer costs is measured on calibration samples, and there are none"


@dataclass(frozen=True, kw_only=True)
class QuantizeInt8:
    """Quantize weights and activations to 8 bits, or to what the runtime has beside that.

    Args:
        precision: `w8a8`; `w8a16` (16-bit activations) or `w4a16` (4-bit weights too) where the dialect has them.
        method: how activation ranges are chosen: `minmax`, `percentile`, `mse`, `entropy`; `auto` takes the best of
            the first three on held-out calibration samples (on all of fewer than 36).
        mode: `static` (ranges from calibration), `dynamic` (products of MatMul and Gemm with ranges at run time),
            `weights` (weights only); `auto` decides by the graph and by measured distance.
        plan: `[[stage.plan]]` tables, each with `match` (a glob of node names or op types) and `mode` (`float`,
            `weights`, `static`, `dynamic`, `w8a8`); of several that match a node, the last counts.
        skip: globs of node names or op types to leave float: short for entries before those of `plan`.
        floor: lowest signal-to-noise ratio in dB that an output may have on calibration samples; nodes are left float
            until it holds. Good int8 models of deep networks have 15 to 20.
        aim: ratio for which nodes are left float too, as long as 90 % of the products stay integer.
        mixed: whether layers are left in float by what quantizing each costs the outputs, measured, and by what float
            costs in time and bytes, predicted: as few as `aim` takes, within `slower` and `larger`. Needs data.
        slower: with `mixed`, most predicted time as a multiple of that with every layer quantized.
        larger: with `mixed`, most bytes of the weights as a multiple of those in 8 bits; 1 keeps them all in 8 bits.
        rounding: `nearest`, or `learned`: weights and biases follow what each product is fed in the quantized model,
            and stay so when held-out calibration samples come out nearer to the original.
        bias: `corrected` (biases make the mean outputs those of the original, under the same condition), `kept`; `auto`
            is `corrected` when rounding is learned.
    """

    name: ClassVar[str] = "quantize-int8"
    revision: ClassVar[int] = 9
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset({"dialect"})
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")

    precision: Literal["w8a8", "w8a16", "w4a16"] = "w8a8"
    method: Literal["auto", "minmax", "percentile", "mse", "entropy"] = "auto"
    mode: Literal["auto", "static", "dynamic", "weights"] = "auto"
    plan: tuple[Int8Edit, ...] = ()
    skip: tuple[str, ...] = ()
    floor: float = 10.0
    aim: float = 20.0
    mixed: bool = False
    slower: float = 1.25
    larger: float = 1.01
    rounding: Literal["nearest", "learned"] = "nearest"
    bias: Literal["auto", "corrected", "kept"] = "auto"

    def __post_init__(self) -> None:
        """Check the options; UsageError for an unknown word."""
        for option, word, known in (
            ("method", self.method, ["auto", *METHODS]),
            ("mode", self.mode, list(MODES)),
            ("rounding", self.rounding, list(ROUNDINGS)),
            ("bias", self.bias, list(BIASES)),
            ("precision", self.precision, list(PRECISIONS)),
        ):
            if word not in known:
                raise UsageError(f"unknown {option} '{word}'", where=self.name, remedy=did_you_mean(word, known))
        for option, factor in (("slower", self.slower), ("larger", self.larger)):
            if not factor >= 1:
                text = f"{option} {factor:g} is no multiple of at least 1"
                raise UsageError(text, where=self.name, remedy=f"For example: {option} = 1.1")

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Quantize `model.onnx`; see `Stage.run`.

        Facts: `coverage`, `findings`, `quantization` (what was tried and chosen, why, and the distance of every output
        from the original on calibration samples), `decisions` (see `save_plan`; the table is in `plan.json`), and
        `graphs` when an input or output changed.

        Raises:
            InputError: a quantized or damaged model, or samples with NaN or infinite values (named).
            UsageError: static ranges are needed and there is no data.
            UnsupportedError: nothing in the model can be quantized, or it holds operators that cannot be run.
        """
        path = inputs.folder / MAIN
        job, told = _prepare(self, inputs, path, context)
        samples = job.samples
        choice = job.choose()
        trial, search, mixed = self._decided(job, choice, inputs, context)
        rounding: dict[str, Any] = {}
        if (learning := self._learning).any:
            improved = improve(job, trial, search, learning, _telling(context, "round"))
            model, trial, rounding = improved.model, improved.trial, {"rounding": improved.facts}
        else:
            model = job.writer.write(trial.plan)
        whole: dict[str, Any] = {}
        if job.planner.dialect.whole != "no" and not job.seeded:
            model, trial, whole = whole_graph(job, search, trial, model)
        kernels = kernel_findings(model, job.source.folder, trial.plan, job.planner, context.threads)
        save_model(model, out / MAIN, source=job.source.folder)
        _check(out / MAIN)
        copy_companions(inputs.folder, out)
        facts = coverage(trial.plan, job.planner, job.macs)
        findings = [
            *told,
            *left_float_findings(trial.plan, job.planner, facts, job.modes(choice.form)[1]),
            *dead_findings(job.statistics.all(), job.planner),
            *kernels,
            *shortfalls(trial, self.floor, judged=not isinstance(samples, SeededSamples)),
        ]
        signature = signature_of(load_model(out / MAIN))
        result: dict[str, Any] = {
            "coverage": facts,
            "findings": msgspec.to_builtins(findings),
            "quantization": int8_summary(choice, trial, search) | mixed | rounding | whole,
            "decisions": save_plan(
                out,
                stage=self.name,
                dialect=job.planner.dialect.name,
                coverage=facts,
                decisions=int8_decisions(trial.plan, job.planner, job.writer, model),
            ),
        }
        if signature != inputs.artifact.facts.get("graphs", {}).get(MAIN):
            result["graphs"] = {**inputs.artifact.facts.get("graphs", {}), MAIN: signature}
        return result

    @property
    def _learning(self) -> Learning:
        learned = self.rounding == "learned"
        return Learning(weights=learned, biases=learned if self.bias == "auto" else self.bias == "corrected")

    def _decided(
        self, job: Job, choice: Choice, inputs: Inputs, context: Context
    ) -> tuple[Trial, Search, dict[str, Any]]:
        """Return the plan of the whole graph, as it was run, with what was told of mixed precision."""
        if not self.mixed:
            return *job.final(choice), {}
        if job.seeded:
            raise NeedsDataError(_UNMEASURED, where=self.name, remedy="Give representative inputs with --data DIR.")
        if job.planner.dialect.whole == "must":
            text = "mixed precision leaves layers in float, and this chip has no float units"
            raise UnsupportedError(text, where=self.name, remedy='Leave mixed out, or set precision = "w8a16".')
        limits = Limits(aim=max(self.aim, self.floor), slower=self.slower, larger=self.larger)
        mix = Int8Mix(job, choice, inputs.profile, limits, context.scratch)
        trial, facts = mix.settled(_telling(context, "sensitivity"))
        return trial, mix.search, {"mixed": facts}

    def blame(self, inputs: Inputs, context: Context) -> Blame:
        """Say what every layer costs; see `Examined`."""
        job, _ = _prepare(self, inputs, inputs.folder / MAIN, context)
        if job.seeded:
            raise NeedsDataError(_UNMEASURED, where=self.name, remedy="Give representative inputs with --data DIR.")
        tell = _telling(context, "blame")
        return int8_blame(job, rounding=self.rounding, scratch=context.scratch, tell=tell)


def _telling(context: Context, label: str) -> Callable[[int, int], None]:
    return lambda done, total: context.listen(Progress(label=label, done=done, total=total))


def _edits(stage: QuantizeInt8) -> tuple[Int8Edit, ...]:
    return (*(Int8Edit(match=glob, mode="float") for glob in stage.skip), *stage.plan)


class _Counter:
    """Tells how many candidates were tried."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._done = 0

    def __call__(self) -> None:
        self._done += 1
        self._context.listen(Progress(label="try", done=self._done, total=0))


def _prepare(stage: QuantizeInt8, inputs: Inputs, path: Path, context: Context) -> tuple[Job, list[Finding]]:
    if inputs.dialect is None:
        raise EdgekitError("quantize-int8 was run without a dialect")
    if how := quantization_of(load_model(path)):
        raise InputError(
            f"the model is already quantized ({how})",
            where=path.name,
            remedy="Give the float model, or a recipe without quantize-int8: quantizing twice only loses accuracy.",
        )
    dialect = inputs.dialect.at(stage.precision)
    source = canonical(path, most=SIGNED_OPSET if dialect.activation == "int8" else None)
    weights = Weights(source.model.graph, source.folder)
    planner = Planner(source.model, weights, dialect)
    if not planner.compute_nodes() and not planner.operands:
        raise UnsupportedError(
            "nothing in the model can be quantized: no products and no weights",
            where=path.name,
            remedy="Build it with --recipe fp32.",
        )
    int8_edits(_edits(stage), planner)  # before samples are looked at: a misspelled name costs nothing
    samples, findings = _samples(stage, inputs, planner, source, context)
    source = joined(source, samples, context.threads)
    weights = Weights(source.model.graph, source.folder)
    planner = Planner(source.model, weights, dialect)
    tensors = [] if isinstance(samples, SeededSamples) else planner.tensors()
    statistics = collect(
        source.model,
        source.folder,
        samples,
        tensors,
        held_out=held_out(len(samples)),
        threads=context.threads,
        tell=_telling(context, "calibrate"),
    )
    shapes = {name: array.shape for name, array in samples.sample(0).items()}
    wishes = Wishes(
        method=stage.method,
        mode=stage.mode,
        edits=_edits(stage),
        skip=stage.skip,
        floor=stage.floor,
        aim=max(stage.aim, stage.floor),
    )
    job = Job(
        wishes=wishes,
        source=source,
        weights=weights,
        planner=planner,
        writer=Writer(source, weights, dialect),
        samples=samples,
        path=path,
        statistics=statistics,
        macs=macs_of(path, shapes, planner),
        threads=context.threads,
        tell=_Counter(context),
    )
    return job, [*source.findings, *findings]


def _samples(
    stage: QuantizeInt8, inputs: Inputs, planner: Planner, source: Canonical, context: Context
) -> tuple[Samples, list[Finding]]:
    """Return the calibration samples; without data, seeded inputs for modes that need no ranges."""
    data = inputs.data
    if data is not None and (count := len(data.calibration)):
        text = f"only {count} calibration sample{'s' * (count > 1)}: ranges may not cover what the device will see"
        few = Finding(severity="warning", node="", rule="few-samples", text=text, remedy="Give 100 or more.")
        return data.calibration, [few] * (count < _FEW)
    products = all(is_standard(node, "MatMul", "Gemm") for node in planner.compute_nodes())
    free = planner.dialect.dynamic_transformers and stage.mode in {"auto", "dynamic"} and products
    asked = any(edit.mode in {"static", "w8a8"} for edit in stage.plan)
    if (stage.mode != "weights" and not free) or asked:
        raise NeedsDataError(
            "static quantization needs calibration samples, and there are none",
            where=stage.name,
            remedy='Give representative inputs with --data DIR (100 or more), or set mode = "weights".',
        )
    session = open_original(source, inputs.folder / MAIN, context.threads)
    samples = SeededSamples(session, source.model, source.folder, inputs.artifact.specs("inputs"), seed=context.seed)
    text = "no data: the quantized model was run on random inputs only, so its accuracy is unknown"
    return samples, [Finding(severity="warning", node="", rule="unchecked", text=text, remedy="Give --data DIR.")]


def _check(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # noqa: BLE001 - the checker's errors have no common base
        raise EdgekitError(f"quantize-int8 wrote an invalid graph: {str(error)[:300]}") from None
