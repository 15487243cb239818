"""Kernels and the latency predicted for them, against sums worked out by hand."""

import numpy as np
import pytest

import house
from edgekit.graphs.cost import cost_of
from edgekit.graphs.fusion import fuse
from edgekit.graphs.roofline import predict_latency, reached_rate
from edgekit.profile import Compute
from graph_models import floats, model, node, value


def cost(made, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return cost_of(path)


def residual():
    """conv-relu, conv-sigmoid-mul, add, flatten, linear and its bias."""
    return model(
        [
            node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1]),
            node("Relu", ["c1"], ["r"]),
            node("Conv", ["r", "w2"], ["c2"], pads=[1, 1, 1, 1]),
            node("Sigmoid", ["c2"], ["s"]),
            node("Mul", ["c2", "s"], ["m"]),
            node("Add", ["m", "r"], ["a"]),
            node("Flatten", ["a"], ["f"]),
            node("MatMul", ["f", "v"], ["p"]),
            node("Add", ["p", "b"], ["y"]),
        ],
        [value("x", [1, 4, 8, 8])],
        [value("y", [1, 10])],
        {"w1": floats(4, 4, 3, 3), "w2": floats(4, 4, 3, 3), "v": floats(256, 10), "b": floats(10)},
    )


def test_what_follows_a_convolution_runs_with_it(tmp_path):
    groups = fuse(cost(residual(), tmp_path))
    assert [[row.op for row in group.rows] for group in groups] == [
        ["Conv", "Relu"],
        ["Conv", "Sigmoid", "Mul", "Add"],
        ["MatMul", "Add"],
    ]
    plane, weight = 4 * 4 * 64, 4 * 4 * 4 * 9
    assert [(group.read_bytes, group.written_bytes) for group in groups] == [
        (plane + weight, plane),
        (plane + weight, plane),
        (plane + 4 * 2560 + 40, 40),
    ]


def test_a_tensor_that_is_an_output_too_is_written(tmp_path):
    made = residual()
    made.graph.output.append(value("c1", [1, 4, 8, 8]))
    first = fuse(cost(made, tmp_path))[0]
    assert first.written_bytes == 2 * 1024


def test_data_movement_is_a_kernel_of_its_own(tmp_path):
    made = model(
        [
            node("Relu", ["x"], ["r"]),
            node("Exp", ["r"], ["e"]),
            node("Transpose", ["e"], ["t"]),
            node("Softmax", ["t"], ["y"]),
        ],
        [value("x", [2, 8])],
        [value("y", [8, 2])],
    )
    assert [[row.op for row in group.rows] for group in fuse(cost(made, tmp_path))] == [
        ["Relu", "Exp"],
        ["Transpose"],
        ["Softmax"],
    ]


def test_pointwise_work_of_another_size_does_not_join(tmp_path):
    made = model(
        [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "z"], ["y"])],
        [value("x", [1, 4]), value("z", [5, 3])],
        [value("y", [5, 3])],
        {"w": floats(4, 3)},
    )
    assert [len(group.rows) for group in fuse(cost(made, tmp_path))] == [1, 1]


def test_q_and_dq_cost_only_their_bytes(tmp_path):
    made = model(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            node("DequantizeLinear", ["w", "s", "z"], ["wd"]),
            node("MatMul", ["d", "wd"], ["h"]),
            node("Relu", ["h"], ["r"]),
            node("QuantizeLinear", ["r", "s", "z"], ["rq"]),
            node("DequantizeLinear", ["rq", "s", "z"], ["y"]),
        ],
        [value("x", [4, 8])],
        [value("y", [4, 16])],
        {"s": np.float32(0.1), "z": np.int8(0), "w": np.ones((8, 16), np.int8)},
    )
    quantize, matmul, dequantize = fuse(cost(made, tmp_path))
    assert (quantize.read_bytes, quantize.written_bytes) == (128, 32)
    assert [row.op for row in matmul.rows] == ["MatMul", "Relu", "QuantizeLinear"]
    assert (matmul.read_bytes, matmul.written_bytes) == (32 + 128, 64)
    assert (dequantize.read_bytes, dequantize.written_bytes) == (64, 256)


def test_a_latency_is_the_sum_of_its_kernels(tmp_path):
    profile = house.profile()
    found = cost(residual(), tmp_path)
    bandwidth, peak = 20e9 * 0.5, 0.1e12 * 0.5
    expected = 0.0
    for flops, size in (
        (2 * 4 * 64 * 36 + 256, 1024 + 576 + 1024),
        (2 * 4 * 64 * 36 + 4 * 256 + 256 + 256, 1024 + 576 + 1024),
        (2 * 2560 + 10, 1024 + 10240 + 40 + 40),
    ):
        expected += max(flops / peak, size / bandwidth) + 5e-6
    figure = predict_latency(found, profile)
    assert figure.value == pytest.approx(expected * 1e3)
    assert (figure.name, figure.unit, figure.provenance, figure.n) == ("latency-p50", "ms", "predicted", 0)
    assert figure.on == "roofline of test-device"
    assert figure.low == pytest.approx(figure.value / 2)
    assert figure.high == pytest.approx(figure.value * 2)
    assert not figure.note


@pytest.mark.parametrize(
    ("dtype", "kind", "rate"),
    [
        ("float32", "compute", 0.1e12 * 0.5),
        ("float16", "compute", 0.2e12 * 0.5),
        ("int16", "compute", 0.2e12 * 0.5),
        ("int8", "compute", 0.4e12 * 0.5),
        ("int8", "depthwise", 0.4e12 * 0.3),
        ("float32", "grouped", 0.1e12 * 0.3),
        ("bool", "elementwise", 0.1e12 * 0.5),
    ],
)
def test_every_type_has_its_peak(tmp_path, dtype, kind, rate):
    import msgspec

    peaks = Compute(fp32_tops=house.sourced(0.1), fp16_tops=house.sourced(0.2), int8_tops=house.sourced(0.4))
    row = msgspec.structs.replace(cost(residual(), tmp_path).rows[0], dtype=dtype, kind=kind)
    assert reached_rate(row, house.profile(compute=peaks)) == pytest.approx(rate)
    bare = house.profile(compute=Compute(fp32_tops=house.sourced(0.1)))
    assert reached_rate(row, bare) <= 0.1e12 * 0.5


def test_a_faster_device_is_faster(tmp_path):
    found = cost(residual(), tmp_path)
    slow, fast = house.profile(), house.profile(compute=Compute(fp32_tops=house.sourced(10)))
    assert predict_latency(found, fast).value < predict_latency(found, slow).value


def test_unknown_work_is_noted(tmp_path):
    made = model([node("NonZero", ["x"], ["y"], name="nz")], [value("x", [4])], [value("y", None)])
    assert "'nz'" in predict_latency(cost(made, tmp_path), house.profile()).note
