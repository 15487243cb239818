"""Which layers lost the accuracy: each quantized alone, and the whole with the worst ones left float."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from edgekit.graphs.calibrate import Reference
from edgekit.graphs.sensitivity import Checkpoint, Loss, measure
from edgekit.numerics.output_distance import EXACT_DB

MOST_JUDGED = 16
"""Calibration samples that blame is measured on."""

MOST_TOGETHER = 24
"""Numbers of worst layers for which the whole is measured with all of them left float."""

COLUMNS = (
    "node",
    "operator",
    "mode",
    "alone, dB",
    "share of noise",
    "float down to here, dB",
    "note",
)

_ALL = "all"


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What quantizing one layer costs.

    Attributes:
        node: its name.
        op: its operator type.
        mode: how it is quantized.
        alone: ratio of the outputs when only it is quantized, in dB (over all outputs).
        share: its noise as a share of the sum over all layers; noise of layers adds up nearly.
        rest: ratio of the outputs when it and all worse layers stay float, in dB; None where it was not measured.
        outputs: output name -> ratio when only it is quantized, in dB.
        faults: outputs and columns that it alone breaks.
    """

    node: str
    op: str
    mode: str
    alone: float
    share: float
    rest: float | None
    outputs: dict[str, float]
    faults: tuple[str, ...]


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """What every layer of a quantized model costs, the worst first.

    Attributes:
        stage: the stage that quantizes.
        whole: ratio of the outputs with everything quantized, in dB.
        aim: ratio that is asked for, in dB.
        effects: the layers.
        smallest: the fewest layers, the worst first, that must stay float for `aim`; None when none of the numbers
            that were measured is enough.
        judged_on: calibration samples.
        told: what limits the measurement; empty when nothing does.
    """

    stage: str
    whole: float
    aim: float
    effects: tuple[Effect, ...]
    smallest: int | None
    judged_on: int
    told: str = ""

    def shown(self) -> str:
        """Return what it comes to as one line."""
        on = f"on {self.judged_on} calibration samples" + (f" ({self.told})" if self.told else "")
        if not self.smallest:
            enough = "nothing must stay float" if self.smallest == 0 else "more layers than were tried must stay float"
            return f"{self.stage}: {self.whole:.1f} dB {on}; for {self.aim:g} dB {enough}"
        rest = self.effects[self.smallest - 1].rest
        layers = f"the first {self.smallest} layers" if self.smallest > 1 else "the first layer"
        return (
            f"{self.stage}: {self.whole:.1f} dB {on}; with {layers} left float {rest:.1f} dB (asked: {self.aim:g} dB)"
        )

    def table(self) -> tuple[str, Sequence[str], list[tuple[str, ...]]]:
        """Return title, headings and rows for people."""
        rows: list[tuple[str, ...]] = [
            (
                effect.node,
                effect.op,
                effect.mode,
                _decibels(effect.alone),
                f"{effect.share:.1%}",
                "" if effect.rest is None else _decibels(effect.rest),
                "; ".join(effect.faults),
            )
            for effect in self.effects
        ]
        return self.shown(), COLUMNS, rows

    def recipe(self) -> str:
        """Return the entries of a recipe that leave the smallest set float; empty when there is none."""
        names = [effect.node for effect in self.effects[: self.smallest or 0]]
        return "".join(f'[[stage.plan]]\nmatch = {_quoted(name)}\nmode = "float"\n' for name in names)


def _decibels(value: float) -> str:
    return "exact" if value >= EXACT_DB else f"{value:.1f}"


def blame(  # noqa: PLR0913 - what is measured, on what, and what surrounds it
    layers: Mapping[str, tuple[str, str]],
    *,
    stage: str,
    alone: Callable[[str], Any],
    together: Callable[[frozenset[str]], Any],
    reference: Reference,
    aim: float,
    checkpoint: Checkpoint,
    tell: Callable[[int, int], None],
    told: str = "",
) -> Blame:
    """Measure every layer alone, then the whole with more and more of the worst layers left float.

    Args:
        layers: node name -> operator type and mode, of the layers that are quantized.
        stage: the stage that quantizes.
        alone: node name -> a session of the model in which only it is quantized.
        together: nodes -> a session of the model in which they are quantized and the others are not.
        reference: the original's outputs, and the samples to judge on.
        aim: ratio that is asked for, in dB.
        checkpoint: losses that are known already, and where the rest is kept.
        tell: gets measurements done and in all.
        told: what limits the measurement.
    """
    steps = min(len(layers), MOST_TOGETHER)
    total = len(layers) + steps + 1
    losses = measure(list(layers), alone, reference, checkpoint, lambda done, _: tell(done, total))
    order = sorted(layers, key=lambda name: (-losses[name].noise, name))

    def without(name: str) -> Any:
        count = 0 if name == _ALL else int(name.removeprefix("without "))
        return together(frozenset(order[count:]))

    names = [_ALL, *(f"without {count}" for count in range(1, steps + 1))]
    rest = measure(names, without, reference, checkpoint, lambda done, _: tell(len(layers) + done, total))
    reached = [count for count, name in enumerate(names) if rest[name].sqnr >= aim and not rest[name].faults]
    return Blame(
        stage=stage,
        whole=round(rest[_ALL].sqnr, 2),
        aim=aim,
        effects=tuple(_effects(layers, order, losses, [rest[name] for name in names[1:]])),
        smallest=reached[0] if reached else None,
        judged_on=len(reference.indices),
        told=told,
    )


def _effects(
    layers: Mapping[str, tuple[str, str]], order: Sequence[str], losses: Mapping[str, Loss], rest: Sequence[Loss]
) -> list[Effect]:
    whole = sum(loss.noise for loss in losses.values()) or 1.0
    return [
        Effect(
            node=name,
            op=layers[name][0],
            mode=layers[name][1],
            alone=round(losses[name].sqnr, 2),
            share=round(losses[name].noise / whole, 4),
            rest=round(rest[place].sqnr, 2) if place < len(rest) else None,
            outputs=losses[name].outputs,
            faults=losses[name].faults,
        )
        for place, name in enumerate(order)
    ]


def _quoted(name: str) -> str:
    """Return a name as a TOML string, and as a glob that matches it."""
    return msgspec.json.encode(name).decode()
