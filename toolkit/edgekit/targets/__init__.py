"""Targets: where bundles are run and measured."""

from __future__ import annotations

from edgekit.profile import Profile
from edgekit.targets.composite import CompositeTarget
from edgekit.transport import open_transport

__all__ = ["CompositeTarget", "open_target"]


def open_target(url: str, profile: Profile) -> CompositeTarget:
    """Return the target of a URL (`local`, `ssh://user@host[:port]`, `emulated-aarch64`), not yet connected.

    Args:
        url: where it is.
        profile: what it should be; a machine of another kind is told in the target's `findings`.

    Raises:
        UsageError: no target has such a URL, with a suggestion.
    """
    return CompositeTarget(open_transport(url), profile)
