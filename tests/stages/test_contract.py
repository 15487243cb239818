"""The contract of every stage in the table: what the pipeline relies on."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import house
from contract import run_stage
from edgekit.plan import make_stage
from edgekit.stage import STAGES, stage_class

KINDS = {"onnx", "torch"}
NEEDS = {"data", "training", "labels", "teacher", "dialect", "original"}


def small_cnn() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(size=(8, 3, 3, 3)).astype(np.float32) / 5,
        "b1": rng.normal(size=8).astype(np.float32) / 5,
        "w2": rng.normal(size=(8, 10)).astype(np.float32) / 3,
        "b2": np.zeros(10, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "cnn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(count: int = 40):
    rng = np.random.default_rng(1)
    return house.dataset([{"x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)} for _ in range(count)])


@pytest.mark.parametrize("name", STAGES)
def test_the_declaration_is_whole(name):
    cls = stage_class(name)
    assert cls.name == name
    assert cls.__name__ == "".join(word.capitalize() for word in name.split("-"))
    assert cls.__module__ == f"edgekit.stages.{name.replace('-', '_')}"
    assert cls.revision >= 1
    assert cls.takes <= KINDS
    assert cls.makes in KINDS
    assert cls.needs <= NEEDS
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(cls))
    assert cls.__doc__


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in STAGES
        if "onnx" in stage_class(name).takes and "training" not in stage_class(name).needs  # those have their own tests
    ],
)
def test_it_keeps_the_contract_on_a_real_graph(name, tmp_path):
    options = {"shapes": ["x=1x3x16x16"]} if name == "freeze-shapes" else {}
    model, data = small_cnn(), samples()
    facts, made = run_stage(make_stage(name, options, "test"), model, tmp_path, data=data)
    onnx.checker.check_model(made)
    assert [value.name for value in made.graph.input] == ["x"]
    assert [value.name for value in made.graph.output] == ["y"]
    feed = data.evaluation.sample(0)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    before, after = (
        onnxruntime.InferenceSession(m.SerializeToString(), quiet, providers=["CPUExecutionProvider"]).run(None, feed)[
            0
        ]
        for m in (model, made)
    )
    noise = float(((before - after) ** 2).sum() / (before**2).sum())
    assert noise < 0.01, "over 1 % of the signal's power is noise"
    for finding in facts.get("findings", []):
        assert set(finding) == {"severity", "node", "rule", "text", "remedy"}
    if "coverage" in facts:
        assert 0 <= facts["coverage"]["weights"] <= 1
