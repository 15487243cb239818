"""Post-training quantization of weights to 4 bits in blocks; activations stay in floating point."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from edgekit.artifact import MAIN
from edgekit.data import Samples
from edgekit.dialect import Dialect
from edgekit.errors import EdgekitError, InputError, NeedsDataError, UnsupportedError, UsageError, did_you_mean
from edgekit.events import Finding, Progress
from edgekit.graphs.blame import Blame
from edgekit.graphs.block_choice import BlockJob, BlockTrial
from edgekit.graphs.block_mixed import fine_enough, formats_to_choose, mix
from edgekit.graphs.block_plan import BlockPlan, BlockWeight, plan_blocks
from edgekit.graphs.block_solve import METHODS, NEED_DATA
from edgekit.graphs.block_swap import block_blame
from edgekit.graphs.block_table import block_coverage, block_decisions, block_summary, left_float_notes
from edgekit.graphs.block_write import Form
from edgekit.graphs.canonical import canonical
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.decisions import save_plan
from edgekit.graphs.edit import load_model, save_model
from edgekit.graphs.facts import quantization_of, signature_of
from edgekit.graphs.original import open_original
from edgekit.graphs.plan_edits import BlockEdit
from edgekit.graphs.seeded import SeededSamples
from edgekit.graphs.weights import Weights
from edgekit.numerics.blockwise import BlockFormat
from edgekit.numerics.packing import PACKED_BITS
from edgekit.stage import Context, Inputs

BLOCKS = (16, 32, 64, 128, 256)
"""Block sizes that runtimes compute right."""

LEVELS = (0, 1, 4)
"""Accuracy levels that the CPU knows: 0 and 1 multiply in float32, 4 on activations rounded to 8 bits."""

ACTIVATION_BITS = (8, 16)
"""Bits of activations that products on 8-bit kernels can have."""

_WIDE, _WIDE_BLOCKS, _USUAL_BLOCK = 8, (128, 64), 32
_NO_EDIT = BlockEdit(match="*")
_FEW = 20
_FORMS = ("auto", "matmulnbits", "qdq")


@dataclass(frozen=True, kw_only=True)
class QuantizeInt4:
    """Store weights in 4 bits, a scale for every block of them.

    Args:
        method: `rtn` (nearest codes of the scales with the least error), `hqq` (robust to outliers), `awq` (inputs that
            carry much are rounded finely), `gptq` (rounding learned from the inputs); `auto` takes the one whose
            outputs lie nearest to the original's on held-out calibration samples. `awq` and `gptq` need data.
        block: weights that share a scale: 16, 32, 64, 128 or 256. Smaller blocks are nearer and larger files; left out:
            32, and for matrices of 8 bits when `bits` is 8 the largest of 128, 64 and 32 that divides their depth.
        bits: 4; 2 and 8 where onnxruntime's own operators are written.
        symmetric: zero points in the middle; left out: as the runtime demands, else false, which is nearer, except for
            8 bits in blocks of 64 or less (32 where the last layer shares the table of embeddings), where zero points
            take more bytes than they are worth.
        form: `matmulnbits` (onnxruntime's operators), `qdq` (standard DequantizeLinear of opset 21); `auto`: as the
            runtime wants.
        accuracy_level: 4 lets onnxruntime round activations to 8 bits inside its kernels, which is faster; 1: float32,
            for which it has no kernel on weights of 8 bits: these are made float again for every product.
        activation_bits: of products at accuracy level 4: 8, or 16 as two parts of 8, which takes twice the products;
            left out: 16 where all weights have 8 bits and the outputs come nearer by 1 dB.
        embeddings: whether tables that are looked up are quantized; a last layer of the same weight goes with them.
        embedding_bits: 8 or 4 for those tables: they bear 4 bits worse than any layer.
        mean_bits: bits that a weight may take on average, scales and zero points included: bits (4 or 8) and blocks
            (16 to 128) are chosen matrix by matrix, by what rounding each one alone costs the outputs. Needs data.
        aim: ratio of the outputs in dB that is enough: the fewest bytes for it, chosen in the same way.
        act_order: `gptq` rounds the columns of large inputs first; better on most models.
        plan: `[[stage.plan]]` tables, each with `match` (a glob of node names or op types) and `mode` (`float` or
            `weights`), `bits`, `block`; of several that match a node, the last counts.
        skip: globs of node names or op types to leave float: short for entries before those of `plan`.
    """

    name: ClassVar[str] = "quantize-int4"
    revision: ClassVar[int] = 6
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset({"dialect"})
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    precision: ClassVar[str] = "w4a16"

    method: Literal["auto", "rtn", "hqq", "awq", "gptq"] = "auto"
    block: int | None = None
    bits: int = 4
    symmetric: bool | None = None
    form: Literal["auto", "matmulnbits", "qdq"] = "auto"
    accuracy_level: int = 4
    activation_bits: int | None = None
    embeddings: bool = True
    embedding_bits: int = 8
    mean_bits: float | None = None
    aim: float | None = None
    act_order: bool = True
    plan: tuple[BlockEdit, ...] = ()
    skip: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the options; UsageError for what no runtime takes."""
        for option, word, known in (
            ("method", self.method, ["auto", *METHODS]),
            ("form", self.form, list(_FORMS)),
        ):
            if word not in known:
                raise UsageError(f"unknown {option} '{word}'", where=self.name, remedy=did_you_mean(word, known))
        for option, number, numbers in (
            *(("block size", block, BLOCKS) for block in (self.block, *(edit.block for edit in self.plan))),
            *(("bits", bits, PACKED_BITS) for bits in (self.bits, *(edit.bits for edit in self.plan))),
            ("embedding_bits", self.embedding_bits, PACKED_BITS),
            ("accuracy_level", self.accuracy_level, LEVELS),
            ("activation_bits", self.activation_bits, ACTIVATION_BITS),
        ):
            if number is not None and number not in numbers:
                raise UsageError(
                    f"{option} {number} is not supported by the runtimes",
                    where=self.name,
                    remedy=f"Choose one of {', '.join(map(str, numbers))}.",
                )

    def block_of(self, bits: int, depth: int) -> int:
        """Return the block of a matrix that the plan says nothing of."""
        if self.block is not None:
            return self.block
        wide = bits == self.bits == _WIDE
        return next((block for block in _WIDE_BLOCKS if wide and depth % block == 0), _USUAL_BLOCK)

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Quantize `model.onnx`; see `Stage.run`.

        Facts: `coverage`, `findings`, `quantization` (what was tried and chosen, why, bits a weight, and the
        distance of every output from the original on held-out calibration samples) and `decisions` (see `save_plan`).

        Raises:
            InputError: a quantized or damaged model, or samples with NaN or infinite values (named).
            UsageError: the method needs data and there is none.
            UnsupportedError: nothing in the model can be quantized, or the runtime has no such kernels.
        """
        path = inputs.folder / MAIN
        job, told = _prepare(self, inputs, path, context)
        trial, scores, why = job.choose(self.method)
        mixed: dict[str, Any] = {}
        if self.mean_bits is not None or self.aim is not None:
            trial, mixed = self._mixed(job, trial, context)
        job.release()
        save_model(trial.model, out / MAIN, source=job.source.folder)
        _check(out / MAIN)
        copy_companions(inputs.folder, out)
        shapes = _shapes(job, inputs, path, context)
        coverage = block_coverage(job, trial, path, shapes)
        result: dict[str, Any] = {
            "coverage": coverage,
            "findings": msgspec.to_builtins([*told, *self._missed(trial), *left_float_notes(job.plan, job.weights)]),
            "quantization": block_summary(job, trial, scores, why) | mixed,
            "decisions": save_plan(
                out,
                stage=self.name,
                dialect=job.dialect.name,
                coverage=coverage,
                decisions=block_decisions(job, trial),
            ),
        }
        signature = signature_of(load_model(out / MAIN))
        if signature != inputs.artifact.facts.get("graphs", {}).get(MAIN):
            result["graphs"] = {**inputs.artifact.facts.get("graphs", {}), MAIN: signature}
        return result

    def _missed(self, trial: BlockTrial) -> list[Finding]:
        """Warn of an aim that no choice of formats reached."""
        if self.aim is None or trial.score >= self.aim:
            return []
        text = f"the outputs have {trial.score:.1f} dB on held-out calibration samples, not the aim of {self.aim:g}"
        remedy = "Allow more with mean_bits, set accuracy_level = 1, or leave layers float (inspect --blame)."
        return [Finding(severity="warning", node="", rule="aim-missed", text=text, remedy=remedy)]

    def _mixed(self, job: BlockJob, trial: BlockTrial, context: Context) -> tuple[BlockTrial, dict[str, Any]]:
        pinned = {key for key, edit in job.plan.edits.items() if edit.bits or edit.block}
        symmetric = _symmetric(self, job.dialect)
        choices = formats_to_choose(job.plan.weights, job.formats, pinned, symmetric=symmetric)
        found = mix(job, trial, choices, mean_bits=self.mean_bits, aim=self.aim, scratch=context.scratch)
        return found.trial, {"mixed": found.facts}

    def blame(self, inputs: Inputs, context: Context) -> Blame:
        """Say what every matrix costs; see `Examined`."""
        job, _ = _prepare(self, inputs, inputs.folder / MAIN, context)
        if job.samples is None:
            text = "what a layer costs is measured on calibration samples, and there are none"
            raise NeedsDataError(text, where=self.name, remedy="Give representative inputs with --data DIR.")
        trial, _, _ = job.choose(self.method)
        return block_blame(
            job,
            trial.solved,
            scratch=context.scratch,
            tell=lambda done, total: context.listen(Progress(label="blame", done=done, total=total)),
        )


def _prepare(stage: QuantizeInt4, inputs: Inputs, path: Path, context: Context) -> tuple[BlockJob, list[Finding]]:
    if inputs.dialect is None:
        raise EdgekitError("quantize-int4 was run without a dialect")
    if how := quantization_of(load_model(path)):
        raise InputError(
            f"the model is already quantized ({how})",
            where=path.name,
            remedy="Give the float model, or a recipe without quantize-int4: quantizing twice only loses accuracy.",
        )
    form = _form(stage, inputs.dialect)
    source = canonical(path)
    weights = Weights(source.model.graph, source.folder)
    whole = (stage.block or _USUAL_BLOCK) if inputs.dialect.int4_whole_blocks else 0
    edits = (*(BlockEdit(match=glob, mode="float") for glob in stage.skip), *stage.plan)
    filters = inputs.dialect.int4 == "matmulnbits"
    plan = plan_blocks(weights, edits=edits, skip=stage.skip, tables=stage.embeddings, filters=filters, whole=whole)
    if not plan.weights:
        raise UnsupportedError(
            "nothing in the model can be stored in 4 bits: no MatMul, Gemm, Gather or (on a CPU) Conv with a constant"
            + (f" ({next(iter(plan.reasons.values()))})" if plan.reasons else ""),
            where=path.name,
            remedy="Build it with --recipe int8.",
        )
    samples, findings = _samples(stage, inputs)
    job = BlockJob(
        source=source,
        weights=weights,
        plan=plan,
        samples=samples,
        original=lambda: open_original(source, path, context.threads),
        dialect=inputs.dialect,
        form=form,
        formats=_formats(stage, plan, inputs.dialect, form),
        accuracy_level=stage.accuracy_level,
        activation_bits=stage.activation_bits,
        act_order=stage.act_order,
        threads=context.threads,
        tell=lambda label, done, total: context.listen(Progress(label=label, done=done, total=total)),
    )
    return job, [*source.findings, *findings]


def _form(stage: QuantizeInt4, dialect: Dialect) -> Form:
    wanted = dialect.int4 if stage.form == "auto" else stage.form
    if dialect.int4 == "none" or wanted == "none":
        raise UnsupportedError(
            f"the {dialect.name} dialect has no 4-bit weights on this device",
            where=stage.name,
            remedy="Choose another recipe, e.g. int8 or fp16.",
        )
    if dialect.int4_symmetric and stage.symmetric is False:
        raise UnsupportedError(
            f"{dialect.name} takes only symmetric 4-bit weights",
            where=stage.name,
            remedy="Set symmetric = true or leave it out.",
        )
    return wanted


def _symmetric(stage: QuantizeInt4, dialect: Dialect) -> bool:
    return dialect.int4_symmetric if stage.symmetric is None else stage.symmetric


def _formats(stage: QuantizeInt4, plan: BlockPlan, dialect: Dialect, form: Form) -> dict[tuple[int, str], BlockFormat]:
    symmetric = _symmetric(stage, dialect)

    def format_of(weight: BlockWeight) -> BlockFormat:
        edit = plan.edits.get(weight.key, _NO_EDIT)
        bits = edit.bits or (stage.embedding_bits if weight.is_table else stage.bits)
        even = weight.is_table or stage.symmetric is None
        block = edit.block or stage.block_of(bits, weight.depth)
        return BlockFormat(
            bits=bits,
            block=block,
            symmetric=symmetric or (even and fine_enough(weight, bits, block)),
            negative_scales=form == "matmulnbits",
            scale_type="float16" if form == "matmulnbits" else "float32",
        )

    return {weight.key: format_of(weight) for weight in plan.weights}


def _samples(stage: QuantizeInt4, inputs: Inputs) -> tuple[Samples | None, list[Finding]]:
    data = inputs.data
    count = 0 if data is None else len(data.calibration)
    if data is None or not count:
        needs = f"the method {stage.method}" if stage.method in NEED_DATA else ""
        if stage.mean_bits is not None or stage.aim is not None:
            needs = "choosing bits by what they cost"
        if needs:
            remedy = 'Give representative inputs with --data DIR, or set method = "hqq" without mean_bits and aim.'
            raise NeedsDataError(
                f"{needs} needs calibration samples, and there are none", where=stage.name, remedy=remedy
            )
        text = "no data: the weights were rounded by their values alone, and the accuracy is unknown"
        return None, [Finding(severity="warning", node="", rule="unchecked", text=text, remedy="Give --data DIR.")]
    if count >= _FEW:
        return data.calibration, []
    text = (
        f"only {count} calibration sample{'s' * (count > 1)}: rounding may suit them and not what the device will see"
    )
    return data.calibration, [
        Finding(severity="warning", node="", rule="few-samples", text=text, remedy="Give 100 or more.")
    ]


def _shapes(job: BlockJob, inputs: Inputs, path: Path, context: Context) -> dict[str, tuple[int, ...]]:
    samples: Any = job.samples
    if samples is None:
        session = open_original(job.source, path, context.threads)
        specs = inputs.artifact.specs("inputs")
        samples = SeededSamples(session, job.source.model, job.source.folder, specs, seed=context.seed, count=1)
    return {name: array.shape for name, array in samples.sample(0).items()}


def _check(path: Path) -> None:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # noqa: BLE001 - the checker's errors have no common base
        raise EdgekitError(f"quantize-int4 wrote an invalid graph: {str(error)[:300]}") from None
