"""Small graphs of the kinds that quantizers and casters are known to get wrong, with samples. Named after the cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from edgekit.graphs.edit import name_nodes

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Kind = tuple[onnx.ModelProto, list[dict[str, Any]]]


def value(name: str, shape: list[Any], dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    name = attributes.pop("name", outputs[0] + "_node")
    return helper.make_node(op, inputs, outputs, name=name, **attributes)


def build(nodes, inputs, outputs, constants, *, opset: int = 17, ir: int = 8, extra=()) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in extra)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def draws(count: int, **shapes: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
    return [{name: normal(1000 + i, *shape) for name, shape in shapes.items()} for i in range(count)]


def run(model: onnx.ModelProto, feed: dict[str, Any]) -> list[np.ndarray]:
    """Run a model on the CPU as it would be run on a device; what the model does not take is left out."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    name_nodes(copy)  # onnxruntime refuses two nodes of one name
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {item.name for item in session.get_inputs()}
    return session.run(None, {name: array for name, array in feed.items() if name in wanted})


def worst_db(before: onnx.ModelProto, after: onnx.ModelProto, feeds: list[dict[str, Any]]) -> float:
    """The lowest signal-to-noise ratio of an output on a sample, in dB; everything must be finite."""
    ratios = []
    for feed in feeds:
        for expected, found in zip(run(before, feed), run(after, feed), strict=True):
            assert np.isfinite(found).all()
            noise = np.square(expected.astype(np.float64) - found).sum()
            signal = np.square(expected.astype(np.float64)).sum()
            ratios.append(np.inf if noise == 0 else 10 * np.log10(signal / noise))
    return min(ratios)


def shared_weight() -> Kind:
    nodes = [
        node("Gather", ["E", "ids"], ["x"], axis=0),
        node("Transpose", ["E"], ["Et"], perm=[1, 0]),
        node("MatMul", ["x", "Et"], ["y"]),
    ]
    feeds = [{"ids": np.random.default_rng(i).integers(0, 128, (1, 8))} for i in range(8)]
    constants = {"E": normal(1, 128, 48) / 10}
    return build(nodes, [value("ids", ["b", "s"], INT64)], [value("y", ["b", "s", 128])], constants), feeds


def tiny_weights_large_bias() -> Kind:
    constants = {"W": np.array([1e-7, 2e-7], np.float32).reshape(2, 1, 1, 1), "b": np.array([5, -4.5], np.float32)}
    model = build(
        [node("Conv", ["x", "W", "b"], ["y"])], [value("x", [1, 1, 4, 4])], [value("y", [1, 2, 4, 4])], constants
    )
    return model, draws(4, x=(1, 1, 4, 4))


def zero_channel() -> Kind:
    weight = normal(4, 4, 4, 3, 3) / 5
    weight[1] = 0
    constants = {"W": weight, "b": np.array([0.1, 0.37, -0.2, 0.4], np.float32)}
    conv = node("Conv", ["x", "W", "b"], ["y"], pads=[1, 1, 1, 1], name="c")
    model = build([conv], [value("x", [1, 4, 6, 6])], [value("y", [1, 4, 6, 6])], constants)
    return model, [{"x": feed["x"] * 60} for feed in draws(8, x=(1, 4, 6, 6))]


def zero_channel_inside() -> Kind:
    """The dead channel feeds a second convolution, so that only the quantized bias can save it."""
    weight = normal(4, 4, 4, 3, 3) / 5
    weight[1] = 0
    constants = {"W": weight, "b": np.array([0, 90, 0, 0], np.float32), "V": np.ones((2, 4, 1, 1), np.float32)}
    nodes = [node("Conv", ["x", "W", "b"], ["c"], pads=[1, 1, 1, 1]), node("Conv", ["c", "V"], ["y"])]
    model = build(nodes, [value("x", [1, 4, 6, 6])], [value("y", [1, 2, 6, 6])], constants)
    return model, [{"x": feed["x"] * 60} for feed in draws(8, x=(1, 4, 6, 6))]


