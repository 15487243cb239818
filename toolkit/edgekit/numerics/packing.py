"""Codes of 2, 4 and 8 bits as bytes, in the layouts of the operators that read them.

Low bits come first: the first of two 4-bit codes lies in the low half of its byte (ONNX IR 10 and later for INT4 and
UINT4; onnxruntime's contrib operators for theirs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgekit.numerics.blockwise import BlockCodes, BlockFormat, Codes, Floats, into_blocks

PACKED_BITS = (2, 4, 8)
"""Widths that fill bytes evenly, the only ones that operators read."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class PackedBlocks:
    """A quantized matrix as `com.microsoft.MatMulNBits` reads it; `GatherBlockQuantized` reads the same bytes.

    Attributes:
        codes: `[N, blocks, block * bits / 8]`; a short last block is filled up with its zero point.
        scales: `[N, blocks]`.
        zero_points: `[N, ceil(blocks * bits / 8)]`, or None when all are the middle code, the operators' default.
    """

    codes: Bytes
    scales: Floats
    zero_points: Bytes | None


def pack_codes(codes: Codes, bits: int) -> Bytes:
    """Pack the last axis of `[..., K]` into `[..., ceil(K * bits / 8)]`; a last byte is filled up with zeros.

    Raises:
        ValueError: the codes do not fit, or `bits` is none of 2, 4, 8.
    """
    if bits not in PACKED_BITS:
        raise ValueError(f"{bits} bits do not fill bytes evenly: 2, 4 or 8")
    if codes.size and int(codes.max()) >= 2**bits:
        raise ValueError(f"code {int(codes.max())} does not fit in {bits} bits")
    per = 8 // bits
    room = -codes.shape[-1] % per
    if room:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, room)])
    packed = np.zeros((*codes.shape[:-1], codes.shape[-1] // per), np.uint8)
    for place in range(per):
        packed |= codes[..., place::per] << np.uint8(place * bits)
    return packed


def unpack_codes(packed: Bytes, bits: int, count: int) -> Codes:
    """Return the first `count` codes of the last axis: the inverse of `pack_codes`."""
    if bits not in PACKED_BITS:
        raise ValueError(f"{bits} bits do not fill bytes evenly: 2, 4 or 8")
    per = 8 // bits
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * per), np.uint8)
    for place in range(per):
        codes[..., place::per] = (packed >> np.uint8(place * bits)) & np.uint8(2**bits - 1)
    return codes[..., :count]


def pack_blocks(quantized: BlockCodes) -> PackedBlocks:
    """Pack a matrix for the block operators of onnxruntime; ValueError for 3, 5, 6 and 7 bits."""
    fmt = quantized.format
    codes = into_blocks(quantized.codes, fmt)
    filled = codes.shape[1] * fmt.block - quantized.codes.shape[1]
    if filled:
        codes = codes.copy()
        codes[:, -1, fmt.block - filled :] = quantized.zero_points[:, -1:]
    zeros = None if fmt.symmetric else pack_codes(quantized.zero_points, fmt.bits)
    return PackedBlocks(codes=pack_codes(codes, fmt.bits), scales=quantized.scales, zero_points=zeros)


def unpack_blocks(packed: PackedBlocks, fmt: BlockFormat, depth: int) -> BlockCodes:
    """Return the matrix that `pack_blocks` packed; `depth` is K."""
    rows, count = packed.scales.shape
    codes = unpack_codes(packed.codes, fmt.bits, fmt.block).reshape(rows, -1)[:, :depth]
    if packed.zero_points is None:
        zeros = np.full((rows, count), fmt.middle, np.uint8)
    else:
        zeros = unpack_codes(packed.zero_points, fmt.bits, count)
    return BlockCodes(format=fmt, codes=codes.copy(), scales=packed.scales, zero_points=zeros)


def signed(codes: Codes, bits: int) -> npt.NDArray[np.int8]:
    """Return codes as ONNX's signed types hold them: less `2**(bits - 1)`."""
    moved: npt.NDArray[np.int8] = (codes.astype(np.int16) - 2 ** (bits - 1)).astype(np.int8)
    return moved
