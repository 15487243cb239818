"""Small networks of the architectures that people deploy, seeded at realistic ranges of weights and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Feeds = list[dict[str, np.ndarray]]
Built = tuple[onnx.ModelProto, Feeds]
COUNT = 24


class Net:
    """A graph that grows node by node; every method returns the name of its output."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        name = f"{kind}_{len(self.nodes)}"
        made = [f"{name}_out{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=name, **attributes))
        return made[0] if outputs == 1 else made

    def constant(self, values: Any, name: str = "c") -> str:
        name = f"{name}_{len(self.constants)}"
        self.constants[name] = np.asarray(values)
        return name

    def weight(self, *shape: int, fan: int, gain: float = 2.0) -> str:
        return self.constant(self.rng.normal(size=shape).astype(np.float32) * np.float32(np.sqrt(gain / fan)), "w")

    def bias(self, size: int) -> str:
        return self.constant(self.rng.normal(size=size).astype(np.float32) * np.float32(0.1), "b")

    def conv(self, x: str, cin: int, cout: int, k: int = 3, *, stride: int = 1, group: int = 1, dims: int = 2) -> str:
        w = self.weight(cout, cin // group, *[k] * dims, fan=cin // group * k**dims)
        pads = [k // 2] * 2 * dims
        shape = {"strides": [stride] * dims, "kernel_shape": [k] * dims}
        return str(self.op("Conv", x, w, self.bias(cout), pads=pads, group=group, **shape))

    def linear(self, x: str, cin: int, cout: int, *, gain: float = 1.0) -> str:
        return str(self.op("Add", self.op("MatMul", x, self.weight(cin, cout, fan=cin, gain=gain)), self.bias(cout)))

    def gemm(self, x: str, cin: int, cout: int) -> str:
        return str(self.op("Gemm", x, self.weight(cout, cin, fan=cin, gain=1.0), self.bias(cout), transB=1))

    def norm(self, x: str, size: int) -> str:
        scale = 1 + self.rng.normal(size=size).astype(np.float32) * np.float32(0.2)
        return str(self.op("LayerNormalization", x, self.constant(scale), self.bias(size), axis=-1, epsilon=1e-5))

    def gelu(self, x: str) -> str:
        half, one = self.constant(np.float32(0.5)), self.constant(np.float32(1))
        erf = self.op("Erf", self.op("Div", x, self.constant(np.float32(np.sqrt(2)))))
        return str(self.op("Mul", self.op("Mul", x, self.op("Add", erf, one)), half))

    def head(self, x: str, cin: int, classes: int = 10) -> str:
        return self.gemm(self.op("Flatten", self.op("GlobalAveragePool", x)), cin, classes)

    def attention(self, x: str, tokens: int, width: int, heads: int, mask: str = "") -> str:
        each = width // heads
        split = self.constant(np.array([1, tokens, heads, each]))
        q, k, v = (self.op("Reshape", self.linear(x, width, width), split) for _ in range(3))
        q, v = (self.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 2, 3, 1]))
        scores = self.op("Mul", scores, self.constant(np.float32(1 / np.sqrt(each))))
        scores = self.op("Add", scores, mask) if mask else scores
        joined = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        joined = self.op("Transpose", joined, perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", joined, self.constant(np.array([1, tokens, width]))), width, width)

    def block(self, x: str, tokens: int, width: int, heads: int, mask: str = "") -> str:
        x = self.op("Add", x, self.attention(self.norm(x, width), tokens, width, heads, mask))
        return str(
            self.op(
                "Add", x, self.linear(self.gelu(self.linear(self.norm(x, width), width, 4 * width)), 4 * width, width)
            )
        )

    def model(
        self, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]], **types: int
    ) -> onnx.ModelProto:
        """Return the graph; `outputs` maps tensors to shapes."""
        make = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "g",
            [make(name, types.get(name, TensorProto.FLOAT), shape) for name, shape in inputs.items()],
            [make(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            [numpy_helper.from_array(values, name) for name, values in self.constants.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made, full_check=True)
        return made


def pictures(*shape: int, count: int = COUNT, seed: int = 7) -> Feeds:
    """Smooth random pictures of unit deviation, as they come out of a normalization."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        x = rng.normal(size=shape).astype(np.float32)
        x = x + 2 * rng.normal(size=(*shape[:2], *[1] * (len(shape) - 2))).astype(np.float32)
        found.append({"x": (x / x.std()).astype(np.float32)})
    return found


def plain_cnn() -> Built:
    net, x, c = Net(1), "x", 3
    for width, stride in ((16, 1), (32, 2), (32, 1), (64, 2)):
        x, c = net.op("Relu", net.conv(x, c, width, stride=stride)), width
    return net.model({"x": (1, 3, 32, 32)}, {net.head(x, c): (1, 10)}), pictures(1, 3, 32, 32)


def depthwise_cnn() -> Built:
    net = Net(2)
    low, high = net.constant(np.float32(0)), net.constant(np.float32(6))
    x, c = net.op("Clip", net.conv("x", 3, 16, stride=2), low, high), 16
    for width, stride in ((16, 1), (24, 2), (24, 1), (32, 2)):
        h = net.op("Clip", net.conv(x, c, 4 * c, 1), low, high)
        h = net.op("Clip", net.conv(h, 4 * c, 4 * c, 3, stride=stride, group=4 * c), low, high)
        h = net.conv(h, 4 * c, width, 1)
        x, c = (net.op("Add", x, h) if stride == 1 and c == width else h), width
    return net.model({"x": (1, 3, 32, 32)}, {net.head(x, c): (1, 10)}), pictures(1, 3, 32, 32)


def residual_cnn() -> Built:
    net = Net(3)
    x, c = net.op("MaxPool", net.op("Relu", net.conv("x", 3, 16, 5, stride=1)), kernel_shape=[2, 2], strides=[2, 2]), 16
    for width, stride in ((16, 1), (32, 2), (32, 1)):
        h = net.conv(net.op("Relu", net.conv(x, c, width, stride=stride)), width, width)
        skip = x if stride == 1 and c == width else net.conv(x, c, width, 1, stride=stride)
        x, c = net.op("Relu", net.op("Add", h, skip)), width
    return net.model({"x": (1, 3, 32, 32)}, {net.head(x, c): (1, 10)}), pictures(1, 3, 32, 32)


def squeeze_excite() -> Built:
    """MobileNetV3's block: hard swish written as people's exporters do, in both orders, and a squeeze-excite gate."""
    net = Net(4)

    def hswish(t: str) -> str:
        return str(net.op("Mul", t, net.op("HardSigmoid", t, alpha=1 / 6, beta=0.5)))

    x, c = hswish(net.conv("x", 3, 16, stride=2)), 16
    for width, stride in ((16, 1), (24, 2)):
        h = hswish(net.conv(x, c, 4 * c, 1))
        h = hswish(net.conv(h, 4 * c, 4 * c, 5, stride=stride, group=4 * c))
        gate = net.op("Relu", net.conv(net.op("GlobalAveragePool", h), 4 * c, c, 1))
        gate = net.op("HardSigmoid", net.conv(gate, c, 4 * c, 1), alpha=1 / 6, beta=0.5)
        h = net.conv(net.op("Mul", gate, h), 4 * c, width, 1)
        x, c = (net.op("Add", x, h) if stride == 1 and c == width else h), width
    return net.model({"x": (1, 3, 32, 32)}, {net.head(x, c): (1, 10)}), pictures(1, 3, 32, 32)


def vision_transformer() -> Built:
    net, width, tokens = Net(5), 48, 16
    w = net.weight(width, 3, 8, 8, fan=192, gain=1.0)
    x = net.op("Conv", "x", w, net.bias(width), kernel_shape=[8, 8], strides=[8, 8])
    x = net.op("Transpose", net.op("Reshape", x, net.constant(np.array([1, width, tokens]))), perm=[0, 2, 1])
    x = net.op("Add", x, net.constant(net.rng.normal(size=(1, tokens, width)).astype(np.float32) * np.float32(0.2)))
    for _ in range(2):
        x = net.block(x, tokens, width, 4)
    x = net.op("ReduceMean", net.norm(x, width), axes=[1], keepdims=0)
    return net.model({"x": (1, 3, 32, 32)}, {net.gemm(x, width, 10): (1, 10)}), pictures(1, 3, 32, 32)


def language_encoder() -> Built:
    """BERT's way: a table of words and one of places, a mask of -10000 where there is padding, pooled over words."""
    net, width, tokens, words = Net(6), 48, 16, 200
    table = net.constant(net.rng.normal(size=(words, width)).astype(np.float32) * np.float32(0.6), "table")
    places = net.constant(net.rng.normal(size=(1, tokens, width)).astype(np.float32) * np.float32(0.3))
    x = net.norm(net.op("Add", net.op("Gather", table, "ids"), places), width)
    keep = net.op("Cast", "mask", to=TensorProto.FLOAT)
    wide = net.op("Unsqueeze", keep, net.constant(np.array([1, 2])))
    bias = net.op("Mul", net.op("Sub", net.constant(np.float32(1)), wide), net.constant(np.float32(-10000)))
    for _ in range(2):
        x = net.norm(net.op("Add", x, net.attention(x, tokens, width, 4, bias)), width)
        h = net.linear(net.gelu(net.linear(x, width, 4 * width)), 4 * width, width)
        x = net.norm(net.op("Add", x, h), width)
    kept = net.op("Mul", x, net.op("Unsqueeze", keep, net.constant(np.array([2]))))
    pooled = net.op("ReduceSum", kept, net.constant(np.array([1])), keepdims=0)
    pooled = net.op("Div", pooled, net.op("ReduceSum", keep, net.constant(np.array([1])), keepdims=1))
    rng, feeds = np.random.default_rng(0), []
    for _ in range(COUNT):
        length = int(rng.integers(4, tokens + 1))
        feeds.append(
            {"ids": rng.integers(0, words, (1, tokens)), "mask": (np.arange(tokens) < length).astype(np.int64)[None]}
        )
    kinds = {"ids": TensorProto.INT64, "mask": TensorProto.INT64}
    model = net.model({"ids": (1, tokens), "mask": (1, tokens)}, {net.gemm(pooled, width, 4): (1, 4)}, **kinds)
    return model, feeds


def recurrent(kind: str) -> Built:
    gates, hidden, steps, width = {"LSTM": 4, "GRU": 3}[kind], 24, 12, 16
    net = Net(7)
    w, r = (
        net.weight(1, gates * hidden, width, fan=width, gain=1.0),
        net.weight(1, gates * hidden, hidden, fan=hidden, gain=1.0),
    )
    bias = net.constant(net.rng.normal(size=(1, 2 * gates * hidden)).astype(np.float32) * np.float32(0.1))
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    x = net.op("Transpose", "x", perm=[1, 0, 2])
    y = net.op(kind, x, w, r, bias, outputs=2, hidden_size=hidden, **more)
    last = net.op("Squeeze", y[1], net.constant(np.array([0])))
    model = net.model({"x": (1, steps, width)}, {net.gemm(last, hidden, 5): (1, 5)})
    return model, pictures(1, steps, width)


def lstm() -> Built:
    return recurrent("LSTM")


def gru() -> Built:
    return recurrent("GRU")


def detector() -> Built:
    """A YOLO in small: SiLU, pyramid pooling, upsampling and concatenation, boxes and scores as two outputs."""
    net = Net(8)

    def silu(t: str) -> str:
        return str(net.op("Mul", t, net.op("Sigmoid", t)))

    a = silu(net.conv("x", 3, 16, stride=2))
    b = silu(net.conv(a, 16, 32, stride=2))
    parts = [b]
    for _ in range(2):
        parts.append(net.op("MaxPool", parts[-1], kernel_shape=[5, 5], pads=[2, 2, 2, 2], strides=[1, 1]))
    b = silu(net.conv(net.op("Concat", *parts, axis=1), 96, 32, 1))
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    up = net.op(
        "Resize", b, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    joined = silu(net.conv(net.op("Concat", up, a, axis=1), 48, 24))
    flat = net.constant(np.array([1, -1, 256]))
    boxes = net.op("Transpose", net.op("Reshape", net.conv(joined, 24, 4, 1), flat), perm=[0, 2, 1])
    scores = net.op("Sigmoid", net.op("Transpose", net.op("Reshape", net.conv(joined, 24, 6, 1), flat), perm=[0, 2, 1]))
    return net.model({"x": (1, 3, 32, 32)}, {boxes: (1, 256, 4), scores: (1, 256, 6)}), pictures(1, 3, 32, 32)


def segmenter() -> Built:
    """A U-Net in small: transposed convolutions up, skips concatenated."""
    net = Net(9)
    a = net.op("Relu", net.conv("x", 3, 16))
    b = net.op("Relu", net.conv(net.op("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2]), 16, 32))
    w = net.weight(32, 16, 2, 2, fan=32)
    up = net.op("ConvTranspose", b, w, net.bias(16), kernel_shape=[2, 2], strides=[2, 2])
    joined = net.op("Relu", net.conv(net.op("Concat", up, a, axis=1), 32, 16))
    return net.model({"x": (1, 3, 32, 32)}, {net.conv(joined, 16, 3, 1): (1, 3, 32, 32)}), pictures(1, 3, 32, 32)


def sound_cnn() -> Built:
    net, x, c = Net(10), "x", 1
    for width, k in ((16, 9), (32, 5), (32, 3)):
        x, c = net.op("Relu", net.conv(x, c, width, k, stride=2, dims=1)), width
    return net.model({"x": (1, 1, 256)}, {net.head(x, c): (1, 10)}), pictures(1, 1, 256)


def perceptron() -> Built:
    net, x, c = Net(11), "x", 40
    for width in (64, 64, 32):
        x, c = net.op("Relu", net.gemm(x, c, width)), width
    return net.model({"x": (1, 40)}, {net.gemm(x, c, 3): (1, 3)}), pictures(1, 40)


def modern_cnn() -> Built:
    """ConvNeXt's block: a wide depthwise convolution, LayerNorm over channels, a GELU between two linear layers."""
    net, c = Net(12), 24
    w = net.weight(c, 3, 4, 4, fan=48)
    x = net.op("Conv", "x", w, net.bias(c), kernel_shape=[4, 4], strides=[4, 4])
    for _ in range(2):
        h = net.op("Transpose", net.conv(x, c, c, 7, group=c), perm=[0, 2, 3, 1])
        h = net.linear(net.gelu(net.linear(net.norm(h, c), c, 4 * c)), 4 * c, c)
        x = net.op("Add", x, net.op("Transpose", h, perm=[0, 3, 1, 2]))
    return net.model({"x": (1, 3, 32, 32)}, {net.head(x, c): (1, 10)}), pictures(1, 3, 32, 32)


ARCHITECTURES: dict[str, Callable[[], Built]] = {
    build.__name__: build
    for build in (
        *(plain_cnn, depthwise_cnn, residual_cnn, squeeze_excite, vision_transformer, language_encoder, lstm, gru),
        *(detector, segmenter, sound_cnn, perceptron, modern_cnn),
    )
}
