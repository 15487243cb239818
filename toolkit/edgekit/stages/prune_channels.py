"""Make a network smaller: whole channels, attention heads, neurons and layers go."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from edgekit.errors import UsageError
from edgekit.networks.child import run_in_child
from edgekit.networks.feeding import feeds_of
from edgekit.profile import Profile
from edgekit.stage import Context, Inputs


@dataclass(frozen=True, kw_only=True)
class PruneChannels:
    """Remove the channels that matter least, physically: layers get narrower, attention loses whole groups of heads.

    What belongs together is read off the traced network (residual adds, concatenations, depthwise and grouped
    convolutions, grouped-query attention, tied weights); outputs of the network, embeddings and whatever is not
    understood are kept. The result is proven against the original with these channels unread.

    Attributes:
        ratio: share that goes, 0 to below 1; of what there is when the stage runs.
        of: what `ratio` is a share of: the `channels` that may go, or the multiply-accumulates (`macs`) of the network.
        importance: `l1` and `l2`: norms of the weights that make and read a channel; `batch-norm`: the scale of the
            BatchNorm behind it; `taylor`: what the loss on labeled training samples changes without it, to first order.
        per: `channel`, or `millisecond`: importance for the time that the profile's roofline predicts it to cost.
        scope: `global`: all layers compete, and the more of a layer is gone the dearer it gets; `layer`: every layer
            loses about the same share.
        multiple: numbers of channels stay multiples of it; 0: what the profile says.
        least: so many channels (or groups of heads) stay at least.
        layers: so many whole layers go too, those that change least what they are given.
        across_norms: also channels that LayerNorm normalizes over, or a norm made of means, though the others change
            without them.
        uniform: layers of a transformer that are alike lose equally many, so that `config.json` can say it; None: for
            models of transformers.
        skip: names of modules or tensors, with wildcards, whose channels stay.
        shapes: input -> one entry per axis, for a network without example inputs; as for `capture`.
        dtypes: dtype of such inputs.
    """

    name: ClassVar[str] = "prune-channels"
    revision: ClassVar[int] = 3
    takes: ClassVar[frozenset[str]] = frozenset({"torch"})
    makes: ClassVar[str] = "torch"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("torch", "transformers", "numpy")

    ratio: float = 0.1
    of: Literal["channels", "macs"] = "channels"
    importance: Literal["l1", "l2", "batch-norm", "taylor"] = "l1"
    per: Literal["channel", "millisecond"] = "channel"
    scope: Literal["global", "layer"] = "global"
    multiple: int = 0
    least: int = 1
    layers: int = 0
    across_norms: bool = False
    uniform: bool | None = None
    skip: tuple[str, ...] = ()
    shapes: dict[str, list[int | str]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse options out of range; the importance `taylor` needs labeled data to train on."""
        self._check()
        if self.importance == "taylor":
            object.__setattr__(self, "needs", frozenset({"data", "training"}))

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Write the smaller network; facts: `pruning` (parameters, multiply-accumulates, groups before and after).

        When an earlier stage pruned the network already and nothing more may go, it stays as it is, with a finding.

        Raises:
            UsageError: a ratio, a multiple or a number of layers that makes no sense.
            UnsupportedError: the network cannot be traced, or nothing of it may go; names modules and reasons.
            InputError: the network fails on its inputs.
            TargetError: torch or another library is missing, or the deadline passed.
        """
        skipped = {"shapes", "dtypes", "multiple", "uniform"}
        options = {key: value for key, value in dataclasses.asdict(self).items() if key not in skipped}
        pretrained = inputs.artifact.facts.get("source", {}).get("from") == "huggingface"
        options["multiple"] = self.multiple or inputs.profile.layers.multiple
        options["uniform"] = pretrained if self.uniform is None else self.uniform
        arguments = {
            "folder": os.fspath(inputs.folder.resolve()),
            "out": os.fspath(out.resolve()),
            "options": options,
            "rates": _rates(inputs.profile),
            "shapes": self.shapes,
            "dtypes": self.dtypes,
            "threads": context.threads,
            "seed": context.seed,
            "feeds": os.fspath(feeds_of(inputs, context)) if self.importance == "taylor" else "",
            "again": any(step.stage == self.name for step in inputs.artifact.lineage),
        }
        facts: dict[str, Any] = run_in_child(
            "edgekit.networks.prune:prune",
            arguments,
            listen=context.listen,
            threads=context.threads,
            deadline=context.deadline,
        )
        return facts

    def _check(self) -> None:
        """Refuse options out of range."""
        wrong = {
            "ratio": not 0 <= self.ratio < 1,
            "multiple": self.multiple < 0,
            "least": self.least < 1,
            "layers": self.layers < 0,
        }
        for option, bad in wrong.items():
            if bad:
                raise UsageError(
                    f"{getattr(self, option)} is out of range",
                    where=f"prune-channels: {option}",
                    remedy="A ratio is at least 0 and below 1, a number of channels or layers that stay at least 1.",
                )
        if self.ratio == 0 and self.layers == 0:
            raise UsageError("nothing to remove", where="prune-channels", remedy="Set `ratio` or `layers`.")


def _rates(profile: Profile) -> dict[str, float]:
    """Return what the device reaches in the fastest precision that it has, for `prune_cost.Rates`."""
    compute, shares = profile.compute, profile.roofline
    peak, share, width = compute.fp32_tops, shares.fp32, 4
    if "w8a8" in profile.precisions and compute.int8_tops:
        peak, share, width = compute.int8_tops, shares.int8, 1
    elif "fp16" in profile.precisions and compute.fp16_tops:
        peak, share, width = compute.fp16_tops, shares.fp16, 2
    return {
        "compute": peak.value * 1e12 * share.value,
        "depthwise": peak.value * 1e12 * shares.depthwise.value,
        "grouped": peak.value * 1e12 * shares.grouped.value,
        "bandwidth": profile.memory.bandwidth_gbs.value * 1e9 * shares.bandwidth.value,
        "bytes": width,
    }
