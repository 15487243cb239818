"""Train a model of PyTorch further on the user's labels."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from edgekit.networks.feeding import check_training, environment_of, train_in_child
from edgekit.stage import Context, Inputs


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Fine-tune all parameters on the training split: AdamW, a cosine, and the epoch with the best held-out loss.

    A tenth of the training samples, at most 256, is held out to choose that epoch among those behind which the rate has
    fallen to a half. The start does not compete, nor what is near to it: a model that was trained on these samples
    before knows them better than it would know others. The start is kept where training made what it minimizes twice
    as large on trained samples, too. The stage runs in a child process, writes a checkpoint every
    epoch and resumes after a kill.

    Attributes:
        epochs: at most so many passes over the training samples.
        batch: samples of one step.
        rate: highest learning rate; 0 takes 0.00005 for models of transformers and 0.001 for others.
        patience: epochs that may be kept without a better held-out loss than those before after which training ends.
        decay: weight decay of matrices and kernels.
        blend: learn on blends of two samples each, and of their labels, where all inputs are floats (images, sound) and
            labels are classes.
        shapes: as in the stage `capture`; taken over from `--shape`.
        dtypes: as in the stage `capture`.
    """

    name: ClassVar[str] = "finetune"
    revision: ClassVar[int] = 5
    takes: ClassVar[frozenset[str]] = frozenset({"torch"})
    makes: ClassVar[str] = "torch"
    needs: ClassVar[frozenset[str]] = frozenset({"data", "training"})
    libraries: ClassVar[tuple[str, ...]] = ("torch", "transformers", "accelerate", "numpy")

    epochs: int = 3
    batch: int = 32
    rate: float = 0.0
    patience: int = 3
    decay: float = 0.01
    blend: bool = True
    shapes: dict[str, list[int | str]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the options; UsageError for numbers that are none."""
        check_training(self.name, epochs=self.epochs, batch=self.batch, rate=self.rate, patience=self.patience)

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Write the trained network; see `Stage.run`.

        Facts: `training`: `epochs`, `kept_epoch` (0: training did harm), `history` (losses by epoch),
        `rate`, `goal`, `blended`.

        Raises:
            InputError: too few samples, labels that fit no output, or a loss that is not finite (module named).
            UsageError: the data has no labels.
            TargetError: torch or another library is missing, the disk is full, or the deadline passed.
        """
        numbers = ("epochs", "batch", "rate", "patience", "decay", "blend", "shapes", "dtypes")
        options = {
            "out": os.fspath(out.resolve()),
            "turn": len(inputs.artifact.lineage),
            "labels": [],
            "teacher": None,
            "alpha": 0.0,
            "temperature": 1.0,
            **{key: getattr(self, key) for key in numbers},
        }
        task = "edgekit.networks.finetune:finetune"
        return train_in_child(task, inputs, context, options, environment=environment_of(inputs.artifact))
