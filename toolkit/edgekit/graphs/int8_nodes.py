"""The small groups of nodes that a quantized graph is made of, in the forms that onnxruntime fuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


def pair(
    name: str, source: str, integers: str, result: str, grid: tuple[str, str], *, domain: str
) -> list[onnx.NodeProto]:
    """Return Q and DQ of an activation.

    Args:
        name: the activation's name, after which the nodes are named.
        source: the float tensor to read.
        integers: what Q makes.
        result: what DQ makes.
        grid: names of scale and zero point.
        domain: the domain of both.
    """
    from onnx import helper

    quantize, dequantize = (f"{name}_{op}" for op in ("QuantizeLinear", "DequantizeLinear"))
    return [
        helper.make_node("QuantizeLinear", [source, *grid], [integers], name=quantize, domain=domain),
        helper.make_node("DequantizeLinear", [integers, *grid], [result], name=dequantize, domain=domain),
    ]


def looked_up(rows: str, output: str, weight: str, axis: int | None) -> list[onnx.NodeProto]:
    """Return the DQ behind a Gather of integers whose scales do not lie along the gathered axis."""
    from onnx import helper

    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    inputs = [rows, weight + "_scale", weight + "_zero_point"]
    return [helper.make_node("DequantizeLinear", inputs, [output], name=rows, **attributes)]


def looked_up_rows(rows: str, output: str, column: str, indices: str, axis: int, *, half: bool) -> list[onnx.NodeProto]:
    """Return what multiplies gathered integer rows with their own scales, gathered from `column`.

    Args:
        rows: the gathered integers.
        output: the float result.
        column: the scales of all rows.
        indices: of the rows.
        axis: that they are gathered along.
        half: whether the scales are stored in float16.
    """
    from onnx import TensorProto, helper

    floats, steps, stored = rows + "_float", rows + "_scale", rows + "_scale_stored"
    wide = helper.make_node("Cast", [stored], [steps], name=steps, to=TensorProto.FLOAT)
    picked = stored if half else steps
    return [
        helper.make_node("Cast", [rows], [floats], name=floats, to=TensorProto.FLOAT),
        helper.make_node("Gather", [column, indices], [picked], name=picked, axis=axis),
        *([wide] if half else []),
        helper.make_node("Mul", [floats, steps], [output], name=rows + "_dequantized"),
    ]


def dynamic_product(
    name: str, activation: str, weight: str, output: str, bias: str, *, swap: bool
) -> list[onnx.NodeProto]:
    """Return a product of integers whose activation was quantized at run time.

    Args:
        name: of the product; its nodes are named after it.
        activation: output of a DynamicQuantizeLinear whose other outputs end in `_scale` and `_zero_point`.
        weight: the int8 weight, whose zero points are 0; `_scale` belongs to it.
        output: the float result.
        bias: a float tensor to add, or empty.
        swap: whether the weight must be transposed first.
    """
    from onnx import TensorProto, helper

    nodes, matrix = [], weight
    if swap:
        matrix = name + "_weight"
        nodes.append(helper.make_node("Transpose", [weight], [matrix], name=matrix, perm=[1, 0]))
    inputs = [activation, matrix, activation + "_zero_point"]
    product = name + "_scaled" if bias else output
    nodes += [
        helper.make_node("MatMulInteger", inputs, [name], name=name),
        helper.make_node("Cast", [name], [name + "_cast"], name=name + "_cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [activation + "_scale", weight + "_scale"], [name + "_step"], name=name + "_step"),
        helper.make_node("Mul", [name + "_cast", name + "_step"], [product], name=name + "_scaled"),
    ]
    if bias:
        nodes.append(helper.make_node("Add", [product, bias], [output], name=name + "_bias"))
    return nodes
