"""Block grids against onnxruntime's own operators and onnx's reference evaluator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgekit.numerics import gptq
from edgekit.numerics.awq import scaled_gram, search_channel_scales
from edgekit.numerics.blockwise import BlockCodes, BlockFormat, encode, fit_blocks, quantize_rtn, scale_type_for
from edgekit.numerics.gptq import FIRM_DAMPING, descend, output_error, quantize_gptq
from edgekit.numerics.hqq import quantize_hqq
from edgekit.numerics.packing import pack_blocks, pack_codes, signed, unpack_blocks, unpack_codes

BITS = st.sampled_from([2, 4, 8])
BLOCKS = st.sampled_from([16, 32, 64, 128, 256])


def heavy_tailed(rows: int, depth: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_t(4, (rows, depth)) * 0.05).astype(np.float32)


def correlated(depth: int, samples: int = 400, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mixing = np.eye(depth) + rng.standard_normal((depth, depth)) * 0.2
    return (rng.standard_normal((samples, depth)) @ mixing * np.exp(rng.standard_normal(depth) * 0.7)).astype(
        np.float32
    )


def matrix(draw, fmt: BlockFormat) -> BlockCodes:
    """Any codes, scales and zero points of a format, extreme ones too."""
    rows, depth = draw(st.integers(1, 7)), draw(st.integers(1, 150))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    shape = (rows, fmt.blocks(depth))
    zeros = np.full(shape, fmt.middle) if fmt.symmetric else rng.integers(0, fmt.most + 1, shape)
    scales = rng.uniform(0.01, 3, shape) * rng.choice([-1, 1] if fmt.negative_scales else [1], shape)
    return BlockCodes(
        format=fmt,
        codes=rng.integers(0, fmt.most + 1, (rows, depth)).astype(np.uint8),
        scales=scales.astype(fmt.scale_type),
        zero_points=zeros.astype(np.uint8),
    )


@st.composite
def matrices(draw, bits=BITS):
    fmt = BlockFormat(
        bits=draw(bits),
        block=draw(BLOCKS),
        symmetric=draw(st.booleans()),
        negative_scales=draw(st.booleans()),
        scale_type=draw(st.sampled_from(["float16", "float32"])),
    )
    return matrix(draw, fmt)


def run(nodes, constants, feed, *, opset: int = 21):
    """Run a graph with onnxruntime, all optimizations off, so that operators mean what they say."""
    model = model_of(nodes, constants, feed, opset)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


def model_of(nodes, constants, feed, opset):
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feed.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


@settings(max_examples=30, deadline=None)
@given(matrices(), st.integers(0, 2**31))
def test_matmulnbits_multiplies_by_what_dequantized_says(quantized, seed):
    rows, depth = quantized.codes.shape
    packed = pack_blocks(quantized)
    x = np.random.default_rng(seed).standard_normal((3, depth)).astype(np.float32)
    constants = {"b": packed.codes, "s": packed.scales.astype(np.float32)}
    if packed.zero_points is not None:
        constants["z"] = packed.zero_points
    node = helper.make_node(
        "MatMulNBits",
        ["x", *constants],
        ["y"],
        domain="com.microsoft",
        K=depth,
        N=rows,
        bits=quantized.format.bits,
        block_size=quantized.format.block,
        accuracy_level=1,
    )
    expected = x.astype(np.float64) @ quantized.dequantized().T.astype(np.float64)
    found = run([node], constants, {"x": x})
    scale = np.abs(x).astype(np.float64) @ np.abs(quantized.dequantized()).T.astype(np.float64)
    assert (np.abs(found - expected) <= 1e-5 * scale + 1e-6).all()


@settings(max_examples=30, deadline=None)
@given(matrices(), st.integers(0, 2**31))
def test_gatherblockquantized_reads_the_same_bytes(quantized, seed):
    packed, fmt = pack_blocks(quantized), quantized.format
    rows, depth = quantized.codes.shape
    ids = np.random.default_rng(seed).integers(0, rows, (2, 3))
    constants = {"d": packed.codes.reshape(rows, -1), "i": ids, "s": packed.scales.astype(np.float32)}
    if packed.zero_points is not None:
        constants["z"] = packed.zero_points
    node = helper.make_node(
        "GatherBlockQuantized",
        list(constants),
        ["y"],
        domain="com.microsoft",
        bits=fmt.bits,
        block_size=fmt.block,
        gather_axis=0,
        quantize_axis=1,
    )
    del constants["i"]
    found = run([node], constants, {"i": ids})
    np.testing.assert_array_equal(found[..., :depth], quantized.dequantized()[ids])


@settings(max_examples=30, deadline=None)
@given(matrices(bits=st.sampled_from([4, 8])), st.booleans(), st.booleans())
def test_dequantizelinear_means_the_same_in_onnxruntime_and_the_reference(quantized, along_first, sign):
    fmt = quantized.format
    narrow = {
        (4, True): ml_dtypes.int4,
        (4, False): ml_dtypes.uint4,
        (8, True): np.int8,
        (8, False): np.uint8,
    }[fmt.bits, sign]

    def laid(values, codes=False):
        values = signed(values, fmt.bits) if codes and sign else values
        values = np.ascontiguousarray(values.T) if along_first else values
        return values.astype(narrow) if codes else values

    constants = {
        "q": laid(quantized.codes, codes=True),
        "s": laid(quantized.scales.astype(np.float32)),
        "z": laid(quantized.zero_points, codes=True),
    }
    node = helper.make_node(
        "DequantizeLinear", ["q", "s", "z"], ["w"], axis=0 if along_first else 1, block_size=fmt.block
    )
    add = helper.make_node("Add", ["w", "x"], ["y"])
    feed = {"x": np.zeros(1, np.float32)}
    expected = laid(quantized.dequantized())
    np.testing.assert_array_equal(run([node, add], constants, feed), expected)
    model = model_of([node, add], constants, feed, 21)
    if expected.shape[0 if along_first else 1] % fmt.block == 0:  # the evaluator repeats scales without slicing
        np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, feed)[0], expected)


@settings(max_examples=30, deadline=None)
@given(matrices())
def test_unpacking_gives_back_what_was_packed(quantized):
    found = unpack_blocks(pack_blocks(quantized), quantized.format, quantized.codes.shape[1])
    np.testing.assert_array_equal(found.codes, quantized.codes)
    np.testing.assert_array_equal(found.zero_points, quantized.zero_points)
    np.testing.assert_array_equal(found.dequantized(), quantized.dequantized())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), BITS, st.integers(0, 2**31))
def test_codes_pack_as_onnx_packs_them(count, bits, seed):
    codes = np.random.default_rng(seed).integers(0, 2**bits, (2, count)).astype(np.uint8)
    packed = pack_codes(codes, bits)
    assert packed.shape == (2, -(-count * bits // 8))
    np.testing.assert_array_equal(unpack_codes(packed, bits, count), codes)
    if bits == 4:
        flat = pack_codes(codes.reshape(-1), bits)
        assert flat.tobytes() == numpy_helper.from_array(codes.reshape(-1).astype(ml_dtypes.uint4), "c").raw_data


def test_codes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="16 does not fit"):
        pack_codes(np.array([[16]], np.uint8), 4)
    with pytest.raises(ValueError, match="3 bits"):
        pack_codes(np.zeros((1, 8), np.uint8), 3)
    with pytest.raises(ValueError, match="block 48"):
        BlockFormat(block=48)
    with pytest.raises(ValueError, match="9 bits"):
        BlockFormat(bits=9)


FORMATS = [
    BlockFormat(bits=bits, block=block, symmetric=symmetric, negative_scales=negative)
    for bits in (2, 3, 4, 8)
    for block in (16, 32)
    for symmetric, negative in ((True, False), (True, True), (False, False))
]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("method", ["rtn", "hqq", "gptq"])
def test_every_method_keeps_the_format(fmt, method):
    weights, x = heavy_tailed(9, 50), correlated(50)
    found = {
        "rtn": lambda: quantize_rtn(weights, fmt),
        "hqq": lambda: quantize_hqq(weights, fmt),
        "gptq": lambda: quantize_gptq(weights, fmt, x.T @ x),
    }[method]()
    assert found.codes.shape == weights.shape
    assert found.scales.shape == found.zero_points.shape == (9, fmt.blocks(50))
    assert found.scales.dtype == np.float16
    assert int(found.codes.max()) <= fmt.most
    assert np.isfinite(found.dequantized()).all()
    assert (found.scales != 0).all()
    if fmt.symmetric:
        assert (found.zero_points == fmt.middle).all()
    if not (fmt.symmetric and fmt.negative_scales):
        assert (found.scales > 0).all()


def sqnr(reference, found):
    return 10 * np.log10((reference**2).sum() / ((reference - found) ** 2).sum())


def test_the_scale_search_beats_the_largest_weight_and_importance_moves_the_error():
    weights, fmt = heavy_tailed(64, 256), BlockFormat()
    blocks = weights.reshape(64, -1, 32)
    plain = np.abs(blocks).max(-1) / 7
    codes = np.clip(np.rint(blocks / plain[..., None]), -8, 7) * plain[..., None]
    assert sqnr(weights, quantize_rtn(weights, fmt).dequantized()) > sqnr(weights, codes.reshape(64, -1)) + 0.5
    heavy = np.where(np.arange(256) < 32, 100.0, 1.0) * np.where(np.arange(256) % 2, 1.0, 50.0)
    without, with_it = (quantize_rtn(weights, fmt, i).dequantized() for i in (None, heavy))
    error = [(((weights - found) ** 2) * heavy).sum() for found in (without, with_it)]
    assert error[1] < error[0]


def test_hqq_lowers_the_robust_error():
    weights = heavy_tailed(64, 256)
    for fmt in (BlockFormat(), BlockFormat(symmetric=False)):
        errors = [
            (np.abs(weights - found.dequantized()) ** 0.7).sum()
            for found in (quantize_rtn(weights, fmt), quantize_hqq(weights, fmt))
        ]
        assert errors[1] < errors[0]


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("depth", [128, 100])
def test_gptq_halves_the_output_error_and_sweeps_never_raise_it(act_order, depth):
    weights, x = heavy_tailed(48, depth), correlated(depth)
    gram, fmt = x.T @ x, BlockFormat()
    nearest = output_error(weights, quantize_rtn(weights, fmt).dequantized(), gram)
    errors = [
        output_error(weights, quantize_gptq(weights, fmt, gram, act_order=act_order, sweeps=n).dequantized(), gram)
        for n in (0, 1, 3)
    ]
    assert errors[0] < nearest / 1.5
    assert errors[2] <= errors[1] * 1.001 <= errors[0] * 1.002
    assert errors[2] < nearest / 2


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("act_order", [False, True])
def test_rows_are_learned_in_parts_as_they_are_together(fmt, act_order, monkeypatch):
    weights, x = heavy_tailed(37, 100), correlated(100)
    gram = x.T @ x
    whole = quantize_gptq(weights, fmt, gram, act_order=act_order)
    monkeypatch.setattr(gptq, "_ROWS_AT_ONCE", 16)
    parts = quantize_gptq(weights, fmt, gram, act_order=act_order)
    assert (whole.codes == parts.codes).mean() > 0.98  # products of other shapes round in other places
    np.testing.assert_allclose(whole.scales.astype(np.float32), parts.scales.astype(np.float32), rtol=0.02)
    errors = [output_error(weights, found.dequantized(), gram) for found in (whole, parts)]
    assert errors[1] == pytest.approx(errors[0], rel=0.02)


def test_firm_damping_keeps_the_weights_nearer_and_the_outputs_of_few_samples_farther():
    weights, x, fmt = heavy_tailed(64, 128), correlated(128), BlockFormat(bits=8)
    gram = x.T @ x
    firm, loose = (quantize_gptq(weights, fmt, gram, damping=share).dequantized() for share in (FIRM_DAMPING, 1e-4))
    assert sqnr(weights, firm) > sqnr(weights, loose) + 0.5
    assert output_error(weights, firm, gram) > output_error(weights, loose, gram)


def test_coordinate_descent_finds_the_best_code_of_each_weight():
    weights, x, fmt = heavy_tailed(3, 16), correlated(16), BlockFormat(block=16)
    gram = (x.T @ x).astype(np.float32)
    scales, zeros = fit_blocks(weights[:, None], fmt)
    codes = encode(weights[:, None], scales, zeros, fmt)[:, 0]
    for _ in range(30):
        codes = descend(weights, gram, codes, scales, zeros, fmt)

    def error(row, values):
        wrong = weights[row].astype(np.float64) - (values.astype(np.float64) - fmt.middle) * float(scales[row, 0])
        return float(wrong @ gram @ wrong)

    for row in range(3):
        settled = error(row, codes[row])
        for place in range(16):
            for code in range(16):
                other = codes[row].copy()
                other[place] = code
                assert error(row, other) >= settled * (1 - 1e-5)


def test_dead_inputs_and_rows_of_zeros_are_harmless():
    weights, x = heavy_tailed(6, 64), correlated(64)
    weights[2] = 0
    x[:, 10:40] = 0
    found = quantize_gptq(weights, BlockFormat(), x.T @ x)
    assert np.isfinite(found.dequantized()).all()
    assert not found.dequantized()[2].any()
    assert not quantize_hqq(weights, BlockFormat(symmetric=False)).dequantized()[2].any()
    nothing = quantize_gptq(weights, BlockFormat(), np.zeros((64, 64), np.float32))
    assert sqnr(weights, nothing.dequantized()) > 15
    with pytest.raises(ValueError, match="64 inputs"):
        quantize_gptq(weights, BlockFormat(), np.eye(63, dtype=np.float32))


def test_scales_that_float16_cannot_hold_stay_float32():
    weights = heavy_tailed(4, 64)
    fmt = BlockFormat()
    assert scale_type_for(weights, fmt) == "float16"
    assert scale_type_for(np.zeros((4, 64), np.float32), fmt) == "float16"
    for factor in (1e-6, 1e7):
        assert scale_type_for(weights * factor, fmt) == "float32"
        wide = BlockFormat(scale_type="float32")
        found = quantize_rtn((weights * factor).astype(np.float32), wide)
        assert sqnr(weights * factor, found.dequantized()) > 15


def test_channel_scales_lower_the_output_error_of_uneven_inputs():
    weights, x = heavy_tailed(48, 128), correlated(128)
    x[:, :6] *= 30
    gram, fmt = x.T @ x, BlockFormat()
    found = search_channel_scales([weights[:24], weights[24:]], fmt, gram)
    assert any(found.powers)
    assert found.error < found.plain * 0.8
    near = np.concatenate(
        [
            quantize_rtn(part * found.factors, fmt, np.diagonal(gram) / found.factors**2).dequantized() / found.factors
            for part in (weights[:24], weights[24:])
        ]
    )
    assert output_error(weights, near, gram) == pytest.approx(found.error, rel=1e-6)
    even = search_channel_scales([weights], fmt, np.zeros((128, 128), np.float32))
    assert (even.factors == 1).all()


def test_channel_scales_lower_the_output_error_of_learned_rounding_where_columns_differ():
    weights, x = heavy_tailed(256, 128), correlated(128)
    weights = weights * np.exp(0.5 * np.random.default_rng(0).standard_normal(128)).astype(np.float32)
    gram, fmt = (x.T @ x).astype(np.float32), BlockFormat()
    found = search_channel_scales([weights], fmt, gram, learned=True)
    assert found.powers[1] > 0
    errors = [
        output_error(weights, quantize_gptq(weights * f, fmt, scaled_gram(gram, f)).dequantized() / f, gram)
        for f in (np.ones(128, np.float32), found.factors)
    ]
    assert errors[1] < 0.8 * errors[0]
    assert found.error < found.plain
    inverse = (1 / found.factors).astype(np.float16).astype(np.float32)
    assert np.allclose(inverse * found.factors, 1, rtol=1e-6), "float16 holds what inputs are multiplied by"
