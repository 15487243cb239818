"""Reading and changing ONNX graphs: the words that stages and exporters share."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from edgekit.errors import InputError
from edgekit.graphs.saving import load_model, save_model
from edgekit.graphs.storage import graphs_in, subgraphs_of, value_of

if TYPE_CHECKING:
    import onnx

__all__ = [
    "GraphIndex",
    "attribute_of",
    "constant_tensor",
    "drop_dead",
    "drop_inputs_of_constants",
    "free_names",
    "free_names_of",
    "graphs_in",
    "is_standard",
    "load_model",
    "name_nodes",
    "opset_of",
    "reads",
    "rename_tensor",
    "save_model",
    "sort_nodes",
    "subgraphs_of",
    "value_of",
]

RANDOM_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


def is_standard(node: onnx.NodeProto, *ops: str) -> bool:
    """Tell whether a node is one of these operators of the default domain (any operator when none is named)."""
    return node.domain in {"", "ai.onnx"} and (not ops or node.op_type in ops)


def opset_of(model: onnx.ModelProto, domain: str = "") -> int:
    """Return the version of an operator set that a model imports; 0 when it does not."""
    names = {"", "ai.onnx"} if domain in {"", "ai.onnx"} else {domain}
    return max((entry.version for entry in model.opset_import if entry.domain in names), default=0)


def attribute_of(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return an attribute's value (int, float, bytes, list, tensor, graph), or `default` when it is not set."""
    import onnx

    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def free_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors of the enclosing graph that a node's inner graphs read, in order, possibly more than once."""
    for inner in subgraphs_of(node):
        yield from free_names_of(inner)


def free_names_of(inner: onnx.GraphProto) -> Iterator[str]:
    """Yield the tensors that an inner graph reads from those around it, in order, possibly more than once."""
    own = {value.name for value in inner.input} | {tensor.name for tensor in inner.initializer}
    own |= {sparse.values.name for sparse in inner.sparse_initializer}
    own |= {name for item in inner.node for name in item.output}
    for item in inner.node:
        for name in reads(item):
            if name not in own:
                yield name
    for value in inner.output:
        if value.name not in own:
            yield value.name


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield every tensor that a node reads, also what its inner graphs read from outside; not left-out inputs."""
    for name in node.input:
        if name:
            yield name
    yield from free_names(node)


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the value of a `Constant` node as a tensor; None for another node, strings or sparse values."""
    import numpy as np
    import onnx

    if not is_standard(node, "Constant") or len(node.attribute) != 1:
        return None
    attribute: onnx.AttributeProto = node.attribute[0]
    if attribute.name == "value":
        tensor: onnx.TensorProto = attribute.t
        return tensor
    types: dict[str, tuple[Any, Any]] = {
        "value_float": (attribute.f, np.float32),
        "value_floats": (list(attribute.floats), np.float32),
        "value_int": (attribute.i, np.int64),
        "value_ints": (list(attribute.ints), np.int64),
    }
    if attribute.name not in types or attribute.ref_attr_name:
        return None
    value, dtype = types[attribute.name]
    return onnx.numpy_helper.from_array(np.asarray(value, dtype=dtype), name=node.output[0])


class GraphIndex:
    """Who makes and who reads each tensor of one graph. A snapshot: make a new one after changing the graph.

    Attributes:
        graph: the indexed graph.
        producers: tensor name -> the node that makes it.
        consumers: tensor name -> the nodes that read it (also from inside their inner graphs), one entry per use.
        initializers: tensor name -> its initializer.
        outputs: names of the graph's outputs.
    """

    def __init__(self, graph: onnx.GraphProto, folder: Path | None = None) -> None:
        """Index `graph`; `folder` is where its external data lies."""
        self.graph = graph
        self.folder = folder
        self.initializers: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = {value.name for value in graph.output}
        self.producers: dict[str, onnx.NodeProto] = {}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.output:
                if name:
                    self.producers[name] = node
            for name in reads(node):
                self.consumers.setdefault(name, []).append(node)
        self._names = {name for inner in graphs_in(graph) for name in _names_in(inner)}

    def constant(self, name: str) -> onnx.TensorProto | None:
        """Return the constant behind a tensor (initializer or Constant node, through Identity), or None."""
        for _ in range(len(self.graph.node) + 1):
            if name in self.initializers:
                return self.initializers[name]
            node = self.producers.get(name)
            if node is None or not is_standard(node, "Identity"):
                return constant_tensor(node) if node is not None else None
            name = node.input[0]
        return None

    def value(self, name: str) -> npt.NDArray[Any] | None:
        """Return the values of the constant behind a tensor, or None when it is not constant."""
        tensor = self.constant(name) if name else None
        return None if tensor is None else value_of(tensor, self.folder)

    def only_consumer(self, name: str) -> onnx.NodeProto | None:
        """Return the node that alone reads a tensor, once; None when it is a graph output or read more than once."""
        users = self.consumers.get(name, [])
        return users[0] if len(users) == 1 and name not in self.outputs else None

    def fresh_name(self, base: str) -> str:
        """Return an unused tensor or node name made from `base`, and reserve it."""
        name, count = base, 0
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name


