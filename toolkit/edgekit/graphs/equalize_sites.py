"""Where channels of activations can be equalized, and how a graph takes the factors in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from edgekit.graphs.edit import GraphIndex, attribute_of, is_standard
from edgekit.graphs.products import as_rows, from_rows, groups_of, input_columns
from edgekit.numerics.equalize import Floats, Reader

if TYPE_CHECKING:
    import onnx

How = Literal["normalization", "layer", "multiplication"]
"""What takes the factors in: the normalization or the layer that makes the activation, or a Mul that is added."""

_MATRIX = 2
_BIAS = 2
_NORMS = ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")
_POINTWISE = ("Relu", "LeakyRelu", "Identity")
_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A tensor that products with constant weights read.

    Attributes:
        tensor: its name.
        readers: the products: all MatMul and Gemm, or all Conv.
        maker: the normalization or product that makes it for these products alone and can take the factors in, or None.
        how: what takes the factors in.
    """

    tensor: str
    readers: tuple[onnx.NodeProto, ...]
    maker: onnx.NodeProto | None
    how: How

    @property
    def convolves(self) -> bool:
        """Whether the readers are convolutions: channels are axis 1 then, else the last one."""
        return self.readers[0].op_type == "Conv"


def find_sites(model: onnx.ModelProto, folder: Path) -> list[Site]:
    """Return the activations that products read together with a float weight of their own, in graph order."""
    index = GraphIndex(model.graph, folder)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        if _is_product(node, index) and node.input[0] not in index.initializers:
            readers.setdefault(node.input[0], []).append(node)
    sites = []
    for name, nodes in readers.items():
        convolves = {node.op_type == "Conv" for node in nodes}
        if len(convolves) > 1:
            continue
        maker = _norm(name, nodes, index)
        how: How = "multiplication" if maker is None else "normalization"
        if maker is None and (maker := _layer(name, nodes, index)) is not None:
            how = "layer"
        if maker is not None or not convolves.pop():
            sites.append(Site(tensor=name, readers=tuple(nodes), maker=maker, how=how))
    return sites


def _is_product(node: onnx.NodeProto, index: GraphIndex) -> bool:
    from onnx import TensorProto

    if not is_standard(node, "MatMul", "Gemm", "Conv") or node.input[1] not in index.initializers:
        return False
    weight = index.initializers[node.input[1]]
    return (
        (len(weight.dims) > _MATRIX if node.op_type == "Conv" else len(weight.dims) == _MATRIX)
        and weight.data_type == TensorProto.FLOAT
        and _own(node.input[1], index)
        and not attribute_of(node, "transA", 0)
        and attribute_of(node, "auto_pad", b"NOTSET") in {b"NOTSET", b"VALID"}
    )


def _own(constant: str, index: GraphIndex) -> bool:
    """Say whether one node alone sees a constant: it may be scaled then."""
    return len(index.consumers[constant]) == 1 and constant not in index.outputs


def _alone(name: str, readers: Sequence[onnx.NodeProto], index: GraphIndex) -> bool:
    """Say whether some nodes are all that see a tensor."""
    return len(index.consumers.get(name, [])) == len(readers) and name not in index.outputs


def _norm(name: str, readers: Sequence[onnx.NodeProto], index: GraphIndex) -> onnx.NodeProto | None:
    maker = index.producers.get(name)
    if maker is None or maker.op_type not in _NORMS or readers[0].op_type == "Conv":
        return None
    own = all(x in index.initializers and _own(x, index) for x in maker.input[1:] if x)
    last = attribute_of(maker, "axis", -1) == -1
    vectors = all(len(index.initializers[x].dims) == 1 for x in maker.input[1:] if x in index.initializers)
    return maker if own and _alone(name, readers, index) and last and vectors and len(maker.input) > 1 else None


