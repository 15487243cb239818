"""What can be told about a model by looking at it: its signature, where it comes from, what it is made of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit.artifact import TensorSpec
from edgekit.errors import UnsupportedError
from edgekit.events import Finding
from edgekit.graphs.edit import RANDOM_OPS, GraphIndex, attribute_of, graphs_in, is_standard, load_model, opset_of
from edgekit.graphs.storage import element_count, tensor_bytes, tensors_in

if TYPE_CHECKING:
    import onnx

_NARROW = ("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2", "FLOAT8", "FLOAT4")
_INTEGER_OPS = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "ConvInteger",
        "MatMulNBits",
        "MatMulBnb4",
        "QGemm",
        "QAttention",
        "QMoE",
        "QEmbedLayerNormalization",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "GatherBlockQuantized",
    }
)


def spec_of(value: onnx.ValueInfoProto) -> TensorSpec:
    """Return a graph input or output as a TensorSpec; its axes must be fixed or named (see `normal.settle_dims`)."""
    import onnx

    kind = value.type.tensor_type
    dtype = (
        "string"
        if kind.elem_type == onnx.TensorProto.STRING
        else onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    )
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in kind.shape.dim)
    return TensorSpec(name=value.name, dtype=dtype, shape=shape)


def signature_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Return `{"inputs": [...], "outputs": [...]}`: TensorSpecs as dicts, as in `Artifact.facts["graphs"]`."""
    sides = {"inputs": model.graph.input, "outputs": model.graph.output}
    specs = {side: [spec_of(value) for value in values] for side, values in sides.items()}
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(specs))
    return found


def check_signature(model: onnx.ModelProto) -> None:
    """Refuse inputs and outputs that are not plain tensors of numbers, and models without inputs.

    Raises:
        UnsupportedError: names the input or output and its type.
    """
    import onnx

    if not model.graph.input:
        raise UnsupportedError(
            "takes no input: it gives the same whatever is fed, so there is nothing to run on a device",
            remedy="Export the model with its inputs; onnxruntime.InferenceSession(FILE).get_inputs() lists them.",
        )

    for side, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            kind = value.type.WhichOneof("value")
            if kind in {None, "tensor_type"} and value.type.tensor_type.elem_type != onnx.TensorProto.STRING:
                continue
            name = "string" if kind == "tensor_type" else str(kind).removesuffix("_type")
            raise UnsupportedError(
                f"is of type {name}; only tensors of numbers can be fed and compared",
                where=f"{side} '{value.name}'",
                remedy="Cut the model so that it takes and gives plain tensors (onnx.utils.extract_model).",
            )


def foreign_operators(model: onnx.ModelProto) -> list[Finding]:
    """Report operators that are not standard ONNX.

    Raises:
        UnsupportedError: onnxruntime does not know one of them; names operator, domain and node.
    """
    known = _runtime_operators()
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[str, str] = {}
    for graph in graphs_in(model.graph):
        for node in graph.node:
            if node.domain in {"", "ai.onnx"}:
                continue
            if known and (node.domain, node.op_type) not in known:
                raise UnsupportedError(
                    f"the operator {node.op_type} of the domain '{node.domain}' is not known to onnxruntime",
                    where=f"node '{node.name}'",
                    remedy="Export the model with standard operators, or give the custom one as a local function.",
                )
            counts[node.domain, node.op_type] += 1
            first.setdefault(node.domain, node.name)
    return [
        Finding(
            severity="warning",
            node=first[domain],
            rule="non-standard-operator",
            text=f"{sum(n for (d, _), n in counts.items() if d == domain)} nodes are of the domain '{domain}' ("
            + ", ".join(sorted(op for d, op in counts if d == domain))
            + "): other runtimes than onnxruntime refuse them",
            remedy="Export the model without graph optimizations of onnxruntime.",
        )
        for domain in sorted(first)
    ]


def _runtime_operators() -> set[tuple[str, str]]:
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
    except ImportError:  # not part of onnxruntime's public interface: then loading the model has to tell
        return set()
    return {(schema.domain, schema.name) for schema in get_all_operator_schema()}


