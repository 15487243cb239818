"""Small graphs with matrices in the ways that exporters spell them, and inputs for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Feeds = list[dict[str, np.ndarray]]


def heavy(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_t(4, shape) * scale / np.sqrt(shape[0])).astype(np.float32)


def graph(nodes: list[Any], inputs: Any, outputs: Any, constants: dict[str, np.ndarray], opset: int = 17) -> Any:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def floats(rng: np.random.Generator, depth: int, count: int, rows: int = 3) -> Feeds:
    return [{"x": rng.standard_normal((rows, depth)).astype(np.float32)} for _ in range(count)]


def product(depth: int, width: int, *, count: int = 6, scale: float = 1.0) -> tuple[onnx.ModelProto, Feeds]:
    """One MatMul."""
    rng = np.random.default_rng(depth)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
    model = graph(
        [node],
        [("x", TensorProto.FLOAT, ["n", depth])],
        [("y", ["n", width])],
        {"w": heavy(rng, depth, width, scale=scale)},
    )
    return model, floats(rng, depth, count, rows=40)


def tied(*, vocabulary: int, width: int, tie: bool = True, squeezed: bool = False) -> tuple[onnx.ModelProto, Feeds]:
    """Rows are looked up, mixed, and compared with the same table (behind a Transpose) or another one.

    Mixed rows lie near few directions when they are `squeezed`, as those of trained models do.
    """
    rng = np.random.default_rng(1)
    constants = {"table": heavy(rng, vocabulary, width, scale=3.0), "w": heavy(rng, width, width)}
    if squeezed:
        few = width // 8
        constants["w"] = 3 * heavy(rng, width, few) @ heavy(rng, few, width)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["e"], name="lookup")]
    nodes.append(helper.make_node("MatMul", ["e", "w"], ["h"], name="mix"))
    nodes.append(helper.make_node("Add", ["e", "h"], ["r"], name="residual"))
    if tie:
        nodes.append(helper.make_node("Transpose", ["table"], ["t"], name="turn", perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["r", "t"], ["y"], name="head"))
    else:
        constants["head_w"] = heavy(rng, width, 30)
        nodes.append(helper.make_node("MatMul", ["r", "head_w"], ["y"], name="head"))
    out = vocabulary if tie else 30
    model = graph(nodes, [("ids", TensorProto.INT64, ["b", "s"])], [("y", ["b", "s", out])], constants)
    return model, [{"ids": rng.integers(0, vocabulary, (2, 9))} for _ in range(8)]


def spelled(kind: str) -> tuple[onnx.ModelProto, Feeds]:
    """The weight is stored in halves behind a Cast, behind a Transpose, in a Constant node, or in a Gemm's form."""
    rng = np.random.default_rng(2)
    weight, bias = heavy(rng, 64, 24), heavy(rng, 24)
    nodes, constants = [], {}
    last = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
    if kind == "cast":
        constants["h"] = weight.astype(np.float16)
        nodes.append(helper.make_node("Cast", ["h"], ["w"], name="c", to=TensorProto.FLOAT))
    elif kind == "transpose":
        constants["t"] = np.ascontiguousarray(weight.T)
        nodes.append(helper.make_node("Transpose", ["t"], ["w"], name="turn", perm=[1, 0]))
    elif kind == "constant":
        nodes.append(helper.make_node("Constant", [], ["w"], name="c", value=numpy_helper.from_array(weight)))
    else:
        constants |= {"w": np.ascontiguousarray(weight.T), "b": bias}
        last = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="gemm", transB=1, alpha=0.5, beta=2.0)
    model = graph([*nodes, last], [("x", TensorProto.FLOAT, ["n", 64])], [("y", ["n", 24])], constants)
    return model, floats(rng, 64, 6, rows=60)


def uneven() -> tuple[onnx.ModelProto, Feeds]:
    """Two layers of the same size read inputs of which few channels carry nearly all."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="relu"),
        helper.make_node("MatMul", ["h", "l"], ["p"], name="left"),
        helper.make_node("MatMul", ["h", "r"], ["q"], name="right"),
        helper.make_node("Add", ["p", "q"], ["y"], name="sum"),
    ]
    constants = {"l": heavy(rng, 128, 48), "r": heavy(rng, 128, 48)}
    model = graph(nodes, [("x", TensorProto.FLOAT, ["n", 128])], [("y", ["n", 48])], constants)
    feeds = floats(rng, 128, 25, rows=60)
    for feed in feeds:
        feed["x"] *= np.where(np.arange(128) % 20 == 0, 40, 1).astype(np.float32)
    return model, feeds


def refused() -> tuple[onnx.ModelProto, Feeds]:
    """One layer that can be quantized among constants that cannot."""
    rng = np.random.default_rng(4)
    constants = {
        "good": heavy(rng, 64, 64),
        "stacked": heavy(rng, 64, 64, 16).transpose(2, 0, 1).copy(),
        "before": heavy(rng, 16, 40),
        "both": heavy(rng, 64, 64),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "good"], ["a"], name="good"),
        helper.make_node("MatMul", ["a", "both"], ["c"], name="shared"),
        helper.make_node("Unsqueeze", ["c", "zero"], ["u"], name="rank"),
        helper.make_node("MatMul", ["u", "stacked"], ["s"], name="stack"),
        helper.make_node("Slice", ["s", "from", "to", "at"], ["f"], name="cut"),
        helper.make_node("MatMul", ["before", "f"], ["v"], name="first"),
        helper.make_node("Add", ["wide", "both"], ["y"], name="add"),
        helper.make_node("ReduceMean", ["v"], ["wide"], name="mean", keepdims=1),
    ]
    nodes = [*nodes[:6], nodes[7], nodes[6]]
    constants |= {
        "zero": np.array([0]),
        "from": np.array([0]),
        "to": np.array([40]),
        "at": np.array([1]),
    }
    model = graph(nodes, [("x", TensorProto.FLOAT, [40, 64])], [("y", [64, 64])], constants)
    return model, floats(rng, 64, 4, rows=40)


def branch() -> tuple[onnx.ModelProto, Feeds]:
    """Matrices in both branches of an If: one of its own, one of the outer graph."""
    rng = np.random.default_rng(5)
    own = numpy_helper.from_array(heavy(rng, 32, 32), "own")
    out = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    first = helper.make_graph([helper.make_node("MatMul", ["x", "own"], ["z"], name="own_mm")], "a", [], out, [own])
    second = helper.make_graph([helper.make_node("MatMul", ["x", "outer"], ["z"], name="outer_mm")], "b", [], out)
    node = helper.make_node("If", ["flag"], ["y"], name="if", then_branch=first, else_branch=second)
    inputs = [("flag", TensorProto.BOOL, []), ("x", TensorProto.FLOAT, ["n", 32])]
    model = graph([node], inputs, [("y", ["n", 32])], {"outer": heavy(rng, 32, 32)})
    feeds = [
        {"flag": np.array(number % 2 == 0), "x": rng.standard_normal((9, 32)).astype(np.float32)} for number in range(6)
    ]
    return model, feeds


def older() -> tuple[onnx.ModelProto, Feeds]:
    """Opset 13, where ReduceMax has its axes as an attribute."""
    rng = np.random.default_rng(6)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("ReduceMax", ["h"], ["m"], name="max", axes=[1], keepdims=1),
        helper.make_node("Sub", ["h", "m"], ["y"], name="sub"),
    ]
    model = graph(nodes, [("x", TensorProto.FLOAT, ["n", 64])], [("y", ["n", 32])], {"w": heavy(rng, 64, 32)}, opset=13)
    return model, floats(rng, 64, 6, rows=20)
