"""TensorRT on NVIDIA Jetson: the engine is built on the device; here the graph is checked and its commands written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
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
DLA_MODEL, DLA_SCALES = "dla.onnx", "dla.json"


class TensorRTExporter:
    """Settings of a profile (table `tensorrt`).

    `rtx_check`: `parse` (default), `build` (also builds an engine ahead of time: seconds to minutes for large models)
    or `off`: whether lint asks TensorRT-RTX, when it is installed. `dla`: true when the DLA is to run the network;
    `dla_calibration`: true when it is to compute int8 on TensorRT 8.6 to 10.7 (JetPack 6), which take no Q/DQ there.
    """

    name: ClassVar[str] = "tensorrt"
    revision: ClassVar[int] = 3
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
        from edgekit_exporters.tensorrt.calibration import has_pairs
        from edgekit_exporters.tensorrt.commands import How, build_plan
        from edgekit_exporters.tensorrt.sparsity import is_sparse

        model = load_model(folder / MAIN)
        model.ir_version = min(model.ir_version, profile.graph.max_ir)
        save_model(model, out / MAIN, source=folder)
        how = How(
            shapes=build_shapes(artifact),
            dla=bool(profile.settings.get("tensorrt", {}).get("dla", False)),
            explicit=has_pairs(model),
            sparse=is_sparse(artifact, profile),
        )
        facts: dict[str, Any] = {
            "runtime": "tensorrt",
            "model": MAIN,
            "providers": ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"],
            "graphs": artifact.facts["graphs"],
            "build": BUILD,
        }
        built = MAIN
        if how.dla:
            facts |= {"dla_core": 0, **({"explicit": True} if how.explicit else {})}
        if how.dla and how.explicit and profile.settings["tensorrt"].get("dla_calibration", False):
            facts["loads"] = sorted(path.name for path in out.iterdir())
            facts["calibration"] = {"model": DLA_MODEL, "scales": DLA_SCALES}
            how, built = replace(how, calibrated=True, half=_write_calibration(folder, profile, out)), DLA_MODEL
        text = json.dumps(build_plan(built, how), indent=2, sort_keys=True)
        (out / BUILD).write_text(text + "\n", encoding="utf-8")
        return facts | ({"shapes": how.shapes} if how.shapes else {}) | ({"sparse": True} if how.sparse else {})

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


def _write_calibration(folder: Path, profile: Profile, out: Path) -> list[str]:
    """Write the float graph for the DLA, its scales, and a cache per TensorRT; return the nodes that stay float16."""
    from edgekit.graphs.edit import load_model, save_model
    from edgekit_exporters.tensorrt.calibration import cache_text, implicit
    from edgekit_exporters.tensorrt.commands import CALIBRATED_DLA, cache_name

    made = implicit(load_model(folder / MAIN), folder)
    made.model.ir_version = min(made.model.ir_version, profile.graph.max_ir)
    save_model(made.model, out / DLA_MODEL, source=folder)
    (out / DLA_SCALES).write_text(json.dumps(made.json(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for version, release in CALIBRATED_DLA.items():
        (out / cache_name(version)).write_text(cache_text(release, made.scales), encoding="utf-8")
    return made.half


EXPORTER = TensorRTExporter()
