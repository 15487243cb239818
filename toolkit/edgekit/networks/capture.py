"""Export every graph of a `torch` artifact and compare it with the module. Runs in a child process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from edgekit import events
from edgekit.artifact import TensorSpec
from edgekit.errors import EdgekitError, InputError, UnsupportedError, UsageError
from edgekit.networks import graph
from edgekit.networks.child import Tell
from edgekit.networks.components import components
from edgekit.networks.export import LEGACY_OPSET, decides_by_data, export, paths_for
from edgekit.networks.network import BATCH, Network
from edgekit.networks.parity import Reference, compare, probes, references, weak
from edgekit.networks.rebuild import rebuild

_DECIDES = "Write decisions that depend on values with `torch.where`: a graph has one path for all inputs."
_SHAPES = "Give sizes with `shapes`, or export it yourself and give the .onnx file."


def capture(arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Export an artifact of kind `torch` to ONNX.

    Args:
        arguments: `folder`, `out`, `opset`, `dynamic`, `shapes`, `dtypes`, `tolerance`, `threads`.
        tell: gets progress and findings.

    Returns:
        Facts: `graphs`, `opset`, `capture` (graph -> `path`, `opset`, `parity`, `checked`), `findings`, and `task` when
        it is known.

    Raises:
        InputError: the model fails, or the graph does not compute what it does. UnsupportedError: no exporter can.
        UsageError: fixed shapes are asked and a size is missing.
    """
    import torch

    torch.set_num_threads(int(arguments["threads"]))
    network = rebuild(Path(arguments["folder"]), shapes=arguments["shapes"], dtypes=arguments["dtypes"])
    out = Path(arguments["out"])
    findings = list(network.findings)
    facts: dict[str, Any] = {"graphs": {}, "opset": 0, "capture": {}}
    parts = components(network)
    for done, (name, make) in enumerate(parts.items()):
        tell(events.Progress(label=f"export {name}", done=done, total=len(parts)))
        made = _export(make, out / name, arguments, findings)
        facts["graphs"][name] = msgspec.to_builtins(made.specs)
        facts["opset"] = max(facts["opset"], made.opset)
        how = {"path": made.path, "opset": made.opset, "parity": made.parity, "checked": made.checked}
        facts["capture"][name] = how
    for finding in findings:
        tell(events.Found(finding=finding))
    facts["findings"] = [msgspec.to_builtins(finding) for finding in findings]
    return {**facts, "task": network.task} if network.task else facts


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A graph that was kept: who exported it, how close it is, at which sizes that was seen."""

    path: str
    opset: int
    parity: dict[str, float]
    checked: list[dict[str, int]]
    specs: dict[str, list[TensorSpec]]


@dataclass
class _Failures:
    """Why exports failed so far."""

    reasons: list[str] = field(default_factory=list)
    failed: InputError | None = None
    wrong: InputError | None = None
    by_data: bool = False
    exported: bool = False

    def add(self, exporter: str, error: Exception) -> None:
        self.exported = True
        if isinstance(error, InputError):
            self.wrong = error
            self.reasons.append(f"{exporter}: {error.text} ({error.where})")
        else:
            self.by_data = self.by_data or decides_by_data(error)
            self.reasons.append(f"{exporter}: {graph.plain_reason(error)}")

    def verdict(self, where: str) -> EdgekitError:
        """Return the error of the whole."""
        if self.failed is not None and not self.exported:
            return self.failed
        text = "; ".join(dict.fromkeys(self.reasons))
        if self.wrong is not None:
            return InputError(f"no export computes what the model does: {text}", where=self.wrong.where, remedy=_SHAPES)
        remedy = _DECIDES if self.by_data else _SHAPES
        return UnsupportedError(f"it cannot be exported: {text}", where=where, remedy=remedy)


def _export(
    make: Callable[[], Network], path: Path, arguments: dict[str, Any], findings: list[events.Finding]
) -> _Made:
    """Try the exporters with as many dynamic axes as the model allows; the first graph that is right is kept."""
    network, failures = make(), _Failures()
    for labels in _axis_sets(network, arguments):
        part = network.fixed(labels)
        try:
            given = references(part)
        except InputError as error:
            failures.failed = failures.failed or error
            failures.reasons.append(error.text)
            continue
        for exporter in paths_for(part):
            if exporter == "torchscript" and failures.by_data:
                continue  # a trace would fix the decision that it saw
            try:
                made = _attempt(part, exporter, path, arguments, given)
            except Exception as error:  # noqa: BLE001 - whatever an exporter raises, the next one may do
                failures.add(exporter, error)
            else:
                findings += _found(path.name, made, network.labels() - labels, failures.reasons, weak(given))
                return made
    raise failures.verdict(type(network.module).__name__)


def _axis_sets(network: Network, arguments: dict[str, Any]) -> list[set[str]]:
    """Return which axes to keep dynamic, in the order to try: all, then all but the batch."""
    labels = network.labels()
    if arguments["dynamic"]:
        return [labels, labels - {BATCH}] if BATCH in labels and network.program is None else [labels]
    for name, table in network.axes.items():
        for axis, label in table.items():
            if label != BATCH and name not in arguments["shapes"]:
                example = [1, *[128] * (network.examples[name].dim() - 1)]
                raise UsageError(
                    f"a fixed graph needs the size of axis {axis} ({label})",
                    where=name,
                    remedy=f"Give it, e.g. shapes = {{ {name} = {example} }}, or fix it later with `freeze-shapes`.",
                )
    return [set()]


def _attempt(network: Network, exporter: str, path: Path, arguments: dict[str, Any], given: list[Reference]) -> _Made:
    opset = LEGACY_OPSET if exporter == "torchscript" else int(arguments["opset"])
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    model = export(network, exporter, opset, list(given[0].outputs))
    graph.finish(model, network, given, opset)
    graph.save(model, path)
    others = probes(network) if exporter == "torchscript" else []
    parity = compare(path, [*given, *others], float(arguments["tolerance"]))
    sizes = [dict(reference.sizes) for reference in given]
    return _Made(path=exporter, opset=opset, parity=parity, checked=sizes, specs=graph.specs(model))


def _found(name: str, made: _Made, fixed: set[str], reasons: list[str], faint: list[str]) -> list[events.Finding]:
    found = [
        events.Finding(
            severity="note",
            node=output,
            rule="parity-weak",
            text="the output stays below 0.001 on random inputs: comparing it with torch says little",
        )
        for output in faint
    ]
    if reasons:
        found.append(
            events.Finding(
                severity="note",
                node=name,
                rule="capture-path",
                text=f"exported by {made.path}, opset {made.opset}, after: {'; '.join(dict.fromkeys(reasons))}",
            )
        )
    if BATCH in fixed and reasons:
        found.append(
            events.Finding(
                severity="warning",
                node=name,
                rule="batch-fixed",
                text="the model does not work with any batch size: the graph takes one sample at a time",
                remedy="Remove code that depends on the batch size if larger batches are wanted.",
            )
        )
    return found
