"""onnxruntime on the CPU, or with the execution providers that a profile names."""

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

OPTIMIZED = "optimized.onnx"
CPU = "CPUExecutionProvider"

_WIDE_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Features of x86 CPUs whose u8 x s8 products do not saturate in 16 bits."""

_CARRY = (
    *("Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "MaxPool", "Resize", "Sigmoid", "LeakyRelu"),
    *("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Split", "Slice", "DepthToSpace", "SpaceToDepth"),
)


class OnnxExporter:
    """Ships the portable graph; onnxruntime optimizes it for the machine when it loads it.

    Settings of a profile (table `onnx`): `providers`, execution providers in order (default: the CPU's); `optimized`,
    whether `optimized.onnx` is shipped too (default false): what onnxruntime makes of the graph, which starts faster
    but only in the same version of onnxruntime, and is never what the runner loads.
    """

    name: ClassVar[str] = "onnx"
    revision: ClassVar[int] = 2
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime")

    def dialect(self, profile: Profile) -> Dialect:
        """Return the form that onnxruntime fuses into its integer CPU kernels, by the CPU's features.

        x86: u8 activations, s8 weights, of 7 bits without VNNI. Elsewhere (Arm): s8 for both.
        """
        x86 = profile.cpu.arch.lower() in {"x86_64", "amd64", "i686"}
        return Dialect(
            name="ort-cpu",
            activation="uint8" if x86 else "int8",
            weight="int8",
            symmetric_activations=False,
            per_channel=True,
            quantize_bias=True,
            ops=("Conv", "MatMul", "Gemm"),
            carry=_CARRY,
            float_outputs=("MatMul", "Gemm"),
            dynamic_transformers=True,
            block_kernels=("MatMul", "Gemm"),
            integer_gather=True,
            int4="matmulnbits",
            reduce_range=x86 and not _WIDE_PRODUCTS & set(profile.cpu.features),
            max_opset=profile.graph.max_opset,
            max_ir=profile.graph.max_ir,
        )

    def prepare(self, profile: Profile) -> tuple[StageSpec, ...]:
        """Return no passes: what the recipe simplifies is enough."""
        del profile
        return ()

    def lint(self, artifact: Artifact, folder: Path, profile: Profile) -> list[Finding]:
        """Refuse versions, ranks and types that the CPU kernels do not take."""
        from edgekit.graphs.rules import Subject, rank_findings, shape_findings, type_findings, version_findings

        subject = Subject(artifact, folder, profile, "ort")
        found = version_findings(subject) + rank_findings(subject)
        found += type_findings(subject, {"BFLOAT16": "the CPU has no kernels for it", "COMPLEX": "it has no kernels"})
        if not profile.graph.dynamic_shapes:
            found += shape_findings(subject, "this device needs fixed shapes")
        return found

    def compile(self, artifact: Artifact, folder: Path, profile: Profile, out: Path) -> dict[str, Any]:
        """Write `model.onnx` with an IR version that the device reads; see the class for `optimized.onnx`."""
        from edgekit.graphs.edit import load_model, save_model

        settings = profile.settings.get(self.name, {})
        model = load_model(folder / MAIN)
        model.ir_version = min(model.ir_version, profile.graph.max_ir)
        save_model(model, out / MAIN, source=folder)
        facts: dict[str, Any] = {
            "runtime": "onnxruntime",
            "model": MAIN,
            "providers": list(settings.get("providers", [CPU])),
            "graphs": artifact.facts["graphs"],
        }
        if settings.get("optimized", False):
            facts["optimized"] = {"file": OPTIMIZED, "onnxruntime": _optimize(out / MAIN, out / OPTIMIZED)}
        return facts

    def estimate(self, artifact: Artifact, folder: Path, profile: Profile) -> tuple[Figure, ...]:
        """Predict latency and memory with the profile's roofline."""
        return self.forecast(artifact, folder, profile).figures

    def forecast(self, artifact: Artifact, folder: Path, profile: Profile, *, protocol: Protocol = "graph") -> Forecast:
        """Predict with the profile's roofline, kernel by kernel."""
        from edgekit.graphs.cost import cost_of
        from edgekit.graphs.forecast import forecast
        from edgekit.graphs.fusion import rules_of
        from edgekit.graphs.rules import usual_shapes

        cost = cost_of(folder / MAIN, usual_shapes(artifact))
        return forecast(cost, profile, rules=rules_of(self.name), protocol=protocol)


def _optimize(source: Path, target: Path) -> str:
    """Let onnxruntime write what it makes of a graph, without layouts of this machine; return its version."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(source), options, providers=[CPU])
    return str(onnxruntime.__version__)


EXPORTER = OnnxExporter()
