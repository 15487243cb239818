"""How much the loss needs every channel: first-order Taylor terms on the user's labeled samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgekit import events
from edgekit.networks.child import Tell
from edgekit.networks.coupled import Coupling, Slot
from edgekit.networks.feeds import Feeds
from edgekit.networks.finetune import check_inputs
from edgekit.networks.goal import make_goal
from edgekit.networks.network import Network, evaluating
from edgekit.networks.prune_apply import tensors_of
from edgekit.networks.train import runner_of
from edgekit.numerics.importance import Floats, taylor

BATCHES = 16
"""So many batches of training samples are looked at, at most."""

_BATCH = 32


def sensitivities(network: Network, coupling: Coupling, arguments: dict[str, Any], tell: Tell) -> dict[Slot, Floats]:
    """Return for every slot that makes or reads channels how much the loss falls without each: `[batches, indices]`.

    Args:
        network: in any mode; run as for inference, so that BatchNorm uses its statistics.
        coupling: of the network.
        arguments: `feeds` (what `feeds.write_feeds` wrote) and `seed`.
        tell: gets progress.

    Raises:
        UsageError: the data has no labels. InputError: they fit no output.
    """
    import torch

    feeds = Feeds(Path(arguments["feeds"]), seed=int(arguments["seed"]), batch=_BATCH)
    runner = runner_of(network)
    check_inputs(network, feeds)
    goal = make_goal(runner, feeds, {"teacher": None, "labels": []}, tell)
    state = tensors_of(network.module)
    plan = feeds.epoch(1)[:BATCHES]
    slots = sorted(coupling.makes | coupling.reads)
    found: dict[Slot, Floats] = {slot: np.zeros((len(plan), len(coupling.axes[slot]))) for slot in slots}
    with evaluating(network.module):
        for done, samples in enumerate(plan):
            batch = feeds.load(samples)
            feed = {name: torch.from_numpy(array) for name, array in batch.feed.items()}
            network.module.zero_grad(set_to_none=True)
            torch.stack(list(goal.terms(runner(feed), batch, feed).values())).sum().backward()  # type: ignore[no-untyped-call]
            for slot, changes in found.items():
                weight = state[slot.tensor]
                if weight.grad is not None:
                    changes[done] = taylor(weight.detach().numpy(), weight.grad.numpy(), slot.axis)
            tell(events.Progress(label="taylor", done=done + 1, total=len(plan)))
    network.module.zero_grad(set_to_none=True)
    return found
