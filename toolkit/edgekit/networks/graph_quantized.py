"""ONNX operators of quantized graphs in torch: integers are carried as floats, rounding passes gradients straight.

Rounding is half to even and values saturate, as QuantizeLinear has it; a gradient is 0 where a value saturates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgekit.networks.graph_ops import Attributes, operator

if TYPE_CHECKING:
    import torch

FUSED_LEVEL = 4
"""Accuracy level of MatMulNBits at which onnxruntime rounds activations to 8 bits, block by block."""

_MOST = 127


def round_straight(x: torch.Tensor) -> torch.Tensor:
    """Round half to even; the gradient is that of the identity."""
    return x + (x.round() - x).detach()


@operator("QuantizeLinear")
def _quantize(x: list[Any], a: Attributes) -> Any:
    low, high = a["bounds"]
    scale, zero = (along(value, x[0], a.get("axis", 1), a.get("block_size", 0)) for value in (x[1], x[2]))
    return (round_straight(x[0] / scale) + zero).clamp(low, high)


@operator("DequantizeLinear")
def _dequantize(x: list[Any], a: Attributes) -> Any:
    scale = along(x[1], x[0], a.get("axis", 1), a.get("block_size", 0))
    if len(x) < 3 or x[2] is None:  # noqa: PLR2004 - integers, scale, zero point
        return x[0] * scale
    return (x[0] - along(x[2], x[0], a.get("axis", 1), a.get("block_size", 0))) * scale


def along(values: Any, x: torch.Tensor, axis: int, block: int) -> Any:
    """Lay scales or zero points along an axis of `x`: one for all, one an entry, or one a block of entries."""
    if values is None:
        return 0.0
    if values.dim() == 0 or values.numel() == 1:
        return values.reshape(())
    axis %= x.dim()
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.dim()
    shape[axis] = -1
    return values.reshape(shape)


@operator("DynamicQuantizeLinear")
def _dynamic(x: list[Any], _a: Attributes) -> Any:
    import torch

    low, high = x[0].detach().amin().clamp(max=0), x[0].detach().amax().clamp(min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = (-low / scale).round().clamp(0, 255)
    return (round_straight(x[0] / scale) + zero).clamp(0, 255), scale, zero


@operator("MatMulInteger")
def _matmul_integer(x: list[Any], _a: Attributes) -> Any:
    left = x[0] - x[2] if len(x) > 2 and x[2] is not None else x[0]  # noqa: PLR2004
    right = x[1] - x[3] if len(x) > 3 and x[3] is not None else x[1]  # noqa: PLR2004
    return left @ right


@operator("MatMulNBits")
def _matmul_blocks(x: list[Any], a: Attributes) -> Any:
    """Multiply with [rows, blocks, block] codes; see onnxruntime's contrib operators."""
    weight = block_values(x, a).flatten(1)[:, : a["K"]]
    data = in_blocks(x[0], a["block_size"]) if a.get("accuracy_level", 0) == FUSED_LEVEL else x[0]
    found = data @ weight.transpose(0, 1)
    return found if len(x) < 6 or x[5] is None else found + x[5]  # noqa: PLR2004 - the sixth is the bias


@operator("GatherBlockQuantized")
def _gather_blocks(x: list[Any], a: Attributes) -> Any:
    codes, places = x[0], x[1].long()
    rows = (places + (places < 0) * codes.shape[0]).reshape(-1)
    picked = [codes[rows], None, *(None if v is None else v.reshape(codes.shape[0], -1)[rows] for v in x[2:])]
    weight = block_values([None, *picked[:1], *picked[2:]], a)
    return weight.flatten(1).reshape(*places.shape, -1)


def block_values(x: list[Any], a: Attributes) -> Any:
    """Return the values [rows, blocks, block] of codes in x[1], scales in x[2] and zero points in x[3]."""
    codes = x[1]
    scales = x[2].reshape(codes.shape[0], codes.shape[1], 1)
    zero = 2.0 ** (a.get("bits", 4) - 1)
    if len(x) > 3 and x[3] is not None:  # noqa: PLR2004 - data, codes, scales, zero points
        zero = x[3].reshape(codes.shape[0], -1)[:, : codes.shape[1], None]  # a last byte may be filled up
    return (codes - zero) * scales


def in_blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    """Round activations to 8 bits with one scale a block of the last axis, symmetric, as the fused kernel does."""
    from torch.nn import functional

    width = x.shape[-1]
    padded = functional.pad(x, (0, -width % block))
    parts = padded.reshape(*padded.shape[:-1], -1, block)
    scale = parts.detach().abs().amax(-1, keepdim=True) / _MOST
    scale = scale + (scale == 0)
    found: torch.Tensor = (round_straight(parts / scale) * scale).flatten(-2)[..., :width]
    return found