def conv_transpose(group: int) -> Kind:
    constants = {"W": normal(5, 4, 3, 3, 3), "b": normal(6, 3 * group)}
    model = build(
        [node("ConvTranspose", ["x", "W", "b"], ["y"], group=group, name="ct")],
        [value("x", [1, 4, 5, 5])],
        [value("y", [1, 3 * group, 7, 7])],
        constants,
    )
    return model, draws(8, x=(1, 4, 5, 5))


def dead_relu() -> Kind:
    constants = {"W": -np.abs(normal(9, 4, 4)), "W2": normal(10, 4, 4)}
    nodes = [
        node("MatMul", ["x", "W"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("MatMul", ["r", "W2"], ["y"]),
    ]
    feeds = [{"x": np.random.default_rng(i).uniform(0.1, 1, (1, 4)).astype(np.float32)} for i in range(8)]
    return build(nodes, [value("x", ["b", 4])], [value("y", ["b", 4])], constants), feeds


def dead_relu_conv() -> Kind:
    """One convolution is dead in calibration; the skip around it is not."""
    constants = {"W": -np.abs(normal(9, 4, 4, 1, 1)), "W2": normal(10, 4, 4, 1, 1), "W3": normal(11, 4, 4, 1, 1)}
    nodes = [
        node("Conv", ["x", "W"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("Conv", ["r", "W2"], ["b"]),
        node("Conv", ["x", "W3"], ["c"]),
        node("Add", ["b", "c"], ["y"]),
    ]
    feeds = [{"x": np.random.default_rng(i).uniform(0.1, 1, (1, 4, 5, 5)).astype(np.float32)} for i in range(8)]
    return build(nodes, [value("x", [1, 4, 5, 5])], [value("y", [1, 4, 5, 5])], constants), feeds


def masked_attention(mask: float = float(np.finfo(np.float32).min), *, whole_row: bool = False) -> Kind:
    size, width = 8, 16
    constants = {
        "neg": np.float32(mask),
        "one": np.float32(1),
        "sc": np.float32(0.25),
    }
    nodes = [
        node("MatMul", ["q", "kT"], ["s0"]),
        node("Mul", ["s0", "sc"], ["s1"]),
        node("Sub", ["one", "mask"], ["im"]),
        node("Mul", ["im", "neg"], ["am"], name="mneg"),
        node("Add", ["s1", "am"], ["s2"], name="addmask"),
        node("Softmax", ["s2"], ["p"], axis=-1, name="sm"),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    shapes = {"q": [1, size, width], "kT": [1, width, size], "v": [1, size, width], "mask": [1, size, size]}
    model = build(nodes, [value(n, s) for n, s in shapes.items()], [value("y", [1, size, width])], constants)
    feeds = draws(8, q=(1, size, width), kT=(1, width, size), v=(1, size, width))
    for i, feed in enumerate(feeds):
        feed["mask"] = np.ones((1, size, size), np.float32)
        feed["mask"][..., 3 + i % 6 :] = 0
        if whole_row:
            feed["mask"][0, 2] = 0
    return model, feeds


def lengths_that_differ() -> Kind:
    """Attention over sequences of several lengths, on weights that 8 bits do not suit: products must be ranked."""
    spread = normal(2, 16, 16) * np.exp(normal(3, 16, 16) * 2)
    nodes = [
        node("MatMul", ["x", "Q"], ["q"]),
        node("Transpose", ["q"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "q"], ["o"]),
        node("MatMul", ["o", "Q"], ["y"]),
    ]
    model = build(nodes, [value("x", ["b", "s", 16])], [value("y", ["b", "s", 16])], {"Q": spread.astype(np.float32)})
    return model, [{"x": normal(i, 1, 5 + 3 * (i % 3), 16) * 3} for i in range(9)]


def old_opset() -> Kind:
    weight = normal(12, 8, 3, 3, 3) * 10.0 ** np.random.default_rng(0).uniform(-2, 0, (8, 1, 1, 1)).astype(np.float32)
    constants = {"W": weight.astype(np.float32), "b": normal(13, 8)}
    nodes = [node("Conv", ["x", "W", "b"], ["c"]), node("Relu", ["c"], ["y"])]
    model = build(nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 8, 6, 6])], constants, opset=11, ir=6)
    return model, draws(8, x=(1, 3, 8, 8))


def upsample(factor: float = 2.0) -> Kind:
    size = int(6 * factor)
    constants = {"W": normal(14, 4, 3, 3, 3), "sc": np.array([1, 1, factor, factor], np.float32)}
    nodes = [node("Conv", ["x", "W"], ["c"]), node("Upsample", ["c", "sc"], ["y"], mode="nearest")]
    model = build(nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 4, size, size])], constants, opset=9, ir=4)
    return model, draws(4, x=(1, 3, 8, 8))


