"""Tiny ONNX graphs that tests build with."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path, nodes, inputs, outputs, initializers=(), opset=17):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


def tensor(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def linear(path, features=8, classes=3, seed=0, x="x", y="y"):
    """`y = x @ W + b`, dynamic batch."""
    rng = np.random.default_rng(seed)
    weight = numpy_helper.from_array(rng.normal(size=(features, classes)).astype(np.float32), "W")
    bias = numpy_helper.from_array(rng.normal(size=classes).astype(np.float32), "b")
    nodes = [helper.make_node("MatMul", [x, "W"], ["h"]), helper.make_node("Add", ["h", "b"], [y])]
    return save(path, nodes, [tensor(x, ["n", features])], [tensor(y, ["n", classes])], [weight, bias])


def noisy(path, scale=1.0):
    """`linear` with `scale` times a random number added to its output."""
    model = onnx.load(linear(path))
    model.graph.node[-1].output[0] = "clean"
    nodes = [
        helper.make_node("RandomNormalLike", ["clean"], ["random"]),
        helper.make_node("Mul", ["random", "scale"], ["noise"]),
        helper.make_node("Add", ["clean", "noise"], ["y"]),
    ]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.array(scale, np.float32), "scale"))
    onnx.save(model, path)
    return path


def samples_of(model, path, count, seed=0):
    """Write `count` noisy samples of a classifier `x[n, features] -> y[n, classes]` with its own clean answers."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model)
    rng = np.random.default_rng(seed)
    clean = rng.normal(size=(count, session.get_inputs()[0].shape[1])).astype(np.float32)
    (scores,) = session.run(["y"], {"x": clean})
    noise = rng.normal(size=clean.shape, scale=0.25).astype(np.float32)
    np.savez(path, x=clean + noise, y=scores.argmax(1))
    return path
