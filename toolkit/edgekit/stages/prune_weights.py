"""Set the smallest weights to zero, one by one or N of every M, and say what the device gains from it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from edgekit import events
from edgekit.errors import UsageError
from edgekit.networks.child import run_in_child
from edgekit.profile import Profile
from edgekit.stage import Context, Inputs


@dataclass(frozen=True, kw_only=True)
class PruneWeights:
    """Set weights of linear and convolutional layers to zero; shapes stay, and so does the speed of most devices.

    Training after it leaves the zeros alone. Embeddings, and weights tied to them, are not touched.

    Attributes:
        ratio: share that becomes zero, the smallest by magnitude; without a pattern.
        pattern: `N:M`: of every M weights that an output sums over, the N largest stay, e.g. `2:4`.
        scope: `layer`: the same share of every layer; `global`: the smallest of all, relative to their layer's size.
        skip: names of modules or tensors, with wildcards, that stay as they are.
        shapes: input -> one entry per axis, for a network without example inputs; as for `capture`.
        dtypes: dtype of such inputs.
    """

    name: ClassVar[str] = "prune-weights"
    revision: ClassVar[int] = 2
    takes: ClassVar[frozenset[str]] = frozenset({"torch"})
    makes: ClassVar[str] = "torch"
    needs: ClassVar[frozenset[str]] = frozenset()
    libraries: ClassVar[tuple[str, ...]] = ("torch", "transformers", "numpy")

    ratio: float = 0.5
    pattern: str = ""
    scope: Literal["layer", "global"] = "layer"
    skip: tuple[str, ...] = ()
    shapes: dict[str, list[int | str]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a ratio or a pattern that makes no sense."""
        self._check()

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Write the network with zeros; facts: `sparsity` (shares of zeros) and a finding on what the device gains.

        Raises:
            UsageError: a ratio or a pattern that makes no sense.
            UnsupportedError: there is no layer to prune.
            TargetError: torch or another library is missing, or the deadline passed.
        """
        facts: dict[str, Any] = run_in_child(
            "edgekit.networks.prune_weights:sparsify",
            {
                "folder": os.fspath(inputs.folder.resolve()),
                "out": os.fspath(out.resolve()),
                "ratio": self.ratio,
                "pattern": self.pattern,
                "scope": self.scope,
                "skip": self.skip,
                "shapes": self.shapes,
                "dtypes": self.dtypes,
                "threads": context.threads,
            },
            listen=context.listen,
            threads=context.threads,
            deadline=context.deadline,
        )
        findings = self._findings(inputs.profile, facts["sparsity"])
        for finding in findings:
            context.listen(events.Found(finding=finding))
        return {**facts, "findings": [msgspec.to_builtins(finding) for finding in findings]}

    def _check(self) -> None:
        if not 0 < self.ratio < 1:
            raise UsageError(
                f"a ratio of {self.ratio} leaves nothing, or everything",
                where="prune-weights: ratio",
                remedy="Choose a share above 0 and below 1.",
            )
        found = re.fullmatch(r"(\d{1,2}):(\d{1,2})", self.pattern)
        if self.pattern and (not found or not 0 < int(found[1]) < int(found[2])):
            raise UsageError(
                f"'{self.pattern}' is no pattern",
                where="prune-weights: pattern",
                remedy="Write N:M with 0 < N < M, e.g. 2:4.",
            )

    def _findings(self, profile: Profile, sparsity: dict[str, Any]) -> list[events.Finding]:
        """Say what the zeros are worth on the device."""
        fast = profile.layers.sparsity
        zeros = f"{sparsity['parameters']:.0%} of the parameters are zero"
        if not self.pattern or self.pattern not in fast:
            kind = f"in the pattern {self.pattern}" if self.pattern else "anywhere"
            gain = f"{profile.name} computes zeros {kind} as slowly as other weights: no time is gained, and the files "
            return [
                events.Finding(
                    severity="warning",
                    node="",
                    rule="sparsity-no-gain",
                    text=f"{zeros}; {gain}shrink only when they are compressed",
                    remedy=f'Use `pattern = "{fast[0]}"`, or prune-channels.' if fast else "Use prune-channels.",
                )
            ]
        text = f"{zeros}, in the pattern {self.pattern}, which {profile.name} computes faster where layers are large"
        found = [events.Finding(severity="note", node="", rule="sparsity-gain", text=text)]
        for name in sparsity["uneven"]:
            uneven = f"its inputs are no multiple of {self.pattern.partition(':')[2]}: the device computes it as dense"
            found.append(events.Finding(severity="note", node=name, rule="sparsity-uneven", text=uneven))
        return found
