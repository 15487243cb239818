"""What products read instead of their inputs: divided by factors, or as two parts of 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.edit import GraphIndex, is_standard

if TYPE_CHECKING:
    import onnx

_AXES_AS_INPUT = 18
_FLOAT = 1  # TensorProto.FLOAT
_MOST = 127.0
_LEAST = 1e-30  # of a block of zeros


class ProductInputs:
    """Writes the nodes before products; readers of the same input share them."""

    def __init__(self, index: GraphIndex, opset: int, constant: Callable[[npt.NDArray[Any], str, int], None]) -> None:
        """Prepare.

        Args:
            index: the main graph as it was.
            opset: its version of the standard domain, 13 or more.
            constant: adds a constant: values, name, number of the graph.
        """
        self._index, self._opset, self._constant = index, opset, constant
        self._divided: dict[str, str] = {}
        self._halves: dict[tuple[str, int, str], str] = {}
        self._numbers: dict[str, str] = {}

    def divided(self, name: str, factors: npt.NDArray[Any]) -> tuple[str, list[onnx.NodeProto]]:
        """Return the name of a tensor divided by factors `[K]`, and the nodes that make it when they are new.

        Their inverses are stored in float16, which holds them (see `ChannelScales`). Where the tensor itself is
        multiplied by a constant, as after a normalization, one product serves both.
        """
        if name in self._divided:
            return self._divided[name], []
        out = self._divided[name] = self._index.fresh_name(name + "_divided")
        inverse = (1 / factors).astype(np.float32)
        read, gain = self._gain(name, inverse)
        constant = self._index.fresh_name(name + "_factors")
        if gain is not None:
            self._constant((inverse * gain).astype(np.float32), constant, 0)
            return out, [_node("Mul", [read, constant], out)]
        half = self._index.fresh_name(constant + "_half")
        self._constant(inverse.astype(np.float16), half, 0)
        return out, [_node("Cast", [half], constant, to=_FLOAT), _node("Mul", [read, constant], out)]

    def _gain(self, name: str, inverse: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any] | None]:
        maker = self._index.producers.get(name)
        if maker is None or not is_standard(maker, "Mul"):
            return name, None
        for read, held in (tuple(maker.input), tuple(maker.input)[::-1]):
            found = self._index.value(held)
            if found is not None and found.shape == inverse.shape and self._index.constant(read) is None:
                return read, found
        return name, None

    def halves(self, name: str, block: int, *, own: str) -> tuple[str, list[onnx.NodeProto]]:
        """Return a tensor `[2, ..., K]` whose two parts add up to a tensor `[..., K]`, and the nodes that make it.

        The first part lies on the grid that a product on 8-bit activations rounds to (127 steps to the largest
        magnitude of a block), so that it is left as it is; the second is what is missing, and is rounded to a grid of
        its own that is about 254 times finer.

        Args:
            name: the tensor.
            block: values along K that the product rounds together; divides K.
            own: the node that the nodes are for, where they stand in an inner graph; empty: all readers share them.
        """
        key = (name, block, own)
        if key in self._halves:
            return self._halves[key], []
        made: list[onnx.NodeProto] = []

        def add(op: str, inputs: list[str], part: str, **attributes: Any) -> str:
            out = self._index.fresh_name(f"{name}_{part}")
            made.append(_node(op, inputs, out, **attributes))
            return out

        number = self._number
        blocks = add("Reshape", [name, number(f"blocks_of_{block}", [-1, block], np.int64)], "blocks")
        last = number("last_axis", [-1], np.int64)
        largest = add("Abs", [blocks], "abs")
        if self._opset >= _AXES_AS_INPUT:
            largest = add("ReduceMax", [largest, last], "peak", keepdims=1)
        else:
            largest = add("ReduceMax", [largest], "peak", axes=[-1], keepdims=1)
        step = add("Mul", [largest, number("step_of_peak", [1 / _MOST], np.float32)], "step")
        step = add("Max", [step, number("least_step", [_LEAST], np.float32)], "steps")
        counts = add("Round", [add("Div", [blocks, step], "ratio")], "counts")
        coarse = add("Reshape", [add("Mul", [counts, step], "grid"), add("Shape", [name], "shape")], "coarse")
        fine = add("Sub", [name, coarse], "fine")
        first = number("first_axis", [0], np.int64)
        parts = [add("Unsqueeze", [part, first], word) for part, word in ((coarse, "first"), (fine, "second"))]
        self._halves[key] = add("Concat", parts, "halves", axis=0)
        return self._halves[key], made

    def added(self, halves: str, out: str) -> onnx.NodeProto:
        """Return the node that adds what a product made of two parts."""
        return _node("ReduceSum", [halves, self._number("first_axis", [0], np.int64)], out, keepdims=0)

    def _number(self, what: str, values: list[Any], kind: Any) -> str:
        if what not in self._numbers:
            self._numbers[what] = self._index.fresh_name(what)
            self._constant(np.array(values, kind), self._numbers[what], 0)
        return self._numbers[what]


def _node(op: str, inputs: list[str], out: str, **attributes: Any) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node(op, inputs, [out], name=out, **attributes)
