"""Qualcomm's HTP through onnxruntime's QNN execution provider. Context binaries are not built yet: see `compile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edgekit.artifact import MAIN, Artifact
from edgekit.budget import Figure
from edgekit.dialect import Dialect
from edgekit.events import Finding
from edgekit.exporter import StageSpec
from edgekit.profile import Profile

if TYPE_CHECKING:
    from edgekit.graphs.forecast import Forecast
    from edgekit.graphs.roofline import Protocol

NOT_COMPILED = "qnn-not-compiled"

_CARRY = (
    *("Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "MaxPool", "Resize", "Sigmoid", "LeakyRelu"),
    *("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Split", "Slice", "DepthToSpace", "SpaceToDepth"),
)

_REFUSED = frozenset({"NonZero", "NonMaxSuppression", "Loop", "Scan", "GroupNormalization", "Unique", "Compress"})
_REFUSED_TYPES = {
    "STRING": "the HTP has no strings",
    "DOUBLE": "the HTP has no float64",
    "COMPLEX": "the HTP has no complex numbers",
    "BFLOAT16": "the HTP has no bfloat16",
}


class QnnExporter:
    """Writes the QDQ graph that onnxruntime's QNN execution provider compiles when it loads it on the device."""

    name: ClassVar[str] = "qnn"
    revision: ClassVar[int] = 1
    libraries: ClassVar[tuple[str, ...]] = ("onnx",)

    def dialect(self, profile: Profile) -> Dialect:
        """Return w8a8 as the HTP takes it: uint8 activations with a zero point, symmetric int8 weights per channel."""
        return Dialect(
            name="qnn",
            activation="uint8",
            weight="int8",
            symmetric_activations=False,
            per_channel=True,
            quantize_bias=True,
            ops=("Conv", "MatMul", "Gemm"),
            carry=_CARRY,
            int4="none",  # the HTP wants 16-bit activations beside 4-bit weights in blocks, these stay float
            max_opset=profile.graph.max_opset,
            max_ir=profile.graph.max_ir,
        )

    def prepare(self, profile: Profile) -> tuple[StageSpec, ...]:
        """Return no passes: what the recipe simplifies is enough."""
        del profile
        return ()

    def lint(self, artifact: Artifact, folder: Path, profile: Profile) -> list[Finding]:
        """Refuse what the HTP does not take: open shapes, rank above 5, some operators and types."""
        from edgekit.graphs.rules import (
            Subject,
            domain_findings,
            rank_findings,
            shape_findings,
            type_findings,
            version_findings,
        )

        subject = Subject(artifact, folder, profile, "qnn")
        found = version_findings(subject) + rank_findings(subject)
        found += domain_findings(subject, ("QuantizeLinear", "DequantizeLinear"))
        found += type_findings(subject, _REFUSED_TYPES)
        found += shape_findings(subject, "the HTP needs fixed shapes")
        found += [
            subject.finding(
                "error",
                "operator-fallback",
                node.name,
                f"node '{node.name}': the HTP has no {node.op_type}, so it would run on the CPU",
                "Do this step outside the network, or allow it with --allow-fallback.",
            )
            for node in subject.nodes
            if node.op_type in _REFUSED
        ]
        return [*found, _not_compiled()]

    def compile(self, artifact: Artifact, folder: Path, profile: Profile, out: Path) -> dict[str, Any]:
        """Write `model.onnx` with fixed shapes; the provider compiles it when it is first loaded on the device.

        A context binary built ahead of time, which loads in milliseconds, is not made yet: `findings` says so.
        """
        import msgspec

        from edgekit.graphs.edit import load_model, save_model
        from edgekit.graphs.facts import signature_of
        from edgekit.graphs.freeze import freeze
        from edgekit.graphs.rules import open_inputs

        model = load_model(folder / MAIN)
        first = {spec.shape[0]: 1 for spec in open_inputs(artifact).values() if isinstance(spec.shape[0], str)}
        if first:
            freeze(model, first, folder)
        model.ir_version = min(model.ir_version, profile.graph.max_ir)
        save_model(model, out / MAIN, source=folder)
        return {
            "runtime": "onnxruntime",
            "model": MAIN,
            "providers": ["QNNExecutionProvider", "CPUExecutionProvider"],
            "graphs": {**artifact.facts["graphs"], MAIN: signature_of(model)},
            "findings": msgspec.to_builtins([_not_compiled()]),
        }

    def estimate(self, artifact: Artifact, folder: Path, profile: Profile) -> tuple[Figure, ...]:
        """Predict latency and memory with the profile's roofline."""
        return self.forecast(artifact, folder, profile).figures

    def forecast(self, artifact: Artifact, folder: Path, profile: Profile, *, protocol: Protocol = "graph") -> Forecast:
        """Predict with the profile's roofline, kernel by kernel."""
        from edgekit.graphs.cost import cost_of
        from edgekit.graphs.forecast import forecast
        from edgekit.graphs.fusion import ONNXRUNTIME
        from edgekit.graphs.rules import usual_shapes

        cost = cost_of(folder / MAIN, usual_shapes(artifact))
        return forecast(cost, profile, rules=ONNXRUNTIME, protocol=protocol)


def _not_compiled() -> Finding:
    return Finding(
        severity="warning",
        node="",
        rule=NOT_COMPILED,
        text="no context binary was built: the package holds the graph, which onnxruntime's QNN provider compiles on "
        "the device; where that provider is missing it runs on the CPU, and nothing here was checked on an HTP",
        remedy="Measure on the device, with onnxruntime-qnn installed there.",
    )


EXPORTER = QnnExporter()
