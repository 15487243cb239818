"""What stages that train hand to their child process: samples, the teacher, and options that make sense."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.artifact import Artifact, digest
from edgekit.errors import UsageError
from edgekit.networks.child import run_in_child
from edgekit.networks.feeds import write_feeds
from edgekit.networks.launched import lead
from edgekit.networks.program import ENVIRONMENT

if TYPE_CHECKING:
    from edgekit.stage import Context, Inputs

_SHORT = 24


def feeds_of(inputs: Inputs, context: Context) -> Path:
    """Write the training split as arrays, once for all stages that train on it, and return the folder.

    Raises:
        UsageError: there is no data. InputError: there are too few samples. TargetError: the disk is full.
    """
    if inputs.data is None:
        raise UsageError("training needs data", remedy="Add --data to the command.")
    folder = _shared(context) / f"feeds-{inputs.data.id[:_SHORT]}"
    return write_feeds(inputs.data.training, folder, context.listen).resolve()


def train_in_child(
    task: str, inputs: Inputs, context: Context, options: Mapping[str, Any], *, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Run `module:function` in a child process with what every training needs, and return its facts.

    Where a launcher started several processes, each runs it in a child of its own, and they train together.

    Args:
        task: what runs; it is given `folder`, `scratch`, `feeds`, `threads`, `seed` and `options`.
        inputs: the stage's inputs.
        context: the stage's context.
        options: its own arguments, as JSON values.
        environment: see `environment_of`.
    """
    arguments = {
        "folder": os.fspath(inputs.folder.resolve()),
        "scratch": os.fspath(context.scratch.resolve()),
        "feeds": os.fspath(feeds_of(inputs, context)),
        "threads": context.training_threads,
        "seed": context.seed,
        **options,
    }
    facts: dict[str, Any] = run_in_child(
        task,
        arguments,
        listen=context.listen,
        threads=context.training_threads,
        deadline=context.deadline,
        environment=lead(task, arguments, environment),
    )
    return facts


def teacher_of(
    inputs: Inputs, context: Context, shapes: Mapping[str, Any], dtypes: Mapping[str, str]
) -> dict[str, Any]:
    """Describe the teacher for `teacher.open_teacher`; its outputs are kept under what it and the data contain."""
    assert inputs.teacher is not None
    assert inputs.data is not None
    artifact, folder = inputs.teacher
    own = is_original(inputs)
    return {
        "folder": os.fspath(folder.resolve()),
        "kind": artifact.kind,
        "labels": list(names_of(inputs)) if own else list(artifact.facts.get("labels", ())),
        "shapes": shapes,
        "dtypes": dtypes,
        "cache": os.fspath(
            (_shared(context) / f"teacher-{digest([artifact.files, inputs.data.id])[:_SHORT]}").resolve()
        ),
    }


def is_original(inputs: Inputs) -> bool:
    """Say whether the teacher is what the model was made from (or the model itself): they name the same classes."""
    assert inputs.teacher is not None
    teacher = inputs.teacher[0].id
    return teacher in {inputs.artifact.id, *(step.inputs.get("artifact") for step in inputs.artifact.lineage)}


def names_of(inputs: Inputs) -> tuple[str, ...]:
    """Return the class names of the model in the order of its outputs: as the user maps them, else its own."""
    told = inputs.data.labels if inputs.data is not None else ()
    return tuple(told) or tuple(inputs.artifact.facts.get("labels", ()))


def environment_of(artifact: Artifact) -> Mapping[str, str]:
    """Return the variables that a child process needs to rebuild an artifact."""
    program = artifact.facts.get("source", {}).get("from") == "exported-program"
    return ENVIRONMENT if program else {}


def check_training(stage: str, *, epochs: int, batch: int, rate: float, patience: int) -> None:
    """Raise UsageError for options of a training that make no sense."""
    for option, value, least in (("epochs", epochs, 0), ("batch", batch, 1), ("patience", patience, 1)):
        if value < least:
            raise UsageError(f"{option} {value}", where=f"{stage}: {option}", remedy=f"At least {least}.")
    if not (math.isfinite(rate) and rate >= 0):
        raise UsageError(f"rate {rate}", where=f"{stage}: rate", remedy="A positive number, e.g. 0.001; 0 chooses.")


def _shared(context: Context) -> Path:
    return context.shared or context.scratch
