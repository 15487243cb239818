"""Filters of a Conv stored in blocks, and the nodes that make floats of them.

No kernel slides packed filters. These nodes read constants only and are standard ones, so that a runtime computes them
once, when it loads the model, and runs the Conv as it was: the file is small, the speed that of floats. (onnxruntime
leaves its own block operators and DequantizeLinear to run time.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.numerics.blockwise import BlockCodes, into_blocks
from edgekit.numerics.packing import pack_codes

if TYPE_CHECKING:
    import onnx

_BYTE = 8


@dataclass
class FilterNodes:
    """Collects the nodes that unpack filters.

    Attributes:
        constant: adds a constant: values and name.
        fresh: makes a name that nothing has yet.
        made: the nodes, in order.
    """

    constant: Callable[[npt.NDArray[Any], str], None]
    fresh: Callable[[str], str]
    made: list[onnx.NodeProto] = field(default_factory=list)

    def unpacked(self, codes: BlockCodes, shape: Sequence[int], base: str) -> str:
        """Return the tensor of a matrix `[N, K]` in the dimensions that the Conv reads, float32.

        Its values are those of `BlockCodes.dequantized`, bit by bit.
        """
        rows, depth = codes.codes.shape
        blocks = codes.scales.shape[1]
        held = codes.codes[:, None] if blocks == 1 else into_blocks(codes.codes, codes.format)
        packed = pack_codes(held, codes.format.bits)
        found = self._integers(packed, codes.format.bits, base)
        found = self._node("Cast", [found], base, to=1)
        zeros = codes.zero_points[:, :, None]
        if codes.format.symmetric:
            zero = self._held(np.float32(codes.format.middle), base + "_middle")
        else:
            zero = self._node("Cast", [self._held(zeros, base + "_zero_points")], base, to=1)
        found = self._node("Sub", [found, zero], base)
        scale = self._held(codes.scales[:, :, None], base + "_scales")
        if codes.scales.dtype != np.float32:
            scale = self._node("Cast", [scale], base, to=1)
        found = self._node("Mul", [found, scale], base)
        if blocks * packed.shape[-1] * _BYTE // codes.format.bits > depth:  # a last block or byte was filled up
            found = self._reshaped(found, [rows, -1], base)
            limits = [self._held(np.array([value], np.int64), base + "_cut") for value in (0, depth, 1)]
            found = self._node("Slice", [found, *limits], base)
        return self._reshaped(found, list(shape), base)

    def _integers(self, packed: npt.NDArray[np.uint8], bits: int, base: str) -> str:
        """Return packed codes `[N, blocks, bytes]` as one byte each, `[N, blocks, codes]`."""
        name = self._held(packed, f"{base}_{bits}bit")
        if bits == _BYTE:
            return name
        parts = []
        for place in range(_BYTE // bits):
            part = name
            for direction, count in (("LEFT", _BYTE - bits * (place + 1)), ("RIGHT", _BYTE - bits)):
                if count:
                    places = self._held(np.array(count, np.uint8), base + "_places")
                    part = self._node("BitShift", [part, places], base, direction=direction)
            last = self._held(np.array([-1], np.int64), base + "_last")
            parts.append(self._node("Unsqueeze", [part, last], base))
        return self._reshaped(self._node("Concat", parts, base, axis=-1), [*packed.shape[:2], -1], base)

    def _reshaped(self, name: str, shape: list[int], base: str) -> str:
        return self._node("Reshape", [name, self._held(np.array(shape, np.int64), base + "_shape")], base)

    def _held(self, values: npt.NDArray[Any] | np.generic, name: str) -> str:
        name = self.fresh(name)
        self.constant(np.asarray(values), name)
        return name

    def _node(self, op: str, inputs: list[str], base: str, **attributes: Any) -> str:
        from onnx import helper

        out = self.fresh(f"{base}_{op.lower()}")
        self.made.append(helper.make_node(op, inputs, [out], name=out, **attributes))
        return out
