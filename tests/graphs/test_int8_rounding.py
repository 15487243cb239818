from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import house
import kinds
from contract import ORT_CPU, run_stage
from edgekit.graphs.int8_rounding import in_half, narrow
from edgekit.stages.quantize_int8 import QuantizeInt8


@given(st.lists(st.floats(2.0**-13, 2.0**15, width=32), min_size=1, max_size=20))
def test_scales_in_half_are_exact_and_cut_no_weight(values):
    scales = np.array(values, np.float32)
    found = in_half(scales)
    assert (found >= scales).all()
    assert (found <= scales * (1 + 2**-10)).all()
    assert narrow(found).dtype == np.float16
    assert np.array_equal(narrow(found).astype(np.float32), found)


@pytest.mark.parametrize("outside", [1e-7, 7e4])
def test_scales_beyond_its_range_stay_as_they_are(outside):
    scales = np.array([0.1, outside], np.float32)
    assert np.array_equal(in_half(scales), scales)
    assert narrow(scales).dtype == np.float32


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_a_table_of_embeddings_holds_two_bytes_for_the_scale_of_a_row(size, tmp_path):
    r = np.random.default_rng(0)
    table = (r.normal(size=(50, 16)) * np.exp(r.normal(size=(50, 1))) * size).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], name="lookup"),
        helper.make_node("MatMul", ["e", "w"], ["y"], name="product"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "tokens", 8])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(kinds.normal(1, 1, 16, 8), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = [{"ids": r.integers(0, 50, (1, 7))} for _ in range(24)]
    rules = dataclasses.replace(ORT_CPU, integer_gather=True)
    _, made = run_stage(QuantizeInt8(), model, tmp_path, data=house.dataset(feeds * 2), dialect=rules)
    (column,) = [t for t in made.graph.initializer if t.name.endswith("_row_scale")]
    assert column.data_type == (TensorProto.FLOAT16 if size == 1 else TensorProto.FLOAT)
    assert kinds.worst_db(model, made, feeds) > 30