def boxes_and_scores(*, deeper: bool = False) -> Kind:
    """A detector's tail. `deeper`: a convolution follows the Concat, so that it lies inside the quantized part."""
    constants = {
        "Wb": normal(15, 4, 8, 1, 1) * 40,
        "bb": np.full(4, 320, np.float32),
        "Ws": normal(16, 3, 8, 1, 1),
        "bs": np.full(3, -1, np.float32),
        "I": np.eye(7, dtype=np.float32).reshape(7, 7, 1, 1),
    }
    nodes = [
        node("Conv", ["x", "Wb", "bb"], ["box"], name="cb"),
        node("Conv", ["x", "Ws", "bs"], ["sl"], name="cs"),
        node("Sigmoid", ["sl"], ["sc"], name="sig"),
        node("Concat", ["box", "sc"], ["cat" if deeper else "y"], axis=1, name="cat"),
    ]
    nodes += [node("Conv", ["cat", "I"], ["y"], name="mix")] if deeper else []
    return build(nodes, [value("x", [1, 8, 6, 6])], [value("y", [1, 7, 6, 6])], constants), draws(8, x=(1, 8, 6, 6))


def weight_behind_cast() -> Kind:
    constants = {
        name: normal(17, *shape).astype(np.float16) for name, shape in {"W": (4, 3, 3, 3), "M": (6, 5)}.items()
    }
    nodes = [
        node("Cast", ["W"], ["Wf"], to=FLOAT),
        node("Conv", ["x", "Wf"], ["c"]),
        node("Cast", ["M"], ["Mf"], to=FLOAT),
        node("MatMul", ["c", "Mf"], ["y"]),
    ]
    return build(nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 4, 6, 5])], constants), draws(4, x=(1, 3, 8, 8))


def weight_in_branch() -> Kind:
    branches = {}
    for number, key in enumerate(("then_branch", "else_branch")):
        weight = numpy_helper.from_array(normal(22 + number, 64, 64), f"W{number}")
        product = node("MatMul", ["x", f"W{number}"], [f"t{number}"], name=f"in_{key}")
        branches[key] = helper.make_graph([product], key, [], [value(f"t{number}", ["b", 64])], [weight])
    model = build(
        [node("If", ["c"], ["y"], name="iff", **branches)],
        [value("c", [], TensorProto.BOOL), value("x", ["b", 64])],
        [value("y", ["b", 64])],
        {},
    )
    return model, [{"c": np.array(i % 2 == 0), "x": normal(i, 2, 64)} for i in range(4)]


