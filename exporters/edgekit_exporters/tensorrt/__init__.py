"""TensorRT on NVIDIA Jetson: the engine is built on the device; here the graph is checked and its commands written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edgekit.artifact import MAIN, Artifact
from edgekit.budget import Figure
from edgekit.dialect import Dialect
from edgekit.events import Finding
from edgekit.exporter import Placed, StageSpec
from edgekit.profile import Profile

if TYPE_CHECKING:
    from edgekit.graphs.forecast import Forecast
    from edgekit.graphs.roofline import Protocol

BUILD = "build.json"


class TensorRTExporter:
    """Settings of a profile (table `tensorrt`).

    `rtx_check`: `parse` (default), `build` (also builds an engine ahead of time: seconds to minutes for large models)
    or `off`: whether lint asks TensorRT-RTX, when it is installed. `dla`: true when the DLA is to run the network.
    """

    name: ClassVar[str] = "tensorrt"
    revision: ClassVar[int] = 2
    libraries: ClassVar[tuple[str, ...]] = ("onnx",)

    def dialect(self, profile: Profile) -> Dialect:
        """Return the form that TensorRT takes and fuses: int8 symmetric, only the inputs of products quantized."""
        return Dialect(
            name="tensorrt",
            activation="int8",
            weight="int8",
            symmetric_activations=True,
            per_channel=True,
            quantize_bias=False,
            ops=("Conv", "MatMul", "Gemm"),
            quantize_outputs=False,
            float_weights=("GRU", "RNN"),
            int4_symmetric=True,
            int4_whole_blocks=True,
            max_opset=profile.graph.max_opset,
            max_ir=profile.graph.max_ir,
        )

    def prepare(self, profile: Profile) -> tuple[StageSpec, ...]:
        """Return no passes: what the recipe simplifies is enough."""
        del profile
        return ()

    def lint(self, artifact: Artifact, folder: Path, profile: Profile) -> list[Finding]:
        """Say what TensorRT would refuse or run badly: our rules, then TensorRT-RTX's parser when it is installed."""
        from edgekit_exporters.tensorrt.lint import lint

        return lint(artifact, folder, profile)

    def place(
        self, artifact: Artifact, folder: Path, profile: Profile, findings: Sequence[Finding]
    ) -> tuple[Placed, ...]:
        """Say which nodes run on the GPU, which on the DLA (when the profile asks for it), and which nowhere."""
        from edgekit.graphs.rules import Subject
        from edgekit_exporters.tensorrt.placement import place

        return place(Subject(artifact, folder, profile, "trt"), findings)

    def compile(self, artifact: Artifact, folder: Path, profile: Profile, out: Path) -> dict[str, Any]:
        """Write `model.onnx`, from which the device builds its engine, and `build.json` with the commands that do."""
        from edgekit.graphs.edit import load_model, save_model
        from edgekit.graphs.rules import build_shapes
        from edgekit_exporters.tensorrt.commands import build_plan

        model = load_model(folder / MAIN)
        model.ir_version = min(model.ir_version, profile.graph.max_ir)
        save_model(model, out / MAIN, source=folder)
        shapes = build_shapes(artifact)
        sparse = artifact.facts.get("sparsity", {}).get("pattern") in profile.layers.sparsity
        text = json.dumps(build_plan(MAIN, shapes, profile, sparse=sparse), indent=2, sort_keys=True)
        (out / BUILD).write_text(text + "\n", encoding="utf-8")
        facts: dict[str, Any] = {
            "runtime": "tensorrt",
            "model": MAIN,
            "providers": ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"],
            "graphs": artifact.facts["graphs"],
            "build": BUILD,
        }
        if profile.settings.get("tensorrt", {}).get("dla", False):
            facts["dla_core"] = 0
        if sparse:
            facts["sparse"] = True
        return facts | ({"shapes": shapes} if shapes else {})

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


EXPORTER = TensorRTExporter()
