"""The one training loop: seeded, on Hugging Face accelerate, with a checkpoint every epoch and an early stop.

A tenth of the training samples, at most 256, is never trained on: its loss says which epoch is kept. The evaluation
split has no part in it. Every epoch draws its random numbers anew from the seed, so that a training that was killed
and resumed ends where an uninterrupted one does. Several processes (see `launched`) take a share of the batches each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit import events
from edgekit.errors import InputError
from edgekit.networks.checkpoint import State, load_unique, read_checkpoint, unique_state, write_checkpoint
from edgekit.networks.child import Tell
from edgekit.networks.faults import check_finite, name_fault
from edgekit.networks.feeds import Batch, Feeds
from edgekit.networks.layout import channels_last, takes_channels_last
from edgekit.networks.network import Network, evaluating, flatten
from edgekit.networks.norms import LONE, held, hold_norms, norms_of, restore, running, settling, statistics
from edgekit.networks.repeatable import deterministic, seed_all
from edgekit.networks.schedule import Fitted, Schedule, share_of_rate
from edgekit.networks.team import Team

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
Forward = Callable[[Tensors], Tensors]
"""Input name -> tensor to output name -> tensor, through the prepared module."""

Loss = Callable[[Forward, Batch, Tensors, float], Tensors]
"""Forward, the batch, its feed as tensors, and the share of the training that is done, to named terms of the loss."""

_CLIP = 1.0
_SETTLE = 64


def runner_of(network: Network) -> torch.nn.Module:
    """Return a module that maps named inputs to named outputs, whatever the model's own call looks like."""
    import torch

    names = set(network.examples)
    call = network.call

    class Runner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network.module

        def forward(self, feed: Tensors) -> Tensors:
            return flatten(call(feed) if call else self.inner(**feed), taken=names)

    return Runner()


def parameter_groups(modules: Sequence[torch.nn.Module], rate: float, decay: float) -> list[dict[str, Any]]:
    """Return the trainable parameters of modules for an optimizer; vectors (biases, norms) do not decay."""
    found = list(dict.fromkeys(p for module in modules for p in module.parameters() if p.requires_grad))
    wide, narrow = [p for p in found if p.dim() > 1], [p for p in found if p.dim() <= 1]
    groups = [{"params": wide, "weight_decay": decay}, {"params": narrow, "weight_decay": 0.0}]
    return [{**group, "lr": rate} for group in groups if group["params"]]


