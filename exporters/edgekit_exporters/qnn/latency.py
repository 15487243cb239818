"""Latency on the HTP without a device: Qualcomm's own estimate, else the roofline."""

from __future__ import annotations

from pathlib import Path

from edgekit.artifact import MAIN, Artifact
from edgekit.budget import Figure
from edgekit.profile import Profile
from edgekit_exporters.qnn.desk import Desk


def predict(desk: Desk, artifact: Artifact, folder: Path, profile: Profile, *, compiles: bool) -> tuple[Figure, ...]:
    """Return the latency's figure."""
    from edgekit.graphs.cost import cost_of
    from edgekit.graphs.roofline import predict_latency
    from edgekit.graphs.rules import usual_shapes

    del desk, compiles
    return (predict_latency(cost_of(folder / MAIN, usual_shapes(artifact)), profile),)
