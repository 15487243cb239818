"""What Qualcomm's compiler tells: nodes that it refuses, and its own estimate of time and memory traffic."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import msgspec

_MAX_LOG = 256 << 20
_ESTIMATES = "Performance Estimates"
_TIME = "Simulated (Accelerator exec time us)"
_LOW = "Simulated (Accelerator exec time us (lower estimate))"
_HIGH = "Simulated (Accelerator exec time us (upper estimate))"
_READ = ("Input Fill", "Intermediate Fill", "Inter HTP Fill")
_WRITTEN = ("Intermediate Spill", "Inter HTP Spill", "Output Spill")
_MISSING = "Missing Ops (Number of Ops with no Costs associated)"
_FAILED = re.compile(
    r"Validation FAILED for \d+ nodes in [^\n]*\n(?P<nodes>(?:\tOperator type: [^\n]*\n)+)\tREASON : (?P<reason>[^\n]*)"
)
_NODE = re.compile(r"Operator type: (?P<op>\w+) Node name: (?P<node>.*?) Node index: \d+")
_LEFT = re.compile(r"Node '(?P<node>[^']*?)(?:_token_\d+)?' OpType:(?P<op>\w+)")
_INVALID = re.compile(r"failed for node `(?P<node>[^`]+)` of type `(?P<op>\w+)` with error code (?P<code>\d+)")
_TOKEN = re.compile(r"_token_\d+$")
_PROVIDER = "QNNExecutionProvider"
_SAYS_NOTHING = "Failed to add node."


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A node that does not run on the HTP, and the compiler's reason."""

    node: str
    op: str
    reason: str


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Qualcomm's estimate of one inference, summed over the graphs on the HTP.

    Attributes:
        us: microseconds; `low` and `high` bound it.
        read, written: bytes between DDR and the HTP's own memory.
        spilled: bytes of intermediate tensors among them: what did not fit into the HTP's memory.
        missing: operators that have no cost in it.
    """

    us: float
    low: float
    high: float
    read: int
    written: int
    spilled: int
    missing: int


def read_refused(trace: Path, log: Path, error: str = "") -> tuple[Refused, ...]:
    """Return the refused nodes: from the operator trace, else (it is not written when compiling fails) from the log.

    Args:
        trace: the operator trace.
        log: the verbose log.
        error: what onnxruntime raised; it may name a node that the log does not.
    """
    text = ""
    if log.is_file() and log.stat().st_size <= _MAX_LOG:
        text = log.read_text(encoding="utf-8", errors="replace")
    codes = {
        match["node"]: f"{match['op']} is not valid here (code {match['code']})" for match in _INVALID.finditer(text)
    }
    if trace.is_file():
        rows = json.loads(trace.read_text(encoding="utf-8")).get("unsupported_nodes", [])
        found = [(str(row["node_name"]), str(row["op_type"]), str(row.get("reason", ""))) for row in rows]
    else:
        found = [
            (node["node"], node["op"], match["reason"])
            for match in _FAILED.finditer(text)
            for node in _NODE.finditer(match["nodes"])
        ]
        found += [
            (match["node"], match["op"], "the compiler takes no such node on this SoC")
            for match in _LEFT.finditer(error)
        ]
    named: dict[str, Refused] = {}
    for name, op, reason in found:
        if op.startswith(_PROVIDER):
            continue  # what it has compiled already, met again in a second pass over the graph
        told = f"{reason} {codes.get(name, '')}" if reason.strip() == _SAYS_NOTHING else reason
        node = _TOKEN.sub("", name)
        named.setdefault(node, Refused(node=node, op=op, reason=_clean(told)))
    return tuple(named.values())


def count_operators(trace: Path) -> int:
    """Return how many operators the HTP runs, over all its graphs; 0 when there is no trace."""
    if not trace.is_file():
        return 0
    graphs = json.loads(trace.read_text(encoding="utf-8")).get("subgraph_traces", [])
    return sum(len(graph.get("op_mappings", [])) for graph in graphs)


def read_estimate(path: Path) -> Estimate | None:
    """Read the estimate from the profiling CSV; None when the compiler has none for the SoC."""
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = [(row["Event Identifier"], float(row["Time"])) for row in csv.DictReader(file) if row.get("Time")]
    if not any(name == _ESTIMATES for name, _ in rows):
        return None

    def total(*names: str) -> float:
        return sum(value for name, value in rows if name in names)

    return Estimate(
        us=total(_TIME),
        low=total(_LOW),
        high=total(_HIGH),
        read=int(total(*_READ)),
        written=int(total(*_WRITTEN)),
        spilled=int(total("Intermediate Spill")),
        missing=int(total(_MISSING)),
    )


def _clean(reason: str) -> str:
    """Return a reason as one line of at most 300 characters."""
    return " ".join(reason.split())[:300] or "the compiler gives no reason"
