"""The decisions of block-wise quantization as a table: every matrix, its bits and blocks, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgekit.graphs.block_choice import BlockJob, BlockTrial
from edgekit.graphs.decisions import Decision, float_decision
from edgekit.graphs.int8_plan import PRODUCTS
from edgekit.graphs.weights import Operand
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
    if trial.formats[key].bits > job.formats[key].bits:
        found = [f"{trial.formats[key].bits} bits, for its layer loses most for its size"]
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
