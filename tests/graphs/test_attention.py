"""Attention among the rows of a model: found where it is, and only there."""

import numpy as np

from edgekit.graphs.cost import cost_of
from edgekit.graphs.fusion import TENSORRT, fuse
from edgekit.graphs.work import KINDS, work_of
from graph_models import model, node, value

SHAPE = [1, 2, 16, 8]
SCORES = 4 * 2 * 16 * 16


def nodes(*, softmax="Softmax"):
    return [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"], name="scores"),
        node("Div", ["s", "c"], ["d"]),
        node("Add", ["d", "mask"], ["m"]),
        node(softmax, ["m"], ["p"], **({"axis": -1} if softmax == "Softmax" else {})),
        node("MatMul", ["p", "v"], ["a"], name="seen"),
        node("Transpose", ["a"], ["y"], perm=[0, 2, 1, 3]),
    ]


def groups(made, tmp_path, outputs=(), rules=TENSORRT):
    graph = model(
        made,
        [*(value(name, SHAPE) for name in "qkv"), value("mask", [1, 1, 1, 16])],
        [value("y", None), *(value(name, None) for name in outputs)],
        {"c": np.float32(3)},
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(graph.SerializeToString())
    return fuse(cost_of(path), rules)


def test_an_attention_is_one_kernel(tmp_path):
    (group,) = groups(nodes(), tmp_path)
    assert len(group.rows) == 7
    assert group.read_bytes == 3 * 4 * 2 * 16 * 8 + 4 * 16, "queries, keys, values and the mask; no scores"
    assert group.written_bytes == 4 * 2 * 16 * 8
    work = work_of([group])
    assert KINDS[work.kind[0]] == "attention"
    assert work.macs[0] == 2 * 2 * 16 * 16 * 8


def test_only_where_the_runtime_fuses_it(tmp_path):
    from edgekit.graphs.fusion import ONNXRUNTIME

    found = groups(nodes(), tmp_path, rules=ONNXRUNTIME)
    kernels = ["Transpose", "MatMul", "Div", "Softmax", "MatMul", "Transpose"]
    assert [group.rows[0].op for group in found] == kernels
    assert sum(group.written_bytes for group in found) > 3 * SCORES


def test_scores_that_are_an_output_break_it(tmp_path):
    found = groups(nodes(), tmp_path, outputs=["p"])
    assert not any(group.whole for group in found)
    assert sum(group.written_bytes for group in found) >= SCORES


def test_scores_that_are_read_twice_break_it(tmp_path):
    made = [*nodes(), node("ReduceSum", ["p"], ["r"])]
    assert not any(group.whole for group in groups(made, tmp_path, outputs=["r"]))


def test_another_function_than_softmax_is_none(tmp_path):
    assert not any(group.whole for group in groups(nodes(softmax="Relu"), tmp_path))


def test_a_softmax_at_the_end_is_none(tmp_path):
    made = [node("MatMul", ["q", "k2"], ["s"]), node("Softmax", ["s"], ["y"])]
    made.insert(0, node("Transpose", ["k"], ["k2"], perm=[0, 1, 3, 2]))
    assert not any(group.whole for group in groups(made, tmp_path))