def weights_outside_loop() -> Kind:
    """A Loop that alone reads one weight of the main graph, and two branches that both read another."""
    body = helper.make_graph(
        [
            node("MatMul", ["c", "Wl"], ["m"], name="in_loop"),
            node("Tanh", ["m"], ["next"]),
            node("Identity", ["go"], ["going"]),
        ],
        "body",
        [value("i", [], INT64), value("go", [], TensorProto.BOOL), value("c", ["b", 64])],
        [value("going", [], TensorProto.BOOL), value("next", ["b", 64])],
    )
    branches = {}
    for key, sign in (("then_branch", "Relu"), ("else_branch", "Neg")):
        product = [node("MatMul", ["l", "Ws"], [key], name=f"in_{key}"), node(sign, [key], [f"of_{key}"])]
        branches[key] = helper.make_graph(product, key, [], [value(f"of_{key}", ["b", 64])])
    nodes = [
        node("Loop", ["times", "", "x"], ["l"], name="loop", body=body),
        node("If", ["flag"], ["y"], name="iff", **branches),
    ]
    constants = {"Wl": normal(22, 64, 64) / 10, "Ws": normal(23, 64, 64) / 10, "times": np.array(3)}
    inputs = [value("flag", [], TensorProto.BOOL), value("x", ["b", 64])]
    feeds = [{"flag": np.array(i % 2 == 0), "x": normal(i, 2, 64)} for i in range(6)]
    return build(nodes, inputs, [value("y", ["b", 64])], constants), feeds


def stacked_matrices() -> Kind:
    nodes = [
        node("Unsqueeze", ["x", "axes"], ["u"]),
        node("MatMul", ["u", "W"], ["m"]),
        node("Relu", ["m"], ["r"]),
        node("MatMul", ["r", "v"], ["y"]),
    ]
    constants = {"axes": np.array([1]), "W": normal(24, 4, 32, 24) / 5, "v": normal(25, 24, 8)}
    return build(nodes, [value("x", ["b", 5, 32])], [value("y", ["b", 4, 5, 8])], constants), draws(20, x=(2, 5, 32))


def recurrent() -> Kind:
    inputs, hidden = 24, 32
    constants = {}
    for name, gates in (("l", 4), ("g", 3)):
        constants |= {
            name + "W": normal(23, 1, gates * hidden, inputs) / 5,
            name + "R": normal(24, 1, gates * hidden, hidden) / 5,
            name + "B": normal(25, 1, 2 * gates * hidden) / 10,
        }
    nodes = [
        node("LSTM", ["x", "lW", "lR", "lB"], ["o", "hn", "cn"], hidden_size=hidden, name="lstm"),
        node("GRU", ["x", "gW", "gR", "gB"], ["o2", "hn2"], hidden_size=hidden, linear_before_reset=1, name="gru"),
        node("Concat", ["hn", "hn2"], ["y"], axis=2),
    ]
    model = build(nodes, [value("x", ["s", "b", inputs])], [value("y", [1, "b", 2 * hidden])], constants)
    return model, draws(4, x=(12, 2, inputs))


def softmax_between() -> Kind:
    constants = {"W": normal(25, 8, 8), "W2": normal(26, 8, 8)}
    nodes = [
        node("MatMul", ["x", "W"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "W2"], ["y"]),
    ]
    return build(nodes, [value("x", [2, 8])], [value("y", [2, 8])], constants), draws(8, x=(2, 8))


def integers_for_shapes() -> Kind:
    constants = {"W": normal(30, 4, 3, 1, 1), "i0": np.array([0]), "m1": np.array([-1])}
    nodes = [
        node("Conv", ["x", "W"], ["c"]),
        node("Shape", ["c"], ["s"]),
        node("Gather", ["s", "i0"], ["b0"], axis=0),
        node("Concat", ["b0", "m1"], ["ns"], axis=0),
        node("Reshape", ["c", "ns"], ["f"]),
        node("Concat", ["f", "f"], ["y"], axis=1),
    ]
    return build(nodes, [value("x", ["b", 3, 4, 4])], [value("y", ["b", 128])], constants), draws(4, x=(2, 3, 4, 4))


def einsum() -> Kind:
    constants = {"W": normal(35, 4, 48, 48) / 10}
    model = build(
        [node("Einsum", ["x", "W"], ["y"], equation="bhd,hde->bhe", name="es")],
        [value("x", ["b", 4, 48])],
        [value("y", ["b", 4, 48])],
        constants,
    )
    return model, draws(4, x=(2, 4, 48))


