"""What was decided for every tensor of a quantized model, and why: a table that travels with the artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from edgekit.errors import InputError

PLAN = "plan.json"
"""Name of the file, beside `model.onnx`, that holds the decisions."""

COLUMNS = ("node", "operator", "tensor", "what", "precision", "mode", "why")

What = Literal["weight", "activation", "bias"]

_WIDE = 32
_LARGEST = 256 << 20


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one tensor.

    Attributes:
        node: the node that reads a weight or bias, or makes an activation; empty for an input of the model.
        op: its operator type; `Input` for an input of the model.
        tensor: the tensor's name in the float graph.
        what: `weight`, `bias` or `activation`.
        bits: bits of an element as it is stored (weights) or passed on (activations); 32 is left float.
        type: `int8`, `uint8`, `int4`, `uint4`, `int32`, `float16`, `float32`, ...
        scheme: `symmetric` or `asymmetric`; empty for floats.
        granularity: what shares a scale: `per-tensor`, `per-channel`, `block-32`, ...; empty for floats.
        mode: how the node computes: `static`, `dynamic`, `weights` (in float on stored integers), `float`, `half`.
        why: the reason, one phrase.
    """

    node: str
    op: str
    tensor: str
    what: What
    bits: int
    type: str
    scheme: str = ""
    granularity: str = ""
    mode: str
    why: str

    @property
    def precision(self) -> str:
        """The type with its granularity and scheme, for people."""
        return " ".join(filter(None, (self.type, self.granularity, self.scheme)))

    def row(self) -> tuple[str, ...]:
        """Return the decision under `COLUMNS`; the reason without what the other columns say."""
        why = self.why.removeprefix(f"{self.what} {self.granularity} {self.type}").removeprefix(": ")
        return (self.node or "-", self.op, self.tensor, self.what, self.precision, self.mode, why or "as asked")


class PrecisionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of one stage.

    Attributes:
        stage: the stage that took them.
        dialect: the runtime's dialect; empty when the stage follows none.
        coverage: share of the weights and of the multiply-accumulates at the asked precision, see `qdq.coverage`.
        decisions: in graph order.
    """

    stage: str
    dialect: str
    coverage: dict[str, Any]
    decisions: tuple[Decision, ...]

    def shown(self) -> str:
        """Return what the plan comes to as one line."""
        share = {key: self.coverage[key] for key in ("weights", "macs")}
        text = ", ".join(f"{value:.1%} of {key.replace('macs', 'MACs')}" for key, value in share.items())
        dialect = f" in the {self.dialect} dialect" if self.dialect else ""
        return f"{self.stage}{dialect}: {self.coverage['precision']} for {text}"


def left_float(reason: str) -> str:
    """Return the phrase for what stays float."""
    return f"left float: {reason}"


def float_decision(node: str, op: str, tensor: str, what: What, reason: str) -> Decision:
    """Return the decision to leave a tensor float."""
    return Decision(
        node=node, op=op, tensor=tensor, what=what, bits=_WIDE, type="float32", mode="float", why=left_float(reason)
    )


def save_plan(
    out: Path, *, stage: str, dialect: str, coverage: Mapping[str, Any], decisions: Iterable[Decision]
) -> dict[str, Any]:
    """Write `plan.json` into an artifact's folder; return the facts: the file, and how many tensors got what."""
    plan = PrecisionPlan(
        stage=stage,
        dialect=dialect,
        coverage={key: value for key, value in coverage.items() if key != "left_float"},
        decisions=tuple(decisions),
    )
    (out / PLAN).write_bytes(msgspec.json.format(msgspec.json.encode(plan, order="deterministic"), indent=1))
    counts = Counter(f"{decision.what} {decision.precision}" for decision in plan.decisions)
    return {"file": PLAN, "tensors": dict(sorted(counts.items()))}


def load_plan(folder: Path) -> PrecisionPlan | None:
    """Read the decisions of an artifact; None when it has none.

    Raises:
        InputError: the file is not a plan.
    """
    path = folder / PLAN
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _LARGEST:
            raise InputError("the file is too large for a plan", where=str(path), remedy="Quantize the model again.")
        return msgspec.json.decode(path.read_bytes(), type=PrecisionPlan)
    except msgspec.DecodeError as error:
        raise InputError(f"not a plan: {error}", where=str(path), remedy="Quantize the model again.") from None


def table(plan: PrecisionPlan) -> tuple[str, Sequence[str], list[tuple[str, ...]]]:
    """Return title, headings and rows for people."""
    return plan.shown(), COLUMNS, [decision.row() for decision in plan.decisions]
