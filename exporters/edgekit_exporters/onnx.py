"""A runtime that takes any ONNX graph as it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

from edgekit.artifact import MAIN, Artifact
from edgekit.budget import Figure
from edgekit.dialect import Dialect
from edgekit.events import Finding
from edgekit.exporter import StageSpec
from edgekit.profile import Profile


class PlainExporter:
    """Copies the graph."""

    name: ClassVar[str] = "onnx"
    revision: ClassVar[int] = 1
    libraries: ClassVar[tuple[str, ...]] = ("onnx",)

    def dialect(self, profile: Profile) -> Dialect:
        """Quantized graphs as onnxruntime's CPU kernels like them."""
        return Dialect(
            name="onnx",
            activation="uint8",
            weight="int8",
            symmetric_activations=False,
            per_channel=True,
            quantize_bias=True,
            max_opset=profile.graph.max_opset,
            max_ir=profile.graph.max_ir,
        )

    def prepare(self, profile: Profile) -> tuple[StageSpec, ...]:
        """No passes of its own."""
        return ()

    def lint(self, artifact: Artifact, folder: Path, profile: Profile) -> list[Finding]:
        """Refuse what has more axes than the device takes."""
        limit = profile.graph.max_rank
        return [
            Finding(
                severity="error",
                node=spec.name,
                rule="plain-rank",
                text=f"has {len(spec.shape)} axes, the device takes {limit}",
                remedy="Reshape the input.",
            )
            for spec in artifact.specs("inputs")
            if len(spec.shape) > limit
        ]

    def compile(self, artifact: Artifact, folder: Path, profile: Profile, out: Path) -> dict[str, Any]:
        """Copy the artifact's files."""
        for name in artifact.files:
            shutil.copyfile(folder / name, out / name)
        return {"runtime": "onnxruntime", "model": MAIN, "providers": ["CPUExecutionProvider"]}

    def estimate(self, artifact: Artifact, folder: Path, profile: Profile) -> tuple[Figure, ...]:
        """Predict with the profile's roofline."""
        from edgekit.graphs.cost import cost_of
        from edgekit.graphs.roofline import predict_latency

        return (predict_latency(cost_of(folder / MAIN), profile),)


EXPORTER = PlainExporter()
