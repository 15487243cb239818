"""The Stage protocol and its table by name."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from edgekit import events
from edgekit.artifact import Artifact
from edgekit.data import Dataset
from edgekit.dialect import Dialect
from edgekit.errors import UsageError, did_you_mean
from edgekit.profile import Profile

STAGES = {
    "prune-channels": "edgekit.stages.prune_channels:PruneChannels",
    "prune-weights": "edgekit.stages.prune_weights:PruneWeights",
    "finetune": "edgekit.stages.finetune:Finetune",
    "distill": "edgekit.stages.distill:Distill",
    "capture": "edgekit.stages.capture:Capture",
    "freeze-shapes": "edgekit.stages.freeze_shapes:FreezeShapes",
    "expand": "edgekit.stages.expand:Expand",
    "fuse-gelu": "edgekit.stages.fuse_gelu:FuseGelu",
    "split-clips": "edgekit.stages.split_clips:SplitClips",
    "simplify": "edgekit.stages.simplify:Simplify",
    "fp16": "edgekit.stages.fp16:Fp16",
    "equalize": "edgekit.stages.equalize:Equalize",
    "quantize-int8": "edgekit.stages.quantize_int8:QuantizeInt8",
    "quantize-int4": "edgekit.stages.quantize_int4:QuantizeInt4",
    "quantize-aware-train": "edgekit.stages.quantize_aware_train:QuantizeAwareTrain",
}
"""Stage name -> `module:Class`. Adding a stage is one file and one line here."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What surrounds a run and never changes its result.

    Attributes:
        scratch: a folder that survives a kill (for checkpoints) and is never published.
        listen: where progress goes.
        seed: the only source of randomness.
        threads: CPU threads that the stage may use.
        training_threads: CPU threads of a training: its sums differ in the last place with their number.
        deadline: `time.monotonic()` value by which it must end, or None.
        shared: a folder for what several runs can use, named after its content; None: `scratch` will do.
    """

    scratch: Path
    listen: events.Listener = events.ignore
    seed: int = 0
    threads: int = 1
    training_threads: int = 1
    deadline: float | None = None
    shared: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a stage reads. Folders are read-only and hold exactly the artifact's files.

    Attributes:
        artifact: the artifact to transform.
        folder: where its files lie.
        profile: the device.
        data: the user's data set; None when none was given.
        dialect: the rules of the profile's runtime for quantized graphs.
        teacher: the artifact and folder of the teacher or the original, for stages that need one.
    """

    artifact: Artifact
    folder: Path
    profile: Profile
    data: Dataset | None = None
    dialect: Dialect | None = None
    teacher: tuple[Artifact, Path] | None = None


class Stage(Protocol):
    """One transformation `Artifact -> Artifact`: frozen options and one pure function.

    Implementations are frozen keyword-only dataclasses; their fields are the options a recipe may set.

    Attributes:
        name: kebab-case, as in recipes.
        revision: raise it when the same options and inputs give another result.
        takes: artifact kinds that it accepts.
        makes: the artifact kind that it produces.
        needs: any of `data`, `training` (samples to train on), `labels`, `teacher`, `dialect`, and `original`:
            a teacher where the user gave one, else the model as it came in (of the kind that the stage takes).
        libraries: distributions whose versions are part of the cache key.

    A stage that makes a graph of a precision says which in `precision`: the plan refuses it for devices without it.
    """

    name: ClassVar[str]
    revision: ClassVar[int]
    takes: ClassVar[frozenset[str]]
    makes: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    libraries: ClassVar[tuple[str, ...]]

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Write the new artifact's files into the empty folder `out` and return its facts.

        The facts are JSON values, the same for the same inputs (no timings), and are laid over the facts of the
        input artifact. `graphs` must be there when the graph's inputs or outputs change; `findings` (a list of
        Finding as dicts) is appended to what earlier stages found; `coverage` says which share of weights and MACs
        got the asked precision.

        Raises:
            EdgekitError: of the class that fits; nothing in `out` is used then.
        """
        ...


@runtime_checkable
class Examined(Protocol):
    """A stage that can say which layers lose the accuracy: what quantizing each alone costs, and all together."""

    def blame(self, inputs: Inputs, context: Context) -> Any:
        """Return what every layer costs, as `edgekit.graphs.blame.Blame`; measured results go to the scratch folder.

        Raises:
            NeedsDataError: there are no samples.
        """
        ...


def stage_class(name: str) -> type[Any]:
    """Import the class of a stage by its name; UsageError with a suggestion when there is none."""
    if name not in STAGES:
        raise UsageError(f"unknown stage '{name}'", remedy=did_you_mean(name, list(STAGES)))
    module, _, attribute = STAGES[name].partition(":")
    found: type[Any] = getattr(importlib.import_module(module), attribute)
    return found


def options_of(stage: Any) -> dict[str, Any]:
    """Return a stage's options as a dict of JSON values."""
    options: dict[str, Any] = msgspec.to_builtins(dataclasses.asdict(stage))
    return options
