"""What a runtime's quantized graph must look like: frozen data, defined by an exporter, read by the stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The rules of one runtime for a quantized ONNX graph.

    Attributes:
        name: `ort-cpu`, `tensorrt`, `qnn`.
        activation: integer type of activations.
        weight: integer type of weights.
        symmetric_activations: zero point of activations must be 0.
        per_channel: weights are quantized per output channel.
        quantize_bias: bias becomes int32 with scale = input scale x weight scale; else it stays float.
        ops: op types whose inputs are quantized; empty means all that the runtime has kernels for.
        quantize_outputs: the outputs of `ops` are quantized too (False keeps Conv-Relu fusable for TensorRT).
        dynamic_transformers: MatMul-only graphs are quantized dynamically (activation scales at run time).
        max_opset: highest opset of the default domain that the runtime reads.
        max_ir: highest IR version that the runtime reads.
    """

    name: str
    activation: Literal["int8", "uint8", "int16", "uint16"]
    weight: Literal["int8", "int4"]
    symmetric_activations: bool
    per_channel: bool
    quantize_bias: bool
    ops: tuple[str, ...] = ()
    quantize_outputs: bool = True
    dynamic_transformers: bool = False
    max_opset: int = 21
    max_ir: int = 10
