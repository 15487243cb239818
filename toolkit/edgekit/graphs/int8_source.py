"""The graph that int8 quantization starts from."""

from __future__ import annotations

import numpy as np

from edgekit.data import Samples
from edgekit.graphs.calibrate import open_graph, run
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.gemms import join_products, joinable


def joined(source: Canonical, samples: Samples, threads: int) -> Canonical:
    """Turn products with a bias behind them into Gemms where one sample shows that they multiply matrices."""
    operands = joinable(source.model, source.folder)
    if operands:
        session = open_graph(source.model, source.folder, threads=threads, extra_outputs=operands)
        found = run(session, samples.sample(0), sample=samples.ids[0])
        join_products(source.model, source.folder, {name: np.ndim(found[name]) for name in operands})
    return source
