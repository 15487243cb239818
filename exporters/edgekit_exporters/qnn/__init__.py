"""Qualcomm's HTP through onnxruntime's QNN execution provider: context binaries, compiled and checked on the desk.

Without the extra `qnn` the graph goes to the device as it is, and a finding says so.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from edgekit.artifact import MAIN, Artifact
from edgekit.budget import Figure
from edgekit.dialect import Dialect
from edgekit.events import Finding
from edgekit.exporter import StageSpec
from edgekit.profile import Profile
from edgekit_exporters.qnn.context import BINARY, CONTEXT, Context, RefusedError, is_installed
from edgekit_exporters.qnn.desk import Desk, options_of, soc_of, write_fixed
from edgekit_exporters.qnn.lint import (
    NOT_COMPILED,
    compile_findings,
    fallback_findings,
    lint,
    not_compiled,
    other_finding,
)
from edgekit_exporters.qnn.several import place, profiles_of

if TYPE_CHECKING:
    from edgekit.graphs.forecast import Forecast
    from edgekit.graphs.roofline import Protocol

__all__ = ["EXPORTER", "NOT_COMPILED", "QnnExporter"]

EXAMPLES = Path(__file__).with_name("examples")
FACTS = "context.json"
"""What the examples read: for which chip the binary is."""

_CARRY = (
    *("Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "MaxPool", "Resize", "Sigmoid", "LeakyRelu"),
    *("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Split", "Slice", "DepthToSpace", "SpaceToDepth"),
)


_WRITTEN_OUT = (
    *("Mish", "Celu", "Shrink", "Softsign", "GroupNormalization"),
    *("ReduceL1", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)
"""Functions of ONNX that the HTP has no kernels for, with integers at least."""


class QnnExporter:
    """Settings of a profile (table `htp`).

    `soc_model`: Qualcomm's number of the SoC; without it nothing is compiled. `vtcm_mb`: memory of the HTP in MB.
    `optimization`: 1 to 3 (default), how hard the compiler tries. `integer_twin`: number of a SoC of the same
    architecture whose compiler refuses float operators, for a SoC without them whose own compiler does not. `also`:
    further SoCs that the package is for, each with `soc` (its names) and these same settings.
    """

    name: ClassVar[str] = "qnn"
    revision: ClassVar[int] = 4
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "onnxruntime-qnn")

    def __init__(self) -> None:
        self._desk = Desk()

    def dialect(self, profile: Profile) -> Dialect:
        """Return w8a8 as the HTP takes it: uint8 activations with a zero point, symmetric int8 weights per channel."""
        return Dialect(
            name="qnn",
            activation="uint8",
            weight="int8",
            symmetric_activations=False,
            per_channel=True,
            quantize_bias=True,
            ops=("Conv", "ConvTranspose", "MatMul", "Gemm"),
            carry=_CARRY,
            stored_per_channel=False,
            whole="prefer" if all(_has_floats(one) for one in profiles_of(profile)) else "must",
            precisions=("w8a8", "w8a16", "w4a16"),
            int4="none",  # the HTP wants 16-bit activations beside 4-bit weights in blocks, these stay float
            max_opset=profile.graph.max_opset,
            max_ir=profile.graph.max_ir,
        )

    def prepare(self, profile: Profile) -> tuple[StageSpec, ...]:
        """Name what the HTP wants: GELUs fused, since it has no Erf, and Clips from other than 0 split.

        In a quantized graph its compiler (2.51) fuses no GELU itself, and takes 0 for the lower bound of a Clip. What
        it has no kernels for and ONNX defines by other operators is written so.
        """
        del profile
        return (
            StageSpec(name="expand", options={"operators": _WRITTEN_OUT}),
            StageSpec(name="fuse-gelu", options={}),
            StageSpec(name="split-clips", options={}),
        )

    def lint(self, artifact: Artifact, folder: Path, profile: Profile) -> list[Finding]:
        """Say what the HTP refuses: rules first, then Qualcomm's compiler itself, when it is installed."""
        found = lint(artifact, folder, profile)
        if any(finding.severity == "error" for finding in found):
            return found
        if (why := self._why_not(profile)) is not None:
            return [*found, not_compiled(why)]
        first, *others = profiles_of(profile)
        found += compile_findings(self._desk, artifact, folder, first)
        for other in others:
            for finding in compile_findings(self._desk, artifact, folder, other):
                text = f"for {' or '.join(other.modules)} (SoC {soc_of(other)}): {finding.text}"
                found.append(msgspec.structs.replace(finding, text=text))
            found.append(other_finding(other))
        return found

    def compile(self, artifact: Artifact, folder: Path, profile: Profile, out: Path) -> dict[str, Any]:
        """Write `model_ctx.onnx` and its binary for the profile's SoC, and `model.onnx` for where that does not load.

        Beside them lie `context.json` and examples that load the binary, in Python and Kotlin.

        Nodes that the HTP refuses stay on the CPU and are told in the facts: `lint` has said so before.

        Raises:
            UnsupportedError: no node runs on the HTP.
        """
        rewritten = write_fixed(artifact, folder, profile, out / MAIN)
        facts: dict[str, Any] = {
            "runtime": "onnxruntime",
            "model": MAIN,
            "providers": ["QNNExecutionProvider", "CPUExecutionProvider"],
            "graphs": {**artifact.facts["graphs"], MAIN: _signature(out / MAIN)},
        }
        facts |= {"rewritten": rewritten} if rewritten else {}
        if (why := self._why_not(profile)) is not None:
            return facts | {"findings": msgspec.to_builtins([not_compiled(why)])}
        context = self._context(artifact, folder, profile)
        files = [CONTEXT, *sorted(path.name for path in context.folder.glob("*.bin"))]
        for name in files:
            shutil.copyfile(context.folder / name, out / name)
        facts |= {"context": _facts(context, profile), "loads": files}
        others = [(one, self._context(artifact, folder, one)) for one in profiles_of(profile)[1:]]
        if others:
            facts["context"]["others"] = [_other(other, one, out) for one, other in others]
        (out / FACTS).write_text(json.dumps(facts["context"], indent=1, sort_keys=True) + "\n", encoding="utf-8")
        for example in sorted(EXAMPLES.glob("[lL]oad.*")):
            shutil.copyfile(example, out / example.name)
        found = fallback_findings(context.refused, "warning")
        found += [finding for _, other in others for finding in fallback_findings(other.refused, "warning")]
        return facts | ({"findings": msgspec.to_builtins(found)} if found else {})

    def estimate(self, artifact: Artifact, folder: Path, profile: Profile) -> tuple[Figure, ...]:
        """Predict latency and memory; see `forecast`."""
        return self.forecast(artifact, folder, profile).figures

    def forecast(self, artifact: Artifact, folder: Path, profile: Profile, *, protocol: Protocol = "graph") -> Forecast:
        """Predict by Qualcomm's own estimate, else the profile's roofline; there is one way to start a run."""
        from edgekit_exporters.qnn.latency import predict

        del protocol
        return predict(self._desk, artifact, folder, profile, compiles=self._why_not(profile) is None)

    def _context(self, artifact: Artifact, folder: Path, profile: Profile) -> Context:
        """Compile for a profile's SoC; what it refuses stays on the CPU."""
        try:
            return self._desk.context(artifact, folder, profile)
        except RefusedError:
            return self._desk.context(artifact, folder, profile, fallback=True)

    def _why_not(self, profile: Profile) -> str | None:
        """Say why nothing can be compiled for a profile; None when it can."""
        if soc_of(profile) is None:
            return f"the profile '{profile.name}' names no SoC (settings.htp.soc_model)"
        return None if is_installed() else "Qualcomm's compiler is not installed"


