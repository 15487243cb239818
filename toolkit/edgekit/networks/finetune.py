"""Fine-tune an artifact of kind `torch` on labels, on a teacher's outputs, or both. Runs in a child process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from edgekit.errors import InputError
from edgekit.networks.blends import blended, can_blend
from edgekit.networks.child import Tell
from edgekit.networks.feeds import Feeds
from edgekit.networks.goal import make_goal
from edgekit.networks.network import Network
from edgekit.networks.norms import ENOUGH
from edgekit.networks.rebuild import rebuild
from edgekit.networks.saving import save_network
from edgekit.networks.schedule import Schedule
from edgekit.networks.train import fit, runner_of


def finetune(arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Train the network of an artifact and write the new one.

    Args:
        arguments: `folder`, `out`, `scratch`, `feeds`, `shapes`, `dtypes`, `threads`, `seed`, `turn` (see
            `Feeds`), `labels` (names of the outputs), `epochs`, `batch`, `rate` (0: by the kind of model), `patience`,
            `decay`, `blend` (whether samples are blended, where they can be), `alpha`, `temperature`, and
            `teacher` (see `teacher.open_teacher`) or None.
        tell: gets progress and findings.

    Returns:
        Facts: `training` (see `Fitted.facts`) and `findings`.

    Raises:
        InputError: labels, outputs and teacher do not fit together, or the loss is not finite.
        UsageError: there is neither a label nor a teacher.
    """
    import torch

    torch.set_num_threads(int(arguments["threads"]))
    network, feeds = opened(arguments)
    runner = runner_of(network)
    goal = make_goal(runner, feeds, arguments, tell)
    schedule = schedule_of(arguments, network)
    scratch = Path(arguments["scratch"])
    blending = bool(arguments["blend"]) and can_blend(goal, feeds)
    loss = blended(goal) if blending else goal.loss()
    fitted = fit(runner, feeds, loss, schedule, judge=goal.loss(), scratch=scratch / "train", tell=tell)
    save_network(network.module, Path(arguments["folder"]), Path(arguments["out"]))
    findings = [msgspec.to_builtins(finding) for finding in (*network.findings, *goal.findings)]
    training = {**fitted.facts(), "rate": schedule.rate, "goal": goal.words(), "blended": blending}
    return {"training": training, "findings": findings}


def opened(arguments: dict[str, Any]) -> tuple[Network, Feeds]:
    """Rebuild the network, checked against what it is fed with, and map its training samples."""
    network = rebuild(Path(arguments["folder"]), shapes=arguments["shapes"], dtypes=arguments["dtypes"])
    seed, turn, batch = (int(arguments[name]) for name in ("seed", "turn", "batch"))
    feeds = Feeds(Path(arguments["feeds"]), seed=seed, batch=batch, turn=turn)
    check_inputs(network, feeds)
    return network, feeds


def schedule_of(arguments: dict[str, Any], network: Network) -> Schedule:
    """Return the schedule that a stage asked for; a rate of 0 becomes what suits the kind of model."""
    return Schedule(
        epochs=int(arguments["epochs"]),
        rate=float(arguments["rate"]) or (5e-5 if network.pretrained else 1e-3),
        patience=int(arguments["patience"]),
        decay=float(arguments["decay"]),
        start_counts=False,
        live_norms=int(arguments["batch"]) >= ENOUGH,
        seed=int(arguments["seed"]),
    )


def check_inputs(network: Network, feeds: Feeds) -> None:
    """Raise InputError when the data does not feed what the network takes; says which names differ."""
    given = set(feeds.load(feeds.held[:1]).feed)
    wanted = set(network.examples)
    if given != wanted:
        raise InputError(
            f"the network takes {', '.join(sorted(wanted))}; the data gives {', '.join(sorted(given))}",
            where=type(network.module).__name__,
            remedy="State the inputs with --shape, by the names of the module's parameters.",
        )
