"""Use case `predict`: what a model would need on a device, without the device."""

from __future__ import annotations

from pathlib import Path

from edgekit.artifact import Artifact
from edgekit.budget import Figure
from edgekit.exporter import load_exporter
from edgekit.profile import Profile


def predict(artifact: Artifact, folder: Path, profile: Profile) -> tuple[Figure, ...]:
    """Return the figures that the profile's exporter can tell without a device; every one is `predicted`.

    Args:
        artifact: an artifact of kind `onnx`.
        folder: where its files lie.
        profile: the device.

    Raises:
        UnsupportedError: there is no exporter for the profile's runtime.
        InputError: an input has an axis without a size; names it.
    """
    return load_exporter(profile.runtime).estimate(artifact, folder, profile)
