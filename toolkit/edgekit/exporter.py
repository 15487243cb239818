"""The Exporter protocol: one runtime's rules, compiler and files. Found by name, never imported by edgekit."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from edgekit.artifact import Artifact
from edgekit.budget import Figure
from edgekit.dialect import Dialect
from edgekit.errors import EdgekitError, UnsupportedError
from edgekit.events import Finding
from edgekit.profile import Profile

if TYPE_CHECKING:
    from edgekit.graphs.forecast import Forecast


@dataclass(frozen=True, kw_only=True)
class StageSpec:
    """A stage that the plan adds: its name and options."""

    name: str
    options: dict[str, Any]


class Exporter(Protocol):
    """What a runtime needs from a graph, checked and written on the desk."""

    name: ClassVar[str]
    revision: ClassVar[int]
    libraries: ClassVar[tuple[str, ...]]

    def dialect(self, profile: Profile) -> Dialect:
        """Return the rules for quantized graphs on this profile."""
        ...

    def prepare(self, profile: Profile) -> tuple[StageSpec, ...]:
        """Name the graph passes that must run before quantization on this profile."""
        ...

    def lint(self, artifact: Artifact, folder: Path, profile: Profile) -> list[Finding]:
        """Say what the runtime would refuse or run badly; severity `error` stops the build with exit status 7."""
        ...

    def compile(self, artifact: Artifact, folder: Path, profile: Profile, out: Path) -> dict[str, Any]:
        """Write the files that the device loads into the empty folder `out`.

        Returns:
            Facts: `runtime` (what the runner uses: `onnxruntime` or `tensorrt`), `model` (the file it loads),
            `providers` (onnxruntime execution providers in order), `loads` (the files that the device loads, when not
            all of them are), and what else is worth telling.
        """
        ...

    def estimate(self, artifact: Artifact, folder: Path, profile: Profile) -> tuple[Figure, ...]:
        """Predict latency (`latency-p50`, with an interval) and what else the runtime can tell without a device."""
        ...

    def forecast(
        self, artifact: Artifact, folder: Path, profile: Profile, *, protocol: Literal["graph", "plain"] = "graph"
    ) -> Forecast:
        """Predict the same in detail: each fused kernel, memory, and where the interval comes from.

        On a GPU, `protocol` says whether kernels are started at once (a CUDA graph) or one by one.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a node would run: `on` is a unit of the device (`GPU`, `DLA`, ...) or `unsupported`, and why."""

    node: str
    op: str
    on: str
    why: str = ""


@runtime_checkable
class Placer(Protocol):
    """What an exporter offers besides, when its runtime spreads a network over units of the device."""

    def place(
        self, artifact: Artifact, folder: Path, profile: Profile, findings: Sequence[Finding]
    ) -> tuple[Placed, ...]:
        """Say for each node that computes where it would run, in the order of the graph.

        Args:
            artifact: the model.
            folder: where its files lie.
            profile: the device.
            findings: what `lint` said: nodes that errors name run nowhere.
        """
        ...


def load_exporter(name: str) -> Exporter:
    """Import `edgekit_exporters.NAME` and return its `EXPORTER`."""
    module_name = f"edgekit_exporters.{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise UnsupportedError(
            f"no exporter for the runtime '{name}'",
            remedy="Choose a profile with another runtime: edgekit profiles list",
        ) from None
    exporter: Exporter = module.EXPORTER
    if exporter.name != name:
        raise EdgekitError(f"the exporter in {module_name} calls itself '{exporter.name}'")
    return exporter


def refuse(findings: Sequence[Finding], profile: Profile, *, allow_fallback: bool) -> None:
    """Raise UnsupportedError when the runtime would refuse a graph of which `findings` were told.

    Nodes off the accelerator are such an error unless they are allowed.
    """
    errors = [finding for finding in findings if finding.severity == "error"]
    if allow_fallback:
        errors = [finding for finding in errors if "fallback" not in finding.rule]
    if not errors:
        return
    first, more = errors[0], f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    names = ", ".join(dict.fromkeys(finding.node for finding in errors if finding.node))
    raise UnsupportedError(
        f"{profile.name} does not take this graph: {first.text}{more}; nodes: {names}",
        where=f"{first.node or 'model'} [{first.rule}]",
        remedy=first.remedy,
    )
