"""Turn what an exporter gives into the file that edgekit keeps: named, clean, the same bytes each time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.artifact import TensorSpec
from edgekit.networks.export import INNER
from edgekit.networks.network import Network
from edgekit.networks.parity import Reference

if TYPE_CHECKING:
    import onnx_ir as ir

EXTERNAL_BYTES = 1 << 30
"""Weights above this go to `<name>.onnx.data`: one protobuf message holds at most 2 GiB."""


class WrongGraphError(Exception):
    """The exporter gave a graph that is not what was asked; the next exporter may do better."""


def finish(model: ir.Model, network: Network, given: list[Reference], opset: int) -> None:
    """Clean a fresh graph in place: names, axes, opset, no trace of this machine.

    Args:
        model: as the exporter gave it.
        network: says how inputs and their dynamic axes are called.
        given: the module's results at several sizes, which tell the dynamic axes of the outputs.
        opset: that was asked.

    Raises:
        WrongGraphError: another opset or domain, other inputs or outputs, or a dynamic axis that is fixed.
    """
    import onnx
    import onnx_ir.passes.common as passes

    _select_outputs(model.graph, list(given[0].outputs))
    passes.InlinePass()(model)
    passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    passes.RemoveUnusedNodesPass()(model)
    passes.DeduplicateInitializersPass()(model)
    passes.TopologicalSortPass()(model)
    passes.ClearMetadataAndDocStringPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    found = dict(model.opset_imports)
    if found != {"": opset}:
        raise WrongGraphError(f"the graph is of opset {found}, not {opset}")
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.doc_string = model.graph.doc_string = None
    model.graph.name = "main"
    model.ir_version = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    _name_initializers(model.graph)
    symbols = _name_inputs(model.graph, network)
    _name_outputs(model.graph, given)
    _name_symbols(model.graph, symbols)


def save(model: ir.Model, path: Path) -> None:
    """Write the graph, weights beside it when they are more than 1 GiB; checked by onnx's checker."""
    import onnx
    import onnx_ir as ir

    total = sum(
        value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None
    )
    external = f"{path.name}.data" if total > EXTERNAL_BYTES else None
    ir.save(model, path, external_data=external)
    onnx.checker.check_model(path)


def specs(model: ir.Model) -> dict[str, list[TensorSpec]]:
    """Return the inputs and outputs as TensorSpecs."""
    return {
        "inputs": [_spec(value) for value in model.graph.inputs],
        "outputs": [_spec(value) for value in model.graph.outputs],
    }


def _spec(value: ir.Value) -> TensorSpec:
    assert value.shape is not None
    assert value.dtype is not None
    shape = tuple(size if isinstance(size, int) else str(size.value) for size in value.shape)
    dtype = {"BOOL": "bool", "STRING": "string"}.get(value.dtype.name) or str(value.dtype.numpy())
    return TensorSpec(name=str(value.name), dtype=dtype, shape=shape)


def _select_outputs(graph: ir.Graph, wanted: list[str]) -> None:
    """Keep the outputs that the module has, by name where the exporter named them so, else by order."""
    found = {str(value.name): value for value in graph.outputs}
    if set(wanted) <= set(found):
        chosen = [found[name] for name in wanted]
        del graph.outputs[:]
        graph.outputs.extend(chosen)
    elif len(graph.outputs) != len(wanted):
        raise WrongGraphError(f"the graph has {len(graph.outputs)} outputs, the module {len(wanted)}")


def _name_initializers(graph: ir.Graph) -> None:
    for name, value in list(graph.initializers.items()):
        plain = name.removeprefix(f"{INNER}.")
        if plain != name and plain not in graph.initializers:
            value.name = plain


