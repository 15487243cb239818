"""Train a quantized graph: its integers and scales learn on the user's data what rounding took."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from edgekit.artifact import MAIN
from edgekit.errors import EdgekitError, InputError, UsageError
from edgekit.events import Finding
from edgekit.graphs.companions import copy_companions
from edgekit.graphs.edit import load_model, save_model
from edgekit.graphs.facts import quantization_of
from edgekit.graphs.learned import held_against, write_learned
from edgekit.networks.feeding import check_training, environment_of, names_of, teacher_of, train_in_child
from edgekit.networks.qat import LEARNED, OUTPUTS
from edgekit.stage import Context, Inputs

_HERE = "ort-cpu"
LEAST_DB = 40.0
LEAST_SAME = 0.999
"""What the written graph must keep of what was trained: signal over noise, and the share of equal decisions."""

_NEAR_DB = 3.0  # a difference of twice the noise is taken for the same


@dataclass(frozen=True, kw_only=True)
class QuantizeAwareTrain:
    """Train the integers of a graph that `quantize-int8` or `quantize-int4` made.

    The graph itself is what is trained: every QuantizeLinear and DequantizeLinear rounds in the forward pass as the
    runtime will, gradients pass straight through, and what was learned goes back into the same initializers. So there
    is one source of the scales, the graph that the quantizer wrote in the runtime's dialect. Batch normalization is
    folded by then. Outputs are trained towards the teacher's (`--teacher`, else the float original) and the labels.

    Attributes:
        epochs: at most so many passes over the training samples.
        alpha: share of the teacher's outputs in the loss; the labels get the rest, and nothing without labels.
        temperature: softens the class scores of both.
        pull: largest weight of the mean squared distance of weights to the grid, in steps; it grows from 0.
        learn_scales: also learn the scales of weights and activations (LSQ; Esser et al., 2020).
        batch: samples of one step.
        rate: highest learning rate, in units of the largest weight; 0: so that weights can travel a hundredth of that
            over the training, or one step of their grid where it is coarser; a quarter of a step, and 0.0004 at most,
            where they start between integers.
        patience: epochs without a better held-out loss than those before after which training ends.
    """

    name: ClassVar[str] = "quantize-aware-train"
    revision: ClassVar[int] = 3
    takes: ClassVar[frozenset[str]] = frozenset({"onnx"})
    makes: ClassVar[str] = "onnx"
    needs: ClassVar[frozenset[str]] = frozenset({"data", "training", "original", "dialect"})
    libraries: ClassVar[tuple[str, ...]] = ("torch", "accelerate", "numpy", "onnx", "onnxruntime")

    epochs: int = 5
    alpha: float = 0.9
    temperature: float = 2.5
    pull: float = 0.01
    learn_scales: bool = False
    batch: int = 32
    rate: float = 0.0
    patience: int = 3

    def __post_init__(self) -> None:
        """Check the options; UsageError for numbers that are none."""
        check_training(self.name, epochs=self.epochs, batch=self.batch, rate=self.rate, patience=self.patience)
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha {self.alpha}", where=f"{self.name}: alpha", remedy="Between 0 and 1.")
        for option, value in (("temperature", self.temperature), ("pull", self.pull)):
            if not value >= 0 or (option == "temperature" and value == 0):
                remedy = "A positive number."
                raise UsageError(f"{option} {value}", where=f"{self.name}: {option}", remedy=remedy)

    def run(self, inputs: Inputs, out: Path, context: Context) -> dict[str, Any]:
        """Write the trained graph; see `Stage.run`.

        Facts: `qat`: `training` (see the stage `finetune`), `oscillation` (`rate`, `share` of weights that go back and
        forth, `moved`), `trained` (counts; `from_floats`: matrices whose floats the original still holds;
        `zeros_held`: weights that stay zero, as prune-weights left them), `matches` (how near
        the written graph is to what was trained, in onnxruntime: `sqnr_db`, `argmax`, `samples`;
        `runtime_db`: how near onnxruntime is to itself, fused and not).

        Raises:
            InputError: the graph is not quantized, too few samples, labels that fit no output, classes that differ, or
                a loss that is not finite.
            UnsupportedError: an operator that cannot be trained through (node named).
            TargetError: torch or another library is missing, the disk is full, or the deadline passed.
        """
        if inputs.teacher is None or inputs.dialect is None:
            raise EdgekitError("quantize-aware-train was run without a teacher or a dialect")
        model = load_model(inputs.folder / MAIN)
        if not quantization_of(model):
            remedy = "Put quantize-int8 or quantize-int4 before it in the recipe."
            raise InputError("the graph is not quantized yet", where=MAIN, remedy=remedy)
        result = context.scratch / "result"
        facts = self._train(inputs, context, result)
        write_learned(model, _learned(result / LEARNED))
        save_model(model, out / MAIN, source=inputs.folder)
        copy_companions(inputs.folder, out)
        matches = held_against(out / MAIN, result / OUTPUTS, optimize=inputs.dialect.name == _HERE)
        findings = [*facts.pop("findings"), *map(msgspec.to_builtins, _mismatches(matches))]
        return {"qat": {**facts, "matches": matches}, "findings": findings}

    def _train(self, inputs: Inputs, context: Context, result: Path) -> dict[str, Any]:
        assert inputs.dialect is not None
        assert inputs.teacher is not None
        numbers = ("epochs", "alpha", "temperature", "pull", "learn_scales", "batch", "rate", "patience")
        options = {
            "result": os.fspath(result.resolve()),
            "labels": list(names_of(inputs)),
            "teacher": teacher_of(inputs, context, {}, {}),
            "block_kernels": inputs.dialect.block_kernels if inputs.dialect.name == _HERE else (),
            "floats": _floats(inputs),
            "bits": inputs.dialect.weight_bits,
            "zeros": any(step.stage == "prune-weights" for step in inputs.artifact.lineage),
            **{key: getattr(self, key) for key in numbers},
        }
        environment = environment_of(inputs.teacher[0])
        return train_in_child("edgekit.networks.qat:train_quantized", inputs, context, options, environment=environment)


def _floats(inputs: Inputs) -> str:
    """Return the float graph that the quantized one was made of, where the teacher is that; else nothing."""
    assert inputs.teacher is not None
    artifact, folder = inputs.teacher
    return os.fspath((folder / MAIN).resolve()) if artifact.kind == "onnx" else ""


def _learned(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    found: dict[str, Any] = load_file(path)
    return found


def _mismatches(matches: dict[str, Any]) -> list[Finding]:
    if matches["sqnr_db"] >= LEAST_DB and matches["argmax"] >= LEAST_SAME:
        return []
    own = float(matches.get("runtime_db", LEAST_DB))
    text = (
        f"the runtime computes something else than was trained: {matches['sqnr_db']} dB, "
        f"{matches['argmax']:.1%} equal decisions on {matches['samples']} samples"
    )
    if own < LEAST_DB:
        text += f"; fused and not fused it differs from itself by {own} dB: rounding decides in ties"
    near = own < LEAST_DB and matches["sqnr_db"] >= own - _NEAR_DB
    return [
        Finding(
            severity="note" if near else "warning",
            node="",
            rule="qat-mismatch",
            text=text,
            remedy="Judge by the metric.",
        )
    ]
