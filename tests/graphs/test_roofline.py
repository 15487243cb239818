"""Kernels and the latency predicted for them, against sums worked out by hand."""

import dataclasses

import msgspec
import numpy as np
import pytest

import house
from edgekit.graphs.cost import cost_of
from edgekit.graphs.forecast import forecast
from edgekit.graphs.fusion import Group, fuse
from edgekit.graphs.roofline import constants_of, seconds_of
from edgekit.graphs.work import DTYPES, KINDS, Work, work_of
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


def latency(made, tmp_path, profile, **options):
    return forecast(cost(made, tmp_path), profile, **options).figures[0]


def test_a_latency_is_the_sum_of_its_kernels(tmp_path):
    profile = house.profile()
    bandwidth, peak = 20e9 * 0.5, 0.1e12 * 0.5
    expected = 0.0
    for flops, size in (
        (2 * 4 * 64 * 36 + 256, 1024 + 576 + 1024),
        (2 * 4 * 64 * 36 + 4 * 256 + 256 + 256, 1024 + 576 + 1024),
        (2 * 2560 + 10, 1024 + 10240 + 40 + 40),
    ):
        expected += max(flops / peak, size / bandwidth) + 5e-6
    figure = latency(residual(), tmp_path, profile)
    assert figure.value == pytest.approx(expected * 1e3)
    assert (figure.name, figure.unit, figure.provenance, figure.n) == ("latency-p50", "ms", "predicted", 0)
    assert figure.on == "roofline of test-device"
    assert figure.low == pytest.approx(figure.value / 2)
    assert figure.high == pytest.approx(figure.value * 2)
    assert not figure.note


def works(kind="conv", dtype="fp32", macs=1e9, rows=1024, columns=1024, moved=0, operations=0):
    whole = {"kind": KINDS.index(kind), "dtype": DTYPES.index(dtype)}
    numbers = {"batch": 1, "rows": rows, "columns": columns, "depth": 64, "macs": macs, "moved": moved, "weights": 0}
    numbers["operations"] = operations
    return Work(
        **{name: np.array([value]) for name, value in whole.items()},
        **{name: np.array([float(value)]) for name, value in numbers.items()},
    )


@pytest.mark.parametrize(
    ("dtype", "kind", "rate"),
    [
        ("fp32", "conv", 0.1e12 * 0.5),
        ("fp16", "matmul", 0.2e12 * 0.5),
        ("int8", "conv", 0.4e12 * 0.5),
        ("int8", "attention", 0.4e12 * 0.5),
        ("int8", "depthwise", 0.4e12 * 0.3),
        ("fp32", "grouped", 0.1e12 * 0.3),
    ],
)
def test_every_type_has_its_peak(dtype, kind, rate):
    peaks = Compute(fp32_tops=house.sourced(0.1), fp16_tops=house.sourced(0.2), int8_tops=house.sourced(0.4))
    work, launch = works(kind, dtype), 5e-6
    assert seconds_of(work, constants_of(house.profile(compute=peaks)))[0] == pytest.approx(2e9 / rate + launch)
    bare = constants_of(house.profile(compute=Compute(fp32_tops=house.sourced(0.1))))
    assert seconds_of(work, bare)[0] >= 2e9 / (0.1e12 * 0.5)


@pytest.mark.parametrize(
    ("dtype", "name"), [("int16", "fp16"), ("bfloat16", "fp16"), ("uint8", "int8"), ("bool", "fp32")]
)
def test_types_that_share_a_peak(tmp_path, dtype, name):
    row = msgspec.structs.replace(cost(residual(), tmp_path).rows[0], dtype=dtype)
    assert DTYPES[work_of([Group(rows=[row])]).dtype[0]] == name


def test_other_operations_have_a_share_of_their_own():
    shares = msgspec.structs.replace(house.profile().roofline, vector=house.sourced(0.1))
    seconds = seconds_of(works("other", macs=0, operations=1e9), constants_of(house.profile(roofline=shares)))
    assert seconds[0] == pytest.approx(1e9 / (0.1e12 * 0.1) + 5e-6)