def brain_float() -> Kind:
    constants = {"W": normal(36, 8, 8).astype(ml_dtypes.bfloat16)}
    nodes = [node("MatMul", ["x", "W"], ["m"]), node("Relu", ["m"], ["y"])]
    edges = [value(name, ["b", 8], TensorProto.BFLOAT16) for name in "xy"]
    return build(nodes, edges[:1], edges[1:], constants, opset=18), draws(2, x=(2, 8))


def half_model() -> Kind:
    constants = {"W": normal(37, 3, 4, 4)[0].astype(np.float16), "b": normal(38, 4).astype(np.float16)}
    nodes = [node("MatMul", ["x", "W"], ["m"]), node("Add", ["m", "b"], ["y"])]
    edges = [value(name, ["b", 4], TensorProto.FLOAT16) for name in "xy"]
    feeds = [{"x": feed["x"].astype(np.float16)} for feed in draws(4, x=(2, 4))]
    return build(nodes, edges[:1], edges[1:], constants), feeds


def initializer_as_input() -> Kind:
    constants = {"W": normal(2, 4, 3, 3, 3), "b": normal(3, 4)}
    inputs = [value("x", [1, 3, 8, 8]), value("W", [4, 3, 3, 3]), value("b", [4])]
    nodes = [node("Conv", ["x", "W", "b"], ["y"])]
    return build(nodes, inputs, [value("y", [1, 4, 6, 6])], constants, opset=11, ir=3), draws(4, x=(1, 3, 8, 8))


def names_missing_and_twice() -> Kind:
    constants = {"W": normal(3, 8, 8), "V": normal(4, 8, 8)}
    nodes = [
        node("MatMul", ["x", "W"], ["a"], name=""),
        node("Relu", ["a"], ["r"], name="same"),
        node("MatMul", ["r", "V"], ["y"], name="same"),
    ]
    return build(nodes, [value("x", ["b", 8])], [value("y", ["b", 8])], constants), draws(4, x=(2, 8))


def left_out_input() -> Kind:
    constants = {"W": normal(12, 4, 3, 3, 3), "mx": np.float32(2), "sz": np.array([1, 4, 12, 12])}
    nodes = [
        node("Conv", ["x", "W"], ["c"]),
        node("Clip", ["c", "", "mx"], ["k"]),
        node("Resize", ["k", "", "", "sz"], ["y"], mode="nearest"),
    ]
    return build(nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 4, 12, 12])], constants), draws(4, x=(1, 3, 8, 8))


def gemm(**attributes: Any) -> Kind:
    """A Gemm with factors and transpositions; the bias is a row."""
    turned = attributes.get("transB", 0)
    constants = {"W": normal(40, *((6, 10) if turned else (10, 6))), "C": normal(41, 1, 6)}
    nodes = [node("Gemm", ["x", "W", "C"], ["y"], **attributes)]
    feeds = draws(6, x=(10, 4) if attributes.get("transA", 0) else (4, 10))
    shape = list(feeds[0]["x"].shape)
    return build(nodes, [value("x", shape)], [value("y", [4, 6])], constants), feeds


def matrix_and_bias() -> Kind:
    """Products of matrices with their biases in Adds, as torch exports Linear layers."""
    constants = {"W": normal(42, 12, 16), "b": normal(43, 16), "V": normal(44, 16, 5), "c": normal(45, 5)}
    nodes = [
        node("Conv", ["x", "K"], ["k"]),
        node("Flatten", ["k"], ["f"]),
        node("MatMul", ["f", "W"], ["a"]),
        node("Add", ["b", "a"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "V"], ["m"]),
        node("Add", ["m", "c"], ["y"]),
    ]
    constants["K"] = normal(46, 3, 4, 7, 7) / 7
    return build(nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 5])], constants), draws(24, x=(1, 4, 8, 8))


