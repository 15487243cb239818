"""Weights in the pattern 2:4, which Ampere's tensor cores compute faster: whether an engine may count on them."""

from __future__ import annotations

from edgekit.artifact import Artifact
from edgekit.profile import Profile

PATTERN = "2:4"
STAGE = "prune-weights"


def is_sparse(artifact: Artifact, profile: Profile) -> bool:
    """Say whether a network was pruned to 2:4 and the device gains by it.

    TensorRT looks at the weights itself and takes sparse kernels only where they hold the pattern and are faster: a
    layer that a later stage filled again is computed as dense.
    """
    pruned = any(step.stage == STAGE and step.options.get("pattern") == PATTERN for step in artifact.lineage)
    return pruned and PATTERN in profile.layers.sparsity
