"""Equalization in a graph: factors of channels move from activations into the weights that read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit.graphs.calibrate import Reference, open_graph, run, spread
from edgekit.graphs.edit import GraphIndex, sort_nodes
from edgekit.graphs.equalize_grids import Switched, with_grids
from edgekit.graphs.equalize_sites import Site, columns_of, find_sites, reader_of, write_factors
from edgekit.graphs.padding import shown
from edgekit.numerics.equalize import Equalized, Precision, Seen, equalize

if TYPE_CHECKING:
    import onnx

    from edgekit.data import Feed, Samples
    from edgekit.graphs.equalize_sites import How

LEAST_SHARE = 0.01
"""Share of the whole error that a multiplication must save: each costs a pass over its activation."""

MOST_WORK = 4_000_000_000_000
"""Multiply-accumulates of the runs that measure the outputs' error: large models take fewer samples."""

MOST_COLUMNS = 64
"""Columns of one sample whose outputs are compared, spread evenly."""

MOST_AT_ONCE = 64 << 20
"""Bytes of activations that are looked at together."""

LARGEST = 1 << 24
"""Weights of one site's readers above which it is left alone: they are rounded once for every exponent."""

_HELD_EVERY = 4


@dataclass(frozen=True, kw_only=True)
class Equalizer:
    """Finds and writes the factors of one float graph.

    Attributes:
        model: the graph, which is changed.
        folder: where its external data lies.
        samples: calibration samples.
        indices: those to use: every fourth decides what is kept.
        ways: what may take factors in.
        precision: how the graph will be quantized.
        threads: CPU threads.
        tell: called with sites done and in all.
    """

    model: onnx.ModelProto
    folder: Path
    samples: Samples
    indices: Sequence[int]
    ways: frozenset[How]
    precision: Precision
    threads: int = 1
    tell: Callable[[int, int], None] = lambda _done, _total: None

    def run(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Change the graph, if that brings the quantized graph's outputs nearer on held-out samples.

        Returns:
            A record of every site: `tensor`, `alpha`, `gain_db` (on held-out samples), `share`, `how`; and `before_db`
            and `after_db` of the whole graph's worst output there (empty when nothing was kept).
        """
        sites = [site for site in find_sites(self.model, self.folder) if site.how in self.ways]
        if not sites:
            return [], {}
        groups, work = self._groups(sites)
        found = self._search(groups)
        shares = self._shares(sites, work)
        told = []
        for site, factors, share in zip(sites, found, shares, strict=True):
            ratio = factors.error / factors.plain if factors.plain > 0 else 1.0
            enough = site.how != "multiplication" or share * (1 - ratio) >= LEAST_SHARE
            told.append(
                {
                    "tensor": site.tensor,
                    "alpha": factors.alpha,
                    "gain_db": round(-10 * float(np.log10(max(ratio, 1e-12))), 2),
                    "share": round(share, 4),
                    "how": site.how if factors.kept and enough else "",
                }
            )
        outputs: dict[str, Any] = {}
        for ways in ({"normalization", "layer"}, {"multiplication"}):
            rows = [row for row in told if row["how"] in ways]
            changed = [(site, f) for site, f, row in zip(sites, found, told, strict=True) if row in rows]
            judged = self._written(sites, changed, work) if changed else {}
            outputs |= judged if not outputs else {name: judged[name] for name in judged if name == "after_db"}
            for row in rows if not judged else ():
                row["how"] = ""
        return told, outputs

    @property
    def _fit(self) -> list[int]:
        return [index for place, index in enumerate(self.indices) if place % _HELD_EVERY != _HELD_EVERY - 1]

    @property
    def _held(self) -> list[int]:
        return list(self.indices[_HELD_EVERY - 1 :: _HELD_EVERY])

    def _search(self, groups: Sequence[Sequence[Site]]) -> list[Equalized]:
        index = GraphIndex(self.model.graph, self.folder)
        found: list[Equalized] = []
        for group in groups:
            session = open_graph(self.model, self.folder, threads=self.threads, extra_outputs=[s.tensor for s in group])
            seen: dict[int, list[Seen]] = {}
            for i in self.indices:
                feed = self.samples.sample(i)
                outputs = run(session, feed, sample=self.samples.ids[i])
                arrays = [np.asarray(outputs[site.tensor], np.float32) for site in group]
                if all(array.size for array in arrays):
                    seen[i] = [_seen(site, x, feed, index) for site, x in zip(group, arrays, strict=True)]
            for number, site in enumerate(group):
                self.tell(len(found), sum(map(len, groups)))
                fit, held = ([seen[i][number] for i in part if i in seen] for part in (self._fit, self._held))
                found.append(self._one(site, fit, held, index))
        return found

    def _one(self, site: Site, fit: list[Seen], held: list[Seen], index: GraphIndex) -> Equalized:
        readers = [reader_of(node, index) for node in site.readers]
        if not fit or not held or sum(reader.weights.size for reader in readers) > LARGEST:
            return Equalized(factors=np.ones(1, np.float32), alpha=0.0, error=0.0, plain=0.0, kept=False)
        how = Precision(
            bits=self.precision.bits,
            levels=self.precision.levels,
            fixed=self.precision.fixed or site.convolves,
            each=not site.convolves,
        )
        return equalize(fit, held, readers, how)

    def _groups(self, sites: Sequence[Site]) -> tuple[list[list[Site]], int]:
        """Split sites so that the activations of one group stay small.

        Also returns the multiply-accumulates of the sites' products for one sample.
        """
        index = GraphIndex(self.model.graph, self.folder)
        names = [site.tensor for site in sites]
        session = open_graph(self.model, self.folder, threads=self.threads, extra_outputs=names)
        first = run(session, self.samples.sample(self.indices[0]), sample=self.samples.ids[self.indices[0]])
        groups: list[list[Site]] = [[]]
        room, work = MOST_AT_ONCE, 0
        for site in sites:
            x = np.asarray(first[site.tensor])
            weights = sum(reader_of(node, index).weights.size for node in site.readers)
            work += weights * x.size // max(x.shape[1 if site.convolves else -1], 1)
            if x.nbytes > room and groups[-1]:
                groups.append([])
                room = MOST_AT_ONCE
            groups[-1].append(site)
            room -= x.nbytes
        return groups, work

    def _affordable(self, indices: Sequence[int], work: int) -> list[int]:
        """Return some of the samples: as many as can be afforded at so many multiply-accumulates each."""
        return [indices[place] for place in spread(len(indices), MOST_WORK // max(work, 1))]

    def _shares(self, sites: Sequence[Site], work: int) -> list[float]:
        """Return each site's share of the relative error of the worst output, each alone put on a grid at run time.

        Only multiplications have a price to be weighed against it; where not one sample can be afforded, all sites
        count the same.
        """
        indices = self._affordable(self.indices, work * len(sites))
        if "multiplication" not in self.ways or not indices:
            return [1.0 / len(sites)] * len(sites)
        reference = Reference(open_graph(self.model, self.folder, threads=self.threads), self.samples, indices)
        model, switches = with_grids(self.model, sites)
        session = open_graph(model, self.folder, threads=self.threads)
        noises = []
        for number in range(len(sites)):
            self.tell(number, len(sites))
            chosen = {name: np.array(place == number) for place, name in enumerate(switches)}
            noises.append(_worst(reference, Switched(session, chosen)))
        total = sum(noises) or 1.0
        return [noise / total for noise in noises]

    def _written(self, sites: Sequence[Site], changed: Sequence[tuple[Site, Equalized]], work: int) -> dict[str, float]:
        """Write factors if the whole graph's outputs are nearer with them on held-out samples; return the ratios then.

        They are those of the worst output with all sites' products quantized, before and after, in dB.
        """
        after = type(self.model)()
        after.CopyFrom(self.model)
        for site, factors in changed:
            write_factors(after, self.folder, site, factors.factors)
        sort_nodes(after.graph)
        indices = self._affordable(self._held, 3 * work) or self._held[:1]
        reference = Reference(open_graph(self.model, self.folder, threads=self.threads), self.samples, indices)
        ratios = []
        for model in (self.model, after):
            made, switches = with_grids(model, sites, self.precision, self.folder)
            on = {name: np.ones((), np.bool_) for name in switches}
            session = open_graph(made, self.folder, threads=self.threads)
            ratios.append(-10 * float(np.log10(max(_worst(reference, Switched(session, on)), 1e-20))))
        if ratios[1] <= ratios[0]:
            return {}
        self.model.CopyFrom(after)
        return {"before_db": round(ratios[0], 2), "after_db": round(ratios[1], 2)}


def _worst(reference: Reference, session: Any) -> float:
    """Return the relative error of the worst output."""
    distances = reference.distances(session).values()
    return max((d.noise / d.signal for d in distances if d.signal > 0), default=0.0)


def _seen(site: Site, x: Any, feed: Feed, index: GraphIndex) -> Seen:
    """Return a sample's ranges and some of its columns; tokens that a mask hides are on the grid, but not judged."""
    channels = np.moveaxis(x, 1 if site.convolves else -1, 0).reshape(x.shape[1 if site.convolves else -1], -1)
    mask = None if site.convolves else shown(feed, x.shape)
    columns = []
    for node in site.readers:
        found = columns_of(x, node, index)
        places = np.arange(found.shape[2]) if mask is None else np.flatnonzero(mask)
        columns.append(found[:, :, places[:: -(-len(places) // MOST_COLUMNS)]])
    return Seen(low=channels.min(axis=1), high=channels.max(axis=1), columns=tuple(columns))