def fit(  # noqa: PLR0913 - keyword-only; each stands for itself
    module: torch.nn.Module,
    feeds: Feeds,
    loss: Loss,
    schedule: Schedule,
    *,
    scratch: Path,
    tell: Tell,
    groups: list[dict[str, Any]] | None = None,
    judge: Loss | None = None,
    after_step: Callable[[], None] = lambda: None,
) -> Fitted:
    """Train a module in place and leave it at the epoch with the lowest held-out loss.

    Args:
        module: maps a feed to outputs, see `runner_of`; with whatever else is learned as submodules.
        feeds: the training samples.
        loss: what is minimized.
        schedule: how long and how fast.
        scratch: gets the checkpoint; where one lies, training goes on from it.
        tell: gets progress, one event a step.
        groups: parameter groups whose `lr` is their highest rate; default: all parameters at the schedule's rate.
        judge: what held-out samples are judged by; default: `loss`.
        after_step: called after every step of the optimizer.

    Raises:
        InputError: the loss is not finite; names the module or parameter.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with deterministic():
        return _Run(
            module=module,
            feeds=feeds,
            loss=loss,
            judge=judge or loss,
            schedule=schedule,
            scratch=scratch,
            tell=tell,
            after_step=after_step,
        ).go(groups or parameter_groups([module], schedule.rate, schedule.decay))


@dataclass(kw_only=True)
class _Run:
    module: torch.nn.Module
    feeds: Feeds
    loss: Loss
    judge: Loss
    schedule: Schedule
    scratch: Path
    tell: Tell
    after_step: Callable[[], None]

    def go(self, groups: list[dict[str, Any]]) -> Fitted:
        import torch
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=not torch.cuda.is_available())
        self.team = Team(self.accelerator)
        if not groups:
            remedy = "Set `requires_grad` of the parameters that are to be trained."
            raise InputError("no parameter of the network is trained", where="requires_grad", remedy=remedy)
        self.peaks = [float(group["lr"]) for group in groups]
        optimizer = torch.optim.AdamW(groups)
        self.module.to(self.accelerator.device)
        self.optimizer = self.accelerator.prepare(optimizer)
        self.channels_last = False
        self.channels_last = takes_channels_last(self.module, self._feed(self.feeds.load(self.feeds.held_out()[0])))
        if self.channels_last:
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        given = unique_state(self.module)
        fitted, best, start = self._resumed()
        for epoch in range(start, self.schedule.epochs + 1):
            if fitted.is_stuck(self.schedule):
                break
            seed_all(self.schedule.seed, self.feeds.turn, epoch, *([self.team.rank] if self.team.rank else []))
            row = self._epoch(epoch)
            row |= self._judgement(epoch / self.schedule.epochs)
            if fitted.add(row, self.schedule):
                best = unique_state(self.module)
            self._save(fitted, best)
        if fitted.harmed():
            fitted.best, best = 0, given
        load_unique(self.module, best)
        self.module.to(memory_format=torch.contiguous_format).to("cpu")  # type: ignore[call-overload]
        return fitted

    def _resumed(self) -> tuple[Fitted, State, int]:
        """Return what was done, the best state, and the epoch to go on with."""
        found = read_checkpoint(self.scratch, self.module, self.optimizer)
        self.team.wait()
        if found is not None:
            progress, best = found
            self.team.start_alike(self.module)
            fitted = Fitted(history=progress["history"], best=progress["best"])
            return fitted, best, len(fitted.history)
        fitted = Fitted(history=[self._settled(self._judgement(0.0))])
        self.team.start_alike(self.module)
        best = unique_state(self.module)
        self._save(fitted, best)
        return fitted, best, 1

    def _settled(self, start: dict[str, float]) -> dict[str, float]:
        """Estimate the statistics of batch normalization anew, and keep them where held-out samples gain."""
        import torch

        if not norms_of(self.module):
            return start
        kept = statistics(self.module)
        plan = self.feeds.epoch(0)[:_SETTLE]
        with torch.no_grad(), evaluating(self.module), settling(self.module):
            for samples in plan:
                self.loss(self._forward, batch := self.feeds.load(samples), self._feed(batch), 0.0)
        found = self._judgement(0.0)
        if not found["held_out"] < start["held_out"]:
            restore(self.module, kept)
            return start
        return {"before_norms": start["held_out"], **found}

    def _save(self, fitted: Fitted, best: State) -> None:
        if not self.team.leads:
            return
        progress = {"history": fitted.history, "best": fitted.best}
        write_checkpoint(self.scratch, progress, unique_state(self.module), best, self.optimizer)

    def _epoch(self, epoch: int) -> dict[str, float]:
        plan = self.team.steps(self.feeds.epoch(epoch))
        total, sums = self.schedule.epochs * len(plan), dict[str, float]()
        _set_training(self.module, on=True)
        if not self.schedule.live_norms:
            hold_norms(self.module)
        label = f"{self.schedule.label} {epoch}/{self.schedule.epochs}"
        for step, samples in enumerate(plan):
            done = ((epoch - 1) * len(plan) + step) / total
            for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
                group["lr"] = peak * share_of_rate(done)
            self.optimizer.zero_grad()
            terms, fault = self._backward(self.feeds.load(samples), done, f"epoch {epoch}, step {step + 1}")
            self.team.average_gradients(self.module, fault)
            self.accelerator.clip_grad_norm_(self.module.parameters(), _CLIP)
            self.optimizer.step()
            self.after_step()
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value
            self.tell(events.Progress(label=label, done=step + 1, total=len(plan)))
        if self.schedule.live_norms:
            self.team.average(running(self.module))
        means = self.team.total(*(value / len(plan) / self.team.size for value in sums.values()))
        return dict(zip(sums, means, strict=True))

    def _backward(self, batch: Batch, done: float, where: str) -> tuple[dict[str, float], InputError | None]:
        """Leave the gradients of one batch; return the terms of its loss, and what is not finite."""
        import torch

        feed = self._feed(batch)
        terms = self.loss(self._forward, batch, feed, done)
        value = torch.stack(list(terms.values())).sum()
        found = float(value.detach())
        told = {name: float(term.detach()) for name, term in terms.items()}
        if not math.isfinite(found):
            return told, name_fault(self.module, self._forward, feed, f"{where}: the loss is {found}")
        if not value.requires_grad:
            remedy = "Leave out `detach`, `no_grad` and operators without a gradient (argmax) behind what is trained."
            raise InputError("the loss depends on no parameter that is trained", where="loss", remedy=remedy)
        self.accelerator.backward(value)
        try:
            check_finite(self.module, where)
        except InputError as error:
            return told, error
        return told, None

    def _judgement(self, done: float) -> dict[str, float]:
        """Return what an epoch is judged by."""
        import torch

        found = {"held_out": self._judged(self.judge, self.feeds.held_out(), done)}
        if not self.schedule.start_counts:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.schedule.seed)  # what is drawn is drawn alike for every epoch
                found["seen"] = self._judged(self.loss, self.feeds.seen(), done)
        return found

    def _judged(self, loss: Loss, plan: list[list[int]], done: float) -> float:
        """Return the mean loss of batches in evaluation mode, sample by sample."""
        import torch

        found, count = 0.0, 0
        with torch.no_grad(), evaluating(self.module):
            for samples in self.team.share(plan):
                batch = self.feeds.load(samples)
                feed = self._feed(batch)
                terms = loss(self._forward, batch, feed, done)
                value = float(sum(terms.values()))
                if not math.isfinite(value) and self.team.size == 1:
                    raise name_fault(self.module, self._forward, feed, "the held-out loss is not finite")
                found += value * len(samples)
                count += len(samples)
        found, samples_seen = self.team.total(found, float(count))
        if not math.isfinite(found):
            raise InputError("the held-out loss is not finite", where="loss", remedy="Lower the stage's `rate`.")
        return found / samples_seen

    def _forward(self, feed: Tensors) -> Tensors:
        outputs: Tensors
        try:
            outputs = self.module(feed)
        except ValueError as error:
            if LONE not in str(error):
                raise
            with held(self.module):  # a batch of one value a channel has no statistics of its own
                outputs = self.module(feed)
        return outputs

    def _feed(self, batch: Batch) -> Tensors:
        import torch

        feed = {name: torch.from_numpy(array).to(self.accelerator.device) for name, array in batch.feed.items()}
        return channels_last(feed) if self.channels_last else feed


def outputs_of(module: torch.nn.Module, feeds: Feeds, plan: list[list[int]]) -> Iterator[tuple[Batch, Tensors]]:
    """Run batches in evaluation mode, without gradients."""
    import torch

    for samples in plan:
        batch = feeds.load(samples)
        with torch.no_grad(), evaluating(module):
            yield batch, module({name: torch.from_numpy(array) for name, array in batch.feed.items()})


def _set_training(module: torch.nn.Module, *, on: bool) -> None:
    for part in module.modules():  # `train()` is refused by the module of an exported program
        part.training = on
