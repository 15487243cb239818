"""Precision layer by layer for int8 models: by what quantizing each costs the outputs, for the time there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.graphs.blame import MOST_JUDGED
from edgekit.graphs.calibrate import spread
from edgekit.graphs.int8_blame import Parts
from edgekit.graphs.int8_choice import Choice, Job
from edgekit.graphs.int8_plan import Mode
from edgekit.graphs.int8_search import Search, Trial
from edgekit.graphs.layer_times import LayerTimes, layer_times
from edgekit.graphs.qdq import INTEGER_MODES
from edgekit.graphs.sensitivity import Checkpoint, measure
from edgekit.graphs.storage import element_count
from edgekit.numerics.knapsack import Assignment, least_cost, least_loss
from edgekit.numerics.output_distance import decibels
from edgekit.profile import Profile

_ROOMS = (2.0, 1.4, 1.0, 0.7, 0.5, 0.35)
"""Shares of the limits that the layers' own costs may come to."""

_TRIES = 3
_TIGHTER = 0.7
_SLACK = 1e-9
_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a mixed model may cost.

    Attributes:
        aim: ratio of the outputs in dB that is enough.
        slower: predicted time as a multiple of the uniform model's.
        larger: bytes of the weights as a multiple of the uniform model's.
    """

    aim: float
    slower: float
    larger: float


class Int8Mix:
    """Chooses how each layer of one model is computed.

    A layer is as the whole graph wants it, or computes in float on weights stored in 8 bits, or stays float. Each is
    quantized alone, and the noise of the outputs measured; the noise of several adds up, scaled to that of all
    together. Times come from the profile's roofline. The assignment is exact for this model (see `knapsack`); the
    written result is run, and chosen anew with other bounds where it is not what was predicted.
    """

    def __init__(self, job: Job, choice: Choice, profile: Profile, limits: Limits, scratch: Path) -> None:
        """Prepare; nothing is measured before `chosen`.

        Args:
            job: the model being quantized; it needs samples.
            choice: form and range method of the whole.
            profile: the device.
            limits: what may be spent.
            scratch: a folder for what is measured, so that a kill loses nothing.
        """
        self.job, self.choice, self.profile, self.limits, self.scratch = job, choice, profile, limits, scratch
        self.search: Search = job.search_on(range(len(job.samples)))
        modes, reasons = job.modes(choice.form)
        self.uniform = self.search.attempt(modes, reasons, choice.method)
        self.parts = Parts(self.search, self.uniform.plan, choice.method)
        self.layers = list(self.parts.layers)

    def settled(self, tell: Callable[[int, int], None]) -> tuple[Trial, dict[str, Any]]:
        """Return what `chosen` does, with more layers left float where an output still is below the floor."""
        trial, facts = self.chosen(tell)
        floor = self.job.wishes.floor
        if trial.faults(floor):
            trial = self.search.settle(trial, self.choice.method, floor=floor, aim=floor)
        return trial, facts

    def chosen(self, tell: Callable[[int, int], None]) -> tuple[Trial, dict[str, Any]]:
        """Measure, choose, write and run.

        Args:
            tell: gets layers measured and in all.

        Returns:
            The better of the mixed and the uniform model, and facts: `kept`, `why`, `before_db`, `after_db`,
            `predicted_db`, `time` and `bytes` (multiples of the uniform model's), `exact`, `layers` (how many are
            computed how), and `unpredicted`: why times are counted in multiply-accumulates, where they are.
        """
        noise, scale = self._measured(tell)
        best = self._best(noise, scale)
        if best is None or best[1].score <= self.uniform.score:
            why = "as good as it gets within these limits" if best else "no mixture keeps to the time"
            return self.uniform, {"kept": False, "why": why} | self._told()
        assignment, trial, time = best
        predicted = sum(noise[name][self._options[name][at]] for name, at in self._picked(assignment)) * scale
        return trial, self._facts(assignment, trial, time, predicted)

    # --- what there is to choose -------------------------------------------------------------------------------------

    @cached_property
    def _options(self) -> dict[str, tuple[Mode, ...]]:
        """The modes that each layer may have, the uniform plan's first."""
        found: dict[str, tuple[Mode, ...]] = {}
        for name in self.layers:
            mode = self.uniform.plan.modes[name]
            if name in self.search.pinned:
                found[name] = (mode,)
                continue
            stored = name in self.job.planner.operands
            lesser: list[Mode] = ["weights"] if mode in INTEGER_MODES and stored else []
            if not stored or self.limits.larger > 1:
                lesser.append("float")
            found[name] = (mode, *lesser)
        return found

    def _measured(self, tell: Callable[[int, int], None]) -> tuple[dict[str, dict[Mode, float]], float]:
        """Return layer -> mode -> noise of it alone, and what their sum is scaled by to give that of all together."""
        names = {f"{name}|{mode}": (name, mode) for name, modes in self._options.items() for mode in modes}
        wanted = [key for key, (_, mode) in names.items() if mode != "float"]
        few = self.job.search_on(spread(len(self.job.samples), MOST_JUDGED))
        kept = Checkpoint(self.scratch / "sensitivity.jsonl")
        losses = measure(
            wanted, lambda key: self.parts.opened({names[key][0]: names[key][1]}), few.reference, kept, tell
        )
        whole: dict[str, Mode] = {name: self._options[name][0] for name in self.layers}
        together = measure(["all"], lambda _: self.parts.opened(whole), few.reference, kept)["all"].noise
        noise: dict[str, dict[Mode, float]] = {name: {"float": 0.0} for name in self.layers}
        for key, loss in losses.items():
            noise[names[key][0]][names[key][1]] = loss.noise
        added = sum(noise[name][mode] for name, mode in whole.items())
        return noise, float(np.clip(together / added, 0.1, 10.0)) if added else 1.0

    # --- what it costs -----------------------------------------------------------------------------------------------

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.job.samples.sample(0).items()}

    def _predict(self, modes: Mapping[str, Mode]) -> LayerTimes | str:
        model = self.search.writer.write(self.parts.plan(dict(modes)))
        return layer_times(model, self.job.source.folder, self._shapes, self.profile, self.scratch)

    @cached_property
    def _times(self) -> tuple[dict[str, dict[Mode, float]], float, str]:
        """Layer -> mode -> seconds, those of the uniform model, and why they are not predicted (empty: they are)."""
        whole: dict[str, Mode] = {name: self._options[name][0] for name in self.layers}
        stored: dict[str, Mode] = {name: "weights" for name in self.layers if name in self.job.planner.operands}
        floats = self._predict({})
        uniform, weights = self._predict(whole), self._predict(stored)
        if isinstance(floats, str) or isinstance(uniform, str) or isinstance(weights, str):
            why = next(found for found in (floats, uniform, weights) if isinstance(found, str))
            macs = {name: self.job.macs.get(name, 0.0) for name in self.layers}
            slow = {name: 0.25 if whole[name] in INTEGER_MODES else 1.0 for name in self.layers}
            counted: dict[str, dict[Mode, float]] = {
                name: {"weights": macs[name], "float": macs[name], whole[name]: slow[name] * macs[name]}
                for name in self.layers
            }
            return counted, sum(counted[name][whole[name]] for name in self.layers), why
        times: dict[str, dict[Mode, float]] = {}
        for name in self.layers:
            slow_one = floats.seconds.get(name, 0.0)
            times[name] = {
                "float": slow_one,
                "weights": weights.seconds.get(name, slow_one),
                whole[name]: uniform.seconds.get(name, slow_one),
            }
        return times, uniform.total, ""

    def _bytes(self, name: str, mode: Mode) -> float:
        size = 0.0
        for operand in self.job.planner.operands.get(name, ()):
            narrow = self.job.writer.weight_bits(operand) <= 4  # noqa: PLR2004 - two of them share a byte
            stored = 0.5 if narrow else 1.0
            size += element_count(self.job.weights.tensor(operand).dims) * (_FLOAT_BYTES if mode == "float" else stored)
        return size

    def _share(self, name: str, mode: Mode) -> float | None:
        """Return which share of what may be spent a mode takes, time and bytes together; None: it is not to be had."""
        times, total, _ = self._times
        now = self._options[name][0]
        stored = sum(self._bytes(other, self._options[other][0]) for other in self.layers)
        share = 0.0
        for more, allowed in (
            (times[name][mode] - times[name][now], (self.limits.slower - 1) * total),
            (self._bytes(name, mode) - self._bytes(name, now), (self.limits.larger - 1) * stored),
        ):
            if more > 0 and allowed <= 0:
                return None
            share += more / allowed if more > 0 else 0.0
        return share

    @cached_property
    def _shares(self) -> dict[str, dict[Mode, float]]:
        found: dict[str, dict[Mode, float]] = {}
        for name, modes in self._options.items():
            shares = {mode: self._share(name, mode) for mode in modes}
            found[name] = {mode: share for mode, share in shares.items() if share is not None}
        return found

    def _time(self, trial: Trial) -> float:
        """Return the predicted time of a trial as a multiple of the uniform model's."""
        times, total, why = self._times
        if why:
            spent = sum(times[name][trial.plan.modes.get(name, "float")] for name in self.layers)
            return spent / total if total else 1.0
        model = self.search.writer.write(trial.plan)
        found = layer_times(model, self.job.source.folder, self._shapes, self.profile, self.scratch)
        return float("inf") if isinstance(found, str) else found.total / total

    def _growth(self, trial: Trial) -> float:
        """Return the bytes of a trial's weights as a multiple of the uniform model's."""
        before, after = (
            sum(self._bytes(name, plan.modes.get(name, "float")) for name in self.layers)
            for plan in (self.uniform.plan, trial.plan)
        )
        return after / before if before else 1.0

    # --- choosing ----------------------------------------------------------------------------------------------------

    def _best(self, noise: Mapping[str, Mapping[Mode, float]], scale: float) -> tuple[Assignment, Trial, float] | None:
        """Return the best assignment that keeps to the time, its trial and its time; None when none does.

        Q and DQ between layers of different modes, and what fuses no more, take time that no layer has on its own, and
        noise does not quite add up: assignments for several shares of the limits are run. Of those that reach the aim
        the fastest is taken, else the nearest.
        """
        found: dict[tuple[int, ...], tuple[Assignment, Trial, float]] = {}
        for room in _ROOMS:
            _, reached = self._assigned(noise, scale, room)
            for tighter in range(_TRIES if reached else 1):
                assignment, _ = self._assigned(noise, scale / _TIGHTER**tighter, room)
                if assignment.options in found:
                    continue
                trial = self._tried(assignment, noise)
                found[assignment.options] = assignment, trial, self._time(trial)
                if trial.score >= self.limits.aim:
                    break
        within = [
            tried
            for tried in found.values()
            if tried[2] <= self.limits.slower + _SLACK and self._growth(tried[1]) <= self.limits.larger + _SLACK
        ]
        good = [tried for tried in within if tried[1].score >= self.limits.aim]
        if good:
            return min(good, key=lambda tried: (tried[2], -tried[1].score))
        return max(within, key=lambda tried: (tried[1].score, -tried[2]), default=None)

    def _assigned(
        self, noise: Mapping[str, Mapping[Mode, float]], scale: float, room: float
    ) -> tuple[Assignment, bool]:
        """Return the least that reaches the aim, else the best within some room; and whether the aim is reached."""
        items = [
            [(share, noise[name][mode] * scale) for mode, share in self._shares[name].items()] for name in self.layers
        ]
        found = least_cost(items, 10 ** (-self.limits.aim / 10))
        if found is not None and found.cost <= room:
            return found, True
        best = least_loss(items, room)
        assert best is not None  # the uniform plan costs nothing more
        return best, False

    def _picked(self, assignment: Assignment) -> list[tuple[str, int]]:
        picked = []
        for name, place in zip(self.layers, assignment.options, strict=True):
            picked.append((name, self._options[name].index(list(self._shares[name])[place])))
        return picked

    def _tried(self, assignment: Assignment, noise: Mapping[str, Mapping[Mode, float]]) -> Trial:
        modes, reasons = dict(self.uniform.plan.modes), dict(self.uniform.plan.reasons)
        for name, at in self._picked(assignment):
            mode = self._options[name][at]
            if at:
                alone = decibels(1.0, noise[name][modes[name]])
                reasons[name] = f"in integers it alone leaves the outputs {alone:.1f} dB, and float pays for its time"
                if modes[name] == "weights":
                    reasons[name] = f"with 8-bit weights it alone leaves the outputs {alone:.1f} dB"
            modes[name] = mode
        return self.search.attempt(modes, reasons, self.choice.method)

    def _told(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"before_db": round(self.uniform.score, 2)}
        return facts | ({"unpredicted": why} if (why := self._times[2]) else {})

    def _facts(self, assignment: Assignment, trial: Trial, time: float, predicted: float) -> dict[str, Any]:
        counts: dict[str, int] = {}
        for name in self.layers:
            mode = trial.plan.modes.get(name, "float")
            counts[mode] = counts.get(mode, 0) + 1
        return self._told() | {
            "kept": True,
            "why": "the outputs lie nearer for the time and bytes",
            "after_db": round(trial.score, 2),
            "predicted_db": round(decibels(1.0, predicted), 2),
            "time": round(time, 3),
            "bytes": round(self._growth(trial), 3),
            "exact": assignment.exact,
            "layers": dict(sorted(counts.items())),
        }
