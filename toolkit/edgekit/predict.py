"""Use case `predict`: what a model would need on a device, without the device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgekit import events
from edgekit.budget import Figure
from edgekit.exporter import load_exporter
from edgekit.loading import load_graph
from edgekit.profile import load_profile
from edgekit.store import Store


def predict(
    model: str,
    *,
    profile: str,
    weights: str | None = None,
    shape: Sequence[str] = (),
    store: Path | None = None,
    listen: events.Listener = events.ignore,
) -> tuple[Figure, ...]:
    """Return the figures that the profile's exporter can tell without a device; every one is `predicted`.

    Args:
        model: as `edgekit.build` takes it.
        profile: the device's name.
        weights: a safetensors file for a `python:` model.
        shape: `input=SHAPE` or `input=MIN/OPT/MAX`.
        store: the store's folder.
        listen: where progress goes.

    Raises:
        UnsupportedError: there is no exporter for the profile's runtime.
        InputError: an input has an axis without a size; names it.
    """
    device = load_profile(profile)
    with Store(store) as shelf:
        graph = load_graph(model, shelf, device, weights=weights, shape=shape, listen=listen)
        return load_exporter(device.runtime).estimate(graph, shelf.folder(graph.id), device)
