"""Latency on the HTP without a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.artifact import MAIN, Artifact
from edgekit.profile import Profile

if TYPE_CHECKING:
    from edgekit.graphs.forecast import Forecast


def predict(artifact: Artifact, folder: Path, profile: Profile) -> Forecast:
    """Predict latency and memory with the profile's roofline, kernel by kernel."""
    from edgekit.graphs.cost import cost_of
    from edgekit.graphs.forecast import forecast
    from edgekit.graphs.rules import usual_shapes

    return forecast(cost_of(folder / MAIN, usual_shapes(artifact)), profile)