def _has_floats(profile: Profile) -> bool:
    return bool(profile.settings.get("htp", {}).get("fp16", True))


def _other(context: Context, profile: Profile, out: Path) -> dict[str, Any]:
    """Place another SoC's binary and return its facts."""
    model, binary = place(context, out)
    return {**_facts(context, profile), "model": model, "binary": binary}


def _facts(context: Context, profile: Profile) -> dict[str, Any]:
    """Return what is worth telling of a context binary, as JSON values."""
    table = profile.settings["htp"]
    return {
        "model": CONTEXT,
        "binary": BINARY,
        "soc_model": context.soc_model,
        "soc": list(profile.modules),
        "htp": table.get("arch"),
        "vtcm_mb": table.get("vtcm_mb"),
        "options": options_of(profile),
        "compatibility": context.compatibility,
        "graphs": context.graphs,
        "operators": context.operators,
        "refused": [msgspec.to_builtins(row) for row in context.refused],
        "estimate": msgspec.to_builtins(context.estimate),
        "compiler": f"onnxruntime-qnn {importlib.metadata.version('onnxruntime-qnn')}",
    }


def _signature(path: Path) -> dict[str, Any]:
    from edgekit.graphs.edit import load_model
    from edgekit.graphs.facts import signature_of

    return signature_of(load_model(path))


EXPORTER = QnnExporter()
