"""Blends of samples as inputs of a training: no two epochs see the same ones, and none can be learned by heart.

A network that knows its samples by heart learns nothing from them; from blends of two samples, and of their labels
(Zhang et al., 2018), it still does. A teacher that was trained on the same samples says little more than labels on
them, and what is its own on blends: the student learns the function instead of the samples (Beyer et al., 2022). The
teacher runs on every blend.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from edgekit.networks.feeds import Batch, Feeds
from edgekit.networks.goal import Goal
from edgekit.networks.train import Forward, Loss, Tensors

if TYPE_CHECKING:
    import torch

    from edgekit.networks.teacher import Teacher


def can_blend(goal: Goal, feeds: Feeds) -> bool:
    """Say whether samples can be blended: all inputs are floats, and labels, where they count, are classes."""
    batch = feeds.load(feeds.held_out()[0])
    counts = {len(value) for value in batch.feed.values()}
    if any(value.dtype.kind != "f" for value in batch.feed.values()) or len(counts) != 1:
        return False
    labeled = goal.task is not None and goal.alpha < 1
    return not labeled or (
        goal.task is not None
        and goal.task.kind == "classes"
        and batch.labels is not None
        and {len(batch.labels)} == counts
    )


def blended(goal: Goal) -> Loss:
    """Return the loss on blends of the samples of a batch, each with the one opposite.

    The share of a sample is drawn anew for every batch, evenly between a half and all of it. Of labels, the losses are
    blended.
    """
    import torch

    teacher = goal.teacher

    def loss(forward: Forward, batch: Batch, feed: Tensors, _done: float) -> Tensors:
        share = 0.5 + 0.5 * float(torch.rand(()))
        mixed = {name: _mixed(value, share) for name, value in feed.items()}
        wanted = None if teacher is None else _asked(teacher, mixed)
        outputs = forward(mixed)
        terms = goal.terms(outputs, batch, mixed, target=wanted)
        if "hard" in terms and batch.labels is not None:
            opposite = dataclasses.replace(batch, labels=batch.labels[::-1])
            other = goal.terms(outputs, opposite, mixed, target=wanted)["hard"]
            terms["hard"] = share * terms["hard"] + (1 - share) * other
        return terms

    return loss


def _asked(teacher: Teacher, feed: Tensors) -> Tensors:
    """Run the teacher on inputs that it has not kept outputs for."""
    import torch

    if teacher.network is not None:
        teacher.network.module.to(next(iter(feed.values())).device)
    found = teacher.run({name: value.cpu().numpy() for name, value in feed.items()})
    return {name: torch.from_numpy(value) for name, value in found.items()}


def _mixed(value: torch.Tensor, share: float) -> Any:
    """Blend the samples along the first axis with their order reversed; the memory format stays."""
    import torch

    found = share * value + (1 - share) * value.flip(0)
    last = value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)  # noqa: PLR2004 - images
    return found.contiguous(memory_format=torch.channels_last) if last else found.contiguous()
