"""Equalization in a graph: factors of input channels move from activations into the weights that read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.calibrate import Reference, open_graph, run, spread
from edgekit.graphs.edit import GraphIndex, attribute_of, is_standard, sort_nodes
from edgekit.graphs.padding import shown
from edgekit.numerics.equalize import Equalized, Floats, Places, equalize

if TYPE_CHECKING:
    import onnx

    from edgekit.data import Samples

LEAST_SHARE = 0.01
"""Share of the whole error that a multiplication must save: each costs a pass over its activation."""

MOST_WORK = 4_000_000_000_000
"""Multiply-accumulates of the runs that find each site's share of the error: large models take fewer samples."""

MOST_ROWS = 64
"""Rows of one sample whose outputs are compared, spread evenly."""

MOST_AT_ONCE = 64 << 20
"""Bytes of activations that are kept while factors are searched."""

_MATRIX = 2
_NORMS = ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A tensor that products with constant weights read.

    Attributes:
        tensor: its name.
        readers: the products.
        norm: the normalization that makes it for these products alone and can take the factors in, or None.
    """

    tensor: str
    readers: tuple[onnx.NodeProto, ...]
    norm: onnx.NodeProto | None


def find_sites(model: onnx.ModelProto, folder: Path) -> list[Site]:
    """Return the activations that MatMul and Gemm read together with a float matrix of their own, in graph order."""
    index = GraphIndex(model.graph, folder)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        if _is_product(node, index):
            readers.setdefault(node.input[0], []).append(node)
    return [
        Site(tensor=name, readers=tuple(nodes), norm=_norm(name, nodes, index))
        for name, nodes in readers.items()
        if name not in index.initializers
    ]


def _is_product(node: onnx.NodeProto, index: GraphIndex) -> bool:
    from onnx import TensorProto

    if not is_standard(node, "MatMul", "Gemm") or node.input[1] not in index.initializers:
        return False
    weight = index.initializers[node.input[1]]
    return (
        len(weight.dims) == _MATRIX
        and weight.data_type == TensorProto.FLOAT
        and _own(node.input[1], index)
        and not attribute_of(node, "transA", 0)
    )


def _own(constant: str, index: GraphIndex) -> bool:
    """Say whether one node alone sees a constant: it may be scaled then."""
    return len(index.consumers[constant]) == 1 and constant not in index.outputs


def _norm(name: str, readers: Sequence[onnx.NodeProto], index: GraphIndex) -> onnx.NodeProto | None:
    maker = index.producers.get(name)
    if maker is None or maker.op_type not in _NORMS or name in index.outputs:
        return None
    own = all(x in index.initializers and _own(x, index) for x in maker.input[1:] if x)
    alone = len(index.consumers[name]) == len(readers)
    last = attribute_of(maker, "axis", -1) == -1
    vectors = all(len(index.initializers[x].dims) == 1 for x in maker.input[1:] if x in index.initializers)
    return maker if own and alone and last and vectors and len(maker.input) > 1 else None


def matrix(node: onnx.NodeProto, index: GraphIndex) -> Floats:
    """Return a product's weight as `[inputs, outputs]`."""
    values = index.value(node.input[1])
    assert values is not None
    return values.T if node.op_type == "Gemm" and attribute_of(node, "transB", 0) else values


