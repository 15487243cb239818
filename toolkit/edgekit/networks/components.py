"""The graphs that a model is exported as: one for most, several for what generates with a cache."""

from __future__ import annotations

from collections.abc import Callable

from edgekit.artifact import MAIN
from edgekit.networks.network import Network


def components(network: Network) -> dict[str, Callable[[], Network]]:
    """Return graph file name -> what makes its network."""
    return {MAIN: lambda: network}