def function_inside() -> Kind:
    """The product stands in a local function of the model."""
    body = helper.make_function(
        "acme", "Layer", ["a", "w"], ["c"], [node("MatMul", ["a", "w"], ["c"])], [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("Layer", ["x", "W"], ["y"], name="call", domain="acme")
    model = build([call], [value("x", [2, 8])], [value("y", [2, 8])], {"W": normal(50, 8, 8)}, extra=("acme",))
    model.functions.append(body)
    return model, draws(4, x=(2, 8))


def constant_node_weight() -> Kind:
    weight = numpy_helper.from_array(normal(51, 8, 8), "w")
    nodes = [
        node("Constant", [], ["W0"], value=weight),
        node("Identity", ["W0"], ["W"]),
        node("MatMul", ["x", "W"], ["y"]),
    ]
    return build(nodes, [value("x", [2, 8])], [value("y", [2, 8])], {}), draws(4, x=(2, 8))


def far_and_back() -> Kind:
    """y = (conv(x) + 1000) - 1000: every value fits float16, which keeps half units there."""
    nodes = [
        node("Conv", ["x", "W"], ["c"], name="conv"),
        node("Add", ["c", "k"], ["a"], name="far"),
        node("Sub", ["a", "k"], ["y"], name="back"),
    ]
    constants = {"W": normal(8, 4, 3, 1, 1), "k": np.float32(1000)}
    model = build(nodes, [value("x", [1, 3, 6, 6])], [value("y", [1, 4, 6, 6])], constants)
    return model, draws(4, x=(1, 3, 6, 6))


def residual_cnn() -> Kind:
    """Two blocks with ReLU6, a skip, a depthwise convolution, pooling and a classifier."""
    constants = {
        "W1": normal(60, 8, 3, 3, 3) / 4,
        "b1": normal(61, 8) / 10,
        "D": normal(62, 8, 1, 3, 3) / 2,
        "P": normal(63, 8, 8, 1, 1) / 2,
        "bp": normal(64, 8) / 10,
        "G": normal(65, 10, 8) / 2,
        "bg": normal(66, 10) / 10,
        "lo": np.float32(0),
        "hi": np.float32(6),
    }
    nodes = [
        node("Conv", ["x", "W1", "b1"], ["c1"], pads=[1, 1, 1, 1], name="stem"),
        node("Clip", ["c1", "lo", "hi"], ["k1"]),
        node("Conv", ["k1", "D"], ["c2"], pads=[1, 1, 1, 1], group=8, name="depthwise"),
        node("Relu", ["c2"], ["k2"]),
        node("Conv", ["k2", "P", "bp"], ["c3"], name="project"),
        node("Add", ["c3", "k1"], ["s"], name="skip"),
        node("MaxPool", ["s"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["m"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "G", "bg"], ["y"], transB=1, name="head"),
    ]
    return build(nodes, [value("x", ["b", 3, 16, 16])], [value("y", ["b", 10])], constants), draws(24, x=(1, 3, 16, 16))


CLIPS = ((-1.0, 6.0), (-0.02, 2.0), (-3.0, 0.01), (None, 1.5), (-0.7, None), (0.5, 3.0), (-2.0, -0.25))
"""Bounds of a Clip, the last two without 0."""


def clipped(low: float | None, high: float | None, *, joined: bool = False) -> Kind:
    """A convolution whose outputs are clipped, before another one; joined with wider values, if asked."""
    bounds = {name: np.float32(bound) for name, bound in (("lo", low), ("hi", high)) if bound is not None}
    nodes = [
        node("Conv", ["x", "W1"], ["c"], pads=[1, 1, 1, 1], name="first"),
        node("Clip", ["c", *(name if name in bounds else "" for name in ("lo", "hi"))], ["k"], name="clip"),
        *([node("Concat", ["k", "wide"], ["z"], axis=1, name="join")] if joined else []),
        node("Conv", ["z" if joined else "k", "W2"], ["y"], name="second"),
    ]
    if joined:
        nodes.insert(2, node("Mul", ["x", "more"], ["wide"], name="widen"))
        bounds["more"] = np.float32(-2.5)
    constants = {"W1": normal(60, 8, 3, 3, 3) / 2, "W2": normal(61, 4, 11 if joined else 8, 1, 1) / 2, **bounds}
    return build(nodes, [value("x", ["b", 3, 8, 8])], [value("y", ["b", 4, 8, 8])], constants), draws(
        24, x=(1, 3, 8, 8)
    )


def small_transformer() -> Kind:
    """Embedding, one attention head, a feed-forward part with Gelu, two normalizations."""
    width, size = 16, 6
    constants = {"E": normal(70, 40, width), "one": np.ones(width, np.float32), "zero": np.zeros(width, np.float32)}
    constants |= {name: normal(71 + i, width, width) / 4 for i, name in enumerate("QKVO")}
    constants |= {"F1": normal(80, width, 32) / 4, "F2": normal(81, 32, width) / 4, "scale": np.float32(0.25)}
    constants |= {"half": np.float32(0.5), "root": np.float32(2**0.5), "unit": np.float32(1)}
    nodes = [
        node("Gather", ["E", "ids"], ["x"]),
        *(node("MatMul", ["x", name], [name.lower()]) for name in "QKV"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s0"]),
        node("Mul", ["s0", "scale"], ["s1"]),
        node("Softmax", ["s1"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["a"]),
        node("MatMul", ["a", "O"], ["o"]),
        node("Add", ["x", "o"], ["r"]),
        node("LayerNormalization", ["r", "one", "zero"], ["n"]),
        node("MatMul", ["n", "F1"], ["f"]),
        node("Div", ["f", "root"], ["f1"]),
        node("Erf", ["f1"], ["f2"]),
        node("Add", ["f2", "unit"], ["f3"]),
        node("Mul", ["f", "f3"], ["f4"]),
        node("Mul", ["f4", "half"], ["g"]),
        node("MatMul", ["g", "F2"], ["h"]),
        node("Add", ["n", "h"], ["r2"]),
        node("LayerNormalization", ["r2", "one", "zero"], ["y"]),
    ]
    model = build(nodes, [value("ids", [1, size], INT64)], [value("y", [1, size, width])], constants)
    return model, [{"ids": np.random.default_rng(i).integers(0, 40, (1, size))} for i in range(24)]


BOUNDED: dict[str, tuple[Callable[[], Kind], float]] = {
    "Q01 shared weight": (shared_weight, 25),
    "Q05 grouped ConvTranspose": (lambda: conv_transpose(2), 25),
    "Q06 ConvTranspose": (lambda: conv_transpose(1), 25),
    "Q04 zero channel inside": (zero_channel_inside, 25),
    "Q11 mask of -3.4e38": (masked_attention, 20),
    "lengths that differ": (lengths_that_differ, 12),
    "Q11 mask of -1e9": (lambda: masked_attention(-1e9), 20),
    "Q12 opset 11": (old_opset, 25),
    "Q14 Upsample by 2": (upsample, 25),
    "Q14 Upsample by 1.5": (lambda: upsample(1.5), 25),
    "Q17 weight behind Cast": (weight_behind_cast, 25),
    "Q22 weight in a branch": (weight_in_branch, 25),
    "Q22 weights outside a loop": (weights_outside_loop, 25),
    "stacked matrices": (stacked_matrices, 25),
    "Q23 LSTM and GRU": (recurrent, 20),
    "Q25 Softmax": (softmax_between, 20),
    "Q30 integers for shapes": (integers_for_shapes, 25),
    "Q35 Einsum": (einsum, 25),
    "G02 initializer as input": (initializer_as_input, 25),
    "G03 names": (names_missing_and_twice, 25),
    "G12 left-out input": (left_out_input, 25),
    "float16 model": (half_model, 25),
    "Gemm": (gemm, 25),
    "Gemm factors": (lambda: gemm(alpha=0.5, beta=2.0, transB=1), 25),
    "Gemm transA": (lambda: gemm(transA=1), 25),
    "MatMul and Add": (matrix_and_bias, 20),
    "local function": (function_inside, 25),
    "Constant node": (constant_node_weight, 25),
    "residual CNN": (residual_cnn, 20),
    "small transformer": (small_transformer, 20),
}
"""Kind -> how to make it, and the signal-to-noise ratio in dB that int8 must keep on every sample."""
