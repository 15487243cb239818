"""Operators of graphs that are trained, each held against onnxruntime's."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

from edgekit.networks.graph_module import graph_module

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


MAP, VOLUME, LINE = floats(2, 4, 6, 8), floats(2, 3, 4, 5, 6), floats(2, 3, 7)
STEPS = floats(5, 3, 4)


def recurrent(gates, directions, *, bias=True):
    width = 6
    given = [floats(directions, gates * width, 4) / 2, floats(directions, gates * width, width) / 2]
    given += [floats(directions, 2 * gates * width) if bias else None, None, floats(directions, 3, width)]
    return given, {"hidden_size": width, "direction": "bidirectional" if directions == 2 else "forward"}


def resize(data, scales, **attributes):
    return "Resize", data, [None, np.array(scales, np.float32)], attributes


def resized(data, *sizes, **attributes):
    return "Resize", data, [None, None, ints(*sizes)], attributes


CASES = {
    "lstm": ("LSTM", STEPS, recurrent(4, 1)[0], recurrent(4, 1)[1]),
    "lstm-both": ("LSTM", STEPS, [*recurrent(4, 2)[0], floats(2, 3, 6)], recurrent(4, 2)[1]),
    "gru": ("GRU", STEPS, recurrent(3, 1)[0], recurrent(3, 1)[1]),
    "gru-torch": ("GRU", STEPS, recurrent(3, 2, bias=False)[0], {**recurrent(3, 2)[1], "linear_before_reset": 1}),
    "rnn-reverse": ("RNN", STEPS, recurrent(1, 1)[0], {**recurrent(1, 1)[1], "direction": "reverse"}),
    "resize-linear-1d": resize(LINE, [1, 1, 2], mode="linear"),
    "resize-linear-3d": resize(VOLUME, [1, 1, 2, 2, 2], mode="linear"),
    "resize-down": resized(MAP, 2, 4, 3, 5, mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
    "resize-corners": resized(LINE, 2, 3, 10, mode="linear", coordinate_transformation_mode="align_corners"),
    "resize-nearest": resize(MAP, [1, 1, 1.5, 2.5], mode="nearest"),
    "resize-ceil": resize(MAP, [1, 1, 1.5, 2.5], mode="nearest", nearest_mode="ceil"),
    "resize-cubic": resize(MAP, [1, 1, 2, 2], mode="cubic"),
    "resize-part": resize(MAP, [1, 1, 1.7, 1.7], mode="linear", coordinate_transformation_mode="asymmetric"),
    "average-ceil": ("AveragePool", MAP, [], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "average-pads": (
        "AveragePool", MAP, [], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]}
    ),
    "lp": ("LpPool", MAP, [], {"kernel_shape": [2, 2], "strides": [2, 2], "p": 2}),
    "lp-global": ("GlobalLpPool", MAP, [], {"p": 2}),
    "lrn": ("LRN", MAP, [], {"size": 3}),
    "transposed": ("ConvTranspose", MAP, [floats(4, 3, 3, 3)], {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    "transposed-more": (
        "ConvTranspose", MAP, [floats(4, 3, 3, 3)], {"strides": [2, 2], "pads": [1, 0, 0, 2], "output_padding": [1, 1]}
    ),
    "sum-running": ("CumSum", MAP, [np.array(2, np.int64)], {"exclusive": 1, "reverse": 1}),
    "sum-exclusive": ("CumSum", MAP, [np.array(-1, np.int64)], {"exclusive": 1}),
    "space-to-depth": ("SpaceToDepth", MAP, [], {"blocksize": 2}),
    "depth-to-space": ("DepthToSpace", MAP, [], {"blocksize": 2}),
    "grid": ("GridSample", MAP, [np.tanh(floats(2, 3, 3, 2))], {"mode": "bilinear", "align_corners": 1}),
    "top": ("TopK", MAP, [ints(3)], {"axis": 1}),
    "scatter": ("ScatterElements", LINE, [RNG.permutation(7)[:2].reshape(1, 1, 2), floats(1, 1, 2)], {"axis": -1}),
    "scatter-add": ("ScatterElements", LINE, [np.zeros((1, 1, 2), np.int64), floats(1, 1, 2)], {"reduction": "add"}),
    "scatter-nd": ("ScatterND", LINE, [ints([0, 1], [1, -1]), floats(2, 7)], {}),
    "product": ("ReduceProd", MAP, [], {"axes": [1, -1]}),
    "log-sum": ("ReduceLogSum", np.abs(MAP), [], {"axes": [1], "keepdims": 0}),
    "selu": ("Selu", MAP, [], {}),
    "celu": ("Celu", MAP, [], {"alpha": 0.7}),
    "thresholded": ("ThresholdedRelu", MAP, [], {"alpha": 0.5}),
    "atan": ("Atan", MAP, [], {}),
}  # fmt: skip


def built(op, data, more, attributes, path, *, rows="batch"):
    names = [f"c{place}" if value is not None else "" for place, value in enumerate(more)]
    count = {"LSTM": 3, "GRU": 2, "RNN": 2, "TopK": 2}.get(op, 1)
    outputs = [f"y{place}" for place in range(count)]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], outputs, name="node", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", 1, [rows, *data.shape[1:]])],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in zip(names, more, strict=True) if value is not None],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def run(path, data):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": data})


@pytest.mark.parametrize("name", CASES)
def test_an_operator_gives_what_the_runtime_gives(name, tmp_path):
    op, data, more, attributes = CASES[name]
    path = built(op, data, more, attributes, tmp_path / "g.onnx", rows=len(data))
    wanted = run(path, data)
    x = torch.from_numpy(data).requires_grad_()
    found = list(graph_module(path)({"x": x}).values())
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs, rtol=1e-4, atol=1e-5)
    found[0].sum().backward()
    assert x.grad.isfinite().all()


def test_a_last_batch_that_is_smaller_than_a_fixed_one(tmp_path):
    path = built("Reshape", floats(4, 6), [ints(4, 3, 2)], {}, tmp_path / "g.onnx", rows=4)
    data = floats(10, 6)
    found = graph_module(path)({"x": torch.from_numpy(data)})["y0"]
    np.testing.assert_array_equal(found.numpy(), data.reshape(10, 3, 2))
