"""Use case `predict`: what a model would need on a device, without the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from edgekit import events
from edgekit.errors import UsageError
from edgekit.exporter import load_exporter
from edgekit.loading import load_graph
from edgekit.profile import load_profile
from edgekit.report import shown
from edgekit.store import Store

if TYPE_CHECKING:
    from edgekit.graphs.forecast import Forecast

Table = tuple[str, Sequence[str], Sequence[Sequence[Any]]]
"""Title, headings and rows."""

_COSTLIEST = 20
"""Kernels that the table shows."""


def predict(
    model: str,
    *,
    profile: str,
    weights: str | None = None,
    shape: Sequence[str] = (),
    protocol: Literal["graph", "plain"] = "graph",
    store: Path | None = None,
    listen: events.Listener = events.ignore,
) -> Forecast:
    """Predict what the profile's exporter can tell without a device: figures, costs, memory, and each fused kernel.

    Args:
        model: as `edgekit.build` takes it.
        profile: the device's name.
        weights: a safetensors file for a `python:` model.
        shape: `input=SHAPE` or `input=MIN/OPT/MAX`.
        protocol: on a GPU, whether kernels are started at once (a CUDA graph, as the runner does) or one by one.
        store: the store's folder.
        listen: where progress goes.

    Raises:
        UnsupportedError: there is no exporter for the profile's runtime.
        UsageError: plain launches on a device that has no CUDA graph.
        InputError: an input has an axis without a size, or a node that does multiply-accumulates has no static shape;
            names it.
    """
    device = load_profile(profile)
    if protocol == "plain" and device.roofline.launch_plain_us is None:
        raise UsageError(
            f"'{profile}' has no CUDA graph to do without",
            where="--protocol plain",
            remedy="Leave the option out.",
        )
    with Store(store) as shelf:
        graph = load_graph(model, shelf, device, weights=weights, shape=shape, listen=listen)
        return load_exporter(device.runtime).forecast(graph, shelf.folder(graph.id), device, protocol=protocol)


def to_dict(found: Forecast) -> dict[str, Any]:
    """Return a forecast as JSON values: the same facts as `tables`, and every kernel."""
    told: dict[str, Any] = msgspec.to_builtins(found)
    return told


def tables(found: Forecast) -> Iterator[Table]:
    """Yield the tables that a user wants to see."""
    figures = [
        (f.name, shown(f.value, f.unit), f"{shown(f.low, f.unit)} .. {shown(f.high, f.unit)}", f.on, f.note)
        for f in found.figures
    ]
    yield "predicted", ("figure", "value", "90 % interval", "by", "note"), figures
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in found.shapes.items())
    live = f"{shown(found.live_bytes, 'B')} live at {found.peak_node or 'no node'}"
    yield (
        "what it was predicted from",
        ("what", "value"),
        [
            ("protocol", found.protocol),
            ("interval", found.interval),
            ("shapes", shapes),
            ("multiply-accumulates", f"{found.macs:,}"),
            ("operations", f"{found.flops:,}"),
            ("parameters", f"{found.parameters:,} in {shown(found.weight_bytes, 'B')}"),
            ("activations", f"{shown(found.activation_bytes, 'B')}, {live}"),
        ],
    )
    total = sum(kernel.ms for kernel in found.kernels) or 1.0
    costliest = sorted(found.kernels, key=lambda kernel: -kernel.ms)[:_COSTLIEST]
    rows = [
        (
            kernel.node,
            "+".join(kernel.ops),
            f"{kernel.kind} {kernel.dtype}",
            f"{kernel.ms:.3g} ms",
            f"{kernel.ms / total:.1%}",
            f"{kernel.macs:,}",
            shown(kernel.bytes, "B"),
            kernel.bound,
        )
        for kernel in costliest
    ]
    title = f"costliest of {len(found.kernels)} kernels"
    yield title, ("node", "operators", "kind", "time", "share", "MACs", "moved", "bound by"), rows
