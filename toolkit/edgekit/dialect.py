"""What a runtime's quantized graph must look like: frozen data, defined by an exporter, read by the stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from edgekit.errors import UnsupportedError


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
        carry: op types that run on integers when their inputs already are and an op of `ops` follows.
        float_outputs: those of `ops` that may give out floats although `quantize_outputs` is set.
        dynamic_transformers: MatMul-only graphs may be quantized dynamically (activation scales at run time).
        block_kernels: op types whose int8 weights alone make the runtime multiply in int8 (it quantizes the
            activations block by block inside the kernel).
        integer_gather: Gather may look up rows of an int8 table; else the table is dequantized first.
        float_weights: op types whose weights stay float, because the runtime refuses them in 8 bits.
        stored_per_channel: weights of operators that compute in float may be stored in 8 bits with a scale per channel;
            else they have one scale, and those of products that stay float are left float.
        reduce_range: weights use 7 bits, for CPUs whose u8 x s8 products saturate in 16 bits.
        int4: form of block-wise weights of 4 bits: onnxruntime's `MatMulNBits` and `GatherBlockQuantized`, or standard
            `DequantizeLinear` with blocks (opset 21); `none`: the runtime has no kernels for them.
        int4_symmetric: 4-bit weights must have zero point 0.
        int4_whole_blocks: blocks must divide a weight's depth, and its last dimension must be even.
        whole: whether what stands between integer products is put on grids too: `prefer` when it costs little
            accuracy, `must` on a chip without floats.
        precisions: what it takes of `w8a8`, `w8a16` and `w4a16` with ranges from calibration.
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
    carry: tuple[str, ...] = ()
    float_outputs: tuple[str, ...] = ()
    dynamic_transformers: bool = False
    block_kernels: tuple[str, ...] = ()
    integer_gather: bool = False
    float_weights: tuple[str, ...] = ()
    stored_per_channel: bool = True
    reduce_range: bool = False
    int4: Literal["matmulnbits", "qdq", "none"] = "qdq"
    int4_symmetric: bool = False
    int4_whole_blocks: bool = False
    whole: Literal["no", "prefer", "must"] = "no"
    precisions: tuple[str, ...] = ("w8a8",)
    max_opset: int = 21
    max_ir: int = 10

    @property
    def weight_bits(self) -> int:
        """Return the bits that weights use: 4, 7 or 8."""
        return 4 if self.weight == "int4" else 7 if self.reduce_range else 8

    def at(self, precision: str) -> Dialect:
        """Return the dialect of another of its precisions (`w8a16`: 16-bit activations, `w4a16`: 4-bit weights too).

        Raises:
            UnsupportedError: the runtime has no kernels for it.
        """
        if precision not in self.precisions:
            raise UnsupportedError(
                f"the {self.name} dialect has no {precision}",
                where=f"precision {precision}",
                remedy=f"It has {', '.join(self.precisions)}.",
            )
        if precision == "w8a8":
            return self
        return replace(self, activation="uint16", weight="int4" if precision == "w4a16" else "int8")