def _layer(name: str, readers: Sequence[onnx.NodeProto], index: GraphIndex) -> onnx.NodeProto | None:
    """Return the product whose outputs reach the readers with each channel's factor intact."""
    convolves = readers[0].op_type == "Conv"
    passed = (*_POINTWISE, *_POOLS) if convolves else _POINTWISE  # a pool of rows would mix their channels
    users, maker = list(readers), index.producers.get(name)
    while maker is not None and is_standard(maker, *passed) and _alone(name, users, index):
        name, users = maker.input[0], [maker]
        maker = index.producers.get(name)
    if maker is None or not _is_product(maker, index) or not _alone(name, users, index):
        return None
    return maker if (maker.op_type == "Conv") == convolves and _own_bias(maker, index) else None


def _own_bias(node: onnx.NodeProto, index: GraphIndex) -> bool:
    name = node.input[_BIAS] if len(node.input) > _BIAS else ""
    if not name:
        return True
    bias = index.initializers.get(name)
    outputs = as_rows(np.empty(index.initializers[node.input[1]].dims, np.int8), node).shape
    return bias is not None and _own(name, index) and list(bias.dims) == [outputs[0] * outputs[1]]


def reader_of(node: onnx.NodeProto, index: GraphIndex) -> Reader:
    """Return a product's weights and the channel that each of its inputs is of."""
    values = _floats(index, node.input[1])
    rows = as_rows(values, node)
    groups, inputs = rows.shape[0], rows.shape[2]
    area = int(np.prod(values.shape[2:])) if node.op_type == "Conv" else 1
    channels = np.arange(groups * inputs // area).repeat(area).reshape(groups, inputs)
    return Reader(weights=rows.astype(np.float32), channels=channels)


def columns_of(x: Floats, node: onnx.NodeProto, index: GraphIndex) -> Floats:
    """Return what each output of a product is computed from, `[G, K, n]`."""
    kernel = tuple(index.initializers[node.input[1]].dims[2:]) if node.op_type == "Conv" else ()
    return input_columns(x, node, kernel)


def write_factors(model: onnx.ModelProto, folder: Path, site: Site, factors: Floats) -> None:
    """Divide a site's tensor by factors and multiply its readers' weights by them, in the site's graph or a copy."""
    from onnx import helper

    index = GraphIndex(model.graph, folder)
    nodes = {node.name: node for node in model.graph.node}
    readers = [nodes[reader.name] for reader in site.readers]
    for node in readers:
        reader = reader_of(node, index)
        rows = reader.weights * factors[reader.channels][:, None, :]
        _set(index, node.input[1], from_rows(rows, node, tuple(index.initializers[node.input[1]].dims)))
    if site.how == "normalization" and site.maker is not None:
        for name in filter(None, site.maker.input[1:]):
            _set(index, name, _floats(index, name) / factors)
    elif site.maker is not None:
        _divide_outputs(nodes[site.maker.name], index, factors)
    else:
        name = index.fresh_name(site.tensor + "_equalized")
        by = index.fresh_name(name + "_by")
        model.graph.initializer.append(_tensor(1 / factors, by))
        model.graph.node.append(helper.make_node("Mul", [site.tensor, by], [name], name=name))
        for node in readers:
            node.input[0] = name


def _divide_outputs(node: onnx.NodeProto, index: GraphIndex, factors: Floats) -> None:
    values = _floats(index, node.input[1])
    scaled = np.asarray(as_rows(values, node), np.float32) / factors.reshape(groups_of(node), -1)[:, :, None]
    _set(index, node.input[1], from_rows(scaled, node, values.shape))
    if len(node.input) > _BIAS and node.input[_BIAS]:
        _set(index, node.input[_BIAS], _floats(index, node.input[_BIAS]) / factors)


def _floats(index: GraphIndex, name: str) -> Floats:
    return np.asarray(index.value(name), np.float32)


def _set(index: GraphIndex, name: str, values: npt.NDArray[Any]) -> None:
    index.initializers[name].CopyFrom(_tensor(values, name))


def _tensor(values: npt.NDArray[Any], name: str) -> onnx.TensorProto:
    import onnx

    return onnx.numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name)