def _names_in(graph: onnx.GraphProto) -> Iterator[str]:
    for value in (*graph.input, *graph.output):
        yield value.name
    for tensor in graph.initializer:
        yield tensor.name
    for node in graph.node:
        yield node.name
        yield from node.output
        yield from node.input


def rename_tensor(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Let every reader of `old` (inner graphs too) read `new`; producers and graph outputs are left alone."""
    for inner in graphs_in(graph):
        for node in inner.node:
            for position, name in enumerate(node.input):
                if name == old:
                    node.input[position] = new


def sort_nodes(graph: onnx.GraphProto) -> bool:
    """Bring nodes into execution order, keeping the present order where it is free; inner graphs too.

    Returns:
        Whether anything moved.

    Raises:
        InputError: the graph has a cycle, or two nodes make the same tensor.
    """
    moved = False
    for inner in graphs_in(graph):
        order = _execution_order(inner.node)
        if order != list(range(len(inner.node))):
            nodes = [inner.node[index] for index in order]
            copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
            del inner.node[:]
            inner.node.extend(copies)
            moved = True
    return moved


def _execution_order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    makers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and name in makers:
                raise InputError(
                    f"two nodes make the tensor '{name}'",
                    where=f"node '{node.name or node.op_type}'",
                    remedy="Export it again: every tensor must be made once.",
                )
            makers[name] = index
    waits = [{makers[name] for name in reads(node) if name in makers} for node in nodes]
    readers: dict[int, list[int]] = {}
    for index, before in enumerate(waits):
        for maker in before:
            readers.setdefault(maker, []).append(index)
    ready = [index for index, before in enumerate(waits) if not before]
    heapq.heapify(ready)
    left = [len(before) for before in waits]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, []):
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)
    if len(order) != len(nodes):
        stuck = next(node for index, node in enumerate(nodes) if left[index])
        raise InputError(
            "the graph has a cycle", where=f"node '{stuck.name or stuck.op_type}'", remedy="Export it again."
        )
    return order


def drop_inputs_of_constants(graph: onnx.GraphProto) -> list[str]:
    """Remove graph inputs that only give an initializer's type (IR 3 lists every weight as an input); return them."""
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {sparse.values.name for sparse in graph.sparse_initializer}
    dropped = [value.name for value in graph.input if value.name in constants]
    for index in range(len(graph.input) - 1, -1, -1):
        if graph.input[index].name in constants:
            del graph.input[index]
    return dropped


def name_nodes(model: onnx.ModelProto) -> dict[str, str]:
    """Give every node a unique name: unnamed nodes `OpType_N`, later nodes of a duplicate name `name_N`.

    Returns:
        New name -> old name of the nodes that were renamed (empty old name: it had none).
    """
    taken = {node.name for graph in graphs_in(model.graph) for node in graph.node}
    seen: set[str] = set()
    changed: dict[str, str] = {}
    for graph in graphs_in(model.graph):
        for node in graph.node:
            if node.name and node.name not in seen:
                seen.add(node.name)
                continue
            old = node.name
            count = 0 if not old else 1
            base = old or node.op_type
            while f"{base}_{count}" in taken:
                count += 1
            node.name = f"{base}_{count}"
            taken.add(node.name)
            seen.add(node.name)
            changed[node.name] = old
    return changed


def drop_dead(graph: onnx.GraphProto) -> int:
    """Remove nodes that reach no output, and unused initializers and value infos; return the number of nodes."""
    needed = {value.name for value in graph.output}
    dead = 0
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        if any(name in needed for name in node.output):
            needed.update(reads(node))
        else:
            del graph.node[index]
            dead += 1
    _keep(graph.initializer, needed)
    _keep(graph.value_info, needed)
    return dead


def _keep(items: Any, needed: Container[str]) -> None:
    for index in range(len(items) - 1, -1, -1):
        if items[index].name not in needed:
            del items[index]