def _name_inputs(graph: ir.Graph, network: Network) -> dict[str, str]:
    """Check the inputs and name their dynamic axes; return the exporter's symbol -> our name."""
    import onnx_ir as ir

    wanted = list(network.examples)
    got = [str(value.name) for value in graph.inputs]
    if got != wanted:
        if len(got) != len(wanted) or network.program is None:
            raise WrongGraphError(f"the graph's inputs are {got}, not {wanted}")
        for value, name in zip(graph.inputs, wanted, strict=True):
            value.name = name
    symbols: dict[str, str] = {}
    for value in graph.inputs:
        example, table = network.examples[str(value.name)], network.axes.get(str(value.name), {})
        if value.shape is None or len(value.shape) != example.dim():
            raise WrongGraphError(f"the rank of the input '{value.name}' is not {example.dim()}")
        sizes: list[int | str] = []
        for axis, size in enumerate(value.shape):
            if axis not in table:
                sizes.append(int(example.shape[axis]))
                continue
            if isinstance(size, int) or str(size.value).isdigit():
                raise WrongGraphError(f"axis {axis} ({table[axis]}) of the input '{value.name}' is fixed at {size}")
            symbols.setdefault(str(size.value), table[axis])
            sizes.append(table[axis])
        value.shape = ir.Shape(sizes)
    return symbols


def _name_outputs(graph: ir.Graph, given: list[Reference]) -> None:
    """Give the outputs the module's names, and their axes the names of the sizes that they follow."""
    import onnx_ir as ir

    wanted = list(given[0].outputs)
    seen: set[int] = set()
    for index, name in enumerate(wanted):
        value = graph.outputs[index]
        if value.is_graph_input() or value.is_initializer() or id(value) in seen:
            node = ir.node("Identity", [value])
            node.outputs[0].type = value.type
            graph.append(node)
            graph.outputs[index] = value = node.outputs[0]
        seen.add(id(value))
        value.shape = ir.Shape(_output_shape(name, given))
        value.type = ir.TensorType(ir.DataType.from_numpy(given[0].outputs[name].dtype))
    inner = [*graph.initializers.values(), *(value for node in graph.all_nodes() for value in node.outputs)]
    for value in inner:  # an output may be called like a parameter
        if value.name in wanted and id(value) not in seen:
            value.name = f"{value.name}.inner"
    for value, name in zip(graph.outputs, wanted, strict=True):
        value.name = name


def _output_shape(name: str, given: list[Reference]) -> list[int | str]:
    """Name an output's axes by comparing its sizes with those of the inputs' axes over all references."""
    ranks = {reference.outputs[name].ndim for reference in given}
    if len(ranks) != 1:
        raise WrongGraphError(f"the rank of the output '{name}' depends on the input")
    found: list[int | str] = []
    for axis in range(ranks.pop()):
        seen = [int(reference.outputs[name].shape[axis]) for reference in given]
        same = [label for label in given[0].sizes if [reference.sizes[label] for reference in given] == seen]
        if same:
            found.append(same[0])
        else:
            found.append(seen[0] if len(set(seen)) == 1 else f"{name}_axis{axis}")
    return found


def _name_symbols(graph: ir.Graph, symbols: Mapping[str, str]) -> None:
    """Rename symbolic sizes of the values inside; drop those that nothing names."""
    import onnx_ir as ir

    known = {*symbols.values()}
    ends = {id(value) for value in (*graph.inputs, *graph.outputs)}
    for node in graph.all_nodes():
        for value in node.outputs:
            if id(value) in ends or value.shape is None:
                continue
            sizes: list[Any] = []
            for size in value.shape:
                text = size if isinstance(size, int) else symbols.get(str(size.value), str(size.value))
                readable = isinstance(text, int) or text in known
                sizes.append(int(text) if str(text).isdigit() else (text if readable else None))
            value.shape = ir.Shape(sizes)


def plain_reason(error: BaseException) -> str:
    """Say in one line why an exporter failed: the innermost cause, without colors and paths of this machine."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"\x1b\[[\d;]*m", "", lines[0] if lines else "")
    text = re.sub(r"(/[\w.+-]+){2,}", "...", text)
    return f"{type(error).__name__}: {text}"[:300]
