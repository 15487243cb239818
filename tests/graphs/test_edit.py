import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.errors import InputError
from edgekit.graphs import edit, saving, storage
from graph_models import FLOAT, INT64, floats, model, node, value


def branchy():
    then = helper.make_graph([node("Mul", ["h", "k"], ["t"])], "then", [], [value("t", None)])
    other = helper.make_graph([node("Identity", ["outer"], ["e"])], "else", [], [value("e", None)])
    return model(
        [
            node("MatMul", ["x", "W"], ["h"]),
            node("Constant", [], ["k"], value=numpy_helper.from_array(np.float32(2), "k")),
            node("Identity", ["W"], ["outer"]),
            node("Relu", ["h"], ["unused"]),
            helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other, name="if"),
        ],
        [value("x", ["b", 4]), value("c", [], TensorProto.BOOL)],
        [value("y", None)],
        {"W": floats(4, 4), "dead": floats(3)},
    )


def test_the_index_sees_through_identity_and_into_branches():
    index = edit.GraphIndex(branchy().graph)
    assert index.producers["h"].op_type == "MatMul"
    assert sorted(item.op_type for item in index.consumers["h"]) == ["If", "Relu"]
    np.testing.assert_array_equal(index.value("outer"), floats(4, 4))
    assert index.value("k") == 2
    assert index.value("h") is None
    assert index.only_consumer("k").op_type == "If"
    assert index.only_consumer("h") is None
    assert index.only_consumer("y") is None
    assert index.fresh_name("t") == "t_1", "names of inner graphs are taken too"
    assert index.fresh_name("t") == "t_2"


def test_dead_code_goes_and_what_branches_read_stays():
    graph = branchy().graph
    assert edit.drop_dead(graph) == 1
    assert [item.op_type for item in graph.node] == ["MatMul", "Constant", "Identity", "If"]
    assert [tensor.name for tensor in graph.initializer] == ["W"]


@pytest.mark.parametrize(
    ("attribute", "given", "expected"),
    [("value_float", 1.5, np.float32(1.5)), ("value_ints", [1, 2], np.array([1, 2])), ("value_int", 3, np.int64(3))],
)
def test_constant_nodes_of_every_spelling(attribute, given, expected):
    tensor = edit.constant_tensor(node("Constant", [], ["k"], **{attribute: given}))
    found = storage.value_of(tensor)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.asarray(expected).dtype


def test_names_are_stable_and_unique_across_inner_graphs():
    graph = branchy()
    for inner in edit.graphs_in(graph.graph):
        for item in inner.node:
            item.name = "" if item.op_type == "Relu" else "same"
    renamed = edit.name_nodes(graph)
    names = [item.name for inner in edit.graphs_in(graph.graph) for item in inner.node]
    assert len(set(names)) == len(names) == 7
    assert names[0] == "same"
    assert renamed["Relu_0"] == ""
    assert edit.name_nodes(graph) == {}


def test_renaming_a_tensor_reaches_inner_graphs():
    graph = branchy().graph
    edit.rename_tensor(graph, "h", "other")
    assert "other" in list(edit.reads(graph.node[4]))


@pytest.mark.parametrize(
    ("kind", "dims", "size"),
    [
        (TensorProto.FLOAT, [2, 3], 24),
        (TensorProto.INT4, [3], 2),
        (TensorProto.UINT2, [5], 2),
        (TensorProto.BFLOAT16, [2, 2], 8),
        (TensorProto.BOOL, [], 1),
        (TensorProto.DOUBLE, [0, 5], 0),
        (TensorProto.FLOAT, [1 << 40, 1 << 40], 4 << 80),
    ],
)
def test_sizes_follow_dims_and_type(kind, dims, size):
    assert storage.tensor_bytes(TensorProto(data_type=kind, dims=dims)) == size


def test_an_unknown_type_is_refused():
    with pytest.raises(InputError, match="unknown tensor type 99"):
        storage.element_bits(99)


