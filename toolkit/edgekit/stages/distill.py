"""Train a model of PyTorch to give what a teacher gives."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from edgekit.errors import EdgekitError, UsageError
from edgekit.events import Finding
from edgekit.networks.feeding import check_training, environment_of, names_of, teacher_of, train_in_child
from edgekit.networks.record import copy_file
from edgekit.stage import Context, Inputs


@dataclass(frozen=True, kw_only=True)
class Distill:
    """Distill a teacher into the model: first its intermediate features, then its outputs.

    The teacher is `--teacher`, else the original as it came in. Where that is the model itself, nothing happens.
    Outputs are matched by class name; a teacher with more classes gives those that the student has. The loss on outputs
    is alpha * T * T * KL(teacher / T || student / T) + (1 - alpha) * task (Hinton et al., 2015), by token for
    sequences; on features it is their squared distance, through a learned projection where widths differ (Romero et
    al., 2015).

    Attributes:
        config: makes the student: keys of a Hugging Face model's `config.json` and their new values (fewer
            `num_hidden_layers`, a smaller `intermediate_size`); it starts from the weights that it can take over.
            Empty: the student is the model.
        epochs: at most so many passes for the outputs.
        feature_epochs: passes for the features before; 0 leaves them out.
        temperature: softens the class scores of both.
        alpha: share of the teacher's outputs in the loss; the labels get the rest, and nothing without labels.
        blend: learn outputs on blends of two samples each, as the teacher gives them there, where all inputs are floats
            (images, sound) and labels are classes; the teacher runs in every step then.
        layers: student's module -> teacher's module; empty: blocks are matched evenly.
        batch: samples of one step.
        rate: highest learning rate; 0 takes 0.00005 for models of transformers and 0.001 for others.
        patience: epochs that may be kept without a better held-out loss than those before after which a phase ends.
        decay: weight decay of matrices and kernels.
        shapes: as in the stage `capture`; taken over from `--shape`.
        dtypes: as in the stage `capture`.
    """

    name: ClassVar[str] = "distill"
    revision: ClassVar[int] = 5
    takes: ClassVar[frozenset[str]] = frozenset({"torch"})
    makes: ClassVar[str] = "torch"
    needs: ClassVar[frozenset[str]] = frozenset({"data", "training", "original"})
    libraries: ClassVar[tuple[str, ...]] = ("torch", "transformers", "accelerate", "onnxruntime", "numpy")

    config: dict[str, int | float | str | bool] = field(default_factory=dict)
    epochs: int = 5
    feature_epochs: int = 2
    temperature: float = 2.5
    alpha: float = 0.5
    blend: bool = True
    layers: dict[str, str] = field(default_factory=dict)
    batch: int = 32
    rate: float = 0.0
    patience: int = 3
    decay: float = 0.01
    shapes: dict[str, list[int | str]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the options; UsageError for numbers that are none."""
        check_training(self.name, epochs=self.epochs, batch=self.batch, rate=self.rate, patience=self.patience)
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha {self.alpha}", where=f"{self.name}: alpha", remedy="Between 0 and 1.")
        if not self.temperature > 0:
            remedy = "A positive number, e.g. 2.5."
            raise UsageError(f"temperature {self.temperature}", where=f"{self.name}: temperature", remedy=remedy)

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Write the trained network; see `Stage.run`.

        Facts: `features` (pairs of layers, losses by epoch, or None), `training` (see the stage `finetune`) and
        `findings`.

        Raises:
            InputError: the classes of teacher and student differ, too few samples, labels that fit no output, or a
                loss that is not finite (module named).
            UsageError: a layer that is named is not there.
            TargetError: torch or another library is missing, the disk is full, or the deadline passed.
        """
        if inputs.teacher is None:
            raise EdgekitError("distill was run without a teacher")
        if inputs.teacher[0].files == inputs.artifact.files and not self.config:
            return _unchanged(inputs.folder, out)
        numbers = ("epochs", "feature_epochs", "temperature", "alpha", "batch", "rate", "patience", "decay")
        options = {
            "out": os.fspath(out.resolve()),
            "turn": len(inputs.artifact.lineage),
            "labels": list(names_of(inputs)),
            "teacher": teacher_of(inputs, context, self.shapes, self.dtypes),
            **{key: getattr(self, key) for key in (*numbers, "blend", "config", "layers", "shapes", "dtypes")},
        }
        environment = {**environment_of(inputs.artifact), **environment_of(inputs.teacher[0])}
        return train_in_child("edgekit.networks.distill:distill", inputs, context, options, environment=environment)


def _unchanged(folder: Path, out: Path) -> dict[str, Any]:
    """Pass the model on: it is its own teacher."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            copy_file(path, out / path.relative_to(folder))
    text = "nothing is distilled: the model is the original, and no teacher was given"
    finding = Finding(severity="note", node="", rule="no-teacher", text=text, remedy="Give one with --teacher MODEL.")
    return {"training": None, "findings": [msgspec.to_builtins(finding)]}
