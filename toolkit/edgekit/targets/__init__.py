"""Targets: where bundles are run and measured."""

from __future__ import annotations

from pathlib import Path

from edgekit import events
from edgekit.budget import Effort, parse_effort
from edgekit.errors import UsageError
from edgekit.profile import Profile
from edgekit.target import Target
from edgekit.targets import htp_sim
from edgekit.targets.aihub import SCHEME, AiHubTarget
from edgekit.targets.composite import CompositeTarget
from edgekit.transport import open_transport

__all__ = ["CompositeTarget", "default_target", "open_target"]


def open_target(
    url: str,
    profile: Profile,
    *,
    keep: Path | None = None,
    simulate: str | None = None,
    threads: int = 1,
    listen: events.Listener = events.ignore,
) -> Target:
    """Return the target of a URL, not yet connected.

    Args:
        url: `local`, `ssh://user@host[:port]`, `adb://SERIAL`, `emulated-aarch64`, `htp-sim`, `aihub://Device Name`.
        profile: what it should be; a machine of another kind is told in the target's `findings`.
        keep: the folder (the store's `scratch`) that holds the outputs of an evaluation's finished chunks until it has
            ended, so that the same command goes on after a kill; None: they are not kept.
        simulate: how much a simulator runs: `500` samples, or what `10m` of a core are enough for.
        threads: how many samples a simulator runs at a time.
        listen: gets what a device tells of long work (an engine that is built, a load that is kept up), from another
            thread.

    Raises:
        UsageError: no target has such a URL, with a suggestion; `simulate` for what is no simulator.
        TargetError, UnsupportedError: the simulator is not installed, or not one of the profile's chip.
    """
    if url == htp_sim.URL:
        effort = parse_effort(simulate, "simulate") if simulate else Effort()
        return htp_sim.HtpSimTarget(profile, effort, keep=keep, threads=threads)
    if simulate:
        raise UsageError(
            f"'{simulate}', and {url} is no simulator: all samples run there",
            where="simulate",
            remedy=f"Leave it out, or simulate: --target {htp_sim.URL}",
        )
    if url.partition("://")[0] == SCHEME:
        return AiHubTarget(url, profile)
    return CompositeTarget(open_transport(url), profile, keep=keep, listen=listen)


def default_target(profile: Profile) -> str:
    """Return a profile's target when none is named; empty when a device must be, or its simulator is missing."""
    return "" if profile.target == htp_sim.URL and not htp_sim.is_installed() else profile.target
