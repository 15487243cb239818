"""Types, shapes and constant values of every tensor of a graph, found by walking it once in execution order.

Constants are folded on the way (shape arithmetic included), because shape inference without it silently loses
shapes. Nothing is run but small integer arithmetic, so a hostile graph cannot make this expensive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.errors import InputError
from edgekit.graphs.edit import attribute_of, constant_tensor, is_standard, reads, subgraphs_of
from edgekit.graphs.extra_types import contrib_outputs, function_outputs
from edgekit.graphs.scope import Scope, Shape, shape_of, tensor_type
from edgekit.graphs.storage import element_count, is_external, value_of

if TYPE_CHECKING:
    import onnx

DATA_DEPENDENT = frozenset(
    {"NonZero", "Unique", "NonMaxSuppression", "Compress", "Loop", "If", "SequenceAt", "StringSplit", "Range", "TopK"}
)
"""Operators whose output shapes depend on values, not only on shapes."""

_MAX_VALUES = 1 << 16
_FOLDED = (
    *("Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape", "CumSum", "Div", "Equal"),
    *("Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity"),
    *(
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pow",
        "Range",
        "ReduceMax",
        "ReduceMin",
    ),
    *("ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterND", "Sign", "Slice", "Split", "Sqrt", "Squeeze", "Sub"),
    *(
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
        "Xor",
        "ReduceMean",
        "Reciprocal",
        "EyeLike",
        "Pad",
        "Mean",
    ),
)


def analyze(
    model: onnx.ModelProto,
    folder: Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    known: Mapping[str, onnx.TypeProto] | None = None,
) -> Scope:
    """Walk a model and return what is known of its tensors.

    Args:
        model: the model; nodes in execution order.
        folder: where its external data lies.
        shapes: input name -> shape, in place of the declared one.
        known: tensor name -> type, for tensors that inference does not reach.

    Raises:
        InputError: the shapes do not go together; names the node.
    """
    scope = Scope()
    for value in model.graph.input:
        kind = type(value.type).FromString(value.type.SerializeToString())
        if shapes and value.name in shapes:
            kind = tensor_type(kind.tensor_type.elem_type, shapes[value.name])
        scope.types[value.name] = kind
    _Walk(model, folder, dict(known or {})).graph(model.graph, scope)
    return scope


class _Walk:
    """One walk over a model: what all its graphs share."""

    def __init__(self, model: onnx.ModelProto, folder: Path | None, known: dict[str, onnx.TypeProto]) -> None:
        self.opsets = {entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in model.opset_import}
        self.imports = list(model.opset_import)
        self.ir_version = model.ir_version
        self.folder = folder
        self.known = known

    def graph(self, graph: onnx.GraphProto, scope: Scope) -> None:
        for tensor in graph.initializer:
            scope.types[tensor.name] = tensor_type(tensor.data_type, tensor.dims)
            scope.constants.add(tensor.name)
            if element_count(tensor.dims) <= _MAX_VALUES and not is_external(tensor):
                scope.values[tensor.name] = value_of(tensor, self.folder)
        for node in graph.node:
            self.node(node, scope)
            for name in node.output:
                if name in self.known:
                    scope.types[name] = self.known[name]
                    scope.lost.pop(name, None)

    def node(self, node: onnx.NodeProto, scope: Scope) -> None:
        if all(name in scope.constants for name in reads(node)) and not node.op_type.startswith(
            ("Random", "Bernoulli")
        ):
            scope.constants.update(name for name in node.output if name)
        if is_standard(node, "If"):
            self.branches(node, scope)
            return
        found = self.fold(node, scope)
        if found is not None:
            for name, value in found.items():
                scope.values[name] = value
                scope.constants.add(name)
                scope.types[name] = tensor_type(_element_type(value), value.shape)
            return
        self.infer(node, scope)

    def fold(self, node: onnx.NodeProto, scope: Scope) -> dict[str, npt.NDArray[Any]] | None:
        """Return the node's outputs when they can be told cheaply, else None."""
        if is_standard(node, "Constant"):
            tensor = constant_tensor(node)
            small = tensor is not None and element_count(tensor.dims) <= _MAX_VALUES and not is_external(tensor)
            return {node.output[0]: value_of(tensor)} if tensor is not None and small else None
        if is_standard(node, "Shape", "Size"):
            return _measure(node, scope.static(node.input[0]))
        if not is_standard(node, *_FOLDED) or any(name and name not in scope.values for name in node.input):
            return None
        if not self.small(node, scope):
            return None
        return _evaluate(node, {name: scope.values[name] for name in node.input if name}, self.opsets)

    def small(self, node: onnx.NodeProto, scope: Scope) -> bool:
        """Tell whether all outputs of a node are known to have few elements, before making any."""
        if node.op_type == "Range":
            start, limit, step = (float(scope.values[name].reshape(-1)[0]) for name in node.input)
            return step != 0 and (limit - start) / step <= _MAX_VALUES
        found = self.outputs(node, scope)
        shapes = [shape_of(kind) for kind in found.values()] if found else [None]
        return all(
            shape is not None and all(isinstance(dim, int) for dim in shape) and _count(shape) <= _MAX_VALUES
            for shape in shapes
        )

    def outputs(self, node: onnx.NodeProto, scope: Scope) -> dict[str, onnx.TypeProto]:
        """Infer the types of a node's outputs from what is known of its inputs; InputError when they do not fit."""
        import onnx

        domain = "" if node.domain == "ai.onnx" else node.domain
        if any(name not in scope.types for name in reads(node)):
            return {}
        types = {name: scope.types[name] for name in reads(node)}
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return contrib_outputs(node, types)
        data = {name: onnx.numpy_helper.from_array(scope.values[name]) for name in node.input if name in scope.values}
        try:
            found: dict[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self.imports, ir_version=self.ir_version
            )
        except onnx.shape_inference.InferenceError as error:
            raise InputError(
                f"its shapes do not go together: {' '.join(str(error).split())[:300]}",
                where=f"node '{node.name}' ({node.op_type})",
                remedy="Check the shapes of the inputs (--shape).",
            ) from None
        vague = any(shape_of(found[name]) is None for name in node.output if name in found)
        return function_outputs(node, types) or found if vague or not found else found

    def infer(self, node: onnx.NodeProto, scope: Scope) -> None:
        found = self.outputs(node, scope)
        for name in node.output:
            if not name:
                continue
            if name in found:
                scope.types[name] = found[name]
            if scope.static(name) is None:
                before = next((scope.lost[source] for source in reads(node) if source in scope.lost), node)
                scope.lost[name] = before

    def branches(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Walk the branches of an `If`; only the one taken when the condition is known."""
        graphs = list(subgraphs_of(node))
        condition = scope.values.get(node.input[0])
        if condition is not None:
            wanted = "then_branch" if condition.any() else "else_branch"
            graphs = [attribute.g for attribute in node.attribute if attribute.name == wanted]
        taken = [(graph, scope.child()) for graph in graphs]
        for graph, inside in taken:
            self.graph(graph, inside)
        scope.inner[node.name] = taken
        for position, name in enumerate(node.output):
            pairs = [(inside, graph.output[position].name) for graph, inside in taken]
            shapes = {inside.static(inner) for inside, inner in pairs}
            kinds = [inside.types[inner] for inside, inner in pairs if inner in inside.types]
            if kinds and len(shapes) == 1 and None not in shapes:
                scope.types[name] = kinds[0]
            else:
                if kinds:
                    scope.types[name] = type(kinds[0])()
                    scope.types[name].tensor_type.elem_type = kinds[0].tensor_type.elem_type
                scope.lost[name] = node
            if len(pairs) == 1 and condition is not None:
                inside, inner = pairs[0]
                if inner in inside.values:
                    scope.values[name] = inside.values[inner]
                if inner in inside.constants:
                    scope.constants.add(name)


def _measure(node: onnx.NodeProto, shape: tuple[int, ...] | None) -> dict[str, npt.NDArray[Any]] | None:
    """Return what a `Shape` or `Size` node gives for a static shape."""
    if shape is None:
        return None
    if node.op_type == "Size":
        return {node.output[0]: np.asarray(element_count(shape), np.int64)}
    part = shape[attribute_of(node, "start", 0) : attribute_of(node, "end", len(shape))]
    return {node.output[0]: np.asarray(part, np.int64)}


def _evaluate(
    node: onnx.NodeProto, inputs: dict[str, npt.NDArray[Any]], opsets: dict[str, int]
) -> dict[str, npt.NDArray[Any]] | None:
    """Compute a node with onnx's reference implementation; None when it cannot."""
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            values = ReferenceEvaluator(node, opsets={"": opsets.get("", 1)}).run(None, inputs)
    except Exception:  # noqa: BLE001 - whatever it cannot compute stays unknown; nothing depends on how it fails
        return None
    found = {name: np.asarray(value) for name, value in zip(node.output, values, strict=False) if name}
    return found if all(value.size <= _MAX_VALUES and value.dtype.kind in "biufc" for value in found.values()) else None


def _element_type(value: npt.NDArray[Any]) -> int:
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(value.dtype))


def _count(shape: Shape) -> int:
    return element_count(dim for dim in shape if isinstance(dim, int))


def body_scope(
    model: onnx.ModelProto,
    folder: Path | None,
    body: onnx.GraphProto,
    outer: Scope,
    kinds: Sequence[onnx.TypeProto | None],
) -> Scope:
    """Walk a loop body.

    Args:
        model: the model it belongs to.
        folder: where its external data lies.
        body: the body.
        outer: the scope of the graph that holds the loop.
        kinds: types of the body's inputs; None takes the declared one.
    """
    inside = outer.child()
    for value, kind in zip(body.input, kinds, strict=False):
        inside.types[value.name] = kind if kind is not None else value.type
        inside.constants.discard(value.name)
        inside.values.pop(value.name, None)
    _Walk(model, folder, {}).graph(body, inside)
    return inside