@dataclass(frozen=True, kw_only=True)
class Equalizer:
    """Finds and writes the factors of one float graph.

    Attributes:
        model: the graph, which is changed.
        folder: where its external data lies.
        samples: calibration samples.
        indices: those to use.
        insert: whether factors that no normalization can take in may become a multiplication.
        threads: CPU threads.
        tell: called with sites done and in all.
    """

    model: onnx.ModelProto
    folder: Path
    samples: Samples
    indices: Sequence[int]
    insert: bool
    threads: int = 1
    tell: Callable[[int, int], None] = lambda _done, _total: None

    def run(self) -> list[dict[str, Any]]:
        """Change the graph; return a record of every site: `tensor`, `alpha`, `gain_db`, `share`, `how`."""
        sites = [site for site in find_sites(self.model, self.folder) if site.norm is not None or self.insert]
        if not sites:
            return []
        groups, work = self._groups(sites)
        found = self._search(groups)
        noises = self._noises(sites, MOST_WORK // max(work * len(sites), 1))
        total = sum(noises) or 1.0
        told = []
        for site, factors, noise in zip(sites, found, noises, strict=True):
            ratio = factors.error / factors.plain if factors.plain > 0 else 1.0
            saved = noise * (1 - ratio) / total
            how = ""
            if factors.alpha and (site.norm is not None or saved >= LEAST_SHARE):
                how = "normalization" if site.norm is not None else "multiplication"
                self._write(site, factors.factors)
            gain = -10 * float(np.log10(max(ratio, 1e-12)))
            told.append(
                {
                    "tensor": site.tensor,
                    "alpha": factors.alpha,
                    "gain_db": round(gain, 2),
                    "share": round(noise / total, 4),
                    "how": how,
                }
            )
        sort_nodes(self.model.graph)
        return told

    def _search(self, groups: Sequence[Sequence[Site]]) -> list[Equalized]:
        index = GraphIndex(self.model.graph, self.folder)
        found: list[Equalized] = []
        for group in groups:
            names = [site.tensor for site in group]
            session = open_graph(self.model, self.folder, threads=self.threads, extra_outputs=names)
            inputs: dict[str, list[Floats]] = {name: [] for name in names}
            judged: dict[str, list[Places]] = {name: [] for name in names}
            for i in self.indices:
                feed = self.samples.sample(i)
                outputs = run(session, feed, sample=self.samples.ids[i])
                for name in names:
                    x = np.asarray(outputs[name], np.float32)
                    if not x.size:
                        continue
                    mask = shown(feed, x.shape)
                    inputs[name].append(x.reshape(-1, x.shape[-1]))
                    rows = np.arange(len(inputs[name][-1])) if mask is None else np.flatnonzero(mask)
                    judged[name].append(rows[:: -(-len(rows) // MOST_ROWS)])
            for site in group:
                self.tell(len(found), sum(map(len, groups)))
                weights = [matrix(node, index) for node in site.readers]
                found.append(equalize(inputs.pop(site.tensor), weights, judged=judged[site.tensor]))
        return found

    def _groups(self, sites: Sequence[Site]) -> tuple[list[list[Site]], int]:
        """Split sites so that the activations of one group, of all samples together, stay small.

        Also returns the multiply-accumulates of the sites' products for one sample.
        """
        index = GraphIndex(self.model.graph, self.folder)
        work = 0
        names = [site.tensor for site in sites]
        session = open_graph(self.model, self.folder, threads=self.threads, extra_outputs=names)
        first = run(session, self.samples.sample(self.indices[0]), sample=self.samples.ids[self.indices[0]])
        groups: list[list[Site]] = [[]]
        room = MOST_AT_ONCE
        for site in sites:
            x = np.asarray(first[site.tensor])
            outputs = sum(matrix(node, index).shape[1] for node in site.readers)
            work += x.size * outputs
            size = x.nbytes * len(self.indices)
            if size > room and groups[-1]:
                groups.append([])
                room = MOST_AT_ONCE
            groups[-1].append(site)
            room -= size
        return groups, work

    def _noises(self, sites: Sequence[Site], most: int) -> list[float]:
        """Return the relative error of the worst output when one site alone is put on a grid at run time.

        `most` samples are used; where not even one can be afforded, all sites count the same.
        """
        if not most:
            return [1.0] * len(sites)
        indices = [self.indices[place] for place in spread(len(self.indices), most)]
        reference = Reference(open_graph(self.model, self.folder, threads=self.threads), self.samples, indices)
        model, switches = _with_grids(self.model, sites)
        session = open_graph(model, self.folder, threads=self.threads)
        found = []
        for number in range(len(sites)):
            self.tell(number, len(sites))
            chosen = {name: np.array(place == number) for place, name in enumerate(switches)}
            distances = reference.distances(_Switched(session, chosen)).values()
            found.append(max((d.noise / d.signal for d in distances if d.signal > 0), default=0.0))
        return found

    def _write(self, site: Site, factors: Floats) -> None:
        from onnx import helper

        index = GraphIndex(self.model.graph, self.folder)
        for node in site.readers:
            scaled = matrix(node, index) * factors[:, None]
            transposed = node.op_type == "Gemm" and attribute_of(node, "transB", 0)
            self._set(index, node.input[1], scaled.T if transposed else scaled)
        if site.norm is not None:
            for name in filter(None, site.norm.input[1:]):
                values = index.value(name)
                assert values is not None
                self._set(index, name, values / factors)
            return
        name = index.fresh_name(site.tensor + "_equalized")
        weights = index.fresh_name(name + "_by")
        self.model.graph.initializer.append(_tensor(1 / factors, weights))
        self.model.graph.node.append(helper.make_node("Mul", [site.tensor, weights], [name], name=name))
        for node in site.readers:
            node.input[0] = name

    def _set(self, index: GraphIndex, name: str, values: npt.NDArray[np.floating]) -> None:
        index.initializers[name].CopyFrom(_tensor(values, name))


def _tensor(values: npt.NDArray[np.floating], name: str) -> onnx.TensorProto:
    import onnx

    return onnx.numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name)


@dataclass(frozen=True)
class _Switched:
    """A session with some inputs that stay the same for every sample."""

    session: Any
    fixed: dict[str, npt.NDArray[np.bool_]]

    def run(self, names: Sequence[str], feed: dict[str, Any]) -> Any:
        return self.session.run(names, {**feed, **self.fixed})

    def get_inputs(self) -> Any:
        return [item for item in self.session.get_inputs() if item.name not in self.fixed]

    def get_outputs(self) -> Any:
        return self.session.get_outputs()


def _with_grids(model: onnx.ModelProto, sites: Sequence[Site]) -> tuple[onnx.ModelProto, list[str]]:
    """Return the graph with a switch a site, whose products then read their tensor on a grid of its own range."""
    from onnx import TensorProto, helper

    made = type(model)()
    made.CopyFrom(model)
    index = GraphIndex(made.graph)
    switches: list[str] = []
    places: dict[tuple[str, str], str] = {}
    for site in sites:
        integers = index.fresh_name(site.tensor + "_on_grid")
        outputs = [integers, integers + "_scale", integers + "_zero_point"]
        floats, switch, read = integers + "_float", integers + "_switch", integers + "_read"
        switches.append(switch)
        places |= {(node.name, site.tensor): read for node in site.readers}
        made.graph.input.append(helper.make_tensor_value_info(switch, TensorProto.BOOL, []))
        made.graph.node.extend(
            [
                helper.make_node("DynamicQuantizeLinear", [site.tensor], outputs),
                helper.make_node("DequantizeLinear", outputs, [floats]),
                helper.make_node("Where", [switch, floats, site.tensor], [read]),
            ]
        )
    for node in made.graph.node:
        if node.input and (node.name, node.input[0]) in places:
            node.input[0] = places[node.name, node.input[0]]
    sort_nodes(made.graph)
    return made, switches
