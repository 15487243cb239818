"""Latency on the HTP without a device: Qualcomm's own estimate, else the roofline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.artifact import MAIN, Artifact
from edgekit.budget import Figure
from edgekit.profile import Profile
from edgekit_exporters.qnn.desk import Desk

if TYPE_CHECKING:
    from edgekit.graphs.forecast import Forecast


def predict(desk: Desk, artifact: Artifact, folder: Path, profile: Profile, *, compiles: bool) -> tuple[Figure, ...]:
    """Return the latency's figure."""
    del desk, compiles
    return roofline(artifact, folder, profile).figures


def roofline(artifact: Artifact, folder: Path, profile: Profile) -> Forecast:
    """Predict with the profile's roofline, kernel by kernel."""
    from edgekit.graphs.cost import cost_of
    from edgekit.graphs.forecast import forecast
    from edgekit.graphs.fusion import rules_of
    from edgekit.graphs.rules import usual_shapes

    return forecast(cost_of(folder / MAIN, usual_shapes(artifact)), profile, rules=rules_of("qnn"))