def training_nodes(model: onnx.ModelProto) -> list[Finding]:
    """Report nodes that behave as in training: batch statistics, active dropout."""
    index = GraphIndex(model.graph)
    found = []
    for node in model.graph.node:
        if is_standard(node, "BatchNormalization"):
            active = bool(attribute_of(node, "training_mode", 0))
        elif is_standard(node, "Dropout"):
            mode = index.value(node.input[2]) if len(node.input) > 2 else None  # noqa: PLR2004 - the third input
            active = mode is not None and bool(mode.any())
        else:
            continue
        if active:
            found.append(node)
    if not found:
        return []
    return [
        Finding(
            severity="warning",
            node=found[0].name,
            rule="training-mode",
            text=f"nodes in training mode: {len(found)}; results depend on the batch or are random",
            remedy="Call model.eval() before the export.",
        )
    ]


def random_operators(model: onnx.ModelProto) -> list[str]:
    """Return the operators of a model that draw random numbers, those of inner graphs included."""
    return sorted({node.op_type for graph in graphs_in(model.graph) for node in graph.node} & RANDOM_OPS)


def random_findings(model: onnx.ModelProto) -> list[Finding]:
    """Report operators that draw random numbers."""
    found = random_operators(model)
    if not found:
        return []
    text = (
        f"the model draws random numbers ({', '.join(found)}): unless they are scaled away, its outputs differ from "
        "run to run, and neither accuracy nor golden outputs can be compared"
    )
    remedy = "Feed the noise as an input, or give data that turns it off."
    return [Finding(severity="warning", node="", rule="random-operator", text=text, remedy=remedy)]


def quantization_of(model: onnx.ModelProto) -> str:
    """Tell whether a model is quantized already, and how; empty when it is not.

    Operators that quantize tell, and so does the storage: integer weights that are cast and scaled by ordinary nodes.
    """
    import onnx

    ops = {node.op_type for graph in graphs_in(model.graph) for node in graph.node}
    found = sorted(op for op in ops if op in _INTEGER_OPS or op.startswith("QLinear"))
    if found:
        return "operators " + ", ".join(found)
    narrow = wide = 0
    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            name = onnx.TensorProto.DataType.Name(tensor.data_type)
            if len(tensor.dims) > 1 and name.startswith(_NARROW):
                narrow += element_count(tensor.dims)
            elif len(tensor.dims) > 1 and name.endswith(("FLOAT", "FLOAT16", "DOUBLE")):
                wide += element_count(tensor.dims)
    if narrow > wide:
        return f"{narrow / (narrow + wide):.0%} of the weights are stored as integers of 8 bits or fewer"
    return ""


def rare_types(model: onnx.ModelProto) -> list[str]:
    """Return the names of element types in a model's tensors, inputs and outputs that few runtimes compute in."""
    import onnx

    kinds = {tensor.data_type for tensor in tensors_in(model)}
    kinds |= {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    names = {onnx.TensorProto.DataType.Name(kind).lower() for kind in kinds}
    return sorted(name for name in names if name.startswith(("bfloat", "float8", "float4", "complex")))


def facts_of(path: Path) -> tuple[dict[str, Any], list[Finding]]:
    """Return an artifact's facts for a model file, without `findings`, and the findings that go with them."""
    model = load_model(path)
    how = quantization_of(model)
    facts: dict[str, Any] = {
        "graphs": {path.name: signature_of(model)},
        "opset": opset_of(model),
        "ir": model.ir_version,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "domains": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "quantized": bool(how),
    }
    for entry in model.metadata_props:
        if entry.key.lower() in {"license", "licence", "license_name", "licenses", "spdx"} and entry.value.strip():
            facts["license"] = entry.value.strip()[:200]
    if not how:
        return facts, []
    return facts, [
        Finding(
            severity="warning",
            node="",
            rule="already-quantized",
            text=f"the model is quantized already ({how})",
            remedy="Give the float model to quantize it anew.",
        )
    ]


def operators_of(path: Path) -> Counter[str]:
    """Count a model file's operators, inner graphs included; those of other domains as `domain:operator`."""
    return Counter(
        node.op_type if node.domain in {"", "ai.onnx"} else f"{node.domain}:{node.op_type}"
        for graph in graphs_in(load_model(path).graph)
        for node in graph.node
    )


def weights_by_type(path: Path) -> dict[str, int]:
    """Return element type -> bytes of all stored tensors of a model file, largest first."""
    import onnx

    found: Counter[str] = Counter()
    for tensor in tensors_in(load_model(path)):
        found[onnx.TensorProto.DataType.Name(tensor.data_type).lower()] += tensor_bytes(tensor)
    return dict(found.most_common())