def heavy():
    constant = numpy_helper.from_array(floats(16, 16, seed=2), "k")
    small = np.array([0, 16], np.int64)
    four_bit = helper.make_tensor("Q", TensorProto.INT4, [4096], np.arange(4096) % 15 - 7)
    made = model(
        [
            node("Constant", [], ["k"], value=constant),
            node("MatMul", ["x", "W"], ["h"]),
            node("MatMul", ["h", "k"], ["r"]),
            node("Reshape", ["r", "s"], ["y"]),
        ],
        [value("x", ["b", 32])],
        [value("y", ["b", 16])],
        {"W": floats(32, 16), "s": small},
        opset=21,
        ir=10,
    )
    made.graph.initializer.append(four_bit)
    return made


@pytest.fixture
def low_threshold(monkeypatch):
    monkeypatch.setattr(saving, "EXTERNAL_THRESHOLD", 1000)


def test_large_weights_go_into_one_file_and_come_back(tmp_path, low_threshold):
    path = tmp_path / "model.onnx"
    saving.save_model(heavy(), path)
    made = saving.load_model(path)
    assert {tensor.name: storage.is_external(tensor) for tensor in made.graph.initializer} == {
        "W": True,
        "s": False,
        "Q": True,
        "k": True,
    }, "large constants become initializers, shapes stay where inference sees them"
    offsets = [storage.reference_of(tensor).offset for tensor in made.graph.initializer if storage.is_external(tensor)]
    assert all(offset % 4096 == 0 for offset in offsets)
    onnx.checker.check_model(str(path))
    values = {tensor.name: storage.value_of(tensor, tmp_path) for tensor in made.graph.initializer}
    np.testing.assert_array_equal(values["W"], floats(32, 16))
    np.testing.assert_array_equal(values["k"], floats(16, 16, seed=2))
    np.testing.assert_array_equal(values["Q"].astype(int), np.arange(4096) % 15 - 7)


def test_saving_is_the_same_wherever_the_weights_lay(tmp_path, low_threshold, monkeypatch):
    for name in "abc":
        (tmp_path / name).mkdir()
    a, b, c = (tmp_path / name / "model.onnx" for name in "abc")
    saving.save_model(heavy(), a)
    saving.save_model(saving.load_model(a), b, source=a.parent)
    assert a.read_bytes() == b.read_bytes()
    assert (tmp_path / "a" / "model.onnx.data").read_bytes() == (tmp_path / "b" / "model.onnx.data").read_bytes()
    monkeypatch.setattr(saving, "EXTERNAL_THRESHOLD", 1 << 30)
    saving.save_model(saving.load_model(a), c, source=a.parent)
    made = saving.load_model(c)
    assert not any(storage.is_external(tensor) for tensor in storage.tensors_in(made))
    saving.copy_model(a, tmp_path / "d" / "model.onnx")
    assert (tmp_path / "d" / "model.onnx.data").read_bytes() == (tmp_path / "a" / "model.onnx.data").read_bytes()
    assert saving.model_bytes(a) == a.stat().st_size + a.with_name("model.onnx.data").stat().st_size


def test_holes_stay_holes(tmp_path):
    source, target = tmp_path / "s", tmp_path / "t"
    with source.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"island")
    with source.open("rb") as old, target.open("wb+") as new:
        storage.copy_range(old.fileno(), 1 << 20, 63 << 20, new.fileno(), 0)
    assert target.stat().st_size == 63 << 20
    assert target.stat().st_blocks * 512 < 1 << 20
    with target.open("rb") as file:
        file.seek(31 << 20)
        assert file.read(6) == b"island"


def test_sorting_keeps_an_order_that_is_right():
    graph = branchy().graph
    before = [item.op_type for item in graph.node]
    assert edit.sort_nodes(graph) is False
    assert [item.op_type for item in graph.node] == before


def test_attributes_and_opsets_are_read():
    item = node("Gemm", ["a", "b"], ["c"], alpha=2.0, transB=1)
    assert edit.attribute_of(item, "transB", 0) == 1
    assert edit.attribute_of(item, "beta", 1.0) == 1.0
    made = model([item], [value("a", [1], FLOAT), value("b", [1], INT64)], [value("c", [1])], domains=[("mine", 3)])
    assert (edit.opset_of(made), edit.opset_of(made, "mine"), edit.opset_of(made, "none")) == (17, 3, 0)
