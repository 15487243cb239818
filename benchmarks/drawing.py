"""A pencil for ONNX graphs: layers by their shapes; weights are seeded noise, or shapes only.

Without a seed every weight reads the same zeros of one sparse file beside the model: what a network costs follows from
shapes, and a BERT-large would be 1.3 GB of random numbers that nothing looks at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ZEROS = "zeros.bin"
OPSET = 17


class Pencil:
    """Draws one graph; a tensor is its name, its shape stands in `shapes`."""

    def __init__(self, seed: int | None = None) -> None:
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.largest = 0
        self.again: int | None = None

    def input(self, name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> str:
        """Declare an input."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        self.shapes[name] = shape
        return name

    def node(self, op: str, inputs: Sequence[str], shape: Sequence[int], **attributes: object) -> str:
        """Draw a node with one output of a known shape."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        self.shapes[name] = tuple(shape)
        return name

    def weight(self, *shape: int) -> str:
        """Declare a weight: scaled noise, or what reads the file of zeros."""
        if self.again is not None:
            self.again += 1
            return str(self.weights[self.again - 1].name)
        if self.rng is not None:
            scale = math.sqrt(2 / max(math.prod(shape[1:]) if len(shape) > 2 else shape[0], 1))
            return self.constant(self.rng.standard_normal(shape, np.float32) * np.float32(scale), np.float32)
        tensor = TensorProto(name=f"w{len(self.weights)}", data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        size = 4 * math.prod(shape)
        for key, value in (("location", ZEROS), ("offset", "0"), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)
        self.weights.append(tensor)
        self.largest = max(self.largest, size)
        return str(tensor.name)

    def reuse(self, first: int | None) -> None:
        """From now on take weights that are there, from number `first` on: layers that share them. None: new ones."""
        self.again = first

    def constant(self, values: object, dtype: type = np.int64) -> str:
        """Store a small constant with its values."""
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def conv(self, x: str, width: int, kernel: int = 1, stride: int = 1, *, groups: int = 1, act: str = "") -> str:
        """Draw a convolution with its bias (a batch norm folded) and activation: `silu`, `relu`, `relu6` or none."""
        batch, channels, height, across = self.shapes[x]
        pad = kernel // 2
        size = [(side + 2 * pad - kernel) // stride + 1 for side in (height, across)]
        made = self.node(
            "Conv",
            [x, self.weight(width, channels // groups, kernel, kernel), self.weight(width)],
            [batch, width, *size],
            pads=[pad] * 4,
            strides=[stride] * 2,
            group=groups,
        )
        if act == "silu":
            return self.same("Mul", made, self.same("Sigmoid", made))
        if act == "relu6":
            return self.same("Clip", made, self.constant(0, np.float32), self.constant(6, np.float32))
        return self.same("Relu", made) if act == "relu" else made

    def same(self, op: str, *inputs: str, **attributes: object) -> str:
        """Draw a node whose result has the shape of its first input."""
        return self.node(op, inputs, self.shapes[inputs[0]], **attributes)

    def pool(self, x: str, kernel: int, stride: int, pad: int) -> str:
        """Draw a MaxPool."""
        batch, channels, *sides = self.shapes[x]
        size = [(side + 2 * pad - kernel) // stride + 1 for side in sides]
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        return self.node("MaxPool", [x], [batch, channels, *size], **attributes)

    def concat(self, parts: Sequence[str], axis: int = 1) -> str:
        """Draw a Concat."""
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)
        return self.node("Concat", parts, shape, axis=axis)

    def halves(self, x: str) -> tuple[str, str]:
        """Split the channels in two."""
        batch, channels, *rest = self.shapes[x]
        one, two = f"split_{len(self.nodes)}_0", f"split_{len(self.nodes)}_1"
        sizes = self.constant([channels // 2] * 2)
        self.nodes.append(helper.make_node("Split", [x, sizes], [one, two], name=f"split_{len(self.nodes)}", axis=1))
        self.shapes[one] = self.shapes[two] = (batch, channels // 2, *rest)
        return one, two

    def double(self, x: str) -> str:
        """Draw nearest-neighbor upsampling by two."""
        batch, channels, height, across = self.shapes[x]
        scales = self.constant([1, 1, 2, 2], np.float32)
        return self.node("Resize", [x, "", scales], [batch, channels, 2 * height, 2 * across], mode="nearest")

    def reshape(self, x: str, *shape: int) -> str:
        """Draw a Reshape."""
        return self.node("Reshape", [x, self.constant(shape)], shape)

    def transpose(self, x: str, *order: int) -> str:
        """Draw a Transpose."""
        return self.node("Transpose", [x], [self.shapes[x][axis] for axis in order], perm=order)

    def matmul(self, a: str, b: str) -> str:
        """Draw a product of two activations."""
        return self.node("MatMul", [a, b], [*self.shapes[a][:-1], self.shapes[b][-1]])

    def linear(self, x: str, width: int) -> str:
        """Draw a product with a weight, and its bias."""
        weight = self.weight(self.shapes[x][-1], width)
        made = self.node("MatMul", [x, weight], [*self.shapes[x][:-1], width])
        return self.same("Add", made, self.weight(width))

    def save(self, folder: Path, outputs: Sequence[str]) -> Path:
        """Write `model.onnx` and its file of zeros."""
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in outputs]
        graph = helper.make_graph(self.nodes, "drawn", self.inputs, made, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        with (folder / ZEROS).open("wb") as file:
            file.truncate(self.largest)
        onnx.save(model, folder / "model.onnx")
        return folder / "model.onnx"
