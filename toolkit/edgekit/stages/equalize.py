"""Equalization before int8: channels of activations come closer to each other, in float nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from edgekit.artifact import MAIN
from edgekit.errors import EdgekitError, UsageError, did_you_mean
from edgekit.events import Finding, Progress
from edgekit.graphs.calibrate import spread
from edgekit.graphs.canonical import canonical
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.edit import is_standard, load_model, save_model
from edgekit.graphs.equalize import Equalizer
from edgekit.graphs.facts import quantization_of, signature_of
from edgekit.graphs.saving import copy_model, model_bytes
from edgekit.numerics.equalize import Precision
from edgekit.stage import Context, Inputs

if TYPE_CHECKING:
    import onnx

    from edgekit.graphs.equalize_sites import How

MOST_BYTES = 1 << 30
"""Bytes of a model above which it is left alone."""

PRECISIONS = ("w8a8", "w8a16", "w4a16")

_LEAST = 4
_LEVELS = {"int8": 255, "int16": 65535}


@dataclass(frozen=True, kw_only=True)
class Equalize:
    """Move what differs between channels from activations into weights, and from weights into the layer before.

    Factors are searched by the error of quantized products on calibration samples, and kept where held-out samples come
    nearer: those of each product, then those of the whole graph's outputs.

    - `smooth` (SmoothQuant with a searched exponent): inputs of MatMul and Gemm. A layer normalization takes the
      factors in for nothing; where it feeds others too, or something else makes the activation, one multiplication is
      added if that saves at least 1 % of the error of 8-bit activations, in graphs without a Conv and where the runtime
      takes what stands between integer products in float.
    - `cross-layer`: a Conv, MatMul or Gemm takes the factors in for those of its kind that read it, directly or through
      Relu, LeakyRelu and, for Conv, pooling. Others, such as Clip, let no factor through.

    Without data, in graphs without such products, and in models of more than 1 GiB, nothing changes.

    Args:
        samples: calibration samples to use at most; every fourth of them is held out.
        smooth: whether normalizations and multiplications may take factors in.
        cross_layer: whether layers may.
        precision: what the graph will be quantized to: `w8a8`, `w8a16` or `w4a16`.
    """

    name: ClassVar[str] = "equalize"
    revision: ClassVar[int] = 2
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset({"dialect"})
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")

    samples: int = 16
    smooth: bool = True
    cross_layer: bool = True
    precision: Literal["w8a8", "w8a16", "w4a16"] = "w8a8"

    def __post_init__(self) -> None:
        """Check the options; UsageError for an unknown word."""
        if self.precision not in PRECISIONS:
            text = f"unknown precision '{self.precision}'"
            raise UsageError(text, where=self.name, remedy=did_you_mean(self.precision, list(PRECISIONS)))

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Equalize `model.onnx`; see `Stage.run`.

        Facts: `equalization`: a record of every activation: `tensor`, `alpha`, `gain_db` (of its products on held-out
        samples), `share` (of the whole error), `how` (`normalization`, `layer`, `multiplication`, or empty: left
        alone); `outputs`: `before_db` and `after_db` of the whole graph's worst output there, when something was kept.

        Raises:
            InputError: a sample does not run; names it.
            UnsupportedError: the runtime does not have the precision.
        """
        if inputs.dialect is None:
            raise EdgekitError("equalize was run without a dialect")
        dialect = inputs.dialect.at(self.precision)
        path, data = inputs.folder / MAIN, inputs.data
        if data is None or len(data.calibration) < _LEAST or quantization_of(load_model(path)):
            return self._unchanged(path, out, inputs, [])
        if model_bytes(path) > MOST_BYTES:
            return self._unchanged(path, out, inputs, [], [_too_large(model_bytes(path))])
        source = canonical(path)
        if signature_of(source.model) != signature_of(load_model(path)):
            return self._unchanged(path, out, inputs, [])  # other floats: quantization converts them itself
        run_time = dialect.dynamic_transformers and not _convolves(source.model)
        insert = dialect.activation.endswith("int8") and not _convolves(source.model)
        insert &= run_time or dialect.whole == "no"
        equalizer = Equalizer(
            model=source.model,
            folder=source.folder,
            samples=data.calibration,
            indices=spread(len(data.calibration), self.samples),
            ways=self._ways(insert=insert),
            precision=Precision(
                bits=dialect.weight_bits,
                levels=_LEVELS[dialect.activation.removeprefix("u")],
                fixed=not run_time,
            ),
            threads=context.threads,
            tell=lambda done, total: context.listen(Progress(label="equalize", done=done, total=total)),
        )
        told, whole = equalizer.run()
        facts = {"outputs": whole} if whole else {}
        if not any(item["how"] for item in told):
            return self._unchanged(path, out, inputs, told) | facts
        save_model(source.model, out / MAIN, source=source.folder)
        copy_companions(inputs.folder, out)
        return {"equalization": told, "findings": msgspec.to_builtins(_found(told)), **facts}

    def _ways(self, *, insert: bool) -> frozenset[How]:
        ways: set[How] = {"layer"} if self.cross_layer else set()
        if self.smooth:
            ways |= {"normalization", "multiplication"} if insert else {"normalization"}
        return frozenset(ways)

    def _unchanged(
        self, path: Path, out: Path, inputs: Inputs, told: list[dict[str, Any]], findings: Sequence[Finding] = ()
    ) -> dict[str, Any]:
        copy_model(path, out / MAIN)
        copy_companions(inputs.folder, out)
        return {"equalization": told, "findings": msgspec.to_builtins(findings)}


def _too_large(size: int) -> Finding:
    text = f"the model has {size / 1e9:.1f} GB of weights: equalization holds them several times, so it was left out"
    return Finding(severity="note", node="", rule="not-equalized", text=text, remedy="Nothing is lost but accuracy.")


def _convolves(model: onnx.ModelProto) -> bool:
    """Say whether a model is one whose activations get their grids from calibration: a multiplication costs there."""
    return any(is_standard(node, "Conv", "ConvTranspose") for node in model.graph.node)


def _found(told: list[dict[str, Any]]) -> list[Finding]:
    changed = [item for item in told if item["how"]]
    added = sum(item["how"] == "multiplication" for item in changed)
    layers = sum(item["how"] == "layer" for item in changed)
    text = (
        f"channels of {len(changed)} activations were equalized, {added} of them by a multiplication that was added, "
        f"{layers} by the layer before"
    )
    return [Finding(severity="note", node="", rule="equalized", text=text, remedy="")]
