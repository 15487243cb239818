"""The decisions of block-wise quantization as a table: every matrix, its bits and blocks, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.events import Finding
from edgekit.graphs.block_choice import BlockJob, BlockTrial, mean_bits
from edgekit.graphs.block_plan import BlockPlan
from edgekit.graphs.block_write import FUSED_ACCURACY
from edgekit.graphs.decisions import Decision, float_decision
from edgekit.graphs.int8_plan import PRODUCTS, Planner
from edgekit.graphs.plan_edits import reason_of
from edgekit.graphs.qdq import macs_of
from edgekit.graphs.weights import Operand, Weights
from edgekit.numerics.blockwise import BlockFormat

if TYPE_CHECKING:
    import onnx


def block_decisions(job: BlockJob, trial: BlockTrial) -> list[Decision]:
    """Return a decision for every use of a weight, in graph order, and for products of two activations.

    Args:
        job: what was quantized, and what was left float for which reason.
        trial: the formats and codes that were written.
    """
    return list(_rows(job, trial))


def block_coverage(job: BlockJob, trial: BlockTrial, path: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Measure what was written.

    Args:
        job: what was quantized.
        trial: the formats that were written.
        path: the caller's model file.
        shapes: input name -> shape to count products for.

    Returns:
        `precision`; `weights`: share of the elements of all constants of rank 2 or more that are stored in blocks;
        `macs`: share of the multiply-accumulates that read them; `left_float`; `eight_bit`: share in 8 bits.
    """
    macs = macs_of(path, shapes, Planner(job.source.model, job.weights, job.dialect))
    stored = sum(weight.elements for weight in job.plan.weights)
    wide = sum(weight.elements for weight in job.plan.weights if trial.formats[weight.key].bits > 4)  # noqa: PLR2004
    products = {operand.node for weight in job.plan.weights for operand in (*weight.products, *weight.filters)}
    total = sum(macs.values())
    done = sum(count for node, count in macs.items() if node in products)
    return {
        "precision": "w8a16" if wide == stored else "w4a16",
        "weights": round(stored / job.weights.total, 4) if job.weights.total else 1.0,
        "macs": round(done / total, 4) if total else 1.0,
        "left_float": list(job.plan.reasons),
        "eight_bit": round(wide / job.weights.total, 4) if job.weights.total else 0.0,
    }


def left_float_notes(plan: BlockPlan, weights: Weights) -> list[Finding]:
    """Say for every node whose weight stays float why it does."""
    ops = {node.name: node.op_type for graph in weights.graphs for node in graph.node}
    return [
        Finding(
            severity="note",
            node=node,
            rule="left-float",
            text=f"left float: {ops[node]} '{node}', because {reason}",
        )
        for node, reason in plan.reasons.items()
    ]


def block_summary(job: BlockJob, trial: BlockTrial, scores: Mapping[str, float], why: str) -> dict[str, Any]:
    """Return the facts of a quantization as JSON values: form, method, why, bits a weight, each output's distance."""
    ranked = sorted(trial.solved.errors.items(), key=lambda item: -item[1])
    readers = {weight.key: weight.operands[0].node for weight in job.plan.weights}
    return {
        "form": job.form,
        "method": trial.method,
        "why": f"{trial.method}: {why}",
        "candidates": dict(scores),
        "bits_per_weight": mean_bits(job.plan, trial.solved),
        "activations": _activations(job, trial),
        "matrices": len(job.plan.weights),
        "worst_layers": {readers[key]: round(error, 5) for key, error in ranked[:5]},
        "outputs": {
            name: {
                "sqnr_db": round(found.sqnr, 2),
                "worst_sample_db": round(found.worst, 2),
                "cosine": round(found.cosine, 5),
            }
            for name, found in trial.distances.items()
        },
        "judged_on": len(job.judged),
    }


def _activations(job: BlockJob, trial: BlockTrial) -> str:
    """Say how products see their inputs."""
    if job.form != "matmulnbits" or job.accuracy_level != FUSED_ACCURACY:
        return "float"
    if trial.activation_bits == 8:  # noqa: PLR2004
        return "8 bits a block, rounded inside the kernels"
    return "16 bits a block, as two parts of 8 that the kernels multiply"


def _rows(job: BlockJob, trial: BlockTrial) -> Iterator[Decision]:
    stored = {weight.key: weight for weight in job.plan.weights}
    uses: dict[str, list[Operand]] = {}
    for operand in job.weights.operands:
        uses.setdefault(operand.node, []).append(operand)
    for graph in job.weights.graphs:
        for node in graph.node:
            for operand in uses.get(node.name, ()):
                if operand.key not in stored:
                    reason = job.plan.reasons.get(node.name, "no block-wise form fits it")
                    yield float_decision(node.name, node.op_type, operand.tensor, "weight", reason)
                    continue
                fmt = trial.solved.codes[operand.key].format
                yield _stored(node, operand, fmt, _why(job, trial, operand.key))
            if not node.domain and node.op_type in PRODUCTS and node.name not in uses:
                reason = "it multiplies two activations, and these stay in floating point"
                yield float_decision(node.name, node.op_type, node.input[0], "activation", reason)


def _why(job: BlockJob, trial: BlockTrial, key: tuple[int, str]) -> str:
    found = [f"rounded by {trial.method}"]
    if key in trial.reasons:
        found.append(trial.reasons[key])
    elif key in job.plan.edits:
        found.append(reason_of(job.plan.edits[key], ()))
    if key in trial.solved.errors:
        found.append(f"its outputs lose {trial.solved.errors[key]:.2g} of their power")
    return ", ".join(found)


def _stored(node: onnx.NodeProto, operand: Operand, fmt: BlockFormat, why: str) -> Decision:
    kind = f"{'int' if fmt.symmetric else 'uint'}{fmt.bits}"
    return Decision(
        node=node.name,
        op=node.op_type,
        tensor=operand.tensor,
        what="weight",
        bits=fmt.bits,
        type=kind,
        scheme="symmetric" if fmt.symmetric else "asymmetric",
        granularity=f"block-{fmt.block}",
        mode="weights",
        why=f"weight block-{fmt.block} {kind}: {why}",
    )