def test_tiles_and_rounds_of_units_are_done_whole():
    def slower(rows, columns, small=0.0, units=8):
        known = constants_of(house.profile())
        tiled = dataclasses.replace(known, units=units, small_tile=small)
        work = works(rows=rows, columns=columns)
        return (seconds_of(work, tiled)[0] - 5e-6) / (seconds_of(work, known)[0] - 5e-6)

    assert slower(1024, 1024) == pytest.approx(1.0)
    assert slower(32, 32) == pytest.approx(8.0), "one tile on one of eight units"
    assert slower(33, 32 * 8) == pytest.approx(64 / 33), "rows are padded to whole tiles"
    assert slower(32 * 9, 32) == pytest.approx(16 / 9), "a second round for the ninth tile"
    assert slower(128 * 8, 128, small=0.5) == pytest.approx(1.0), "large tiles are as good where they fit"
    assert slower(32 * 8, 32, small=0.5) == pytest.approx(4.0), "small tiles reach (1 / 16) ** 0.5 of the share"
    assert slower(33, 32, units=0) == pytest.approx(1.0)


def test_a_faster_device_is_faster(tmp_path):
    slow, fast = house.profile(), house.profile(compute=Compute(fp32_tops=house.sourced(10)))
    assert latency(residual(), tmp_path, fast).value < latency(residual(), tmp_path, slow).value


def test_the_protocol_is_a_parameter(tmp_path):
    shares = msgspec.structs.replace(house.profile().roofline, launch_plain_us=house.sourced(30))
    profile = house.profile(roofline=shares)
    graph, plain = (latency(residual(), tmp_path, profile, protocol=name) for name in ("graph", "plain"))
    assert plain.value - graph.value == pytest.approx(3 * 25e-3)
    assert (graph.on, plain.on) == ("roofline of test-device, CUDA graph", "roofline of test-device, plain launches")


def test_the_interval_widens_with_what_the_fit_did_not_see(tmp_path):
    def factor(fitted_on):
        shares = msgspec.structs.replace(
            house.profile().roofline, spread_unlike=house.sourced(8), fitted_on=fitted_on, launch_us=house.sourced(1e-9)
        )
        found = forecast(cost(residual(), tmp_path), house.profile(roofline=shares))
        return found.figures[0].high / found.figures[0].value, found.interval

    seen, text = factor({"conv": 1.0, "matmul": 1.0, "launch_graph": 1e-3})
    assert seen == pytest.approx(2)
    assert "unlike" not in text
    unseen, text = factor({})
    assert unseen == pytest.approx(8)
    assert "100% of the time is unlike" in text
    assert 2 < factor({"conv": 1.0})[0] < 8


def test_unknown_work_is_noted(tmp_path):
    made = model([node("NonZero", ["x"], ["y"], name="nz")], [value("x", [4])], [value("y", None)])
    assert "'nz'" in latency(made, tmp_path, house.profile()).note


def test_a_forecast_says_where_the_time_goes(tmp_path):
    found = forecast(cost(residual(), tmp_path), house.profile())
    assert [(kernel.ops, kernel.kind) for kernel in found.kernels] == [
        (("Conv", "Relu"), "conv"),
        (("Conv", "Sigmoid", "Mul", "Add"), "conv"),
        (("MatMul", "Add"), "matmul"),
    ]
    assert sum(kernel.ms for kernel in found.kernels) == pytest.approx(found.figures[0].value)
    assert sum(kernel.macs for kernel in found.kernels) == found.macs == 2 * 4 * 64 * 36 + 2560
    assert [kernel.bound for kernel in found.kernels] == ["launch"] * 3
    quick = msgspec.structs.replace(house.profile().roofline, launch_us=house.sourced(1e-6))
    bound = [kernel.bound for kernel in forecast(cost(residual(), tmp_path), house.profile(roofline=quick)).kernels]
    assert bound == ["arithmetic", "arithmetic", "memory"]


def test_the_memory_of_a_forecast_is_weights_and_activations(tmp_path):
    found = forecast(cost(residual(), tmp_path), house.profile())
    memory = found.figures[1]
    assert (memory.name, memory.unit, memory.high) == ("memory", "B", None)
    assert memory.value == found.weight_bytes + found.activation_bytes
    assert memory.low == found.weight_bytes + found.live_bytes
