"""A small real package, for tests that need one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgekit.artifact import Artifact, Step, sha256_file
from edgekit.budget import Check, Verdict
from edgekit.package import Package, write_package
from edgekit.payload import Contents, GoldenSamples
from edgekit.target import Bundle, Feed
from house import profile

LABELS = ("cat", "dog", "owl")
VERDICT = Verdict(
    status="pass",
    checks=(
        Check(name="size", value=1.0, unit="B", budget=2.0, status="pass", provenance="measured", on="the desk"),
    ),
)  # fmt: skip


def weights() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((4, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)


def save_model(path: Path, *, scale: float = 1.0) -> None:
    """Write x[n, 4] -> y[n, 3], a linear layer."""
    weight, bias = weights()
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(weight * np.float32(scale), "w"), numpy_helper.from_array(bias, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def feeds(count: int = 3) -> list[Feed]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((1, 4)).astype(np.float32)} for _ in range(count)]


def outputs(inputs: list[Feed]) -> list[Feed]:
    weight, bias = weights()
    return [{"y": feed["x"] @ weight + bias} for feed in inputs]


def artifact(model: Path, **facts: Any) -> Artifact:
    sides = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 4]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["n", 3]}],
    }
    step = Step(stage="capture", revision=1, options={}, inputs={}, libraries={"onnx": "1"}, facts={})
    return Artifact(
        kind="onnx",
        files={"model.onnx": sha256_file(model)},
        facts={"graphs": {"model.onnx": sides}, "task": "image-classification", **facts},
        lineage=(step,),
    )


def contents(folder: Path, **changes: Any) -> Contents:
    """Return what goes into the package; `folder` gets the compiled files."""
    model = folder / "compiled" / "model.onnx"
    if not model.exists():
        save_model(model)
    values: dict[str, Any] = {
        "name": "tiny",
        "artifact": artifact(model),
        "compiled": Bundle(
            folder=model.parent,
            facts={"runtime": "onnxruntime", "model": "model.onnx", "providers": ["CPUExecutionProvider"], "size": 9},
        ),
        "profile": profile(),
        "precision": "fp32",
        "labels": LABELS,
        "golden": GoldenSamples(inputs=feeds(), outputs=outputs(feeds())),
    }
    return Contents(**{**values, **changes})


def tiny_package(folder: Path, *, key: Path | None = None, details: Any = None, **changes: Any) -> Package:
    """Write `tiny.edgekit` below `folder` and return it as read back."""
    path = folder / "tiny.edgekit"
    return write_package(path, contents(folder, **changes), verdict=VERDICT, details=details or {}, key=key)


def color_package(folder: Path, *, layers: tuple[str, ...] = (), **changes: Any) -> Package:
    """Write a classifier of 8 x 8 pictures: the scores are 9 times the means of red, green and blue."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("Mul", ["flat", "nine"], ["s0"]),
        *(helper.make_node(op, [f"s{i}"], [f"s{i + 1}"]) for i, op in enumerate(layers)),
        helper.make_node("Identity", [f"s{len(layers)}"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "colors",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.float32(9.0), "nine")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "compiled").mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "compiled" / "model.onnx")
    sides = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 3, 8, 8]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["n", 3]}],
    }
    values: dict[str, Any] = {
        "artifact": artifact(folder / "compiled" / "model.onnx", graphs={"model.onnx": sides}),
        "preprocessing": {"inputs": {"x": {"kind": "image", "resize": [8, 8], "channels": "RGB", "layout": "NCHW"}}},
        "labels": ("red", "green", "blue"),
        "golden": None,
    }
    return tiny_package(folder, **{**values, **changes})
