"""From what the user wrote as MODEL to a float graph in the store: for looking at it, without a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgekit import events
from edgekit.artifact import Artifact
from edgekit.exporter import load_exporter
from edgekit.pipeline import Pipeline
from edgekit.plan import capture_stages
from edgekit.profile import Profile
from edgekit.sources import ingest
from edgekit.store import Store


def load_graph(
    model: str,
    store: Store,
    profile: Profile,
    *,
    weights: str | None = None,
    shape: Sequence[str] = (),
    listen: events.Listener = events.ignore,
) -> Artifact:
    """Return the float graph of a model, captured and with its shapes fixed as asked; an artifact of kind `onnx`.

    Args:
        model: as `edgekit.build` takes it.
        store: where it is kept.
        profile: the device, which stages may read.
        weights: a safetensors file for a `python:` model.
        shape: `input=SHAPE` or `input=MIN/OPT/MAX`.
        listen: where progress goes.
    """
    source = ingest(model, store, weights=Path(weights) if weights else None, listen=listen)
    dialect = load_exporter(profile.runtime).dialect(profile)
    pipeline = Pipeline(store=store, profile=profile, dialect=dialect, listen=listen)
    for stage in capture_stages(model, source.kind, tuple(shape)):
        source = pipeline.run_stage(stage, source)
    return source
